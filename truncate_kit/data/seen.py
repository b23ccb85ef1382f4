"""Record which pairs and queries a model was trained or selected on, as keys of eight bytes in `seen.pairs`."""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from truncate_kit.core.errors import DataError
from truncate_kit.core.files import name_without_folders, replacing
from truncate_kit.core.workspace import model_folder, read_origin

if TYPE_CHECKING:
    from truncate_kit.data.pairs import PairSet, PairSplits, TextPair
    from truncate_kit.data.retrieval import RetrievalSet

Keys = NDArray[np.uint64]
"""Keys of pairs or queries, (n,)."""
NO_KEYS: Keys = np.empty(0, np.uint64)
SEEN_FILE = "seen.pairs"


def pair_key(first: str, second: str) -> int:
    """Return a 64-bit hash of two texts in any order."""
    one, other = sorted((first, second))
    text = f"{len(one)} {one} {other}".encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")


def numbers_of(pairs: Iterable[tuple[str, str]]) -> NDArray[np.int64]:
    """Return the number of each pair, in any order, by first appearance, (n,)."""
    numbers: dict[int, int] = {}
    return np.array([numbers.setdefault(pair_key(*pair), len(numbers)) for pair in pairs], np.int64)


def merged(*keys: Keys) -> Keys:
    """Return the distinct keys of all arrays, sorted."""
    return np.unique(np.concatenate([NO_KEYS, *keys])).astype(np.uint64)


def text_keys(pairs: Iterable[tuple[str, str]]) -> Keys:
    """Return one key per pair of texts, (n,)."""
    return np.array([pair_key(*pair) for pair in pairs], dtype=np.uint64)


def pair_keys(pairs: "Iterable[TextPair]") -> Keys:
    """Return the key of each pair, (n,)."""
    return text_keys((pair.first, pair.second) for pair in pairs)


def keys_of(*pairs: "Iterable[TextPair]") -> Keys:
    """Return the distinct keys of all pairs, sorted."""
    return merged(*map(pair_keys, pairs))


def query_keys(queries: Iterable[str]) -> Keys:
    """Return the key of each query, (n,)."""
    return text_keys((query, "") for query in queries)


# The file


def write_seen(folder: Path, keys: Keys) -> None:
    """Write the keys, if any, to a model's folder. Raises `FileProblemError`."""
    if len(keys):
        content = keys.astype("<u8").tobytes()
        with replacing(folder / SEEN_FILE) as target:
            target.write_bytes(_head(content) + content)


def seen_by(model: str | Path) -> Keys:
    """Return the keys in a model's folder; empty if the file is missing or damaged."""
    folder = model_folder(model)
    if folder is None or not (folder / SEEN_FILE).is_file():
        return NO_KEYS
    head, end, keys = (folder / SEEN_FILE).read_bytes().partition(b"\n")
    return np.frombuffer(keys, dtype="<u8").astype(np.uint64) if head + end == _head(keys) else NO_KEYS


def _head(keys: bytes) -> bytes:
    return f"truncate-kit pairs 1, seen, {hashlib.sha256(keys).hexdigest()}\n".encode()


# Measuring


def seen_note(keys: Keys, description: str, models: Mapping[Any, Keys]) -> str:
    """Return one sentence for each model that was trained or selected on some of these keys.

    description: such as "pairs of stsb/en".
    """
    notes = list[str]()
    for model, seen in models.items():
        if known := int(np.isin(keys, seen).sum()):
            count = f"{known:,} of {len(keys):,} {description}"
            part = f"{name_without_folders(str(model))} was trained or selected on {count}"
            notes.append(f"{part}: scores on these are optimistic.")
    return " ".join(notes)


def seen_before(pairs: "PairSet", models: Mapping[str, Keys]) -> str:
    """Return the `seen_note` of these pairs."""
    return seen_note(pair_keys(pairs), f"pairs of {pairs.name}", models)


