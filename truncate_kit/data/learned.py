"""Which pairs a model learned from or was chosen by, noted beside its result and in its folder by their keys."""

from collections.abc import Container, Iterable, Mapping
from pathlib import Path

import numpy as np

from truncate_kit.data.types import PairSet, PairSplits, TextPair
from truncate_kit.files import name_without_folders
from truncate_kit.pair_keys import Keys, merged, pair_key, read_keys, write_keys
from truncate_kit.wording import counted


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
    write_keys(learned_file(result), name, keys_of(*pairs, texts=texts))


def keys_of(*pairs: Iterable[TextPair], texts: Iterable[frozenset[str]] = ()) -> Keys:
    """The keys of sets of pairs, and of more pairs, each as the set of its texts; rising, each once."""
    return merged(*map(pair_keys, pairs), _keys_of(texts))


def query_keys(queries: Iterable[str]) -> Keys:
    """The key of each query that taught or chose a model, in order, (n,): that of a pair with nothing beside it."""
    return np.array([pair_key(query, "") for query in queries], dtype=np.uint64)


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
    return read_keys(learned_file(result), name)


def seen_before(pairs: PairSet, models: Mapping[str, Keys]) -> str:
    """A sentence for each model that has seen some of the pairs to measure on; empty where none has.

    Args:
        pairs: Those to measure on.
        models: What each learned from or was chosen by, by its name.
    """
    here = pair_keys(pairs)
    counts = {model: int(np.isin(here, keys).sum()) for model, keys in models.items()}
    return " ".join(
        f"{name_without_folders(model)} was trained on or chosen by {known:,} of {counted(len(here), 'pair')} of "
        f"{pairs.name} before: the score there may flatter what is made from it."
        for model, known in counts.items()
        if known
    )


def without_learned(splits: PairSplits, keys: Keys) -> tuple[PairSplits, int]:
    """The splits with those of the pairs to measure on that are not among `keys`, and how many were."""
    pairs, name = splits.evaluation, splits.items()[-1][0]
    known = np.isin(pair_keys(pairs), keys)
    kept = tuple(pair for pair, seen in zip(pairs, known, strict=True) if not seen)
    return splits.with_split(name, kept), int(known.sum())
