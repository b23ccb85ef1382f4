"""What the package returns: frozen dataclasses with raw values, JSON out and in."""

import dataclasses
import fcntl
import functools
import hashlib
import importlib
import json
import logging
import os
import sys
import types
import typing
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Self, TypeVar

from truncate_kit.core.errors import FileProblemError, cannot_write, first_line
from truncate_kit.core.files import local_path, write_text

VERSION = "0.1.0"  # of the package
FORMAT = 2
"""Version of everything that is written as JSON; files of any other are refused."""
_FORMAT, _DIGEST = "format", "digest"
DRAWERS: dict[str, str] = {}
"""How results are shown, by purpose, each a `module:function`: the package fills it, so that results know no view."""
_logger = logging.getLogger(__name__)
Found = TypeVar("Found")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """Base of all results: nests, and comes back from its own JSON equal to what went out."""

    def to_dict(self) -> dict[str, Any]:
        """Plain dicts, lists, numbers, strings and None."""
        return dataclasses.asdict(self)

    def to_json(self) -> str:
        """One indented JSON document. Raises ValueError on NaN or infinity: they are not JSON."""
        return json.dumps(self.to_dict(), indent=2, ensure_ascii=False, allow_nan=False)

    def _repr_html_(self) -> str:
        """Show tables and plots in a notebook; see `truncate_kit.report.view`."""
        return drawn("notebook", self)

    def card(self, *parts: Any) -> str:
        """Write the model card of the model that this result made; parts: see `truncate_kit.report.card`."""
        return drawn("card", self, *parts)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """The inverse of `to_dict`; unknown fields are ignored.

        Raises KeyError on a missing field, ValueError naming the field for a value of another type than it has, also
        for a number that is not finite, and what the class itself raises.
        """
        if not isinstance(values, dict):
            raise ValueError(f"a {type(values).__name__} where an object is needed")
        hints = _hints(cls)  # type: ignore[arg-type]  # a class is hashable
        return cls(
            **{
                field.name: _restore(hints[field.name], values[field.name], field.name)
                for field in dataclasses.fields(cls)
                if field.name in values or _is_needed(field)
            }
        )

    def write(self, path: Path) -> None:
        """Write the JSON, sealed, under a temporary name and rename it. Raises `FileProblemError`."""
        write_text(local_path(path), self.sealed_text())

    def sealed_text(self) -> str:
        """What `write` writes. Raises ValueError on NaN or infinity."""
        return json.dumps(sealed(self.to_dict()), indent=2, ensure_ascii=False, allow_nan=False) + "\n"

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read what `write` wrote.

        Raises OSError where that cannot be read, `FileProblemError` for another format, ValueError or KeyError for
        damage.
        """
        try:
            values = json.loads(local_path(path).read_text(encoding="utf-8"))
        except RecursionError as error:
            raise ValueError(f"{path} is nested too deeply") from error
        return cls.from_dict(unsealed(values, path))


def drawn(purpose: str, *parts: Any) -> str:
    """Return what the drawer of that purpose makes of a result."""
    module, _, function = DRAWERS[purpose].partition(":")
    return str(getattr(importlib.import_module(module), function)(*parts))


def read_or_pass_over(read: Callable[[Path], Found], path: Path) -> Found | None:
    """What `read` makes of a file; None where there is none, or where it is damaged, which the log says.

    For files that a command writes anew. Raises `FileProblemError` for one of another format.
    """
    try:
        return read(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except FileProblemError:
        raise
    except (OSError, ValueError, KeyError) as error:
        lacking = isinstance(error, KeyError)  # whose whole message is the field
        reason = f"it lacks {first_line(error)}" if lacking else first_line(error)
        _warn_once(f"{path} is passed over, for it cannot be read: {reason}.")
        return None


@functools.lru_cache(maxsize=1024)
def _warn_once(message: str) -> None:
    """Log a warning, once in a process: a command reads some results several times."""
    _logger.warning(message)


def sealed(values: dict[str, Any]) -> dict[str, Any]:
    """`values` with the version of the format, and a digest of it all that shows damage."""
    versioned = {_FORMAT: FORMAT} | values
    return versioned | {_DIGEST: digest_of_values(versioned)}


def unsealed(values: Any, path: Path) -> dict[str, Any]:
    """Return what was sealed.

    Raises `FileProblemError` for another format, ValueError where there is no digest or that of something else.
    """
    if not isinstance(values, dict):
        raise ValueError(f"{path} holds a {type(values).__name__} where an object is needed")
    check_format(values.get(_FORMAT), path)
    found = {key: value for key, value in values.items() if key != _DIGEST}
    if _DIGEST not in values:  # as commands print results
        raise ValueError(f"{path} has no digest: from_dict() reads a result that was printed")
    if values[_DIGEST] != digest_of_values(found):
        raise ValueError(f"{path} was changed after it was written: its digest is that of something else")
    return {key: value for key, value in found.items() if key != _FORMAT}


def check_format(version: Any, path: Path) -> None:
    """Raise `FileProblemError` where a file is of another format, ValueError where its version is no number."""
    if type(version) is not int:
        raise ValueError(f"{path} has the format {version!r}")
    if version != FORMAT:
        raise FileProblemError(
            f"{path} was written by another version of truncate-kit (format {version}; this one reads {FORMAT}).",
            hint="Use the version that wrote it, or another folder.",
        )


def digest_of_values(values: dict[str, Any]) -> str:
    """SHA-256 of what JSON can hold; the order of keys does not count."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def _is_needed(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


