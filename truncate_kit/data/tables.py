"""Rows of CSV, TSV, JSONL and Parquet files as columns, each row with the place where an editor shows it."""

import contextlib
import csv
import json
import re
import sys
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any

from truncate_kit.data.columns import misread_header, other_separator
from truncate_kit.data.files import check_returns, format_of, opened, opened_text, unsupported
from truncate_kit.errors import ColumnsError, DataError, RowError, first_line
from truncate_kit.files import RepeatedKeyError, without_repeats

_PAIR = '{"sentence1": "…", "sentence2": "…", "score": 3.2}'
_PLENTY = 1_000_000  # rows of a Parquet file of any size
MISSING = object()  # a key that one JSONL row lacks and others have


@dataclass(frozen=True, slots=True)
class Table:
    """The columns of one file, or of a run of its rows."""

    source: str  # the path or hub name, for messages
    columns: Mapping[str, Sequence[Any]]  # name → values, all equally long, as the file has them
    # the 1-based line at which each row starts; None for sources without lines, whose rows count from 1
    lines: Sequence[int] | None
    first: int = 0  # number of rows of the file before these

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def place(self, row: int) -> str:
        """Where the row with this 0-based index is: "line 7", or "row 7" of a source without lines."""
        return f"line {self.lines[row]}" if self.lines is not None else f"row {self.first + row + 1}"

    def problem(self, row: int, problem: str, *, hint: str) -> RowError:
        """The error for one row, named by its place."""
        return RowError(self.source, self.place(row), problem, hint=hint)


def read_table(path: Path, *, example: str = _PAIR) -> Table:
    """Read a .csv, .tsv, .jsonl (each also .gz, .xz) or .parquet file.

    Args:
        path: The file.
        example: A line of .jsonl as it should be, for hints.

    Raises:
        DataError: The file cannot be read, or has no rows.
    """
    with contextlib.closing(iter_tables(path, rows=sys.maxsize, example=example)) as tables:
        return next(tables)


def iter_tables(path: Path, *, rows: int, counted: bool = False, example: str = _PAIR) -> Generator[Table]:
    """Read one file as `read_table` does, `rows` rows at a time; an error of a row is raised when it is reached.

    Args:
        path: The file.
        rows: Number that is read at a time.
        counted: Whether rows are known by their number, so that a blank line of a single column is an empty cell.
        example: See `read_table`.
    """
    readers: dict[str, Callable[[Path, int], Iterator[Table]]] = {
        ".csv": partial(_read_csv, counted=counted),
        ".tsv": partial(_read_tsv, counted=counted),
        ".jsonl": partial(_read_jsonl, example=example),
        ".parquet": _read_parquet,
    }
    reader = readers.get(format_of(path))
    if reader is None:
        with opened(path):  # a missing file is the nearer problem
            raise unsupported(path)
    yield from reader(path, rows)


def table_from_arrow(source: str, arrow: Any) -> Table:
    """A table from a pyarrow table, as Parquet files and `datasets` hold it."""
    if arrow.num_rows == 0:
        raise DataError(f"{source} holds no rows.", hint="Give a set with at least one pair.")
    return Table(source, {name: _arrow_values(source, name, arrow.column(name)) for name in arrow.column_names}, None)


def _read_csv(path: Path, size: int, *, counted: bool) -> Iterator[Table]:
    with opened_text(path, newline="") as lines:
        yield from _separated(path, _csv_rows(path, lines), "comma", size, counted)


def _csv_rows(path: Path, lines: Iterator[str]) -> Iterable[tuple[int, list[str]]]:
    first = next(lines, "")
    reader = csv.reader(chain([first], lines), strict=True, skipinitialspace=True)
    start, separator = 1, None
    try:
        for row in reader:
            if row and start == 1:
                separator = other_separator(str(path), row)
            yield start, row
            start = reader.line_num + 1  # a quoted field may hold line breaks: line_num is where the row ended
    except csv.Error as error:
        # A row of quoted cells between other marks cannot be read as far as its names.
        if start == 1 and (mark := re.search(r'"([;\t])', first)):
            separator = other_separator(str(path), [f"a{mark[1]}b"])
        if "field limit" in str(error) and reader.line_num <= start:
            problem = f"a field has more than {csv.field_size_limit():,} characters; is a quote in it never closed?"
            hint = "Close the quote, or shorten the text; "
        elif "unexpected end" in str(error) or "field limit" in str(error):
            problem, hint = "a quote that opens in this row is never closed.", "Close it; "
        else:
            problem, hint = "text follows a closing quote.", "Put a comma or a line break after the quote; "
        hint += 'inside a quoted field a quote is written twice: "".'
        raise RowError(str(path), f"line {start}", problem, hint=separator or hint) from error


def _read_tsv(path: Path, size: int, *, counted: bool) -> Iterator[Table]:
    # One row per line and a quote is a character like any other, as the STS and GLUE files want it; a field is
    # unquoted only where it was plainly written by a spreadsheet: quotes at both ends and all others doubled.
    with opened_text(path, newline="\n") as lines:
        yield from _separated(path, _tsv_rows(path, lines), "tab", size, counted)


def _tsv_rows(path: Path, lines: Iterable[str]) -> Iterator[tuple[int, list[str]]]:
    for number, line in enumerate(lines, start=1):
        check_returns(path, number, line)
        plain = line.rstrip("\r\n")
        yield number, [_unquoted(field) for field in plain.split("\t")] if plain else []


def _unquoted(field: str) -> str:
    if len(field) < 2 or field[0] != '"' or field[-1] != '"':
        return field
    inner = field[1:-1].split('""')
    return field if any('"' in part for part in inner) else '"'.join(inner)


