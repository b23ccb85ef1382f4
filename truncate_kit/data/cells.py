"""One cell of a table as a text or a score, or an error that names its row."""

import math
from decimal import Decimal
from typing import Any

from truncate_kit.data.files import NULL_HINT
from truncate_kit.data.tables import MISSING, Table
from truncate_kit.errors import RowError


def text_of(table: Table, row: int, column: str, value: Any) -> str:
    """The text of one cell without white space around it. Raises `RowError` when there is none."""
    if isinstance(value, str):
        text = value.strip()
        if not text:
            raise table.problem(row, f"the text in column {column!r} is empty.", hint="Fill it in or remove the row.")
        if "\0" in text:
            raise table.problem(row, f"the text in column {column!r} holds a null character.", hint=NULL_HINT)
        try:
            text.encode()
        except UnicodeEncodeError as error:
            half = f"the text in column {column!r} holds half a character (\\u{ord(text[error.start]):x})."
            hint = "Write the character itself, or both halves of its surrogate pair."
            raise table.problem(row, half, hint=hint) from None
        return text
    raise _wrong_kind(table, row, column, value, "a text")


def texts_of(table: Table, column: str) -> list[str]:
    """The texts of a whole column, see `text_of`."""
    return [text_of(table, row, column, value) for row, value in enumerate(table.columns[column])]


def score_of(table: Table, row: int, column: str, value: Any) -> float:
    """The number in one cell. Raises `RowError` when there is none or it is not finite."""
    if isinstance(value, bool) or not isinstance(value, (str, int, float, Decimal)):
        raise _wrong_kind(table, row, column, value, "a number")
    if isinstance(value, str) and not value.strip():
        raise table.problem(row, f"the score in column {column!r} is missing.", hint="Fill it in or remove the row.")
    try:
        number = number_in(value)
    except (ValueError, OverflowError):
        raise table.problem(
            row, f"the score {str(value)[:40]!r} is not a number.", hint="Write it like 3.5, with a point."
        ) from None
    if not math.isfinite(number):
        raise table.problem(row, f"the score {value} is not finite.", hint="Give a number or remove the row.")
    return number


def number_in(value: str | float | Decimal) -> float:
    """The number, as people write one: 1_5, which `float` takes for 15, raises ValueError as other words do."""
    if isinstance(value, str) and "_" in value:
        raise ValueError(value)
    return float(value)


def _wrong_kind(table: Table, row: int, column: str, value: Any, wanted: str) -> RowError:
    if value is MISSING:
        return table.problem(row, f"the key {column!r} is missing.", hint="Every row needs the same keys.")
    if value is None:
        return table.problem(row, f"column {column!r} is null.", hint="Fill it in or remove the row.")
    found = f"{type(value).__name__} {str(value)[:40]}"
    truth = isinstance(value, bool) and wanted == "a number"
    hint = "Write 1 for true and 0 for false." if truth else "Mend or remove the row."
    return table.problem(row, f"column {column!r} holds {found}, not {wanted}.", hint=hint)
