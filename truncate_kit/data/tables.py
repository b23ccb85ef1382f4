"""Read CSV, TSV, JSONL, Parquet and plain text; find columns by name.

The standard library reads CSV and JSONL: it knows the line of every row and streams. Problems raise `DataError`.
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
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any, TextIO, TypeVar

from truncate_kit.core.errors import DataError, first_line
from truncate_kit.core.files import is_there

PAIR_FORMATS = (".csv", ".tsv", ".jsonl", ".parquet")
TEXT_FORMAT = ".txt"
_OPENERS: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".xz": lzma.open}
COMPRESSIONS = tuple(_OPENERS)
_ROWS_AT_ONCE = 1024

# Compared in lower case without spaces, hyphens and underscores.
_TEXT_PAIRS = (
    ("sentence1", "sentence2"), ("sentencea", "sentenceb"), ("text1", "text2"), ("texta", "textb"),
    ("first", "second"), ("anchor", "positive"), ("sent0", "sent1"), ("premise", "hypothesis"), ("word1", "word2"),
    ("question1", "question2"), ("query", "relevant"), ("query", "positive"), ("query", "passage"),
    ("query", "document"), ("question", "answer"),
)  # fmt: skip
_TRIPLETS = (
    ("anchor", "positive", "negative"), ("query", "positive", "negative"), ("sent0", "sent1", "hardneg"),
    ("sentence1", "sentence2", "negative"),
)  # fmt: skip
_SCORES = ("score", "similarity", "similarityscore", "relatedness", "relatednessscore", "gold", "goldscore", "target")
# Some sets call their scores label: only a class if no column is called a score.
CLASSES = ("label", "class", "goldlabel", "relation", "entailment", "entailmentlabel", "entailmentjudgment",
           "isduplicate")  # fmt: skip
_TEXTS = ("text", "sentence", "texts", "sentences")
_NAME_SCORED = 'Name them: `columns=("first", "second", "score")`.'
_FIELDS = ("first", "second", "score")
_RENAME = "Rename or remove all of them but one."

Choice = TypeVar("Choice")


# Files


def format_of(path: Path) -> str:
    """Return the extension without `.gz` or `.xz`."""
    suffixes = [suffix.lower() for suffix in path.suffixes[-2:]]
    if suffixes and suffixes[-1] in COMPRESSIONS:
        suffixes.pop()
    return suffixes[-1] if suffixes else ""


def stem_of(path: Path) -> str:
    """Return the name up to the first point, in lower case."""
    return path.name.partition(".")[0].lower()


def data_files(folder: Path) -> list[Path]:
    """Return the table files of a folder, sorted."""
    return sorted(path for path in folder.iterdir() if path.is_file() and format_of(path) in PAIR_FORMATS)


def _check_file(path: Path) -> None:
    if not is_there(path):
        raise DataError(f"{path} does not exist.", hint="Check the path; a relative one starts in the current folder.")
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
        raise DataError(f"{path}, line {_first_bad_line(path, opener)}: the text is not UTF-8.", hint=hint) from error
    except (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile) as error:
        hint = "Copy or download the file again; `gzip -t` or `xz -t` checks whether it is whole."
        raise DataError(f"{path}: the packed data is broken or ends too early ({error}).", hint=hint) from error
    except OSError as error:
        hint = "Check the file and its permissions."
        raise DataError(f"Cannot read {path}: {error.strerror or error}.", hint=hint) from error


def _first_bad_line(path: Path, opener: Callable[..., Any]) -> int:
    with opener(path, "rt", encoding="utf-8", errors="surrogateescape", newline="\n") as stream:
        return next(number for number, line in enumerate(stream, start=1) if re.search("[\udc80-\udcff]", line))


# Tables


@dataclass(frozen=True, slots=True)
class Table:
    """Columns of a file, or of some of its rows."""

    source: str  # path or hub name
    columns: Mapping[str, Sequence[Any]]  # name → values
    places: Sequence[int]  # line (or number) of each row
    place: str = "line"  # line or row

    def __len__(self) -> int:
        return len(self.places)

    def problem(self, row: int, problem: str, *, hint: str = "Mend or remove the row.") -> DataError:
        """Return the error for a row."""
        return DataError(f"{self.source}, {self.place} {self.places[row]}: {problem}", hint=hint)

    def unfit(self, problem: str, hint: str) -> DataError:
        """Return the error for unfit columns."""
        columns = ", ".join(map(repr, self.columns)) or "none"
        message = f"{self.source}: {problem} Columns found: {columns}."
        return DataError(message, hint=_hint(self.source, list(self.columns), hint))

    def texts(self, column: str, *, may_be_empty: bool = False) -> list[str]:
        """Return a column of stripped texts."""
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
        """Return a column of finite numbers."""
        numbers = []
        for row, value in enumerate(self.values(column)):
            try:
                numbers.append(float(value))
            except (ValueError, TypeError, OverflowError):
                numbers.append(math.nan)
            if not math.isfinite(numbers[-1]):
                hint = "Write it like 3.5, with a point, or remove the row."
                shown = "" if value is None else str(value)[:40]
                raise self.problem(row, f"the score {shown!r} is not a finite number.", hint=hint)
        return numbers

    def labels(self, column: str, *, may_be_empty: bool = False) -> list[str]:
        """Return a column of class names, whole numbers without ".0"."""
        labels = []
        for row, value in enumerate(self.values(column)):
            text = str(value).lower() if isinstance(value, bool) else str(value).strip()
            labels.append("" if value is None or value != value else re.sub(r"^(-?\d+)\.0+$", r"\1", text))
            if not (labels[-1] or may_be_empty):
                raise self.problem(row, "there is no label.", hint="Name the class, or remove the row.")
        return labels

    def values(self, column: str) -> Sequence[Any]:
        """Return a raw column; a part of a .jsonl file may lack it."""
        return self.columns.get(column) or [None] * len(self)


def read_table(path: Path) -> Table:
    """Read a .csv, .tsv, .jsonl (also .gz, .xz) or .parquet file with rows."""
    return next(iter_tables(path, rows=None))


def iter_tables(path: Path, *, rows: int | None = _ROWS_AT_ONCE, counted: bool = False) -> Iterator[Table]:
    """Read a file as `read_table` does, `rows` rows at a time.

    counted: Rows are known by number, so a blank line of a single column is an empty cell.
    """
    _check_file(path)
    kind = format_of(path)
    if kind not in PAIR_FORMATS:
        hint = "Give a .csv, .tsv, .jsonl or .parquet file, or a folder of splits; raw text may be .txt. "
        hint += "All but Parquet may be packed as .gz or .xz."
        raise DataError(f"{path}: cannot read files that end in {path.suffix!r}.", hint=hint)
    parts = _parquet(path, rows) if kind == ".parquet" else _lines(path, kind, rows, counted)
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
        hint = "Mend that column or leave it out of the file."
        raise DataError(f"{source} holds a value that cannot be read ({first_line(error)}).", hint=hint) from error
    return Table(source, columns, range(first, first + arrow.num_rows), "row")


def _parquet(path: Path, rows: int | None) -> Iterator[Table]:
    import pyarrow
    import pyarrow.parquet

    first = 1
    try:
        # Not a Python file: pyarrow's threads may still read at interpreter exit.
        with pyarrow.OSFile(str(path)) as stream, pyarrow.parquet.ParquetFile(stream) as file:
            for batch in [file.read()] if rows is None else file.iter_batches(batch_size=rows):
                if batch.num_rows:
                    yield table_from_arrow(str(path), batch, first)
                first += batch.num_rows
    except (pyarrow.ArrowException, OSError) as error:
        hint = "Copy or download the file again."
        raise DataError(f"{path} is not a whole Parquet file ({first_line(error)}).", hint=hint) from error


def _lines(path: Path, kind: str, size: int | None, counted: bool) -> Iterator[Table]:
    with opened_text(path, newline="" if kind == ".csv" else "\n") as stream:
        if kind == ".jsonl":
            objects = _json_rows(path, stream)
            while chunk := list(islice(objects, size)):
                keys = dict.fromkeys(key for _, row in chunk for key in row)
                columns = {key: [row.get(key) for _, row in chunk] for key in keys}
                yield Table(str(path), columns, [number for number, _ in chunk])
            return
        numbered = _csv_rows(path, stream) if kind == ".csv" else _tsv_rows(stream)
        names = [name.strip() for name in next((row for _, row in numbered if any(row)), [])]
        _check_names(str(path), names)
        if counted and len(names) == 1:
            filled = ((number, row or [""]) for number, row in numbered)
        else:
            filled = ((number, row) for number, row in numbered if row not in ([], [""]))
        while part := list(islice(filled, size)):
            for number, row in part:
                if len(row) != len(names):
                    problem = f"{path}, line {number}: {len(row)} fields where the header names {len(names)}."
                    hint = "Put a field that holds a comma in double quotes; in a .tsv file no field holds a tab."
                    raise DataError(problem, hint=_hint(str(path), names, hint))
            cells = zip(*(row for _, row in part), strict=True)
            yield Table(str(path), dict(zip(names, cells, strict=True)), [number for number, _ in part])


def _csv_rows(path: Path, stream: Iterable[str]) -> Iterator[tuple[int, list[str]]]:
    reader = csv.reader(stream, strict=True, skipinitialspace=True)
    start, header = 1, list[str]()
    try:
        for row in reader:
            header = header or row
            yield start, row
            start = reader.line_num + 1  # a quoted field may hold line breaks
    except csv.Error as error:
        hint = 'Put a field that holds a comma or a quote in double quotes; inside, a quote is written twice: "".'
        raise DataError(f"{path}, line {start}: {error}.", hint=_hint(str(path), header, hint)) from error


def _tsv_rows(stream: Iterable[str]) -> Iterator[tuple[int, list[str]]]:
    """Split lines at tabs. Quotes are literal, as in STS and GLUE files.

    Only a field that a spreadsheet quoted (both ends, inner ones doubled) is unquoted.
    """
    for number, line in enumerate(stream, start=1):
        plain = line.rstrip("\r\n")
        fields = plain.split("\t") if plain else []
        quoted = [re.fullmatch('"(([^"]|"")*)"', field) for field in fields]
        yield number, [q[1].replace('""', '"') if q else field for q, field in zip(quoted, fields, strict=True)]


def _json_rows(path: Path, stream: Iterable[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, line in enumerate(stream, start=1):
        if line.strip():
            try:
                row = json.loads(line)
                if not isinstance(row, dict):
                    raise ValueError("an object is needed")
            except (ValueError, RecursionError) as error:
                hint = 'Write one object per line, such as {"sentence1": "…", "sentence2": "…", "score": 3.2}'
                raise DataError(f"{path}, line {number}: not valid JSON ({error}).", hint=hint) from error
            yield number, row


# Columns


def _check_names(source: str, names: Sequence[str]) -> None:
    if len(set(names)) < len(names):
        hint = _hint(source, names, "Rename one of them.")
        raise DataError(f"{source}: two columns have the same name: {', '.join(names)}.", hint=hint)


def _hint(source: str, names: Sequence[str], hint: str) -> str:
    """Return a hint for other separators or a missing header."""
    kind = format_of(Path(source))
    if kind not in (".csv", ".tsv"):
        return hint
    for mark, word in (("\t", "tabs"), (";", "semicolons"), (",", "commas")):
        if any(re.search(rf"{mark}\S", name) for name in names) and (kind == ".csv" or len(names) == 1):
            return f"The file seems to be separated by {word}: save it with {'commas' if kind == '.csv' else 'tabs'}."
    if any(re.fullmatch(r"[-+\d.,]+|.*\s.*[.?!]|\s*(\S+\s+){4,}\S+\s*", name) for name in names):
        return "The file seems to have no header: add a first line that names its columns."
    return hint


def find_columns(table: Table, wanted: Sequence[str] | None, *, classes: bool = False) -> tuple[str, str, str]:
    """Return the columns of both texts and score (or class)."""
    if wanted is not None:
        if len(wanted) != 3 or len(set(wanted)) < 3:
            raise table.unfit("three different columns are needed.", _NAME_SCORED)
        check_columns(table, wanted)
        return wanted[0], wanted[1], wanted[2]
    if classes:
        hint = "Call the columns sentence1, sentence2 and label."
        return *find_text_columns(table, hint=hint), _only_one(table, called(table, CLASSES), "the class", hint)
    columns = ", ".join(f'"{name}"' for name in (table.columns if len(table.columns) == 3 else _FIELDS))
    hint = f"Name them: `columns=({columns})`."
    scores = called(table, _SCORES) or called(table, CLASSES[:1])
    return *find_text_columns(table, hint=hint), _only_one(table, scores, "the score", hint)


def find_text_columns(table: Table, *, hint: str = _NAME_SCORED) -> tuple[str, str]:
    """Return the columns of both texts."""
    pairs = ((called(table, [left]), called(table, [right])) for left, right in _TEXT_PAIRS)
    return _only_one(table, [(a, b) for left, right in pairs for a in left for b in right], "the two texts", hint)


def find_triplet_columns(table: Table) -> tuple[str, str, str] | None:
    """Return the columns of anchor, positive and negative, if any."""
    for names in _TRIPLETS:
        anchor, positive, negative = (called(table, [name]) for name in names)
        if anchor and positive and negative:
            return anchor[0], positive[0], negative[0]
    return None


def find_score_column(table: Table) -> str | None:
    """Return the score column by name, if any."""
    return next(iter(called(table, _SCORES)), None)


def find_text_column(table: Table, column: str | None = None) -> str | None:
    """Return the column of raw text, if any."""
    if column is not None:
        check_columns(table, [column])
        return column
    texts = called(table, _TEXTS)
    return _only_one(table, texts, "the text", "Name it as `column`.") if texts else None


def find_label_column(table: Table) -> str | None:
    """Return the only class column, if any."""
    labels = called(table, CLASSES)
    return _only_one(table, labels, "the label", _RENAME) if labels else None


def check_columns(table: Table, wanted: Iterable[str]) -> None:
    """Raise `DataError` for the first missing column."""
    for name in wanted:
        if name not in table.columns:
            raise table.unfit(f"there is no column {name!r}.", "Use the names as written there.")


def called(table: Table, plain_names: Iterable[str]) -> list[str]:
    """Return the columns with these plain names, in their order."""
    plain = {column: re.sub(r"[\s_-]", "", column.lower()) for column in table.columns}
    return [column for name in plain_names for column in plain if plain[column] == name]


def _only_one(table: Table, choices: Sequence[Choice], role: str, hint: str) -> Choice:
    if len(choices) == 1:
        return choices[0]
    many = f"more than one choice for {role}." if choices else f"no column name says where {role} can be found."
    raise table.unfit(many, hint)


# Texts


def iter_texts(path: str | Path, *, column: str | None = None) -> Iterator[str]:
    """Yield the stripped texts of one file in order, repeats included, skipping blank lines.

    A .txt file (also .gz, .xz) holds one text a line. A table has them in `column`, by default found by name, or in the
    two columns of sentence pairs.
    """
    path = Path(path)
    texts = filter(None, _text_lines(path)) if format_of(path) == TEXT_FORMAT else _cells(path, column, pairs=True)
    yield from _some(path, texts)


def read_texts(path: str | Path, *, column: str | None = None) -> list[str]:
    """Return the distinct texts of one file in order; the file as in `iter_texts`."""
    return list(dict.fromkeys(iter_texts(path, column=column)))


def iter_rows(path: str | Path, *, column: str | None = None) -> Iterator[str]:
    """Yield one text per row, as `iter_texts`; blank rows and pairs are errors."""
    path = Path(path)
    if format_of(path) != TEXT_FORMAT:
        yield from _cells(path, column, pairs=False)
        return
    if column is not None:
        raise DataError(f"{path}: there is no column {column!r}.", hint="A .txt file has no columns.")
    for number, text in enumerate(_some(path, _text_lines(path)), start=1):
        if not text:
            hint = "Fill it in or remove it: each line is one text."
            raise DataError(f"{path}, line {number}: the line is empty.", hint=hint)
        yield text


def _text_lines(path: Path) -> Iterator[str]:
    with opened_text(path) as stream:
        yield from map(str.strip, stream)


def _some(path: Path, texts: Iterator[str]) -> Iterator[str]:
    first = next(texts, None)
    if first is None:
        raise DataError(f"{path} is empty.", hint="Write one text per line.")
    return chain([first], texts)


def _cells(path: Path, column: str | None, *, pairs: bool) -> Iterator[str]:
    names: tuple[str, ...] = ()
    for table in iter_tables(path, counted=not pairs):
        if not names:
            single = find_text_column(table, column)
            names = (single,) if single is not None else find_text_columns(table) if pairs else ()
        if not names:
            raise table.unfit("no column name says where the texts are.", "Name it as `column`.")
        yield from chain.from_iterable(zip(*map(table.texts, names), strict=True))


def jsonl_in(folder: Path, name: str) -> Path | None:
    """Return the .jsonl file of this name, also compressed, if any."""
    paths = (folder / f"{name}.jsonl{packed}" for packed in ("", *COMPRESSIONS))
    return next((path for path in paths if path.is_file()), None)


def is_retrieval_folder(path: str | Path) -> bool:
    """Tell if a folder holds documents and queries."""
    folder = Path(path)
    return folder.is_dir() and ((folder / "qrels").is_dir() or jsonl_in(folder, "corpus") is not None)