@functools.cache
def _hints(kind: type[Result]) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _restore(hint: Any, value: Any, name: str) -> Any:
    """Turn a JSON value back into the annotated type, or raise ValueError. name: of the field, for the message."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        (inner,) = (argument for argument in arguments if argument is not types.NoneType)  # others are not in use
        return None if value is None else _restore(inner, value, name)
    if origin is tuple:
        _check(isinstance(value, (list, tuple)), hint, value, name)
        kinds = arguments[:1] * len(value) if arguments[1:] == (...,) else arguments
        _check(len(kinds) == len(value), hint, value, name)
        return tuple(_restore(kind, item, name) for kind, item in zip(kinds, value, strict=True))
    if origin is dict:
        _check(isinstance(value, dict), hint, value, name)
        return {key: _restore(arguments[1], item, f"{name}.{key}") for key, item in value.items()}
    if isinstance(hint, type) and issubclass(hint, Result):
        return hint.from_dict(value)
    if origin is typing.Literal:
        _check(isinstance(value, str) and value in arguments, hint, value, name)
    elif hint is float:
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        _check(is_number and abs(value) <= sys.float_info.max, hint, value, name)
    elif hint in (int, str, bool):
        _check(type(value) is hint, hint, value, name)
    return value


def _check(fits: bool, hint: Any, value: Any, name: str) -> None:
    if not fits:
        kind = hint.__name__ if isinstance(hint, type) and not typing.get_args(hint) else str(hint)
        raise ValueError(f"{name} is {str(value)[:40]!r}, not {kind}")


def json_schema(name: str, kinds: Sequence[type[Result]]) -> dict[str, Any]:
    """JSON Schema (draft 2020-12) of what `--json` prints: one of these results, with the version of the format.

    It is made from the annotations by which `from_dict` reads.

    Args:
        name: What the schema is of; ends its identifier.
        kinds: Of the results.
    """
    definitions: dict[str, Any] = {}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:truncate-kit:format-{FORMAT}:{name}",
        "type": "object",
        "properties": {_FORMAT: {"const": FORMAT}},
        "required": [_FORMAT],
        "anyOf": [_described(kind, definitions) for kind in kinds],
        "$defs": definitions,
    }


def _described(hint: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    """The schema of a type of `_restore`; that of a result goes to `definitions`."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        inner = [argument for argument in arguments if argument is not types.NoneType]
        return {"anyOf": [*(_described(one, definitions) for one in inner), {"type": "null"}]}
    if origin is tuple and arguments[1:] == (...,):
        return {"type": "array", "items": _described(arguments[0], definitions)}
    if origin is tuple:
        items = [_described(one, definitions) for one in arguments]
        return {"type": "array", "prefixItems": items, "items": False, "minItems": len(items)}
    if origin is dict:
        return {"type": "object", "additionalProperties": _described(arguments[1], definitions)}
    if origin is typing.Literal:
        return {"enum": list(arguments)}
    if isinstance(hint, type) and issubclass(hint, Result):
        if hint.__name__ not in definitions:
            definitions[hint.__name__] = {}  # results nest, but never in themselves
            fields = {name: _described(kind, definitions) for name, kind in _hints(hint).items()}  # type: ignore[arg-type]  # a class is hashable
            definitions[hint.__name__] = {"type": "object", "properties": fields, "required": list(fields)}
        return {"$ref": f"#/$defs/{hint.__name__}"}
    return {"type": {int: "integer", float: "number", str: "string", bool: "boolean"}[hint]}


