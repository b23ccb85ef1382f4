"""Files in, columns out: CSV, TSV, JSONL and Parquet, their columns found by name and checked one at a time.

CSV and JSONL are read by the standard library: its readers know the line of every row, and a file of any size goes
through them a part at a time.
"""

import csv
import gzip
import json
import lzma
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, TextIO, TypeVar

from truncate_kit.core.errors import ColumnsError, DataError, RowError, first_line
from truncate_kit.core.files import is_there
from truncate_kit.core.wording import counted

PAIR_FORMATS = (".csv", ".tsv", ".jsonl", ".parquet")
TEXT_FORMAT = ".txt"
COMPRESSIONS = (".gz", ".xz")
_ROWS_AT_ONCE = 1024
_OPENERS: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".xz": lzma.open}
_WHOLE = re.compile(r"^(-?\d+)\.0+$")  # a class 1 in a column that was read as numbers
_MOST_WORDS = 4  # of the name of a column

# Names are compared in lower case without spaces, hyphens and underscores: sentence_A is sentencea.
_TEXT_PAIRS = (
    ("sentence1", "sentence2"),
    ("sentencea", "sentenceb"),
    ("text1", "text2"),
    ("texta", "textb"),
    ("first", "second"),
    ("anchor", "positive"),
    ("sent0", "sent1"),
    ("premise", "hypothesis"),
    ("word1", "word2"),
    ("question1", "question2"),
    ("query", "relevant"),
    ("query", "positive"),
    ("query", "passage"),
    ("query", "document"),
    ("question", "answer"),
)
_TRIPLETS = (
    ("anchor", "positive", "negative"),
    ("query", "positive", "negative"),
    ("sent0", "sent1", "hardneg"),
    ("sentence1", "sentence2", "negative"),
)
_SCORES = ("score", "similarity", "similarityscore", "relatedness", "relatednessscore", "gold", "goldscore", "target")
CLASSES = (
    "label",  # a score in some sets: taken as one only where no column is called a score
    "class",
    "goldlabel",
    "relation",
    "entailment",
    "entailmentlabel",
    "entailmentjudgment",
    "isduplicate",
)
_TEXTS = ("text", "sentence", "texts", "sentences")
_HINT = 'Name them: `columns=("first", "second", "score")`.'
_ONE_HINT = "Rename or remove all of them but one."

Choice = TypeVar("Choice")


def format_of(path: Path) -> str:
    """Return the extension that says how to read a file, without `.gz` or `.xz`: ".csv" for pairs.csv.gz."""
    suffixes = [suffix.lower() for suffix in path.suffixes[-2:]]
    if suffixes and suffixes[-1] in COMPRESSIONS:
        suffixes.pop()
    return suffixes[-1] if suffixes else ""


def stem_of(path: Path) -> str:
    """Return the name of a file up to the first point, in lower case: "train" for Train.csv.gz."""
    return path.name.partition(".")[0].lower()


def data_files(folder: Path) -> list[Path]:
    """Return the files of a folder that hold tables, sorted by name."""
    return sorted(path for path in folder.iterdir() if path.is_file() and format_of(path) in PAIR_FORMATS)


@contextmanager
def opened_text(path: Path, *, newline: str = "\n") -> Iterator[TextIO]:
    """Open a UTF-8 file, packed or not, with or without byte order mark. Raises `DataError`, also while it is read."""
    if not is_there(path):
        raise DataError(f"{path} does not exist.", hint="Check the path; a relative one starts in the current folder.")
    if not path.is_file():
        raise DataError(f"{path} is a folder, a pipe or a device, not a file.", hint="Name a file.")
    opener = _OPENERS.get(path.suffix.lower(), open)
    try:
        with opener(path, "rt", encoding="utf-8-sig", newline=newline) as stream:
            yield stream
    except UnicodeDecodeError as error:
        raise _first_bad_line(path, opener) from error
    except (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile) as error:
        hint = "Copy or download the file again; `gzip -t` or `xz -t` checks whether it is whole."
        raise DataError(f"{path}: the packed data is broken or ends too early ({error}).", hint=hint) from error
    except OSError as error:
        hint = "Check the file and its permissions."
        raise DataError(f"Cannot read {path}: {error.strerror or error}.", hint=hint) from error


