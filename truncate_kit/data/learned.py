"""Which pairs a model learned from or was chosen by, noted beside its result in eight bytes each.

A fingerprint names a set as long as no row of it changes or moves; these know each pair again, wherever it stands.
"""

import hashlib
from collections.abc import Container, Iterable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from truncate_kit.data.types import PairSplits, TextPair
from truncate_kit.files import read_bytes, replacing

Keys = NDArray[np.uint64]
_HEAD = "truncate-kit pairs 1"


def pair_key(first: str, second: str) -> int:
    """The first eight bytes of a digest of both texts, in either order: a cosine does not depend on their sides.

    Texts are compared character by character; the score says nothing. That one of a thousand pairs has by chance the
    key of one of a million others happens once in 10¹⁰ times.
    """
    one, other = sorted((first, second))
    text = f"{len(one)} {one} {other}".encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")


def pair_keys(pairs: Iterable[TextPair]) -> Keys:
    """The key of each pair, in order, (n,)."""
    return np.array([pair_key(pair.first, pair.second) for pair in pairs], dtype=np.uint64)


def learned_file(result: Path) -> Path:
    """Where the pairs behind a result, such as sweep.json, are noted."""
    return result.with_suffix(".pairs")


def note_learned(result: Path, name: str, *pairs: Iterable[TextPair], texts: Iterable[frozenset[str]] = ()) -> None:
    """Note pairs beside a result that is to be written.

    Args:
        result: Its file.
        name: Of what was learned from, by which `read_learned` knows that they belong to that very result.
        pairs: Sets of them.
        texts: More pairs, each as the set of its texts.

    Raises:
        FileProblemError: They cannot be written.
    """
    keys = np.concatenate([*map(pair_keys, pairs), _keys_of(texts)]).astype("<u8")
    keys = np.unique(keys)
    with replacing(learned_file(result)) as target:
        target.write_bytes(_head(name, keys.tobytes()) + b"\n" + keys.tobytes())


def _head(name: str, keys: bytes) -> bytes:
    """The first line: what the keys are of, and a digest of them that shows damage."""
    return f"{_HEAD}, {name}, {hashlib.sha256(keys).hexdigest()}".encode()


class KnownPairs(Container[frozenset[str]]):
    """Whether a pair, as the set of its texts, is one of those that these keys are of."""

    def __init__(self, keys: Keys) -> None:
        self._keys = frozenset(keys.tolist())

    def __contains__(self, pair: object) -> bool:
        texts = sorted(pair) if isinstance(pair, frozenset) else []
        return len(texts) in (1, 2) and pair_key(texts[0], texts[-1]) in self._keys


def _keys_of(texts: Iterable[frozenset[str]]) -> Keys:
    return np.array([pair_key(*one) for one in texts if len(one) == 2], dtype=np.uint64)


def read_learned(result: Path, name: str) -> Keys | None:
    """The keys beside a result, rising; None where there are none, they belong to another one, or are damaged."""
    try:
        head, _, rest = read_bytes(learned_file(result)).partition(b"\n")
    except OSError:
        return None
    if head != _head(name, rest):
        return None
    return np.frombuffer(rest, dtype="<u8").astype(np.uint64)


def without_learned(splits: PairSplits, keys: Keys) -> tuple[PairSplits, int]:
    """The splits with those of the pairs to measure on that are not among `keys`, and how many were."""
    pairs, name = splits.evaluation, splits.items()[-1][0]
    known = np.isin(pair_keys(pairs), keys)
    kept = tuple(pair for pair, seen in zip(pairs, known, strict=True) if not seen)
    return splits.with_split(name, kept), int(known.sum())
