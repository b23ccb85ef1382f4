"""Raw text for training without labels: lines of a text file, a column of texts, or both texts of pairs."""

from collections.abc import Iterator
from pathlib import Path

from truncate_kit.data.cells import text_of
from truncate_kit.data.columns import find_text_column, find_text_columns
from truncate_kit.data.files import TEXT_FORMAT, format_of, not_utf8, opened
from truncate_kit.data.tables import read_table
from truncate_kit.errors import DataFileError

_BOM = b"\xef\xbb\xbf"


def iter_texts(path: str | Path, *, column: str | None = None) -> Iterator[str]:
    """Yield the texts of one file in order, repeats included, without white space around them.

    A .txt file (also .gz, .xz) holds one text a line, is streamed, and its blank lines are passed over. In a .csv,
    .tsv, .jsonl or .parquet file the texts stand in `column`, found by name when None; a file of sentence pairs gives
    both texts of each row and needs no scores. Raises `DataError` naming file, row and what is wrong, also that there
    is no text at all, when iterated.
    """
    path = Path(path)
    found = _lines(path) if format_of(path) == TEXT_FORMAT else _cells(path, column)
    first = next(found, None)
    if first is None:
        raise DataFileError(f"{path} is empty.", hint="Write one text per line.")
    yield first
    yield from found


def read_texts(path: str | Path, *, column: str | None = None) -> list[str]:
    """The distinct texts of one file in the order in which they first appear; the file as in `iter_texts`."""
    return list(dict.fromkeys(iter_texts(path, column=column)))


def _lines(path: Path) -> Iterator[str]:
    with opened(path) as stream:
        head = b""
        for number, line in enumerate(stream, start=1):
            if number == 1:
                head = line[:2]
                line = line.removeprefix(_BOM)
            try:
                text = line.decode().strip()
            except UnicodeDecodeError as error:
                raise not_utf8(path, number, line[error.start], head) from error
            if text:
                yield text


def _cells(path: Path, column: str | None) -> Iterator[str]:
    table = read_table(path)
    names = tuple(table.columns)
    single = find_text_column(table.source, names, column)
    wanted = (single,) if single is not None else find_text_columns(table.source, names)
    for row, values in enumerate(zip(*(table.columns[name] for name in wanted), strict=True)):
        for name, value in zip(wanted, values, strict=True):
            yield text_of(table, row, name, value)