def _first_bad_line(path: Path, opener: Callable[..., Any]) -> RowError:
    """Look for the first line that is not UTF-8: a decoder that reads blocks does not know it."""
    with opener(path, "rb") as stream:
        head = stream.read(2)
    likely = "UTF-16" if head in (b"\xff\xfe", b"\xfe\xff") else "WINDOWS-1252"
    with opener(path, "rt", encoding="utf-8", errors="surrogateescape", newline="\n") as stream:
        number, byte = next(
            (number, ord(found[0]) - 0xDC00)
            for number, line in enumerate(stream, start=1)
            if (found := re.search("[\udc80-\udcff]", line))
        )
    hint = f"Save the file as UTF-8, for example: iconv -f {likely} -t UTF-8 OLD > NEW"
    return RowError(str(path), f"line {number}", f"byte 0x{byte:02X} is not UTF-8.", hint=hint)


@dataclass(frozen=True, slots=True)
class Table:
    """The columns of one file, or of a run of its rows."""

    source: str  # the path or hub name, for messages
    columns: Mapping[str, Sequence[Any]]  # name → values, all equally long; None where a row lacks one
    places: Sequence[int]  # of each row: the line at which it starts, as an editor counts, or its number
    place: str = "line"  # what `places` count: lines or, in a source without lines, rows

    def __len__(self) -> int:
        return len(self.places)

    def problem(self, row: int, problem: str, *, hint: str = "Fill it in or remove the row.") -> RowError:
        """Return the error for the row with this index."""
        return RowError(self.source, f"{self.place} {self.places[row]}", problem, hint=hint)

    def unfit(self, problem: str, hint: str) -> ColumnsError:
        """Return the error for columns that are not what is needed."""
        return ColumnsError(self.source, problem, self.columns, hint=misread_header(self.source, self.columns) or hint)

    def texts(self, column: str, *, may_be_empty: bool = False) -> list[str]:
        """Return a column of texts without white space around them. Raises `RowError` for what is no text."""
        found = []
        for row, value in enumerate(self._values(column)):
            if isinstance(value, str):
                found.append(value.strip())
            elif value is not None:
                problem = f"column {column!r} holds {type(value).__name__} {str(value)[:40]}, not a text."
                raise self.problem(row, problem, hint="Mend or remove the row.")
            if value is None or not (found[-1] or may_be_empty):
                raise self.problem(row, f"the text in column {column!r} is empty.")
        return found

    def numbers(self, column: str) -> list[float]:
        """Return a column of finite numbers. Raises `RowError` for any other value."""
        found = []
        for row, value in enumerate(self._values(column)):
            if value is None or value == "":
                raise self.problem(row, f"the score in column {column!r} is missing.")
            try:
                found.append(float(value))
            except (ValueError, TypeError, OverflowError):
                hint = "Write it like 3.5, with a point."
                raise self.problem(row, f"the score {str(value)[:40]!r} is not a number.", hint=hint) from None
            if not abs(found[-1]) < float("inf"):
                raise self.problem(row, f"the score {value} is not finite.", hint="Give a number or remove the row.")
        return found

    def labels(self, column: str, *, may_be_empty: bool = False) -> list[str]:
        """Return a column of class names, whole numbers without ".0". Raises `RowError` for an empty one."""
        found = []
        for row, value in enumerate(self._values(column)):
            text = str(value).lower() if isinstance(value, bool) else str(value).strip()
            found.append("" if value is None or value != value else _WHOLE.sub(r"\1", text))
            if not (found[-1] or may_be_empty):
                raise self.problem(row, "there is no label.", hint="Name the class, or leave the row out.")
        return found

    def _values(self, column: str) -> Sequence[Any]:
        return self.columns.get(column) or [None] * len(self)  # a part of a .jsonl file may lack the key


def read_table(path: Path) -> Table:
    """Read a .csv, .tsv, .jsonl (each also .gz, .xz) or .parquet file.

    Raises `DataError` where it cannot be read or has no rows.
    """
    return next(iter_tables(path, rows=None))


def iter_tables(path: Path, *, rows: int | None = _ROWS_AT_ONCE, counted: bool = False) -> Iterator[Table]:
    """Read a file as `read_table` does, a part at a time; an error of a row is raised when it is reached.

    Args:
        path: The file.
        rows: Number of rows of a part; None is all.
        counted: Rows are known by their number, so a blank line of a single column is an empty cell.
    """
    kind = format_of(path)
    if kind not in PAIR_FORMATS:
        with opened_text(path):  # a missing file is the nearer problem
            raise DataError(
                f"{path}: cannot read files that end in {path.suffix!r}." if kind else f"{path}: no file extension.",
                hint="Give a .csv, .tsv, .jsonl or .parquet file, or a folder of splits; raw text may be .txt. "
                "All but Parquet may be packed as .gz or .xz.",
            )
    parts = _parquet(path, rows) if kind == ".parquet" else _lines(path, kind, rows, counted)
    first = next(parts, None)
    if first is None:
        raise DataError(f"{path} is empty or has a header but no rows.", hint="Give a file with at least one row.")
    yield first
    yield from parts


