"""Which pairs and queries of a set a model has seen: left out where it is measured, and counted."""

from collections.abc import Container, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from truncate_kit.core.errors import DataError
from truncate_kit.core.files import name_without_folders
from truncate_kit.core.origin import read_origin
from truncate_kit.core.wording import counted

if TYPE_CHECKING:
    from truncate_kit.data.retrieval import RetrievalSet
    from truncate_kit.data.types import PairSet, PairSplits
from truncate_kit.core.seen import NO_KEYS, Keys, keys_of, pair_key, pair_keys, query_keys, seen_by

_FEWEST = 3  # pairs of which there is a correlation


class KnownPairs(Container[frozenset[str]]):
    """Whether a pair, as the set of its texts, is one of those that these keys are of."""

    def __init__(self, keys: Keys) -> None:
        self._keys = frozenset(keys.tolist())

    def __contains__(self, pair: object) -> bool:
        texts = sorted(pair) if isinstance(pair, frozenset) else []
        return len(texts) in (1, 2) and pair_key(texts[0], texts[-1]) in self._keys


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


def seen_pairs(model: str | Path) -> KnownPairs | None:
    """Return the pairs that a model has seen, for suites; None where its folder notes none."""
    keys = seen_by(model)
    return KnownPairs(keys) if len(keys) else None
