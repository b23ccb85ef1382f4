"""Pairs with a class instead of a graded score, such as entailment, neutral and contradiction."""

from collections.abc import Mapping, Sequence

from truncate_kit.data.cells import text_of, texts_of
from truncate_kit.data.columns import find_columns
from truncate_kit.data.tables import Table
from truncate_kit.data.types import PairSet, TextPair
from truncate_kit.errors import ColumnsError, DataError

MOST_CLASSES = 20  # more values than this are scores, ids or texts rather than classes


def class_sets(name: str, tables: Mapping[str, Table], columns: Sequence[str] | None) -> dict[str, PairSet]:
    """The pairs of each table; targets are places in `classes`, the sorted names that train holds (else all tables)."""
    names = {
        split: find_columns(table.source, tuple(table.columns), columns, classes=True)
        for split, table in tables.items()
    }
    labels = {split: _labels(table, names[split][2]) for split, table in tables.items()}
    known = labels["train"] if "train" in labels else [label for split in labels.values() for label in split]
    classes = tuple(sorted(set(known)))
    if len(classes) < 2:
        raise DataError(f"{name} holds one class only, {classes[0]!r}.", hint="A classifier needs at least two.")
    place = {label: index for index, label in enumerate(classes)}
    return {
        split: PairSet(
            name=name if len(tables) == 1 else f"{name}/{split}",
            pairs=_pairs(table, names[split], labels[split], place),
            scale=(0.0, len(classes) - 1.0),
            path=table.source,
            columns=names[split],
            classes=classes,
        )
        for split, table in tables.items()
    }


def _labels(table: Table, column: str) -> list[str]:
    labels = [text_of(table, row, column, _written(value)) for row, value in enumerate(table.columns[column])]
    if len(set(labels)) > MOST_CLASSES:
        raise ColumnsError(
            table.source,
            f"column {column!r} holds {len(set(labels)):,} different values, too many for classes.",
            table.columns,
            hint='Name the column of the classes: `columns=("first", "second", "class")`.',
        )
    return labels


def _written(value: object) -> object:
    """A whole number as its digits, also where a column of them was read as 1.0."""
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value) if isinstance(value, int) else value


def _pairs(
    table: Table, names: tuple[str, str, str], labels: Sequence[str], place: Mapping[str, int]
) -> tuple[TextPair, ...]:
    rows = zip(texts_of(table, names[0]), texts_of(table, names[1]), labels, strict=True)
    pairs = []
    for row, (first, second, label) in enumerate(rows):
        if label not in place:
            raise table.problem(
                row,
                f"the class {label!r} is not among those of train ({', '.join(place)}).",
                hint="Mend the row or remove it.",
            )
        pairs.append(TextPair(first, second, float(place[label])))
    return tuple(pairs)
