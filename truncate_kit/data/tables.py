"""Rows of CSV, TSV, JSONL and Parquet files as columns, each row with the place where an editor shows it."""

import csv
import io
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from truncate_kit.data.files import format_of, opened, read_utf8, unsupported
from truncate_kit.errors import ColumnsError, DataFileError, RowError

MISSING = object()  # a key that one JSONL row lacks and others have


@dataclass(frozen=True, slots=True)
class Table:
    """The columns of one file.

    source: the path or hub name, for messages. columns: name → values, all equally long, as they stand in the file.
    lines: the 1-based line at which each row starts; None for sources without lines, whose rows are counted from 1.
    """

    source: str
    columns: Mapping[str, Sequence[Any]]
    lines: Sequence[int] | None

    def place(self, row: int) -> str:
        """Where the row with this 0-based index is: "line 7", or "row 7" of a source without lines."""
        return f"line {self.lines[row]}" if self.lines is not None else f"row {row + 1}"

    def problem(self, row: int, problem: str, *, hint: str) -> RowError:
        """The error for one row, named by its place."""
        return RowError(self.source, self.place(row), problem, hint=hint)


def read_table(path: Path) -> Table:
    """Read one file by its extension: .csv, .tsv, .jsonl (each also .gz, .xz) or .parquet.

    Raises `DataFileError`, `ColumnsError` or `RowError`; a table without rows is an error.
    """
    readers: dict[str, Callable[[Path], Table]] = {
        ".csv": _read_csv,
        ".tsv": _read_tsv,
        ".jsonl": _read_jsonl,
        ".parquet": _read_parquet,
    }
    reader = readers.get(format_of(path))
    if reader is None:
        with opened(path):  # a missing file is the nearer problem
            raise unsupported(path)
    return reader(path)


def table_from_arrow(source: str, arrow: Any) -> Table:
    """A table from a pyarrow table, as Parquet files and `datasets` hold it."""
    if arrow.num_rows == 0:
        raise DataFileError(f"{source} holds no rows.", hint="Give a set with at least one pair.")
    return Table(source, {name: arrow.column(name).to_pylist() for name in arrow.column_names}, None)


def _read_csv(path: Path) -> Table:
    reader = csv.reader(io.StringIO(read_utf8(path), newline=""), strict=True)
    return _separated(path, _csv_rows(path, reader), "comma")


def _csv_rows(path: Path, reader: Any) -> Iterable[tuple[int, list[str]]]:
    start = 1
    try:
        for row in reader:
            if row:
                yield start, row
            start = reader.line_num + 1  # a quoted field may hold line breaks: line_num is where the row ended
    except csv.Error as error:
        if "unexpected end" in str(error) or "field limit" in str(error):
            problem, hint = "a quote that opens in this row is never closed.", "Close it; "
        else:
            problem, hint = "text follows a closing quote.", "Put a comma or a line break after the quote; "
        hint += 'inside a quoted field a quote is written twice: "".'
        raise RowError(str(path), f"line {start}", problem, hint=hint) from error


def _read_tsv(path: Path) -> Table:
    # One row per line and a quote is a character like any other, as the STS and GLUE files want it; a field is
    # unquoted only where it was plainly written by a spreadsheet: quotes at both ends and all others doubled.
    lines = enumerate(io.StringIO(read_utf8(path)), start=1)
    rows = ((number, [_unquoted(field) for field in line.rstrip("\r\n").split("\t")]) for number, line in lines)
    return _separated(path, ((number, row) for number, row in rows if row != [""]), "tab")


def _unquoted(field: str) -> str:
    if len(field) < 2 or field[0] != '"' or field[-1] != '"':
        return field
    inner = field[1:-1].split('""')
    return field if any('"' in part for part in inner) else '"'.join(inner)


def _separated(path: Path, rows: Iterable[tuple[int, list[str]]], separator: str) -> Table:
    """Check that every row has as many fields as the header, and turn rows into columns."""
    numbered = iter(rows)
    _, header = next(numbered, (0, []))
    if not header:
        raise DataFileError(f"{path} is empty.", hint="The first line names the columns: sentence1, sentence2, score.")
    names = [name.strip() for name in header]
    if len(set(names)) < len(names):
        raise ColumnsError(str(path), "two columns have the same name.", names, hint="Rename one of them.")
    lines: list[int] = []
    cells: list[list[str]] = []
    for line, row in numbered:
        if len(row) != len(names):
            raise RowError(
                str(path),
                f"line {line}",
                f"{len(row)} fields where the header names {len(names)}.",
                hint=f"Fields are separated by a {separator}; "
                + ("put a field that holds one in double quotes." if separator == "comma" else "none may hold one."),
            )
        lines.append(line)
        cells.append(row)
    if not cells:
        raise _without_rows(path)
    return Table(str(path), dict(zip(names, zip(*cells, strict=True), strict=True)), lines)


def _read_jsonl(path: Path) -> Table:
    lines: list[int] = []
    rows: list[dict[str, Any]] = []
    for number, line in enumerate(io.StringIO(read_utf8(path)), start=1):
        if line.strip():
            lines.append(number)
            rows.append(_json_object(path, number, line))
    if not rows:
        raise DataFileError(f"{path} is empty.", hint="Write one JSON object per line.")
    names = dict.fromkeys(key for row in rows for key in row)
    return Table(str(path), {name: [row.get(name, MISSING) for row in rows] for name in names}, lines)


def _json_object(path: Path, number: int, line: str) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        detail = error.msg if isinstance(error, json.JSONDecodeError) else "nested too deeply or too long a number"
        raise RowError(
            str(path),
            f"line {number}",
            f"not valid JSON ({detail}).",
            hint='Write one object per line: {"sentence1": "…", "sentence2": "…", "score": 3.2}',
        ) from error
    if not isinstance(value, dict):
        raise RowError(
            str(path),
            f"line {number}",
            f"a JSON {type(value).__name__} where an object is needed.",
            hint='Write one object per line: {"sentence1": "…", "sentence2": "…", "score": 3.2}',
        )
    return value


def _read_parquet(path: Path) -> Table:
    import pyarrow
    import pyarrow.parquet

    with opened(path) as stream:
        try:
            arrow = pyarrow.parquet.read_table(stream)
        except (pyarrow.ArrowException, OSError) as error:
            reason = str(error).splitlines()[0].rstrip(".")
            raise DataFileError(
                f"{path} is not a whole Parquet file ({reason}).", hint="Copy or download the file again."
            ) from error
    if arrow.num_rows == 0:
        raise _without_rows(path)
    return table_from_arrow(str(path), arrow)


def _without_rows(path: Path) -> DataFileError:
    return DataFileError(f"{path} has a header but no rows.", hint="Give a file with at least one pair.")