def table_from_arrow(source: str, arrow: Any, first: int = 1) -> Table:
    """Make a table of a pyarrow table or batch, as Parquet files and `datasets` hold it. first: number of a row."""
    names = list(map(str, arrow.schema.names))
    _check_names(source, names)
    try:
        columns = {name: arrow.column(name).to_pylist() for name in names}
    except (ValueError, OverflowError, LookupError) as error:  # such as dates before year 1
        hint = "Mend that column or leave it out of the file."
        raise DataError(f"{source} holds a value that cannot be read ({first_line(error)}).", hint=hint) from error
    return Table(source, columns, range(first, first + arrow.num_rows), "row")


def _parquet(path: Path, rows: int | None) -> Iterator[Table]:
    import pyarrow
    import pyarrow.parquet

    first = 1
    try:
        # pyarrow's own file, not one of Python's: its threads may still read when an error has ended the interpreter.
        with pyarrow.OSFile(str(path)) as stream, pyarrow.parquet.ParquetFile(stream) as file:
            for batch in [file.read()] if rows is None else file.iter_batches(batch_size=rows):
                if batch.num_rows:
                    yield table_from_arrow(str(path), batch, first)
                first += batch.num_rows
    except FileNotFoundError as error:
        raise DataError(f"{path} does not exist.", hint="Check the path.") from error
    except (pyarrow.ArrowException, OSError) as error:
        hint = "Copy or download the file again."
        raise DataError(f"{path} is not a whole Parquet file ({first_line(error)}).", hint=hint) from error


def _lines(path: Path, kind: str, size: int | None, counted: bool) -> Iterator[Table]:
    """Read the rows of a file of lines, and turn `size` of them at a time into columns."""
    with opened_text(path, newline="" if kind == ".csv" else "\n") as stream:
        if kind == ".jsonl":
            objects = _json_rows(path, stream)
            while chunk := list(islice(objects, size)):
                keys = dict.fromkeys(key for _, row in chunk for key in row)
                columns = {key: [row.get(key) for _, row in chunk] for key in keys}
                yield Table(str(path), columns, [number for number, _ in chunk])
            return
        numbered = _csv_rows(path, stream) if kind == ".csv" else _tsv_rows(stream)
        header = next((row for _, row in numbered if any(row)), [])
        names = [name.strip() for name in header]
        _check_names(str(path), names)
        cells_count = counted and len(names) == 1
        filled = ((number, row or [""]) for number, row in numbered if cells_count or row not in ([], [""]))
        cells = (_checked_width(path, number, row, names) for number, row in filled)
        while part := list(islice(cells, size)):
            values = zip(*(row for _, row in part), strict=True)
            yield Table(str(path), dict(zip(names, values, strict=True)), [number for number, _ in part])


def _csv_rows(path: Path, stream: Iterable[str]) -> Iterator[tuple[int, list[str]]]:
    reader = csv.reader(stream, strict=True, skipinitialspace=True)
    start, header = 1, list[str]()
    try:
        for row in reader:
            header = header or row
            yield start, row
            start = reader.line_num + 1  # a quoted field may hold line breaks: line_num is where the row ended
    except csv.Error as error:
        hint = 'Put a field that holds a comma or a quote in double quotes; inside, a quote is written twice: "".'
        raise RowError(
            str(path), f"line {start}", f"{error}.", hint=misread_header(str(path), header) or hint
        ) from error


def _tsv_rows(stream: Iterable[str]) -> Iterator[tuple[int, list[str]]]:
    """Split lines at tabs. A quote is a character like any other, as the STS and GLUE files want it.

    A field is unquoted only where a spreadsheet plainly wrote it: quotes at both ends and all others doubled.
    """
    for number, line in enumerate(stream, start=1):
        plain = line.rstrip("\r\n")
        fields = plain.split("\t") if plain else []
        quoted = [re.fullmatch('"(([^"]|"")*)"', field) for field in fields]
        yield number, [q[1].replace('""', '"') if q else field for q, field in zip(quoted, fields, strict=True)]


