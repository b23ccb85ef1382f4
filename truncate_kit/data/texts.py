"""Raw text for training without labels: lines of a text file, a column of texts, or both texts of pairs."""

from collections.abc import Generator, Iterator
from itertools import chain
from pathlib import Path

from truncate_kit.core.errors import ColumnsError, DataError, RowError
from truncate_kit.data.tables import (
    TEXT_FORMAT,
    find_text_column,
    find_text_columns,
    format_of,
    iter_tables,
    opened_text,
)


def iter_texts(path: str | Path, *, column: str | None = None) -> Iterator[str]:
    """Yield the texts of one file in order, repeats included, without white space around them.

    A .txt file (also .gz, .xz) holds one text a line. In a .csv, .tsv, .jsonl or .parquet file the texts are in
    `column`, found by name when None; a file of sentence pairs gives both texts of each row and needs no scores.
    Files of any size are streamed; blank lines are passed over. Raises `DataError` when iterated.
    """
    path = Path(path)
    lines = (text for _, text in _numbered_lines(path) if text)
    found = lines if format_of(path) == TEXT_FORMAT else _cells(path, column, pairs=True)
    first = next(found, None)
    if first is None:
        raise DataError(f"{path} is empty.", hint="Write one text per line.")
    yield first
    yield from found


def read_texts(path: str | Path, *, column: str | None = None) -> list[str]:
    """Return the distinct texts of one file in the order in which they first appear; the file as in `iter_texts`."""
    return list(dict.fromkeys(iter_texts(path, column=column)))


def iter_rows(path: str | Path, *, column: str | None = None) -> Iterator[str]:
    """Yield one text per row, in order, so that the n-th text belongs to the n-th row.

    As `iter_texts`, but a blank line or cell is an error, and a table needs one column of texts.
    """
    path = Path(path)
    if format_of(path) != TEXT_FORMAT:
        yield from _cells(path, column, pairs=False)
        return
    if column is not None:
        raise ColumnsError(str(path), f"there is no column {column!r}.", (), hint="A .txt file has no columns.")
    number = 0
    for number, text in _numbered_lines(path):
        if not text:
            hint = "Fill it in or remove it: each line is one text."
            raise RowError(str(path), f"line {number}", "the line is empty.", hint=hint)
        yield text
    if number == 0:
        raise DataError(f"{path} is empty.", hint="Write one text per line.")


def _numbered_lines(path: Path) -> Iterator[tuple[int, str]]:
    with opened_text(path) as stream:
        yield from ((number, line.strip()) for number, line in enumerate(stream, start=1))


def _cells(path: Path, given: str | None, *, pairs: bool) -> Generator[str]:
    """Yield the texts of a table; with `pairs` also those of two columns, row by row."""
    names: tuple[str, ...] = ()
    for table in iter_tables(path, counted=not pairs):
        if not names:
            single = find_text_column(table, given)
            names = (single,) if single is not None else find_text_columns(table) if pairs else ()
        if not names:
            raise table.unfit("no column name says where the texts are.", "Name it as `column`.")
        yield from chain.from_iterable(zip(*map(table.texts, names), strict=True))
