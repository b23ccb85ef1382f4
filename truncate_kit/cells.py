"""Tables as text, for whoever draws them."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

NONE = "–"


class TableCells(NamedTuple):
    """A title, the names of the columns, and the rows as text."""

    title: str
    columns: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]

    def filled(self) -> "TableCells":
        """Without the columns in which nothing stands."""
        full = [at for at in range(len(self.columns)) if at == 0 or any(row[at] not in ("", NONE) for row in self.rows)]
        rows = [tuple(row[at] for at in full) for row in self.rows]
        return TableCells(self.title, tuple(self.columns[at] for at in full), rows)


def markdown(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown, without the end of its last line; cells stand in it as they are."""
    head = f"| {' | '.join(columns)} |" if any(columns) else "|" + " |" * len(columns)
    return "\n".join([head, "|" + "---|" * len(columns), *(f"| {' | '.join(row)} |" for row in rows)])


def number(value: float | None, form: str = ".2f") -> str:
    """A number in a cell; a dash where there is none."""
    return NONE if value is None else format(value, form)
