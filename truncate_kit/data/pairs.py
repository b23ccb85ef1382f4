"""Tables as sentence pairs with graded scores, all on one scale."""

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from truncate_kit.data.cells import score_of, texts_of
from truncate_kit.data.columns import find_columns
from truncate_kit.data.given import check_place
from truncate_kit.data.scales import USUAL_SCALES, Scale, given_scale, infer_scale
from truncate_kit.data.tables import Table, read_table
from truncate_kit.data.types import PairSet, TextPair
from truncate_kit.errors import ColumnsError, RowError, UsageError

_LEAST_REACH = 1e-6  # share of the scale that scores have to spread over: float32 holds seven digits


def read_pairs(
    path: str | Path, *, columns: Sequence[str] | None = None, scale: Sequence[float] | None = None
) -> PairSet:
    """Read one file of sentence pairs; columns, scale and errors as in `load_pairs`."""
    check_place(path)
    path = Path(path)
    known = None if scale is None else given_scale(scale)
    return pair_sets(short_name(path), {"train": read_table(path)}, columns, known)["train"]


def short_name(path: Path) -> str:
    """The last two parts, "stsb/en": enough to recognise the set, and no user's home folder in a model card."""
    with contextlib.suppress(ValueError):  # a null character
        path = path.resolve()
    return "/".join(path.parts[-2:])


def pair_sets(
    name: str, tables: Mapping[str, Table], columns: Sequence[str] | None, scale: Scale | None
) -> dict[str, PairSet]:
    """The pairs of each table, all on one scale: the given one, or the one inferred from all of them."""
    names = {split: find_columns(table.source, tuple(table.columns), columns) for split, table in tables.items()}
    pairs = {split: _pairs(table, names[split]) for split, table in tables.items()}
    scale = scale or infer_scale(pair.target for split in pairs.values() for pair in split)
    if scale is None:
        raise _without_scale(tables, pairs)
    for split, table in tables.items():
        _check_scale(table, pairs[split], scale)
    _check_width([pair for split in pairs.values() for pair in split], scale)
    return {
        split: PairSet(
            name=name if len(tables) == 1 else f"{name}/{split}",
            pairs=tuple(pairs[split]),
            scale=(scale.low, scale.high),
            scale_source=scale.source,
            num_scale_values=scale.num_values,
            path=table.source,
            columns=names[split],
        )
        for split, table in tables.items()
    }


def _pairs(table: Table, names: tuple[str, str, str]) -> list[TextPair]:
    first, second, score = names
    texts = zip(texts_of(table, first), texts_of(table, second), strict=True)
    try:
        scores = (score_of(table, row, score, value) for row, value in enumerate(table.columns[score]))
        return [TextPair(left, right, target) for (left, right), target in zip(texts, scores, strict=True)]
    except RowError:
        if _holds_words(table.columns[score]):
            raise ColumnsError(
                table.source,
                f"column {score!r} holds words such as {table.columns[score][0]!r}, not scores.",
                table.columns,
                hint='A class is no score: name a column of numbers, `columns=("first", "second", "score")`.',
            ) from None
        raise


def _holds_words(values: Sequence[Any]) -> bool:
    """Whether a whole column is made of words such as "entailment": a class, not a score with one slip."""
    return all(isinstance(value, str) and value.strip().replace("_", "").isalpha() for value in values)


def _check_scale(table: Table, pairs: Sequence[TextPair], scale: Scale) -> None:
    for row, pair in enumerate(pairs):
        if not scale.holds(pair.target):
            raise table.problem(
                row,
                f"the score {pair.target:g} is outside the scale {scale.low:g} to {scale.high:g} ({scale.source}).",
                hint="Mend the row, or give the lowest and the highest possible score as `scale`.",
            )


def _check_width(pairs: Sequence[TextPair], scale: Scale) -> None:
    """Raise `UsageError` where a given scale is so wide that all scores become the same number on it."""
    scores = [pair.target for pair in pairs]
    reach = max(scores) - min(scores)
    if 0 < reach < _LEAST_REACH * (scale.high - scale.low):
        raise UsageError(
            f"All scores lie within {reach:g}, on a scale from {scale.low:g} to {scale.high:g}: they would be equal.",
            hint=f"Give the lowest and the highest possible score as `scale`, such as ({min(scores):g}, "
            f"{max(scores):g}).",
        )


def _without_scale(tables: Mapping[str, Table], pairs: Mapping[str, Sequence[TextPair]]) -> RowError:
    low, high = USUAL_SCALES[-1]
    _, split, row = max(
        (max(low - pair.target, pair.target - high), split, row)
        for split in tables
        for row, pair in enumerate(pairs[split])
    )
    usual = ", ".join(f"{bottom:g}–{top:g}" for bottom, top in USUAL_SCALES)
    return tables[split].problem(
        row,
        f"the score {pairs[split][row].target:g} fits no usual scale ({usual}).",
        hint="Mend the row, or give the lowest and the highest possible score as `scale`.",
    )
