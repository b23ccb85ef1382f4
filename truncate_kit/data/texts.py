"""Raw text for training without labels: lines of a text file, a column of texts, or both texts of pairs."""

from collections.abc import Generator, Iterator
from pathlib import Path

from truncate_kit.data.cells import text_of
from truncate_kit.data.columns import find_text_column, find_text_columns, misread_header
from truncate_kit.data.files import NULL_HINT, TEXT_FORMAT, check_returns, format_of, not_utf8, opened
from truncate_kit.data.tables import MISSING, iter_tables, read_table
from truncate_kit.errors import ColumnsError, DataError, RowError

_BOM = b"\xef\xbb\xbf"
_ROWS_AT_ONCE = 1024


def iter_texts(path: str | Path, *, column: str | None = None) -> Iterator[str]:
    """Yield the texts of one file in order, repeats included, without white space around them.

    A .txt file (also .gz, .xz) holds one text a line and is streamed. In a .csv, .tsv, .jsonl or .parquet file the
    texts are in `column`, found by name when None; a file of sentence pairs gives both texts of each row and needs no
    scores. Blank lines are passed over. Raises `DataError` naming file, row and what is wrong, also that there
    is no text at all, when iterated.
    """
    path = Path(path)
    lines = (text for _, text in _numbered_lines(path) if text)
    found = lines if format_of(path) == TEXT_FORMAT else _cells(path, column)
    first = next(found, None)
    if first is None:
        raise DataError(f"{path} is empty.", hint="Write one text per line.")
    yield first
    yield from found


def read_texts(path: str | Path, *, column: str | None = None) -> list[str]:
    """The distinct texts of one file in the order in which they first appear; the file as in `iter_texts`."""
    return list(dict.fromkeys(iter_texts(path, column=column)))


def iter_rows(path: str | Path, *, column: str | None = None) -> Generator[str]:
    """Yield one text per row, in order, so that the n-th text belongs to the n-th row; files of any size are streamed.

    Kinds of files as in `iter_texts`, but a blank line or cell is an error, and a table needs one column of texts:
    `column`, or the one whose name says so. Raises `DataError` naming file, row and what is wrong.
    """
    path = Path(path)
    if format_of(path) != TEXT_FORMAT:
        yield from _column(path, column)
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


def _column(path: Path, given: str | None) -> Iterator[str]:
    name: str | None = None
    for table in iter_tables(path, rows=_ROWS_AT_ONCE, counted=True):
        if name is None:
            name = find_text_column(table.source, tuple(table.columns), given, hint="Name it as `column`.")
        if name is None:
            hint = misread_header(table.source, tuple(table.columns)) or "Name it as `column`."
            raise ColumnsError(table.source, "no column name says where the texts are.", table.columns, hint=hint)
        # A .jsonl file may lack the key in all rows that were read at once.
        values = table.columns.get(name) or [MISSING]
        for row, value in enumerate(values):
            yield text_of(table, row, name, value)


def _numbered_lines(path: Path) -> Iterator[tuple[int, str]]:
    with opened(path) as stream:
        head = b""
        for number, line in enumerate(stream, start=1):
            if number == 1:
                head = line[:2]
                line = line.removeprefix(_BOM)
            try:
                text = line.decode()
            except UnicodeDecodeError as error:
                raise not_utf8(path, number, line[error.start], head) from error
            check_returns(path, number, text)
            if "\0" in text:
                raise RowError(str(path), f"line {number}", "the text holds a null character.", hint=NULL_HINT)
            yield number, text.strip()


def _cells(path: Path, column: str | None) -> Iterator[str]:
    table = read_table(path)
    names = tuple(table.columns)
    single = find_text_column(table.source, names, column)
    wanted = (single,) if single is not None else find_text_columns(table.source, names)
    for row, values in enumerate(zip(*(table.columns[name] for name in wanted), strict=True)):
        for name, value in zip(wanted, values, strict=True):
            yield text_of(table, row, name, value)