Amounts = tuple[tuple[object, ...], tuple[int, ...]]
"""What was measured, such as a set, and how much of it, such as its rows."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Measurement(Result, ABC):
    """A report that says how much it measured."""

    @abstractmethod
    def amounts(self) -> Iterator[Amounts]:
        """Everything that was measured, each part once."""

    def covers(self, other: Self) -> bool:
        """Whether all that another report measured was measured here at least as often.

        Of whatever models, unless `amounts` names them.
        """
        ours = dict(self.amounts())
        return all(
            key in ours and all(mine >= theirs for mine, theirs in zip(ours[key], amounts, strict=True))
            for key, amounts in other.amounts()
        )


def file_for(report: Measurement, path: Path) -> Path:
    """Where to write a report: to `path`, such as bench.json, or to bench-2.json and so on where that stays.

    What is there stays where `report` does not cover it.
    """
    return first_free(path, lambda file: _may_replace(report, file))


def first_free(path: Path, is_free: Callable[[Path], bool]) -> Path:
    """The path, or the first with a number after it, that may be written to."""
    number, found = 1, path
    while not is_free(found):
        number += 1
        found = path.with_name(f"{path.stem}-{number}{path.suffix}")
    return found


def files_at(path: Path) -> list[Path]:
    """What `file_for` has given for this path, as far as it is there; the path itself first."""
    beside = [file for file in path.parent.glob("*") if _number(file, path)]
    return [*([path] if path.is_file() else []), *sorted(beside, key=lambda file: _number(file, path))]


def _number(file: Path, path: Path) -> int:
    """The number in the name of a file beside `path`, 0 for any other file."""
    stem, _, number = file.stem.rpartition("-")
    ours = (stem, file.suffix) == (path.stem, path.suffix) and number.isascii() and number.isdecimal()
    return int(number) if ours and len(number) < len("1000000") else 0


def _may_replace(report: Measurement, path: Path) -> bool:
    before = read_or_pass_over(type(report).read, path)
    return before is None or report.covers(before)


RECORDS_FILE = "trials.jsonl"
"""Where the runs of a workspace are recorded, beside the folders of what they keep."""
_CHECKSUM = "crc32"  # of a line as it is without it


@dataclass(frozen=True, slots=True)
class Journal:
    """JSON objects, one a line, each with its checksum; several processes may append to one file.

    Each line is on the disk when `append` returns. A last line without its end is what a killed process was writing: it
    is ignored, and the next `append` cuts it off. Another line that cannot be read, or does not fit its checksum, is
    left out and counted. The version of the format stands in the first line of each owner.
    """

    file: Path

    def read(self) -> tuple[list[dict[str, Any]], int]:
        """Return all whole lines, and the number of damaged ones. Raises `FileProblemError`."""
        try:
            lines = self.file.read_bytes().split(b"\n")[:-1]
        except FileNotFoundError:
            return [], 0
        except OSError as error:
            raise FileProblemError(f"{self.file} cannot be read: {error.strerror}.", hint="Allow it.") from error
        found = [values for line in lines if (values := _record_in(line)) is not None]
        return found, len(lines) - len(found)

    def append(self, *records: dict[str, Any]) -> None:
        """Write records, a line each. Raises `FileProblemError`."""
        lines = [_bytes_of(values | {_CHECKSUM: zlib.crc32(_bytes_of(values))}) + b"\n" for values in records]
        try:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            with self.file.open("a+b") as stream:
                fcntl.flock(stream, fcntl.LOCK_EX)  # else another process would take our half line for a dead one's
                stream.truncate(_end_of_whole_lines(stream))
                stream.writelines(lines)
                stream.flush()
                os.fsync(stream.fileno())
        except OSError as error:
            raise cannot_write(self.file, error) from error


def _end_of_whole_lines(stream: BinaryIO) -> int:
    size = stream.seek(0, os.SEEK_END)
    stream.seek(max(0, size - 1))
    if stream.read(1) in (b"", b"\n"):
        return size
    stream.seek(0)
    return stream.read().rfind(b"\n") + 1


def _bytes_of(values: dict[str, Any]) -> bytes:
    return json.dumps(values, ensure_ascii=False, allow_nan=False).encode()


def _record_in(line: bytes) -> dict[str, Any] | None:
    """Return the object of a line without its checksum; None where it is damaged."""
    try:
        values: dict[str, Any] = json.loads(line)
        return values if values.pop(_CHECKSUM) == zlib.crc32(_bytes_of(values)) else None
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError):
        return None