def _separated(
    path: Path, rows: Iterable[tuple[int, list[str]]], separator: str, size: int, counted: bool
) -> Iterator[Table]:
    """Check that every row has as many fields as the header, and turn rows into columns; a blank line is a row []."""
    numbered, blank = iter(rows), ([], [""]) if separator == "tab" else ([],)  # two quotes hold nothing there, too
    header = next((row for _, row in numbered if row not in blank), [])
    if not header:
        raise DataError(
            f"{path} is empty.", hint="The first line names the columns; of pairs: sentence1, sentence2, score."
        )
    names = [name.strip() for name in header]
    _check_names(path, names)
    first = 0
    cells = counted and len(names) == 1
    numbered = _filled(numbered) if cells else (one for one in numbered if one[1] not in blank)
    while chunk := list(islice(numbered, size)):
        for line, row in chunk:
            if len(row) != len(names):
                raise _wrong_width(path, line, len(row), names, separator)
        columns = zip(*(row for _, row in chunk), strict=True)
        yield Table(str(path), dict(zip(names, columns, strict=True)), [line for line, _ in chunk], first)
        first += len(chunk)
    if first == 0:
        raise _without_rows(path)


def _filled(rows: Iterable[tuple[int, list[str]]]) -> Iterator[tuple[int, list[str]]]:
    """Rows of a single column: a blank line between others is an empty cell, or rows would move up unseen."""
    blank: list[int] = []
    for line, row in rows:
        if not row:
            blank.append(line)
            continue
        yield from ((number, [""]) for number in blank)
        blank.clear()
        yield line, row


def _check_names(path: Path, names: Sequence[str]) -> None:
    """Raise `ColumnsError` where two columns have the same name."""
    if len(set(names)) < len(names):
        hint = misread_header(str(path), names) or "Rename one of them."
        raise ColumnsError(str(path), "two columns have the same name.", names, hint=hint)


def _wrong_width(path: Path, line: int, fields: int, names: Sequence[str], separator: str) -> RowError:
    rule = "put a field that holds one in double quotes" if separator == "comma" else "none may hold one"
    return RowError(
        str(path),
        f"line {line}",
        f"{fields} fields where the header names {len(names)}.",
        hint=other_separator(str(path), names) or f"Fields are separated by a {separator}; {rule}.",
    )


def _read_jsonl(path: Path, size: int, *, example: str) -> Iterator[Table]:
    with opened_text(path, newline="\n") as stream:
        filled = ((number, line) for number, line in enumerate(stream, start=1) if line.strip())
        objects = ((number, _json_object(path, number, line, example)) for number, line in filled)
        first = 0
        while chunk := list(islice(objects, size)):
            names = dict.fromkeys(key for _, row in chunk for key in row)
            columns = {name: [row.get(name, MISSING) for _, row in chunk] for name in names}
            yield Table(str(path), columns, [number for number, _ in chunk], first)
            first += len(chunk)
    if first == 0:
        raise DataError(f"{path} is empty.", hint="Write one JSON object per line.")


def _json_object(path: Path, number: int, line: str, example: str) -> dict[str, Any]:
    hint = f"Write one object per line: {example}"
    try:
        value = json.loads(line, object_pairs_hook=without_repeats)
    except RepeatedKeyError as error:
        raise RowError(str(path), f"line {number}", f"{error}.", hint="Remove one of them.") from error
    except (ValueError, RecursionError) as error:
        detail = error.msg if isinstance(error, json.JSONDecodeError) else "nested too deeply or too long a number"
        raise RowError(str(path), f"line {number}", f"not valid JSON ({detail}).", hint=hint) from error
    if not isinstance(value, dict):
        problem = f"a JSON {type(value).__name__} where an object is needed."
        raise RowError(str(path), f"line {number}", problem, hint=hint)
    return value


def _read_parquet(path: Path, size: int) -> Iterator[Table]:
    import pyarrow
    import pyarrow.parquet

    with opened(path):  # what cannot be opened is said as for every other file
        pass
    first = 0
    try:
        # pyarrow's own file, not one of Python's: its threads may still read when an error has ended the interpreter.
        with pyarrow.OSFile(str(path)) as stream, pyarrow.parquet.ParquetFile(stream) as file:
            if file.metadata.num_rows == 0:
                raise _without_rows(path)
            if file.metadata.num_rows > max(_PLENTY, path.stat().st_size):
                raise DataError(
                    f"{path} holds {file.metadata.num_rows:,} rows in {path.stat().st_size:,} bytes, which may be "
                    "meant to do harm.",
                    hint="If you know where it comes from, write it as CSV or JSONL.",
                )
            whole = size >= file.metadata.num_rows  # batches end where row groups do
            for batch in [file.read()] if whole else file.iter_batches(batch_size=size):
                if first == 0:
                    _check_names(path, batch.schema.names)
                columns = {name: _arrow_values(str(path), name, batch.column(name)) for name in batch.schema.names}
                yield Table(str(path), columns, None, first)
                first += batch.num_rows
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(
            f"{path} is not a whole Parquet file ({first_line(error)}).", hint="Copy or download the file again."
        ) from error


def _arrow_values(source: str, name: str, column: Any) -> list[Any]:
    """The values of a column. Raises `DataError` for what Python has no value for, such as dates before year 1."""
    try:
        values: list[Any] = column.to_pylist()
    except Exception as error:  # each type has its own: ValueError, OverflowError, UnicodeDecodeError, ZoneInfoNotFound
        raise DataError(
            f"{source}: column {name!r} of the type {column.type} holds what cannot be read ({first_line(error)}).",
            hint="Mend that column or leave it out of the file.",
        ) from error
    return values


def _without_rows(path: Path) -> DataError:
    return DataError(f"{path} has a header but no rows.", hint="Give a file with at least one pair.")