def without_seen(splits: "PairSplits", keys: Keys) -> "tuple[PairSplits, int]":
    """Drop pairs with these keys from the evaluation split; also return their number."""
    pairs, name = splits.evaluation, splits.items()[-1][0]
    known = np.isin(pair_keys(pairs), keys)
    kept = tuple(pair for pair, seen in zip(pairs, known, strict=True) if not seen)
    changed: dict[str, Any] = {name: replace(pairs, pairs=kept)}
    return replace(splits, **changed), int(known.sum())


def unseen(splits: "PairSplits", model: str | Path) -> "PairSplits":
    """Drop evaluation pairs that a model was trained or selected on; `notes` states how many.

    A set that training split is first split alike. Raises `DataError` if fewer than three pairs are left.
    """
    seen = seen_by(model)
    if not len(seen):
        return splits
    splits, learned = _as_learned(splits, seen, model)
    number = len(splits.evaluation)
    kept, known = without_seen(splits, np.setdiff1d(seen, learned))
    if not known:
        return splits
    note = f"{known:,} of {number:,} pairs of {splits.name} are skipped: {model} was trained or selected on them"
    note = f"{note}. That leaves {number - known:,} pairs."
    if number - known < 3:
        raise DataError(note, hint="Give another data set as `data`.")
    return replace(kept, notes=(*kept.notes, note))


def _as_learned(splits: "PairSplits", seen: Keys, model: str | Path) -> "tuple[PairSplits, Keys]":
    """Split a set as in training; also return the keys of train and dev."""
    from truncate_kit.data.pairs import complete_splits, splits_for

    try:
        divided = complete_splits(splits)
    except DataError:  # training would have failed, too
        return splits, NO_KEYS
    origin = read_origin(model)
    same = origin is not None and origin.fingerprint == divided.fingerprint()
    if same and origin is not None and origin.seed is not None:
        divided = splits_for(divided, origin.seed)
    parts = [pairs for name, pairs in divided.items() if name != "test"]
    learned = keys_of(*parts)
    if len(parts) < 2 or not (same or np.isin(learned, seen).all()):
        return splits, NO_KEYS
    if splits.test is not None or splits.train is None:  # an existing test split stays whole
        return splits, learned
    new = divided.notes[len(splits.notes) if splits.shares is None else 0 :]
    notes = (f"{note} {model} was trained or selected on train and dev: only test is scored." for note in new)
    return replace(divided, notes=(*splits.notes, *notes)), learned


def seen_among(data: "PairSet | RetrievalSet", model: str | Path) -> str | None:
    """Return a warning if a model was trained or selected on some of these."""
    from truncate_kit.data.pairs import PairSet

    kind, keys = ("pairs", pair_keys(data)) if isinstance(data, PairSet) else ("queries", query_keys(data.queries))
    if note := seen_note(keys, f"{kind} of {data.name}", {model: seen_by(model)}):
        return note
    origin = read_origin(model) if isinstance(data, PairSet) else None
    if origin is not None and origin.method == "combine" and origin.fingerprint == data.fingerprint():
        return f"The layers of {model} were selected on some of these pairs."
    return None


def unseen_queries(data: "RetrievalSet", *models: str | Path) -> "tuple[RetrievalSet, str | None]":
    """Drop queries that a model has seen, and return a note on them. Raises `DataError` if no query is left."""
    from truncate_kit.data.retrieval import with_queries

    keys, seen = query_keys(data.queries), {model: seen_by(model) for model in models}
    if not (notes := seen_note(keys, f"queries of {data.name}", seen)):
        return data, None
    fresh = np.flatnonzero(~np.isin(keys, merged(*seen.values())))
    if not len(fresh):
        raise DataError(notes, hint="Give another data set as `data`.")
    return with_queries(data, fresh.tolist(), "(unseen)"), f"{notes} Only the other queries are scored."
