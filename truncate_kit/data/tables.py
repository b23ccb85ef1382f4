"""Read CSV, TSV, JSONL, Parquet and plain text; find columns by name.

The standard library streams CSV and JSONL, so that errors name the line. Invalid files raise `DataError`.
"""

import csv
import gzip
import json
import lzma
import math
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain, islice, product
from pathlib import Path
from typing import Any, TextIO

from truncate_kit.core.errors import DataError, first_line
from truncate_kit.core.files import is_there

PAIR_FORMATS = (".csv", ".tsv", ".jsonl", ".parquet")
TEXT_FORMAT = ".txt"
_OPENERS: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".xz": lzma.open}
COMPRESSIONS = tuple(_OPENERS)
_ROWS_AT_ONCE = 1024

PAIR, TRIPLET, SCORE, LABEL, TEXT = "the two texts", "the three texts", "the score", "the label", "the text"
# Column names by role, as `plain_name` returns them; commas join columns of one choice.
_NAMES = {
    PAIR: (
        "sentence1,sentence2 sentencea,sentenceb text1,text2 texta,textb first,second anchor,positive sent0,sent1 "
        "premise,hypothesis word1,word2 question1,question2 query,relevant query,positive query,passage "
        "query,document question,answer"
    ),
    TRIPLET: "anchor,positive,negative query,positive,negative sent0,sent1,hardneg sentence1,sentence2,negative",
    SCORE: "score similarity similarityscore relatedness relatednessscore gold goldscore target",
    LABEL: "label class goldlabel relation entailment entailmentlabel entailmentjudgment isduplicate",
    TEXT: "text sentence texts sentences",
}
_NAME_COLUMN = "Set `column` to the name of the text column."


# Files


def format_of(path: Path) -> str:
    """Return the extension in lower case, without `.gz` or `.xz`."""
    suffixes = [suffix.lower() for suffix in path.suffixes[-2:]]
    if suffixes and suffixes[-1] in COMPRESSIONS:
        suffixes.pop()
    return suffixes[-1] if suffixes else ""


def stem_of(path: Path) -> str:
    """Return the file name up to the first dot, in lower case."""
    return path.name.partition(".")[0].lower()


def is_table(path: Path) -> bool:
    """Check if a path is a table file."""
    return path.is_file() and format_of(path) in PAIR_FORMATS


def data_files(folder: Path) -> list[Path]:
    """Return the table files of a folder, sorted."""
    return sorted(filter(is_table, folder.iterdir()))


def _check_file(path: Path) -> None:
    if not is_there(path):
        raise DataError(f"{path} does not exist.", hint="Check the path; relative paths start in the current folder.")
    if not path.is_file():
        raise DataError(f"{path} is a folder, a pipe or a device, not a file.", hint="Name a file.")


@contextmanager
def opened_text(path: Path, *, newline: str = "\n") -> Iterator[TextIO]:
    """Open a UTF-8 file, compressed or not, with or without byte order mark."""
    _check_file(path)
    opener = _OPENERS.get(path.suffix.lower(), open)
    try:
        with opener(path, "rt", encoding="utf-8-sig", newline=newline) as stream:
            yield stream
    except UnicodeDecodeError as error:
        hint = "Save the file as UTF-8, for example: iconv -f WINDOWS-1252 (or UTF-16) -t UTF-8 OLD > NEW"
        raise DataError(f"{path}: the text is not UTF-8.", hint=hint) from error
    except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
        hint = "Check the file's permissions, or copy or download the file again."
        raise DataError(f"{path}: cannot be read ({first_line(error)}).", hint=hint) from error


# Tables


