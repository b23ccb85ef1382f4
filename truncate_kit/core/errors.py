"""Errors that users can fix, each with a hint, and message wording. Any other exception is a bug in this package."""

import copyreg
import logging
import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

Name = TypeVar("Name", bound=str)
# Terminal controls (except the line feed), unusual line ends, direction marks, surrogates.
_CONTROLS = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


class TruncateKitError(Exception):
    """Base of all errors that users can fix."""

    def __init__(self, message: str, *, hint: str) -> None:
        super().__init__(message)
        self.hint = hint

    def __reduce__(self) -> tuple[Any, ...]:
        # Skip the constructor: subclasses take other arguments.
        return copyreg.__newobj__, (type(self),), vars(self) | {"args": self.args}  # type: ignore[attr-defined]  # untyped


class MissingExtraError(TruncateKitError, ImportError):
    """An optional dependency is not installed."""


class UsageError(TruncateKitError, ValueError):
    """A parameter is invalid or conflicts with another."""


class DeviceError(TruncateKitError, RuntimeError):
    """Hardware or a cluster is missing or was lost."""


class DivergedError(TruncateKitError, ArithmeticError):
    """Training diverged to NaN or infinity."""


class FileProblemError(TruncateKitError, OSError):
    """A file or folder cannot be read or written, or is locked by another process."""


class ModelError(TruncateKitError, ValueError):
    """A model cannot be loaded, truncated, exported or used as an encoder."""


class LayerOutOfRangeError(ModelError):
    """A layer is outside `lowest` … depth, or a block is outside 1 … depth."""

    def __init__(self, layer: int, depth: int, *, block: bool = False, lowest: int = 0) -> None:
        part, first = ("block", "1") if block else ("layer", "0 (embeddings)")
        super().__init__(
            f"{part.capitalize()} {layer} does not exist: this encoder has {part}s {first} to {depth}.",
            hint=f"Give a {part} from {1 if block else lowest} to {depth}.",
        )


class LayerNotHeldError(ModelError):
    """A model cut at this layer could not be reloaded exactly."""


class DataError(TruncateKitError, ValueError):
    """Data cannot be used; the message names file and row."""


# Shared errors


def known_name(kind: str, name: object, known: Collection[Name]) -> Name:
    """Return a name if it is known. Raises `UsageError`."""
    for one in known:
        if one == name:
            return one
    raise UsageError(f"There is no {kind} {name!r}.", hint=f"Use one of: {', '.join(known)}.")


def cannot_write(path: Path, reason: OSError) -> FileProblemError:
    """Return the error for a failed write."""
    hint = "Free some space or name another place as `out`; existing files are unchanged."
    return FileProblemError(f"Cannot write {path}: {reason.strerror or reason}.", hint=hint)


def too_few_texts(count: int, *, needed: int = 4) -> DataError:
    """Return the error for too few texts."""
    return DataError(
        f"{count:,} distinct texts are too few: this estimate needs at least {needed}.",
        hint=f"Give at least {needed} distinct texts; a few hundred make the estimate stable.",
    )


def not_finite(layers: list[int]) -> ModelError:
    """Return the error for states with NaN or infinity."""
    return ModelError(
        f"The states of layer {', '.join(map(str, layers))} hold NaN or infinity.",
        hint="Run the model in float32: half precision overflows in some models.",
    )


def undefined_cka(layers: list[int], side: str, reason: str) -> DataError:
    """Return the error for layers whose states are equal, or equally far apart."""
    return DataError(
        f"CKA is not defined at layer {', '.join(map(str, layers))} of {side}: {reason}.",
        hint="Use more texts, or mean pooling: with CLS pooling layer 0 is the same for every text.",
    )


def failed_check(finding: str) -> ModelError:
    """Return the error for a graph that differs from the encoder."""
    return ModelError(
        f"The exported graph failed its checks: {finding}.",
        hint="Nothing was written. Use the model in torch, or report the architecture and the versions.",
    )


# Words


def counted(number: int, one: str, many: str | None = None) -> str:
    """Write a number with its noun: "1 list", "2,758 texts"."""
    return f"{number:,} {one if number == 1 else many or f'{one}s'}"


def in_points(number: float) -> str:
    """Write "1 point" or "2.5 points"."""
    return f"{number:g} point{'' if number == 1 else 's'}"


def capitalized(text: str) -> str:
    """Capitalize the first letter only."""
    return text[:1].upper() + text[1:]


def lasting(seconds: float) -> str:
    """Write a duration in its two largest units, at least "1 s"."""
    if seconds < 59.5:
        return f"{max(1, round(seconds))} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    days, hours = divmod(hours, 24)
    units = [f"{number} {unit}" for number, unit in ((days, "d"), (hours, "h"), (minutes, "min")) if number]
    return " ".join(units[:2])


def harmless(text: str) -> str:
    """Escape control characters, for example as "\\x1b"."""
    return _CONTROLS.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def harmless_json(text: str) -> str:
    """Escape the control characters of a JSON document."""
    return _CONTROLS.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def longer_texts(name: str, long: int, learned: int) -> tuple[str, ...]:
    """Return a warning if texts are over 25 % longer than the training texts.

    long, learned: 95th percentiles of their lengths in tokens.
    """
    if long <= 1.25 * learned:
        return ()
    note = f"The texts of {name} are longer than the training texts: 95 % have up to {long} tokens"
    return (f"{note}, compared with {learned} in training. Train on texts as long as those to be encoded.",)


# Libraries


def first_line(error: BaseException) -> str:
    """Return the first line of an error message, or two if the first ends with ":" or "("."""
    first, *rest = str(error).strip().splitlines() or [type(error).__name__]
    text = f"{first} {rest[0].strip()}" if rest and first.endswith((":", "(")) else first
    return harmless(text.rstrip("."))


def require(module: str, *, extra: str) -> ModuleType:
    """Import an optional module. Raises `MissingExtraError`, or the module's own import error."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module.partition(".")[0]:
            raise  # installed but broken
        message = f"This needs the module {module!r}, which is not installed."
        raise MissingExtraError(message, hint=f"Install it with: pip install 'truncate-kit[{extra}]'") from error


@contextmanager
def errors_only(*packages: str) -> Iterator[None]:
    """Silence warnings of these packages in the block."""
    levels = {log: log.level for log in map(logging.getLogger, packages)}
    for log in levels:
        log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        for log, level in levels.items():
            log.setLevel(level)
