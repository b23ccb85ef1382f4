"""Pairs of texts that a model has learned from or was chosen by: `seen.pairs` in its folder.

A pair is known by eight bytes, wherever it stands and whichever text comes first. A fingerprint of a set changes with
any row; these keys know each pair again.
"""

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from truncate_kit.core.files import replacing
from truncate_kit.core.origin import model_folder

if TYPE_CHECKING:
    from truncate_kit.data.types import TextPair

Keys = NDArray[np.uint64]


"""Rising, each once, (n,)."""


NO_KEYS: Keys = np.empty(0, np.uint64)


SEEN_FILE = "seen.pairs"


_HEAD = "truncate-kit pairs 1, seen, "  # then the SHA-256 of the keys, which shows damage


_MOST = 800_000_000  # bytes: a hundred million pairs; a folder of somebody else's may hold a file of any size


def pair_key(first: str, second: str) -> int:
    """Return the first eight bytes of a digest of both texts, in either order; the score says nothing.

    That one of a thousand pairs has by chance the key of one of a million others happens once in 10¹⁰ times.
    """
    one, other = sorted((first, second))
    text = f"{len(one)} {one} {other}".encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")


def numbers_of(pairs: Iterable[tuple[str, str]]) -> NDArray[np.int64]:
    """Number pairs as they first appear, (n,); the same texts in either order have the same number."""
    seen: dict[int, int] = {}
    return np.array([seen.setdefault(pair_key(*pair), len(seen)) for pair in pairs], np.int64)


def merged(*keys: Keys) -> Keys:
    """Return all keys, rising, each once."""
    return np.unique(np.concatenate([NO_KEYS, *keys])).astype(np.uint64)


def pair_keys(pairs: "Iterable[TextPair]") -> Keys:
    """Return the key of each pair, in order, (n,)."""
    return np.array([pair_key(pair.first, pair.second) for pair in pairs], dtype=np.uint64)


def keys_of(*pairs: "Iterable[TextPair]", texts: Iterable[frozenset[str]] = ()) -> Keys:
    """Return the keys of sets of pairs, and of more pairs, each as the set of its texts; rising, each once."""
    more = np.array([pair_key(*one) for one in texts if len(one) == 2], dtype=np.uint64)
    return merged(*map(pair_keys, pairs), more)


def query_keys(queries: Iterable[str]) -> Keys:
    """Return the key of each query that taught or chose a model, in order, (n,)."""
    return np.array([pair_key(query, "") for query in queries], dtype=np.uint64)


def write_seen(folder: Path, keys: Keys) -> None:
    """Note in a model's folder what it has seen; nothing where that is nothing. Raises `FileProblemError`."""
    if len(keys):
        content = keys.astype("<u8").tobytes()
        with replacing(folder / SEEN_FILE) as target:
            target.write_bytes(_head(content) + content)


def read_seen(folder: Path) -> Keys | None:
    """Return what is noted in a model's folder; None where nothing is, or the note is damaged or absurdly large."""
    path = folder / SEEN_FILE
    try:
        if path.stat().st_size > _MOST:
            return None
        head, end, keys = path.read_bytes().partition(b"\n")
    except OSError:
        return None
    return np.frombuffer(keys, dtype="<u8").astype(np.uint64) if head + end == _head(keys) else None


def _head(keys: bytes) -> bytes:
    return f"{_HEAD}{hashlib.sha256(keys).hexdigest()}\n".encode()


def seen_by(model: str | Path) -> Keys:
    """Return what a model has seen, as its folder notes it; empty where it notes nothing. A graph is its model."""
    folder = model_folder(model)
    found = None if folder is None else read_seen(folder)
    return NO_KEYS if found is None else found
