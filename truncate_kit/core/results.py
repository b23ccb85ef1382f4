"""Settings and results: frozen dataclasses with options and checks, JSON files with digests, journals."""

import dataclasses
import fcntl
import functools
import hashlib
import json
import logging
import os
import pkgutil
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from numbers import Integral, Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, dataclass_transform

from truncate_kit.core.errors import FileProblemError, UsageError, cannot_write, first_line, known_name
from truncate_kit.core.files import local_path, write_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame

VERSION = "0.1.0"
FORMAT = 2
"""Format version of all JSON files; other versions are refused."""
DRAWERS: dict[str, str] = {}
"""Functions of higher levels, as `module:function`, by purpose."""
RECORDS_FILE = "trials.jsonl"
"""Journal of a folder's runs."""
Amounts = tuple[tuple[object, ...], tuple[int, ...]]
"""A measurement's key, such as the data set, and amounts, such as rows."""
_logger = logging.getLogger(__name__)


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(dataclasses.field,))
@dataclass(frozen=True)
class Result:
    """Base of all settings and results: every subclass is a frozen dataclass; JSON round trips give equal values."""

    __pydantic_config__: ClassVar[dict[str, Any]] = {
        "strict": True,
        "allow_inf_nan": False,
        "json_schema_serialization_defaults_required": True,
    }

    def __init_subclass__(cls, *, kw_only: bool = True) -> None:
        dataclass(frozen=True, kw_only=kw_only, repr=False)(cls)

    def __post_init__(self) -> None:
        """Check each `setting`, and convert its value to int, float or tuple. Raises `UsageError`."""
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            bounds, choices = field.metadata.get("bounds"), field.metadata.get("choices", ())
            if value is None or not (bounds or choices):
                continue
            is_list = isinstance(value, Iterable) and not isinstance(value, str)
            several = tuple(value) if is_list else (value,)
            if not several:
                raise UsageError(f"`{field.name}` is empty.", hint=f"Give one or more `{field.name}`.")
            if bounds:
                several = tuple(check_number(field.name, one, bounds) for one in several)
            for one in several if choices else ():
                known_name(f"`{field.name}`", one, choices)
            object.__setattr__(self, field.name, several if is_list else several[0])

    def to_dict(self) -> dict[str, Any]:
        """Convert to JSON values."""
        return dataclasses.asdict(self)

    def to_json(self) -> str:
        """Write indented JSON. Raises ValueError on NaN or infinity."""
        return json.dumps(self.to_dict(), indent=2, ensure_ascii=False, allow_nan=False)

    def __repr__(self) -> str:
        return str(drawn("repr", self))

    def _repr_html_(self) -> str:
        return str(drawn("notebook", self))

    def to_frame(self) -> "DataFrame":
        """Return the main table as a pandas data frame."""
        frame: DataFrame = drawn("frame", self)
        return frame

    def plot(self) -> "Figure":
        """Draw the main figure. Raises `UsageError` if there is none."""
        figure: Figure = drawn("plot", self)
        return figure

    def card(self, *parts: Any) -> str:
        """Write the model card; see `truncate_kit.report.card`."""
        return str(drawn("card", self, *parts))

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """Create a result from `to_dict` values; unknown fields are ignored. Raises ValueError."""
        from pydantic import ValidationError

        try:
            # Only from JSON does pydantic accept lists as tuples.
            made: Self = _adapter(cls).validate_json(json.dumps(values))  # type: ignore[arg-type]  # classes are hashable
        except ValidationError as error:
            first = error.errors()[0]
            raised = first.get("ctx", {}).get("error")
            if isinstance(raised, Exception):
                raise raised from error
            place = ".".join(map(str, first["loc"])) or cls.__name__
            raise ValueError(f"{place}: {first['msg']}") from error
        return made

    def write(self, path: Path) -> None:
        """Write the sealed JSON atomically. Raises `FileProblemError`."""
        write_text(local_path(path), self.sealed_text())

    def sealed_text(self) -> str:
        """Return the JSON with version and digest (`sealed`)."""
        return json.dumps(sealed(self.to_dict()), indent=2, ensure_ascii=False, allow_nan=False) + "\n"

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a file of `write`. Raises `FileProblemError` for another format, ValueError if damaged, OSError."""
        values = json.loads(local_path(path).read_text(encoding="utf-8"))
        return cls.from_dict(unsealed(values, path))

    @classmethod
    def read_if_whole(cls, path: Path) -> Self | None:
        """Read a file; None if missing or damaged (logged). Raises `FileProblemError` for another format."""
        try:
            return cls.read(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except FileProblemError:
            raise
        except (OSError, ValueError, RecursionError) as error:
            _warn_once(f"Skipping unreadable {path}: {first_line(error)}.")
            return None

    def amounts(self) -> Iterator[Amounts]:
        """Yield key and amounts of each measurement."""
        yield from ()

    def measured_model(self) -> tuple[str, str | None]:
        """Return the model's name, and the digest of its weights if known."""
        return "", None

    def may_replace(self, other: Self) -> bool:
        """Tell if this has all measurements of `other` in no smaller amounts, or new weights."""
        (name, mine), (same, theirs) = self.measured_model(), other.measured_model()
        ours = dict(self.amounts())
        return (name == same and None not in (mine, theirs) and mine != theirs) or all(
            key in ours and all(mine >= theirs for mine, theirs in zip(ours[key], amounts, strict=True))
            for key, amounts in other.amounts()
        )


