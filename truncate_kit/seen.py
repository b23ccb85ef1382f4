"""Pairs of texts that a model has learned from or was chosen by: `seen.pairs` in its folder.

A pair is known by eight bytes, wherever it stands and whichever text comes first. A fingerprint of a set changes with
any row; these keys know each pair again.
"""

import hashlib
from collections.abc import Container, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from truncate_kit.errors import DataError
from truncate_kit.files import name_without_folders, replacing
from truncate_kit.origin import model_folder, read_origin
from truncate_kit.wording import counted

if TYPE_CHECKING:
    from truncate_kit.data.retrieval import RetrievalSet
    from truncate_kit.data.types import PairSet, PairSplits, TextPair

Keys = NDArray[np.uint64]
"""Rising, each once, (n,)."""
NO_KEYS: Keys = np.empty(0, np.uint64)
SEEN_FILE = "seen.pairs"
_HEAD = "truncate-kit pairs 1, seen, "  # then the SHA-256 of the keys, which shows damage
_MOST = 800_000_000  # bytes: a hundred million pairs; a folder of somebody else's may hold a file of any size
_FEWEST = 3  # pairs of which there is a correlation


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


class KnownPairs(Container[frozenset[str]]):
    """Whether a pair, as the set of its texts, is one of those that these keys are of."""

    def __init__(self, keys: Keys) -> None:
        self._keys = frozenset(keys.tolist())

    def __contains__(self, pair: object) -> bool:
        texts = sorted(pair) if isinstance(pair, frozenset) else []
        return len(texts) in (1, 2) and pair_key(texts[0], texts[-1]) in self._keys


def seen_pairs(model: str | Path) -> KnownPairs | None:
    """Return the pairs that a model has seen, for suites; None where its folder notes none."""
    keys = seen_by(model)
    return KnownPairs(keys) if len(keys) else None


def seen_before(pairs: "PairSet", models: Mapping[str, Keys]) -> str:
    """Return a sentence for each model that has seen some of the pairs to measure on; empty where none has.

    Args:
        pairs: Those to measure on.
        models: What each has seen, by its name.
    """
    here = pair_keys(pairs)
    counts = {model: int(np.isin(here, keys).sum()) for model, keys in models.items()}
    return " ".join(
        f"{name_without_folders(model)} was trained on or chosen by {known:,} of {counted(len(here), 'pair')} of "
        f"{pairs.name} before: the score there may flatter what is made from it."
        for model, known in counts.items()
        if known
    )


def without_seen(splits: "PairSplits", keys: Keys) -> "tuple[PairSplits, int]":
    """Return the splits without those of the pairs to measure on that are among `keys`, and how many were."""
    pairs, name = splits.evaluation, splits.items()[-1][0]
    known = np.isin(pair_keys(pairs), keys)
    kept = tuple(pair for pair, seen in zip(pairs, known, strict=True) if not seen)
    left = {name: replace(pairs, pairs=kept)}
    return replace(splits, **left), int(known.sum())  # type: ignore[arg-type]  # a split by its name


def unseen(splits: "PairSplits", model: str | Path) -> "PairSplits":
    """Return `splits` without the pairs to measure on that a model has seen; its notes say how many these are.

    A set that training divided is divided again as it was. Raises `DataError` where next to nothing is left.
    """
    seen = seen_by(model)
    if not len(seen):
        return splits
    splits, learned = _as_learned(splits, seen, model)
    number = len(splits.evaluation)
    kept, known = without_seen(splits, np.setdiff1d(seen, learned))
    if not known:
        return splits
    out = f"{known:,} of {counted(number, 'pair')} of {splits.name} {'is' if known == 1 else 'are'} left out"
    said = f"{out}: {model} was trained on them or chosen by them. That leaves {counted(number - known, 'pair')}."
    if number - known < _FEWEST:
        raise DataError(said, hint="Name another set as `data`.")
    return replace(kept, notes=(*kept.notes, said))


def _as_learned(splits: "PairSplits", seen: Keys, model: str | Path) -> "tuple[PairSplits, Keys]":
    """Return a set that a model learned from divided as it was then, and the keys of its train and dev."""
    from truncate_kit.data.pairs import complete_splits, splits_for

    try:
        divided = complete_splits(splits)
    except DataError:  # no train split, or too few pairs to have been trained on
        return splits, NO_KEYS
    origin = read_origin(model)
    same = origin is not None and origin.fingerprint == divided.fingerprint()
    if same and origin is not None and origin.seed is not None:
        divided = splits_for(divided, origin.seed)
    parts = [pairs for name, pairs in divided.items() if name != "test"]
    learned = keys_of(*parts)
    if len(parts) < 2 or not (same or np.isin(learned, seen).all()):
        return splits, NO_KEYS
    if splits.test is not None or splits.train is None:  # the test split is as it was given, repeats too
        return splits, learned
    new = divided.notes[len(splits.notes) if splits.shares is None else 0 :]
    said = (f"{note} {model} was trained on or chosen by the rest: only test counts." for note in new)
    return replace(divided, notes=(*splits.notes, *said)), learned


def seen_among(data: "PairSet | RetrievalSet", model: str | Path) -> str | None:
    """Return a sentence that says how many of these pairs or queries a model has seen; None where it has seen none."""
    from truncate_kit.data.types import PairSet

    of_pairs = isinstance(data, PairSet)
    here = pair_keys(data) if isinstance(data, PairSet) else query_keys(data.queries)
    known = int(np.isin(here, seen_by(model)).sum())
    if known:
        part = f"{known:,} of these {counted(len(here), *(('pair',) if of_pairs else ('query', 'queries')))}"
        return f"{model} was trained on or chosen by {part}: a score on them says little of others."
    origin = read_origin(model) if isinstance(data, PairSet) else None
    if origin is not None and origin.method == "combine" and origin.fingerprint == data.fingerprint():
        return f"The layers of {model} were chosen on a part of these pairs."
    return None


def unseen_queries(data: "RetrievalSet", *models: str | Path) -> "tuple[RetrievalSet, str | None]":
    """Return the queries that none of these models has seen, and a sentence on the others, if any.

    Raises `DataError` where none is left.
    """
    from truncate_kit.data.retrieval import with_queries

    said, kept = list[str](), data
    for model in models:
        known = np.isin(query_keys(kept.queries), seen_by(model))
        if known.any():
            part = f"{int(known.sum()):,} of {counted(len(known), 'query', 'queries')} of {data.name}"
            said.append(f"{model} was trained on or chosen by {part}: only the others count.")
            if known.all():
                raise DataError(said[-1], hint="Name another set as `data`.")
            left = {query for query, was in zip(kept.queries, known.tolist(), strict=True) if not was}
            kept = with_queries(data, [place for place, query in enumerate(data.queries) if query in left])
    return kept, " ".join(said) or None
