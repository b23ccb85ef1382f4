"""Pairs of texts known by eight bytes each, and files of such keys.

A fingerprint names a set as long as no row of it changes or moves; these know each pair again, wherever it stands.
"""

import hashlib
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from truncate_kit.files import read_bytes, replacing

Keys = NDArray[np.uint64]
"""Rising, each once, (n,)."""
NO_KEYS: Keys = np.empty(0, np.uint64)
SEEN_FILE = "seen.pairs"
"""In a model's folder: what the model learned from and was chosen by, also what it was made from."""
_HEAD, _SEEN = "truncate-kit pairs 1", "seen"
_MOST = 800_000_000  # bytes: a hundred million pairs; a folder of somebody else's may hold a file of any size


def pair_key(first: str, second: str) -> int:
    """The first eight bytes of a digest of both texts, in either order: a cosine does not depend on their sides.

    Texts are compared character by character; the score says nothing. That one of a thousand pairs has by chance the
    key of one of a million others happens once in 10¹⁰ times.
    """
    one, other = sorted((first, second))
    text = f"{len(one)} {one} {other}".encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")


def numbers_of(pairs: Iterable[tuple[str, str]]) -> NDArray[np.int64]:
    """The number of each pair, (n,), counted as they first appear: the same texts in either order have the same."""
    seen: dict[int, int] = {}
    return np.array([seen.setdefault(pair_key(*pair), len(seen)) for pair in pairs], np.int64)


def merged(*keys: Keys) -> Keys:
    """All of them, rising, each once."""
    return np.unique(np.concatenate([NO_KEYS, *keys])).astype(np.uint64)


def write_keys(path: Path, name: str, keys: Keys) -> None:
    """Write keys under the name by which `read_keys` knows whose they are. Raises `FileProblemError`."""
    content = keys.astype("<u8").tobytes()
    with replacing(path) as target:
        target.write_bytes(_head(name, content) + b"\n" + content)


def read_keys(path: Path, name: str) -> Keys | None:
    """The keys in a file; None where there is none, it belongs to something else, is damaged, or absurdly large."""
    try:
        if path.stat().st_size > _MOST:
            return None
        head, _, rest = read_bytes(path).partition(b"\n")
    except OSError:
        return None
    if head != _head(name, rest):
        return None
    return np.frombuffer(rest, dtype="<u8").astype(np.uint64)


def _head(name: str, keys: bytes) -> bytes:
    """The first line: what the keys are of, and a digest of them that shows damage."""
    return f"{_HEAD}, {name}, {hashlib.sha256(keys).hexdigest()}".encode()


def write_seen(folder: Path, keys: Keys) -> None:
    """Note in a model's folder what it has seen; nothing where that is nothing. Raises `FileProblemError`."""
    if len(keys):
        write_keys(folder / SEEN_FILE, _SEEN, keys)


def read_seen(folder: Path) -> Keys | None:
    """What is noted in a model's folder; None where nothing is, or the note is damaged."""
    return read_keys(folder / SEEN_FILE, _SEEN)
