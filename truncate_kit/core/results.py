"""Results: frozen dataclasses of raw values, sealed JSON files, and the journal of runs."""

import dataclasses
import fcntl
import functools
import hashlib
import json
import logging
import os
import pkgutil
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

from truncate_kit.core.errors import FileProblemError, cannot_write, first_line
from truncate_kit.core.files import local_path, write_text

VERSION = "0.1.0"
FORMAT = 2
"""Version of all JSON files; others are refused."""
DRAWERS: dict[str, str] = {}
"""Functions that show results: purpose to `module:function`."""
RECORDS_FILE = "trials.jsonl"
"""Records of all runs in a workspace."""
Amounts = tuple[tuple[object, ...], tuple[int, ...]]
"""Key of a measurement, such as its data set, and amounts, such as rows."""
_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """Base of all results; JSON round trips give equal values."""

    __pydantic_config__: ClassVar[dict[str, Any]] = {
        "strict": True,
        "allow_inf_nan": False,
        "json_schema_serialization_defaults_required": True,
    }

    def to_dict(self) -> dict[str, Any]:
        """Convert to JSON values."""
        return dataclasses.asdict(self)

    def to_json(self) -> str:
        """Write indented JSON. Raises ValueError on NaN or infinity."""
        return json.dumps(self.to_dict(), indent=2, ensure_ascii=False, allow_nan=False)

    def _repr_html_(self) -> str:
        """Show tables and plots in a notebook."""
        return drawn("notebook", self)

    def card(self, *parts: Any) -> str:
        """Write the model card; see `truncate_kit.report.card`."""
        return drawn("card", self, *parts)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """Invert `to_dict`; unknown fields are ignored. Raises ValueError."""
        from pydantic import ValidationError

        try:
            # In JSON tuples are lists.
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
        """Return the sealed JSON."""
        return json.dumps(sealed(self.to_dict()), indent=2, ensure_ascii=False, allow_nan=False) + "\n"

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a sealed file. Raises `FileProblemError` (format), ValueError (damage), OSError."""
        try:
            values = json.loads(local_path(path).read_text(encoding="utf-8"))
        except RecursionError as error:
            raise ValueError(f"{path} is nested too deeply") from error
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
        except (OSError, ValueError) as error:
            _warn_once(f"Skipping unreadable {path}: {first_line(error)}.")
            return None

    def amounts(self) -> Iterator[Amounts]:
        """Yield each measurement once."""
        yield from ()

    def covers(self, other: Self) -> bool:
        """Tell if this result has at least the amounts of `other`."""
        ours = dict(self.amounts())
        return all(
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


def drawn(purpose: str, *parts: Any) -> str:
    """Call the drawer of a purpose."""
    return str(pkgutil.resolve_name(DRAWERS[purpose])(*parts))


def digest_of_values(values: dict[str, Any]) -> str:
    """Return the SHA-256 of JSON values, independent of key order."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def sealed(values: dict[str, Any]) -> dict[str, Any]:
    """Add the format version and a digest."""
    versioned = {"format": FORMAT} | values
    return versioned | {"digest": digest_of_values(versioned)}


def unsealed(values: Any, path: Path) -> dict[str, Any]:
    """Invert `sealed`. Raises `FileProblemError` for another format, ValueError for damage."""
    if not isinstance(values, dict) or "format" not in values:
        raise ValueError(f"{path} is not a sealed result")
    check_format(values["format"], path)
    digest = values.pop("digest", None)
    if digest != digest_of_values(values):
        raise ValueError(f"{path} was changed after it was written, or printed by a command: its digest does not match")
    del values["format"]
    return values


def check_format(version: Any, path: Path) -> None:
    """Raise `FileProblemError` for another format."""
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
    """Return the first of path, path-2, path-3, … that is free or whose contents `report` covers."""
    number, place = 1, path
    while (earlier := report.read_if_whole(place)) is not None and not report.covers(earlier):
        number += 1
        place = path.with_name(f"{path.stem}-{number}{path.suffix}")
    return place


# The journal


def read_records(journal: Path) -> tuple[list[dict[str, Any]], int]:
    """Return all whole records of a journal, and the number of damaged lines.

    Each line is JSON with a checksum. An unfinished last line is ignored. Raises `FileProblemError`.
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
    """Append records and flush; safe for several processes. Raises `FileProblemError`."""
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