@dataclass(frozen=True, slots=True)
class Table:
    """Columns of a data file, or of a chunk of its rows."""

    source: str  # path or hub name
    columns: Mapping[str, Sequence[Any]]  # name → values
    places: Sequence[int]  # line or row number of each row
    place: str = "line"  # unit of `places`: "line" or "row"
    class_names: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # column → number → name

    def __len__(self) -> int:
        return len(self.places)

    def problem(self, row: int, problem: str, *, hint: str = "Correct or remove the row.") -> DataError:
        """Return the error for a row, with file and line."""
        return DataError(f"{self.source}, {self.place} {self.places[row]}: {problem}", hint=hint)

    def unfit(self, problem: str, hint: str) -> DataError:
        """Return the error for unfit columns, with the columns found."""
        columns = ", ".join(map(repr, self.columns)) or "none"
        if len(self.columns) == 1:
            hint += " Columns are separated by commas in a .csv file, by tabs in a .tsv file."
        return DataError(f"{self.source}: {problem} Columns found: {columns}.", hint=hint)

    def texts(self, column: str, *, may_be_empty: bool = False) -> list[str]:
        """Return a column as stripped texts."""
        texts = []
        for row, value in enumerate(self.values(column)):
            if not isinstance(value, str | None):
                problem = f"column {column!r} holds {type(value).__name__} {str(value)[:40]}, not a text."
                raise self.problem(row, problem)
            texts.append((value or "").strip())
            if not (texts[-1] or (may_be_empty and value is not None)):
                raise self.problem(row, f"the text in column {column!r} is empty.")
        return texts

    def numbers(self, column: str) -> list[float]:
        """Return a column as finite numbers."""
        numbers = []
        for row, value in enumerate(self.values(column)):
            try:
                numbers.append(float(value))
            except (ValueError, TypeError, OverflowError):
                numbers.append(math.nan)
            if not math.isfinite(numbers[-1]):
                hint = "Write a number such as 3.5, or remove the row."
                shown = "" if value is None else str(value)[:40]
                raise self.problem(row, f"the score {shown!r} is not a finite number.", hint=hint)
        return numbers

    def labels(self, column: str, *, may_be_empty: bool = False) -> list[str]:
        """Return the class names in a column; "1.0" becomes "1"."""
        labels = []
        for row, value in enumerate(self.values(column)):
            text = str(value).lower() if isinstance(value, bool) else str(value).strip()
            labels.append("" if value is None or value != value else re.sub(r"^(-?\d+)\.0+$", r"\1", text))
            if not (labels[-1] or may_be_empty):
                raise self.problem(row, "the label is empty.", hint="Name the class, or remove the row.")
        return labels

    def values(self, column: str) -> Sequence[Any]:
        """Return the raw values of a column; all None if these rows of a .jsonl file lack the column."""
        return self.columns.get(column) or [None] * len(self)


def read_table(path: Path) -> Table:
    """Read a .csv, .tsv, .jsonl (also .gz, .xz) or .parquet file of at least one row."""
    return next(iter_tables(path, rows=None))


def iter_tables(path: Path, *, rows: int | None = _ROWS_AT_ONCE) -> Iterator[Table]:
    """Yield a file as tables of up to `rows` rows; None yields one table."""
    _check_file(path)
    kind = format_of(path)
    if kind not in PAIR_FORMATS:
        hint = "Give a .csv, .tsv, .jsonl or .parquet file, or a folder of splits; raw text may be .txt. "
        hint += "All but Parquet may be compressed (.gz or .xz)."
        raise DataError(f"{path}: cannot read files that end in {path.suffix!r}.", hint=hint)
    parts = _parquet(path, rows) if kind == ".parquet" else _lines(path, kind, rows)
    first = next(parts, None)
    if first is None:
        raise DataError(f"{path} is empty or has a header but no rows.", hint="Give a file with at least one row.")
    yield first
    yield from parts


def table_from_arrow(source: str, arrow: Any, first: int = 1) -> Table:
    """Convert a pyarrow table or batch. first: number of its first row."""
    names = list(map(str, arrow.schema.names))
    _check_names(source, names)
    try:
        columns = {name: arrow.column(name).to_pylist() for name in names}
    except (ValueError, OverflowError, LookupError) as error:  # such as dates before year 1
        hint = "Correct or remove the column."
        raise DataError(f"{source} holds a value that cannot be read ({first_line(error)}).", hint=hint) from error
    return Table(source, columns, range(first, first + arrow.num_rows), "row", _class_names(arrow.schema))