@functools.cache
def _adapter(kind: Any) -> Any:
    from pydantic import TypeAdapter

    return TypeAdapter(kind)


def json_schema(name: str, kinds: Sequence[type[Result]]) -> dict[str, Any]:
    """Return the JSON Schema of `--json`: one of `kinds`, and the format version."""
    from pydantic import TypeAdapter

    inputs: Any = [(kind, "serialization", _adapter(kind)) for kind in kinds]  # type: ignore[arg-type]  # as above
    places, schema = TypeAdapter.json_schemas(inputs)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:truncate-kit:format-{FORMAT}:{name}",
        "type": "object",
        "properties": {"format": {"const": FORMAT}},
        "required": ["format"],
        "anyOf": list(places.values()),
        **schema,
    }


def drawn(purpose: str, *parts: Any, **options: Any) -> Any:
    """Call the function of this purpose."""
    return pkgutil.resolve_name(DRAWERS[purpose])(*parts, **options)


def digest_of_values(values: dict[str, Any]) -> str:
    """Return the SHA-256 of JSON values, independent of key order."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def sealed(values: dict[str, Any]) -> dict[str, Any]:
    """Add the format version and a digest of the values."""
    versioned = {"format": FORMAT} | values
    return versioned | {"digest": digest_of_values(versioned)}


def unsealed(values: Any, path: Path) -> dict[str, Any]:
    """Check and remove version and digest. Raises `FileProblemError` (other format), ValueError (damage)."""
    if not isinstance(values, dict) or "format" not in values:
        raise ValueError(f"{path} is not a sealed result")
    check_format(values["format"], path)
    digest = values.pop("digest", None)
    if digest != digest_of_values(values):
        raise ValueError(f"{path} was changed after it was written, or printed by --json: its digest does not match")
    del values["format"]
    return values


def check_format(version: Any, path: Path) -> None:
    """Raise `FileProblemError` for another format version."""
    if version != FORMAT:
        raise FileProblemError(
            f"{path} was written by another version of truncate-kit (format {version}; this one reads {FORMAT}).",
            hint="Use the version that wrote it, or another folder.",
        )


@functools.cache
def _warn_once(message: str) -> None:
    _logger.warning(message)


# Names of files


def file_for(report: Result, path: Path) -> Path:
    """Return the first of path, path-2, … that is free or that `report` may replace."""
    number, place = 1, path
    while (earlier := report.read_if_whole(place)) is not None and not report.may_replace(earlier):
        number += 1
        place = path.with_name(f"{path.stem}-{number}{path.suffix}")
    return place


# The journal


def read_records(journal: Path) -> tuple[list[dict[str, Any]], int]:
    """Return the intact records of a journal (JSON lines with checksums), and the number of damaged ones.

    An unfinished last line is ignored. Raises `FileProblemError`.
    """
    try:
        lines = journal.read_bytes().split(b"\n")[:-1]
    except FileNotFoundError:
        return [], 0
    except OSError as error:
        raise FileProblemError(f"{journal} cannot be read: {error.strerror}.", hint="Allow reading it.") from error
    records = [values for line in lines if (values := _record_in(line)) is not None]
    return records, len(lines) - len(records)


def append_records(journal: Path, *records: dict[str, Any]) -> None:
    """Append records and flush; several processes may do so. Raises `FileProblemError`."""
    lines = [_bytes_of(values | {"crc32": zlib.crc32(_bytes_of(values))}) + b"\n" for values in records]
    try:
        journal.parent.mkdir(parents=True, exist_ok=True)
        with journal.open("a+b") as stream:
            fcntl.flock(stream, fcntl.LOCK_EX)  # another process may be writing a line
            end = stream.seek(0, os.SEEK_END)
            if end and os.pread(stream.fileno(), 1, end - 1) != b"\n":
                stream.seek(0)
                stream.truncate(stream.read().rfind(b"\n") + 1)
            stream.writelines(lines)
            stream.flush()
            os.fsync(stream.fileno())
    except OSError as error:
        raise cannot_write(journal, error) from error


def _bytes_of(values: dict[str, Any]) -> bytes:
    return json.dumps(values, ensure_ascii=False, allow_nan=False).encode()


def _record_in(line: bytes) -> dict[str, Any] | None:
    try:
        values: dict[str, Any] = json.loads(line)
        return values if values.pop("crc32") == zlib.crc32(_bytes_of(values)) else None
    except (ValueError, KeyError, AttributeError, TypeError):
        return None


DATA, LAYERS, TRAINING, MACHINE, RESULTS = "Data", "Layers", "Training", "Machine", "Results"


@dataclass(frozen=True, slots=True)
class Bounds:
    """A range of numbers; `above` excludes `least`, `below` excludes `most`."""

    least: float
    most: float = 10**9
    whole: bool = True
    above: bool = False
    below: bool = False

    def holds(self, value: Any) -> bool:
        """Tell if `value` is a number within the bounds."""
        number: Any = value
        if isinstance(value, bool) or not isinstance(value, Integral if self.whole else Real):
            return False
        is_end = (self.above and number == self.least) or (self.below and number == self.most)
        return bool(self.least <= number <= self.most) and not is_end

    def __str__(self) -> str:
        first = f"{'above' if self.above else 'from'} {self.least:,}"
        to = "and below" if self.below else "up to" if self.above else "to"
        return f"a{' whole' if self.whole else ''} number {first} {to} {self.most:,}"


COUNT = Bounds(1)
SHARE = Bounds(0, 1, whole=False)
WEIGHT = Bounds(0, whole=False)
RATE = Bounds(0, 1, whole=False, above=True, below=True)
SEEDS = Bounds(1, 10_000)
SEED = Bounds(0, 2**31 - 1)
SearchMetric = Literal["ndcg", "mrr", "recall"]
SEARCH_METRICS: dict[SearchMetric, str] = {"ndcg": "nDCG@10", "mrr": "MRR@10", "recall": "recall@10"}
"""Selection metrics of retrieval and their names."""


def setting(
    value: Any,
    help: str = "",
    panel: str = TRAINING,
    /,
    *,
    bounds: Bounds | None = None,
    choices: Collection[str] = (),
    **option: Any,
) -> Any:
    """Define a field of a settings class, checked by `Result`.

    help: Option help; a field without it has no option.
    bounds: Bounds of the number, or of each number in a tuple.
    option: How the option differs from the field: `name`, `kind` (input type), `parse` (input to value), `default`
        (as input), arguments of `typer.Option`.
    """
    metadata = {"help": help, "panel": panel, "bounds": bounds, "choices": choices, "option": option}
    return dataclasses.field(default=value, metadata=metadata)


def seeds_setting(default: tuple[int, ...], help: str) -> Any:
    """Define the seeds field; its option takes the number of seeds."""
    return setting(default, help, TRAINING, bounds=SEED, parse=first_seeds, default=len(default))


def check_number(name: str, value: Any, allowed: Bounds) -> Any:
    """Return the checked value, as int or float. Raises `UsageError`."""
    if value is None:
        return None
    if not allowed.holds(value):
        raise UsageError(f"`{name}` {shown(value)} is out of range.", hint=f"Use {allowed}.")
    return int(value) if isinstance(value, Integral) else float(value)


def check_seeds(seeds: Collection[int]) -> None:
    """Raise `UsageError` for too many or repeated seeds."""
    check_number("seeds", len(seeds), SEEDS)
    if len(set(seeds)) < len(seeds):
        raise UsageError(f"`seeds` {shown(seeds)} repeat a seed.", hint="Give each seed once.")


def first_seeds(count: int) -> tuple[int, ...]:
    """Return the seeds 0 … count − 1. Raises `UsageError`."""
    return tuple(range(check_number("seeds", count, SEEDS)))


def whole_numbers(text: str) -> tuple[int, ...]:
    """Parse comma-separated integers."""
    return tuple(int(part) for part in text.split(","))


def numbers(text: str) -> tuple[float, ...]:
    """Parse comma-separated numbers."""
    return tuple(float(part) for part in text.split(","))


def names(text: str) -> tuple[str, ...]:
    """Parse comma-separated names."""
    return tuple(part.strip() for part in text.split(","))


def listed_texts(texts: Iterable[str]) -> list[str]:
    """Return texts as a list. Raises `UsageError`."""
    unordered = isinstance(texts, str | Mapping | Set)
    several = [] if unordered else list(texts)
    if unordered or not all(isinstance(text, str) for text in several):
        raise UsageError("Texts must be a list of str.", hint="Give each text as a str; leave out missing texts.")
    for number, text in enumerate(several, start=1):
        try:
            text.encode()
        except UnicodeEncodeError as error:
            hint = "Replace it, for example by text.encode('utf-16', 'surrogatepass').decode('utf-16', 'replace')."
            raise UsageError(
                f"Text {number:,} has half of a surrogate pair, which is no character.", hint=hint
            ) from error
    return several


def shown(value: Any) -> str:
    """Return the repr of a value, shortened for a message."""
    text = repr(value)
    return text if len(text) <= 24 else f"{text[:24]}…"


# Layers and blocks


def numbers_named(text: str) -> list[int]:
    """Parse layers or blocks: "3", "3,6,9", "2..5" or "1..3,6". Raises ValueError."""
    numbers: list[int] = []
    for part in text.split(","):
        first, dots, last = part.partition("..")
        run = range(int(first), int(last if dots else first) + 1)
        if not 0 < len(run) <= 10_000:  # deeper than any model
            raise ValueError(f"{part!r} is not a valid range")
        numbers += run
    return numbers


def as_text(named: object) -> str:
    """Write numbers as text for `numbers_named`; text stays unchanged."""
    several = named if isinstance(named, Iterable) and not isinstance(named, str) else [named]
    return ",".join(map(str, several))


def blocks_named(text: str) -> tuple[int, ...]:
    """Parse blocks such as "1..3,6". Raises `UsageError`."""
    try:
        return tuple(numbers_named(text))
    except ValueError as error:
        raise UsageError(f"{text!r} is not a list of blocks.", hint="Write `blocks` as 1,4,6 or as 1..3,6.") from error