def _json_rows(path: Path, stream: Iterable[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, line in enumerate(stream, start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            if not isinstance(row, dict):
                raise ValueError("an object is needed")
        except (ValueError, RecursionError) as error:
            hint = 'Write one object per line, such as {"sentence1": "…", "sentence2": "…", "score": 3.2}'
            raise RowError(str(path), f"line {number}", f"not valid JSON ({error}).", hint=hint) from error
        yield number, row


def _check_names(source: str, names: Sequence[str]) -> None:
    if len(set(names)) < len(names):
        hint = misread_header(source, names) or "Rename one of them."
        raise ColumnsError(source, "two columns have the same name.", names, hint=hint)


def _checked_width(path: Path, number: int, row: list[str], names: Sequence[str]) -> tuple[int, list[str]]:
    if len(row) != len(names):
        problem = f"{len(row)} fields where the header names {len(names)}."
        hint = "Put a field that holds a comma in double quotes; in a .tsv file no field holds a tab."
        raise RowError(str(path), f"line {number}", problem, hint=misread_header(str(path), names) or hint)
    return number, row


def misread_header(source: str, header: Iterable[str]) -> str | None:
    """Return a hint if the first line of a file names no columns: other separators, or no header at all."""
    kind, names = format_of(Path(source)), list(header)
    if kind not in (".csv", ".tsv"):
        return None
    for mark, word in (("\t", "tabs"), (";", "semicolons"), (",", "commas")):
        if any(re.search(rf"{mark}\S", name) for name in names) and (kind == ".csv" or len(names) == 1):
            return f"The file seems to be separated by {word}: save it with {'commas' if kind == '.csv' else 'tabs'}."
    if any(re.fullmatch(r"[-+\d.,]+|.*\s.*[.?!]", name) or len(name.split()) > _MOST_WORDS for name in names):
        return "The file seems to have no header: add a first line that names its columns."
    return None


def find_columns(table: Table, given: Sequence[str] | None = None, *, classes: bool = False) -> tuple[str, str, str]:
    """Return the names of both texts and the score (or class); None finds them. Raises `ColumnsError`."""
    if given is not None:
        if len(given) != 3 or len(set(given)) < 3:
            problem = f"{counted(len(set(given)), 'column')} named where three are needed."
            raise table.unfit(problem, _HINT)
        check_columns(table, given)
        return given[0], given[1], given[2]
    named = tuple(table.columns) if len(table.columns) == 3 else ("first", "second", "score")
    hint = f"Name them: `columns={named}`.".replace("'", '"')
    first, second = find_text_columns(table, hint=hint)
    if classes:
        return first, second, _only_one(table, called(table, CLASSES), "the class")
    scores = called(table, _SCORES) or called(table, CLASSES[:1])
    return first, second, _only_one(table, scores, "the score", hint)


def find_text_columns(table: Table, *, hint: str = _HINT) -> tuple[str, str]:
    """Return the names of first and second text, scores or not. Raises `ColumnsError` with `hint`."""
    pairs = ((called(table, [left]), called(table, [right])) for left, right in _TEXT_PAIRS)
    return _only_one(table, [(a, b) for left, right in pairs for a in left for b in right], "the two texts", hint)


def find_triplet_columns(table: Table) -> tuple[str, str, str] | None:
    """Return the names of anchor, positive and negative; None where no three columns are called that."""
    for names in _TRIPLETS:
        anchor, positive, negative = (called(table, [name]) for name in names)
        if anchor and positive and negative:
            return anchor[0], positive[0], negative[0]
    return None


def find_score_column(table: Table) -> str | None:
    """Return the name of a column that is called a score, or None."""
    return next(iter(called(table, _SCORES)), None)


def find_text_column(table: Table, given: str | None = None) -> str | None:
    """Return the name of the one column of raw text, None where no column is called that. Raises `ColumnsError`."""
    if given is not None:
        check_columns(table, [given])
        return given
    found = called(table, _TEXTS)
    return _only_one(table, found, "the text", "Name it as `column`.") if found else None


def find_label_column(table: Table) -> str | None:
    """Return the name of the column of classes, None where no column is called that. Raises `ColumnsError`."""
    found = called(table, CLASSES)
    return _only_one(table, found, "the label", _ONE_HINT) if found else None


def check_columns(table: Table, wanted: Iterable[str]) -> None:
    """Raise `ColumnsError` for the first of the wanted names that is no column."""
    for name in wanted:
        if name not in table.columns:
            raise table.unfit(f"there is no column {name!r}.", "Use the names as written there.")


def called(table: Table, plain_names: Iterable[str]) -> list[str]:
    """Return the columns with one of these plain names, in the order of these."""
    plain = {column: re.sub(r"[\s_-]", "", column.lower()) for column in table.columns}
    return [column for name in plain_names for column in plain if plain[column] == name]


def _only_one(table: Table, found: Sequence[Choice], what: str, hint: str = _HINT) -> Choice:
    if len(found) == 1:
        return found[0]
    many = f"more than one choice for {what}." if found else f"no column name says where {what} can be found."
    raise table.unfit(many, hint)