def _class_names(schema: Any) -> dict[str, dict[str, str]]:
    """Return the names of numbered classes that the datasets library writes into a schema."""
    try:
        features = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
        named = {column: kind["names"] for column, kind in features.items() if kind.get("_type") == "ClassLabel"}
        return {column: {str(number): name for number, name in enumerate(names)} for column, names in named.items()}
    except (ValueError, LookupError, TypeError, AttributeError):  # another writer's
        return {}


def _parquet(path: Path, rows: int | None) -> Iterator[Table]:
    import pyarrow
    import pyarrow.parquet

    first = 1
    try:
        # No Python file object: pyarrow's threads may still read at interpreter exit.
        with pyarrow.OSFile(str(path)) as stream, pyarrow.parquet.ParquetFile(stream) as file:
            for batch in [file.read()] if rows is None else file.iter_batches(batch_size=rows):
                if batch.num_rows:
                    yield table_from_arrow(str(path), batch, first)
                first += batch.num_rows
    except (pyarrow.ArrowException, OSError) as error:
        hint = "Copy or download the file again."
        raise DataError(f"{path} is damaged or not a Parquet file ({first_line(error)}).", hint=hint) from error


def _lines(path: Path, kind: str, size: int | None) -> Iterator[Table]:
    with opened_text(path, newline="" if kind == ".csv" else "\n") as stream:
        if kind == ".jsonl":
            objects = _json_rows(path, stream)
            while chunk := list(islice(objects, size)):
                keys = dict.fromkeys(key for _, row in chunk for key in row)
                columns = {key: [row.get(key) for _, row in chunk] for key in keys}
                yield Table(str(path), columns, [number for number, _ in chunk])
            return
        rows = _rows(path, kind, stream)
        names = [name.strip() for name in next((row for _, row in rows if any(row)), [])]
        _check_names(str(path), names)
        # If there is a single column, a blank line is an empty cell.
        filled = ((number, row or [""]) for number, row in rows if row or len(names) == 1)
        while part := list(islice(filled, size)):
            for number, row in part:
                if len(row) != len(names):
                    problem = f"{path}, line {number}: {len(row)} fields, but {len(names)} in the header."
                    hint = "Put a field that holds a comma in double quotes; in a .tsv file no field holds a tab."
                    raise DataError(problem, hint=hint)
            cells = zip(*(row for _, row in part), strict=True)
            yield Table(str(path), dict(zip(names, cells, strict=True)), [number for number, _ in part])


def _rows(path: Path, kind: str, stream: Iterable[str]) -> Iterator[tuple[int, list[str]]]:
    """Yield the first line number and the fields of each row.

    Quotes in a .tsv file are literal, as in STS and GLUE files, unless they enclose a whole field.
    """
    if kind == ".tsv":
        reader = csv.reader(stream, delimiter="\t", quoting=csv.QUOTE_NONE)
    else:
        reader = csv.reader(stream, strict=True, skipinitialspace=True)
    start = 1
    try:
        for row in reader:
            yield start, [_unquoted(field) for field in row] if kind == ".tsv" else row
            start = reader.line_num + 1  # a quoted field may hold line breaks
    except csv.Error as error:
        hint = 'Put a field that holds a comma or a quote in double quotes; inside, a quote is written twice: "".'
        raise DataError(f"{path}, line {start}: {error}.", hint=hint) from error


def _unquoted(field: str) -> str:
    quoted = re.fullmatch('"(([^"]|"")*)"', field)
    return quoted[1].replace('""', '"') if quoted else field


