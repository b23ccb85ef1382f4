"""Read CSV, TSV, JSON, Parquet and plain text; find columns by name.

The standard library streams CSV and JSON, so that errors name the line.
"""

import codecs
import csv
import functools
import gzip
import json
import lzma
import math
import re
import sys
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import chain, islice, product
from pathlib import Path
from typing import Any, TextIO

from truncate_kit.core.errors import DataError, first_line
from truncate_kit.core.files import check_there

_JSON = (".jsonl", ".ndjson", ".json")
PAIR_FORMATS = (".csv", ".tsv", *_JSON, ".parquet")
TEXT_FORMAT = ".txt"
_POINTER = b"version https://git-lfs.github.com/spec/"
_OPENERS: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".xz": lzma.open}
COMPRESSIONS = tuple(_OPENERS)
_ROWS_AT_ONCE, _MANY_ROWS = 1024, 65_536
_MOST_VALUES = 10_000_000  # of a Parquet column, whose bytes do not bound them

PAIR, SCORE, LABEL, TEXT = "the two texts", "the score", "the label", "the text"
# Column names by role, as `plain_name` returns them; commas join columns of one choice.
_NAMES = {
    PAIR: (
        "sentence1,sentence2 sentencea,sentenceb text1,text2 texta,textb first,second anchor,positive sent0,sent1 "
        "premise,hypothesis word1,word2 question1,question2 query,relevant query,positive query,passage "
        "query,document question,answer query,answer query,pos query,positives query,positivepassages anchor,positives "
        "anchor,pos question,positivectxs"
    ),
    SCORE: "score similarity similarityscore relatedness relatednessscore gold goldscore target",
    LABEL: "label class goldlabel relation entailment entailmentlabel entailmentjudgment isduplicate",
    TEXT: "text sentence texts sentences",
}
TRUTH = {"true": 1, "false": 0}
_CELL = re.compile(r'(?:^|\t)(?:"((?:[^"]|"")*+)"|([^"\t]*))(?=\t|$)')  # enclosed or bare
_NO_TEXT = re.compile(r"(?i)[-+\d.e]*|na|nan|null|none|true|false")
_LINES_IN_FIELD = 1000
_MOST_NAMED = 20
_OBJECTS = 'Write one object per line, such as {"sentence1": "…", "sentence2": "…", "score": 3.2}'
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


def data_files(folder: Path, levels: int = 1) -> list[Path]:
    """Return the tables in and below a folder, sorted, without hidden files and hub metadata."""
    paths = chain.from_iterable(folder.glob("/".join("*" * level)) for level in range(1, levels + 1))
    left_out = re.compile(r"(^|/)(\.|dataset_infos?\.json$)")
    return sorted(path for path in paths if is_table(path) and not left_out.search(str(path.relative_to(folder))))


def _check_file(path: Path) -> None:
    check_there(path)
    if not path.is_file():
        raise DataError(f"{path} is a folder, a pipe or a device, not a file.", hint="Name a file.")
    with suppress(OSError), path.open("rb") as stream:
        if stream.read(len(_POINTER)) == _POINTER:
            raise DataError(
                f"{path} is a Git LFS pointer, not the file itself.", hint="Run `git lfs pull` in the clone."
            )


@contextmanager
def opened_text(path: Path, *, newline: str = "\n") -> Iterator[TextIO]:
    """Open a UTF-8 file, also compressed or with byte order mark."""
    _check_file(path)
    opener = _OPENERS.get(path.suffix.lower(), open)
    try:
        with opener(path, "rt", encoding="utf-8-sig", newline=newline) as stream:
            yield stream
    except UnicodeDecodeError as error:
        if b"\0" in error.object and not error.object.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            hint = "Save a workbook or database as a .csv file in UTF-8; a Parquet file must end in .parquet."
            raise DataError(f"{path} is a binary file, not text.", hint=hint) from error
        hint = "Save the file as UTF-8, for example: iconv -f WINDOWS-1252 (or UTF-16) -t UTF-8 OLD > NEW"
        raise DataError(f"{path}: the text is not UTF-8.", hint=hint) from error
    except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
        hint = "Check the file's permissions, or copy or download the file again."
        raise DataError(f"{path}: cannot be read ({first_line(error)}).", hint=hint) from error


