"""Pairs that a caller gives: one set or several splits, as it is wanted."""

from collections.abc import Iterable
from os import PathLike
from typing import Any

from truncate_kit.data.types import PairSet, PairSplits, TextPair, check_scores
from truncate_kit.errors import UsageError

_FRAME = "a data frame is written to a file first, as by frame.to_csv(path, index=False)."


def check_place(place: object) -> None:
    """Raise `UsageError` where data are no name and no path."""
    if not isinstance(place, str | PathLike):
        raise UsageError(
            f"Data are loaded by a name or a path, not from {_called(place)}.",
            hint=f"Give a path: {_FRAME}",
        )


def check_splits(data: object, name: str = "data") -> None:
    """Raise `UsageError` where `data` are not the splits of a set.

    Args:
        data: What has to be the splits of a set.
        name: Of the parameter.
    """
    if not isinstance(data, PairSplits):
        raise UsageError(
            f"Splits of a set of pairs are needed as `{name}`, not {_called(data)}.",
            hint=f"load_pairs(path) gives them; {_FRAME}",
        )


def check_set(pairs: object, name: str = "pairs") -> None:
    """Raise `UsageError` where `pairs` are not one set of pairs.

    Args:
        pairs: What has to be one set of pairs.
        name: Of the parameter.
    """
    _check_no_splits(pairs, name)
    if not isinstance(pairs, PairSet):
        raise UsageError(
            f"A set of pairs is needed as `{name}`, not {_called(pairs)}.",
            hint=f"read_pairs(path) gives one; {_FRAME}",
        )


def listed_pairs(pairs: Iterable[TextPair]) -> list[TextPair]:
    """The pairs of a set, or single ones, as a list.

    Raises `UsageError` for several splits and for what are no pairs, `DataError` for scores that are no numbers.
    """
    _check_no_splits(pairs)
    found: list[Any] = list(pairs) if isinstance(pairs, Iterable) else [pairs]
    wrong = next((place for place, pair in enumerate(found, start=1) if not isinstance(pair, TextPair)), None)
    if wrong is not None:
        raise UsageError(
            f"Graded pairs are needed as `pairs`; number {wrong:,} of those given is {_called(found[wrong - 1])}.",
            hint=f"Give a TextPair for each, or the set that read_pairs(path) gives; {_FRAME}",
        )
    if not isinstance(pairs, PairSet):  # which was checked when it was made
        check_scores(pair.target for pair in found)
    return found


def _check_no_splits(pairs: object, name: str = "pairs") -> None:
    if isinstance(pairs, PairSplits):
        *_, (split, _) = pairs.items()
        raise UsageError(
            f"{pairs.name} is several splits of pairs where one set is needed.",
            hint=f"Give one of them as `{name}`, such as its `{split}`.",
        )


def _called(value: object) -> str:
    """A value by its type."""
    kinds = {PairSet: "a single set", PairSplits: "several splits"}
    return kinds.get(type(value), f"an object of the type {type(value).__name__}")