def _json_rows(path: Path, stream: Iterable[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, line in enumerate(stream, start=1):
        if line.strip():
            try:
                row = json.loads(line)
                if not isinstance(row, dict):
                    raise ValueError("an object is needed")
                if "\\ud" in line.lower():  # an escape of half a surrogate pair is valid JSON, but no text
                    json.dumps(row, ensure_ascii=False).encode()
            except (ValueError, RecursionError) as error:
                hint = 'Write one object per line, such as {"sentence1": "…", "sentence2": "…", "score": 3.2}'
                raise DataError(f"{path}, line {number}: not valid JSON ({error}).", hint=hint) from error
            yield number, row


# Columns


def _check_names(source: str, names: Sequence[str]) -> None:
    if len(set(names)) < len(names):
        hint = "Rename one of them; the first line names the columns."
        raise DataError(f"{source}: two columns have the same name: {', '.join(names)}.", hint=hint)


def check_columns(table: Table, wanted: Iterable[str]) -> None:
    """Raise `DataError` for the first missing column."""
    for name in wanted:
        if name not in table.columns:
            raise table.unfit(f"there is no column {name!r}.", "Use the column names found.")


def find_columns(table: Table, role: str, hint: str = "") -> tuple[str, ...]:
    """Find the columns of a role by name. Raises `DataError` if several choices match.

    If no column matches: raises `DataError` if `hint` is given, else returns an empty tuple.
    """
    plain = {column: plain_name(column) for column in table.columns}
    called = [
        [[column for column in plain if plain[column] == name] for name in names.split(",")]
        for names in _NAMES[role].split()
    ]
    choices = list(chain.from_iterable(product(*columns) for columns in called))
    if len(choices) > 1:
        raise table.unfit(f"several columns could be {role}.", hint or "Rename or remove all of them but one.")
    if hint and not choices:
        raise table.unfit(f"no column has a known name for {role}.", hint)
    return choices[0] if choices else ()


def plain_name(column: str) -> str:
    """Return a column's name in lower case, without spaces, hyphens and underscores."""
    return re.sub(r"[\s_-]", "", column.lower())


def is_label(column: str) -> bool:
    """Check if a column has a usual name for labels."""
    return plain_name(column) in _NAMES[LABEL].split()


# Texts


def iter_texts(path: str | Path, *, column: str | None = None, by_row: bool = False) -> Iterator[str]:
    """Yield the stripped texts of one file in order, repeats included.

    A .txt file (also .gz, .xz) holds one text per line; blank lines are skipped. A table holds texts in `column` (by
    default, a column with a usual name), or in the two columns of sentence pairs. by_row: raise `DataError` for blank
    lines and pairs.
    """
    path = Path(path)
    if format_of(path) == TEXT_FORMAT:
        if column is not None:
            raise DataError(f"{path}: there is no column {column!r}.", hint="A .txt file has no columns.")
        yield from _text_lines(path, may_skip=not by_row)
        return
    names: tuple[str, ...] = () if column is None else (column,)
    for table in iter_tables(path):
        if column is not None:
            check_columns(table, names)
        elif not names:
            single = find_columns(table, TEXT, _NAME_COLUMN if by_row else "")
            names = single or find_columns(table, PAIR, _NAME_COLUMN)
        yield from chain.from_iterable(zip(*map(table.texts, names), strict=True))


def read_texts(path: str | Path, *, column: str | None = None) -> list[str]:
    """Return the distinct texts of one file in order, read by `iter_texts`."""
    return list(dict.fromkeys(iter_texts(path, column=column)))


def _text_lines(path: Path, *, may_skip: bool) -> Iterator[str]:
    is_empty = True
    with opened_text(path) as stream:
        for number, line in enumerate(stream, start=1):
            if text := line.strip():
                is_empty = False
                yield text
            elif not may_skip:
                hint = "Fill or remove the line: each line is one text."
                raise DataError(f"{path}, line {number}: the line is empty.", hint=hint)
    if is_empty:
        raise DataError(f"{path} is empty.", hint="Write one text per line.")


def jsonl_in(folder: Path, name: str) -> Path | None:
    """Return the file NAME.jsonl, also compressed, if it exists."""
    paths = (folder / f"{name}.jsonl{packed}" for packed in ("", *COMPRESSIONS))
    return next((path for path in paths if path.is_file()), None)


def is_retrieval_folder(path: str | Path) -> bool:
    """Check if a path is a folder with `qrels` or a corpus."""
    folder = Path(path)
    return folder.is_dir() and ((folder / "qrels").is_dir() or jsonl_in(folder, "corpus") is not None)