# Tables


class Columns(Mapping[str, Sequence[Any]]):
    """Columns by name, each read when it is first used."""

    def __init__(self, names: Iterable[str], read: Callable[[str], Sequence[Any]]) -> None:
        self._names, self._read = dict.fromkeys(names), functools.cache(read)

    def __getitem__(self, name: str) -> Sequence[Any]:
        if name not in self._names:
            raise KeyError(name)
        return self._read(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def _refuse(_: int, error: DataError) -> None:
    raise error


@dataclass(frozen=True, slots=True)
class Table:
    """Columns of a data file, or of a chunk of its rows."""

    source: str  # path or hub name
    columns: Mapping[str, Sequence[Any]]
    places: Sequence[int]  # line or row number of each row
    place: str = "line"  # unit of `places`: "line" or "row"
    class_names: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # column → number → name
    shards: "tuple[Table, ...]" = ()  # of a joined table; `places` count their rows from 0
    decimal_comma: bool = False  # such as 3,5
    take_bad: Callable[[int, DataError], object] = _refuse  # takes empty texts, scores and labels

    def __len__(self) -> int:
        return len(self.places)

    def select(self, rows: Sequence[int]) -> "Table":
        """Return a table of these rows."""
        columns = Columns(self.columns, lambda name: [self.columns[name][row] for row in rows])
        return replace(self, columns=columns, places=[self.places[row] for row in rows])

    def problem(self, row: int, problem: str, *, hint: str = "Correct or remove the row.") -> DataError:
        """Return the error for a row, with file and line."""
        place = self.places[row]
        for shard in self.shards:
            if place < len(shard):
                return shard.problem(place, problem, hint=hint)
            place -= len(shard)
        return DataError(f"{self.source}, {self.place} {self.places[row]}: {problem}", hint=hint)

    def unfit(self, problem: str, hint: str) -> DataError:
        """Return the error for unfit columns, with the columns found."""
        columns = ", ".join(map(repr, islice(self.columns, _MOST_NAMED))) or "none"
        if (more := len(self.columns) - _MOST_NAMED) > 0:
            columns += f" and {more:,} more"
        if len(self.columns) == 1:
            hint += " Columns are separated by commas in a .csv file, by tabs in a .tsv file."
        return DataError(f"{self.source}: {problem} Columns found: {columns}.", hint=hint)

    def texts(self, column: str, *, may_be_empty: bool = False) -> list[str]:
        """Return a column as stripped texts."""
        texts, stripped = list[str](), dict[str, str]()  # equal texts share one object
        for row, value in enumerate(self.values(column)):
            if not isinstance(value, str | None):
                problem = f"column {column!r} holds {type(value).__name__} {str(value)[:40]}, not a text."
                raise self.problem(row, problem)
            texts.append(stripped.setdefault(value or "", (value or "").strip()))
            if not (texts[-1] or (may_be_empty and value is not None)):
                self.take_bad(row, self.problem(row, f"the text in column {column!r} is empty."))
        return texts

    def lists(self, column: str, *, may_be_empty: bool = False) -> list[list[str]]:
        """Return a column as lists of stripped texts; cells hold one or a list."""
        cells = [value if isinstance(value, list) else [value] for value in self.values(column)]
        if may_be_empty:
            cells = [[text for text in cell if text is not None and str(text).strip()] for cell in cells]
        places = [place for place, cell in zip(self.places, cells, strict=True) for _ in cell]
        texts = iter(replace(self, columns={column: list(chain(*cells))}, places=places).texts(column))
        return [list(islice(texts, len(cell))) for cell in cells]

    def numbers(self, column: str) -> list[float]:
        """Return a column as finite numbers; true is 1, false 0."""
        numbers = []
        for row, value in enumerate(self.values(column)):
            if self.decimal_comma and isinstance(value, str):
                value = value.replace(",", ".")
            try:
                numbers.append(float(TRUTH.get(str(value).strip().lower(), value)))
            except (ValueError, TypeError, OverflowError):
                numbers.append(math.nan)
            if not math.isfinite(numbers[-1]):
                hint = "Write a number such as 3.5, or remove the row."
                shown = "" if value is None else str(value)[:40]
                self.take_bad(row, self.problem(row, f"the score {shown!r} is not a finite number.", hint=hint))
        return numbers

    def labels(self, column: str, *, may_be_empty: bool = False) -> list[str]:
        """Return the class names in a column; "1.0" becomes "1"."""
        labels = []
        for row, value in enumerate(self.values(column)):
            text = str(value).lower() if isinstance(value, bool) else str(value).strip()
            labels.append("" if value is None or value != value else re.sub(r"^(-?\d+)\.0+$", r"\1", text))
            if not (labels[-1] or may_be_empty):
                hint = "Name the class, or remove the row."
                self.take_bad(row, self.problem(row, "the label is empty.", hint=hint))
        return labels

    def values(self, column: str) -> Sequence[Any]:
        """Return the raw values of a column; None where rows of a .jsonl file lack it."""
        return self.columns.get(column) or [None] * len(self)


def read_table(path: Path) -> Table:
    """Read a table file of at least one row."""
    parts = iter([_parquet_table(path)]) if _format_of_table(path) == ".parquet" else _lines(path, None)
    return _first_part(path, parts)


def read_shards(paths: Sequence[Path]) -> Table:
    """Read the files of one split as one table."""
    if len(paths) == 1:
        return read_table(paths[0])
    shards = tuple(map(read_table, paths))
    names = chain.from_iterable(shard.columns for shard in shards)
    columns = Columns(names, lambda name: list(chain.from_iterable(shard.values(name) for shard in shards)))
    joined = replace(shards[0], source=f"{paths[0]} and its shards", columns=columns, shards=shards)
    return replace(joined, places=range(sum(map(len, shards))))


def iter_tables(path: Path, choose: Callable[[Table], Sequence[str]]) -> Iterator[Table]:
    """Yield the columns that `choose` names, 1,024 rows at a time."""
    if _format_of_table(path) == ".parquet":
        whole = read_table(path)
        yield from _parquet_parts(path, choose(whole))
        return
    parts = _lines(path, _ROWS_AT_ONCE)
    first = _first_part(path, parts)
    names = choose(first)
    for part in chain([first], parts):
        yield replace(part, columns={name: part.values(name) for name in names})


def _format_of_table(path: Path) -> str:
    _check_file(path)
    if (kind := format_of(path)) not in PAIR_FORMATS:
        hint = "Give a .csv, .tsv, .json, .jsonl or .parquet file, or a folder of splits; raw text may be .txt. "
        hint += "All but Parquet may be compressed (.gz or .xz)."
        raise DataError(f"{path}: cannot read files that end in {path.suffix!r}.", hint=hint)
    return kind


def _first_part(path: Path, parts: Iterator[Table]) -> Table:
    if first := next(parts, None):
        return first
    raise DataError(f"{path} is empty or has a header but no rows.", hint="Give a file with at least one row.")


def table_from_arrow(source: str, arrow: Any) -> Table:
    """Convert a pyarrow table."""
    names = list(map(str, arrow.schema.names))
    _check_names(source, names)

    def read(name: str) -> list[Any]:
        with _converting(source):
            return list(chain.from_iterable(map(_values, arrow.column(name).chunks)))

    return Table(source, Columns(names, read), range(1, arrow.num_rows + 1), "row", _class_names(arrow.schema))


def _class_names(schema: Any) -> dict[str, dict[str, str]]:
    try:
        features = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
        named = {column: kind["names"] for column, kind in features.items() if kind.get("_type") == "ClassLabel"}
        return {column: {str(number): name for number, name in enumerate(names)} for column, names in named.items()}
    except (ValueError, LookupError, TypeError, AttributeError):  # another writer's
        return {}


@contextmanager
def _parquet(path: Path) -> Iterator[Any]:
    """Open a Parquet file so that equal texts are read once."""
    import pyarrow
    import pyarrow.parquet

    try:
        # No Python file object: pyarrow's threads may still read at interpreter exit.
        with pyarrow.OSFile(str(path)) as stream, _converting(str(path)):
            metadata = pyarrow.parquet.read_metadata(stream)
            columns = map(metadata.schema.column, range(metadata.num_columns))
            texts = [column.path for column in columns if column.physical_type == "BYTE_ARRAY"]
            with pyarrow.parquet.ParquetFile(stream, metadata=metadata, read_dictionary=texts) as file:
                yield file
    except (pyarrow.ArrowException, OSError) as error:
        hint = "Copy or download the file again."
        raise DataError(f"{path} is damaged or not a Parquet file ({first_line(error)}).", hint=hint) from error


def _parquet_table(path: Path) -> Table:
    with _parquet(path) as file:
        names, rows, class_names = file.schema_arrow.names, file.metadata.num_rows, _class_names(file.schema_arrow)
    _check_names(str(path), names)

    def read(name: str) -> list[Any]:
        return list(chain.from_iterable(part.columns[name] for part in _parquet_parts(path, [name], whole=True)))

    return Table(str(path), Columns(names, read), range(1, rows + 1), "row", class_names)


def _parquet_parts(path: Path, names: Sequence[str], *, whole: bool = False) -> Iterator[Table]:
    first = 1
    with _parquet(path) as file:
        most = _MOST_VALUES if whole else max(_MOST_VALUES, file.metadata.num_rows)
        for name in names:
            if (number := _num_values(file.metadata, name)) > most:
                problem = f"{path}: column {name!r} holds {number:,} values; at most {most:,} are read."
                raise DataError(problem, hint="Split the file, or keep a sample of its rows.")
        for batch in file.iter_batches(batch_size=_MANY_ROWS if whole else _ROWS_AT_ONCE, columns=list(names)):
            columns = {name: _values(batch.column(name)) for name in names}
            yield Table(str(path), columns, range(first, first + batch.num_rows), "row")
            first += batch.num_rows


def _num_values(metadata: Any, name: str) -> int:
    groups = map(metadata.row_group, range(metadata.num_row_groups))
    chunks = (group.column(place) for group in groups for place in range(group.num_columns))
    return sum(chunk.num_values for chunk in chunks if f"{chunk.path_in_schema}.".startswith(f"{name}."))


@contextmanager
def _converting(source: str) -> Iterator[None]:
    import pyarrow

    try:
        yield
    except (ValueError, OverflowError, LookupError) as error:  # such as dates before year 1
        if isinstance(error, pyarrow.ArrowException | DataError):
            raise
        hint = "Correct or remove the column."
        raise DataError(f"{source} holds a value that cannot be read ({first_line(error)}).", hint=hint) from error


def _values(array: Any) -> list[Any]:
    """Convert an Arrow array; equal values of a dictionary are one object."""
    import pyarrow

    if pyarrow.types.is_dictionary(array.type):
        used, texts = array.indices.unique(), array.dictionary
        texts = texts.cast(pyarrow.string()) if texts.type == pyarrow.string_view() else texts  # which `take` lacks
        of_index = dict(zip(used.to_pylist(), texts.take(used).to_pylist(), strict=True))
        return [of_index[index] for index in array.indices.to_pylist()]
    if pyarrow.types.is_list(array.type) or pyarrow.types.is_large_list(array.type):
        items = iter(_values(array.flatten()))
        sizes = array.value_lengths().to_pylist()
        return [None if size is None else list(islice(items, size)) for size in sizes]
    if pyarrow.types.is_struct(array.type):
        parts = dict(zip((part.name for part in array.type), array.flatten(), strict=True))
        titles, texts = (_values(parts[name]) if name in parts else [None] * len(array) for name in ("title", "text"))
        light = functools.cache(lambda title, text: _light({"title": title, "text": text}))
        rows = (
            (None if isinstance(part, list | dict) else part for part in row) for row in zip(titles, texts, strict=True)
        )
        return [light(*row) if own else None for own, row in zip(array.is_valid().to_pylist(), rows, strict=True)]
    return list(array.to_pylist())


def _lines(path: Path, size: int | None) -> Iterator[Table]:
    kind = format_of(path)
    quoted = kind == ".csv" or (kind == ".tsv" and _is_quoted(path))
    with opened_text(path, newline="" if quoted else "\n") as stream:
        if kind in _JSON:
            place, objects = _json_rows(path, stream)
            while chunk := list(islice(objects, size)):
                yield _table_of_objects(str(path), chunk, place)
            return
        separator, lines = _separated(stream) if kind == ".csv" else ("\t", stream)
        rows = _rows(path, separator, lines, quoted=quoted)
        names = [name.strip() for name in next((row for _, row in rows if any(row)), [])]
        _check_names(str(path), names)
        # A blank line in a single column is an empty cell.
        filled = ((number, row or [""]) for number, row in rows if row or len(names) == 1)
        while part := list(islice(filled, size)):
            for number, row in part:
                if len(row) != len(names):
                    problem = f"{path}, line {number}: {len(row)} fields, but {len(names)} in the header."
                    hint = "Put a field that holds a comma in double quotes; in a .tsv file no field holds a tab."
                    raise DataError(problem, hint=hint)
            cells = zip(*(row for _, row in part), strict=True)
            columns, places = dict(zip(names, cells, strict=True)), [number for number, _ in part]
            yield Table(str(path), columns, places, decimal_comma=separator != ",")


def _table_of_objects(source: str, rows: Sequence[tuple[int, dict[str, Any]]], place: str) -> Table:
    names = dict.fromkeys(chain.from_iterable(row for _, row in rows))
    columns = Columns(names, lambda name: [row.get(name) for _, row in rows])
    return Table(source, columns, [number for number, _ in rows], place)


def _separated(stream: Iterator[str]) -> tuple[str, Iterator[str]]:
    """Return the first line's most frequent separator (else a comma), and all lines."""
    begin = [""]
    while not begin[-1].strip() and (line := next(stream, "")):
        begin.append(line)
    names = re.sub('"[^"]*"', "", begin[-1])
    return max(",;\t", key=names.count), chain(begin[1:], stream)


def _rows(path: Path, separator: str, lines: Iterable[str], *, quoted: bool) -> Iterator[tuple[int, list[str]]]:
    if not quoted:
        for number, line in enumerate(lines, start=1):
            text = line.rstrip("\r\n")
            yield number, ["" if field == '""' else field for field in text.split("\t")] if text else []
        return
    csv.field_size_limit(sys.maxsize)
    is_csv = format_of(path) == ".csv"
    reader = csv.reader(lines, delimiter=separator, strict=True, skipinitialspace=is_csv)
    start = 1
    try:
        for row in reader:
            yield start, row
            start = reader.line_num + 1  # a quoted field may hold line breaks
    except csv.Error as error:
        hint = 'Put a field that holds a comma or a quote in double quotes; inside, a quote is written twice: "".'
        raise DataError(f"{path}, line {start}: {error}.", hint=hint) from error


def _is_quoted(path: Path) -> bool:
    """Check if quotes in a .tsv file enclose fields. If not, as in STS and GLUE files, they belong to the texts.

    A writer encloses each text, or each field with a quote, tab or line break (Excel: also a comma).
    """
    kinds, lines, is_open, tabs = Counter[str](), list[str](), False, 0
    with opened_text(path) as stream:
        for line in stream:
            lines.append(line)
            tabs = tabs or line.count("\t")
            is_open ^= line.count('"') % 2 == 1
            if is_open and len(lines) < _LINES_IN_FIELD:
                continue  # a line break in quotes
            if tabs and len(lines) > 1 and all(line.count("\t") == tabs for line in lines):
                return False  # each line is a row
            row = "".join(lines).rstrip("\r\n")
            lines.clear()
            if '"' not in row and {"text", "bare comma"} <= kinds.keys():
                continue
            cells = list(_CELL.finditer(row))
            if sum(len(cell[0]) for cell in cells) < len(row):
                return False
            for inside, bare in (cell.groups() for cell in cells):
                if inside:
                    kinds["needed" if re.search(r'["\t\r\n]', inside) else "comma" if "," in inside else "plain"] += 1
                elif bare and not _NO_TEXT.fullmatch(bare):
                    kinds.update(("text", "bare comma") if "," in bare else ("text",))
    alike = "plain" not in kinds and not {"comma", "bare comma"} <= kinds.keys()
    return not lines and ("text" not in kinds or (alike and ("needed" in kinds or kinds["comma"] > 2)))


def _json_rows(path: Path, stream: Iterable[str]) -> tuple[str, Iterator[tuple[int, dict[str, Any]]]]:
    """Return "line" and numbered JSON lines, or "row" and the numbered rows of a document."""
    lines: Iterator[tuple[int, str]] = ((number, line) for number, line in enumerate(stream, start=1) if line.strip())
    begin = list(islice(lines, 2))
    lines = chain(begin, lines)
    with suppress(ValueError, RecursionError):
        first = json.loads(begin[0][1]) if begin else {}
        if isinstance(first, dict) and (len(begin) == 2 or _array_in(first) == [first]):
            objects = ((number, _json(f"{path}, line {number}", line)) for number, line in lines)
            return "line", _json_objects(path, "line", objects)
    document = _json(str(path), "".join(line for _, line in lines))
    return "row", _json_objects(path, "row", enumerate(_array_in(document), start=1))


def _json(place: str, text: str) -> Any:
    try:
        document = json.loads(text)
        if "\\ud" in text.lower():  # half a surrogate pair is valid JSON, but no text
            json.dumps(document, ensure_ascii=False).encode()
        return document
    except (ValueError, RecursionError) as error:
        raise DataError(f"{place}: not valid JSON ({error}).", hint=_OBJECTS) from error


def _array_in(document: Any) -> list[Any]:
    """Return an array, the only array of objects in an object, the rows of columns, or one row."""
    if not isinstance(document, dict):
        return document if isinstance(document, list) else [document]
    # pandas numbers the cells of each column, or the rows.
    columns = {name: [*cells.values()] if _is_numbered(cells) else cells for name, cells in document.items()}
    arrays = [cells for cells in columns.values() if isinstance(cells, list) and isinstance((*cells, None)[0], dict)]
    if len(arrays) == 1:
        return arrays[0]
    if _is_numbered(document):
        return [*document.values()]
    if all(isinstance(cells, list) for cells in columns.values()) and len({*map(len, columns.values())}) == 1:
        return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    return [document]


def _is_numbered(value: Any) -> bool:
    return isinstance(value, dict) and bool(value) and all(map(str.isdigit, value))


def _json_objects(path: Path, place: str, rows: Iterable[tuple[int, Any]]) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, row in rows:
        if not isinstance(row, dict):
            raise DataError(f"{path}, {place} {number}: not valid JSON (an object is needed).", hint=_OBJECTS)
        yield number, {sys.intern(name): _light(value) for name, value in row.items()}


def _light(value: Any) -> Any:
    """Return a passage as title and text; shorten lists of no texts, and other objects."""
    if isinstance(value, dict):
        return f"{value.get('title') or ''} {value['text']}".strip() if isinstance(value.get("text"), str) else {}
    if isinstance(value, list) and value:
        return list(map(_light, value[:1] if isinstance(value[0], int | float | list) else value))
    return value


# Columns


def _check_names(source: str, names: Sequence[str]) -> None:
    if len(set(named := list(filter(None, names)))) < len(named):
        hint = "Rename one of them; the first line names the columns."
        raise DataError(f"{source}: two columns have the same name: {', '.join(names)}.", hint=hint)


def check_columns(table: Table, wanted: Iterable[str]) -> None:
    """Raise `DataError` for the first missing column."""
    for name in wanted:
        if name not in table.columns:
            raise table.unfit(f"there is no column {name!r}.", "Use the column names found.")


def find_columns(table: Table, role: str, hint: str = "") -> tuple[str, ...]:
    """Find the columns of a role by name; none found is an error only with `hint`.

    Raises `DataError`, also if several choices match.
    """
    plain: dict[str, list[str]] = {}
    for column in table.columns:
        plain.setdefault(plain_name(column), []).append(column)
    called = [[plain.get(name, []) for name in names.split(",")] for names in _NAMES[role].split()]
    choices = list(chain.from_iterable(product(*columns) for columns in called))
    if len(choices) > 1:
        raise table.unfit(f"several columns could be {role}.", hint or "Rename or remove all of them but one.")
    if hint and not choices:
        path = Path(table.source)
        folder = path.parent.parent if path.parent.name == "qrels" else path.parent
        if is_retrieval_folder(folder) and (folder != path.parent or stem_of(path) in ("corpus", "queries")):
            hint = f"Give the whole folder of queries and documents, {folder} (in Python, to `read_retrieval()`)."
        raise table.unfit(f"no column has a known name for {role}.", hint)
    return choices[0] if choices else ()


def find_negatives(table: Table) -> tuple[str, ...]:
    """Find columns of hard negatives, such as neg, hard_negatives and negative_1."""
    pattern = re.compile(r"(hard)?neg(ative)?(s|texts?|passages?|documents?|ctxs)?\d*")
    return tuple(column for column in table.columns if pattern.fullmatch(plain_name(column)))


def plain_name(column: str) -> str:
    """Return a column's name in lower case, without spaces, hyphens and underscores."""
    return re.sub(r"[\s_-]", "", column.lower())


def is_label(column: str) -> bool:
    """Check if a column has a usual name for labels."""
    return plain_name(column) in _NAMES[LABEL].split()


# Texts


def iter_texts(path: str | Path, *, column: str | None = None, by_row: bool = False) -> Iterator[str]:
    """Yield the stripped texts of one file in order, repeats included.

    A .txt file (also .gz, .xz) holds one text per line; blank lines are skipped. A table holds texts in `column`, by
    default one with a usual name, or in the two columns of pairs. by_row: refuse blank lines and pairs.
    """
    path = Path(path)
    if format_of(path) == TEXT_FORMAT:
        if column is not None:
            raise DataError(f"{path}: there is no column {column!r}.", hint="A .txt file has no columns.")
        yield from _text_lines(path, may_skip=not by_row)
        return

    def choose(table: Table) -> tuple[str, ...]:
        if column is not None:
            check_columns(table, [column])
            return (column,)
        if single := find_columns(table, TEXT, _NAME_COLUMN if by_row else ""):
            return single
        return find_columns(table, PAIR, _NAME_COLUMN) + find_negatives(table)

    for table in iter_tables(path, choose):
        if by_row:
            yield from table.texts(*table.columns)
            continue
        negatives = find_negatives(table)
        cells = (table.lists(name, may_be_empty=name in negatives) for name in table.columns)
        yield from chain.from_iterable(chain.from_iterable(zip(*cells, strict=True)))


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
    """Check if a folder has `qrels` or a corpus."""
    folder = Path(path)
    return folder.is_dir() and ((folder / "qrels").is_dir() or jsonl_in(folder, "corpus") is not None)
