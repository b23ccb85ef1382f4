"""Errors that users can mend, with a hint; any other exception is a defect of this package."""

import errno
import logging
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from truncate_kit.core.wording import harmless

Name = TypeVar("Name", bound=str)
NO_FOLDER = "A file stands where a folder is needed: name another place as `out`."


class TruncateKitError(Exception):
    """Base of all errors that users can mend."""

    def __init__(self, message: str, *, hint: str) -> None:
        super().__init__(message)
        self.hint = hint

    def __reduce__(self) -> tuple[Any, ...]:
        # Pickle message and hint: some constructors take other arguments.
        return _arrived, (type(self), str(self), self.hint)


def _arrived(kind: type[TruncateKitError], message: str, hint: str) -> TruncateKitError:
    error = kind.__new__(kind)
    error.args, error.hint = (message,), hint
    return error


class MissingExtraError(TruncateKitError, ImportError):
    """An optional dependency is not installed."""

    def __init__(self, module: str, extra: str) -> None:
        super().__init__(
            f"This needs the module {module!r}, which is not installed.",
            hint=f"Install it with: pip install 'truncate-kit[{extra}]'",
        )


class UsageError(TruncateKitError, ValueError):
    """A parameter has an invalid value, or excludes another."""


class DeviceError(TruncateKitError, RuntimeError):
    """Hardware or a cluster is missing or was lost."""


class DivergedError(TruncateKitError, ArithmeticError):
    """A loss is no longer a number."""


class FileProblemError(TruncateKitError, OSError):
    """A file or folder cannot be read or written, or is locked by another process."""


class ModelError(TruncateKitError, ValueError):
    """A model cannot be loaded, cut, exported or used as an encoder."""


class LayerOutOfRangeError(ModelError):
    """A layer outside `lowest` … depth, or a block outside 1 … depth."""

    def __init__(self, layer: int, depth: int, *, block: bool = False, lowest: int = 0) -> None:
        part, first = ("block", "1") if block else ("layer", "0 (embeddings)")
        super().__init__(
            f"{part.capitalize()} {layer} does not exist: this encoder has {part}s {first} to {depth}.",
            hint=f"Give a {part} from {1 if block else lowest} to {depth}.",
        )


class LayerNotHeldError(ModelError):
    """A truncated model cannot be reloaded exactly at this layer."""


class DataError(TruncateKitError, ValueError):
    """Data cannot be used; the message names file and row."""


# Errors that several modules raise


def known_name(kind: str, name: object, known: Collection[Name]) -> Name:
    """Return the known name that equals `name`. Raises `UsageError`."""
    for one in known:
        if one == name:
            return one
    raise UsageError(f"There is no {kind} {name!r}.", hint=f"Use one of: {', '.join(known)}.")


def cannot_write(path: Path, reason: OSError) -> FileProblemError:
    """Return the error for a failed write."""
    hint = "Free some space or name another place as `out`; what was there before is unchanged."
    if reason.errno in (errno.ENOTDIR, errno.EEXIST):
        hint = NO_FOLDER
    return FileProblemError(f"Cannot write {path}: {reason.strerror or reason}.", hint=hint)


def too_few_texts(count: int, *, needed: int = 4) -> DataError:
    """Return the error for fewer texts than needed."""
    return DataError(
        f"{count:,} distinct texts are too few: this estimate needs at least {needed}.",
        hint=f"Give at least {needed} distinct texts; some hundred make the estimate steady.",
    )


def not_finite(layers: list[int]) -> ModelError:
    """Return the error for states with NaN or infinity."""
    return ModelError(
        f"The states of layer {', '.join(map(str, layers))} hold NaN or infinity.",
        hint="Run the model in float32: half precision overflows in some models.",
    )


def undefined_cka(layers: list[int], side: str, reason: str) -> DataError:
    """Return the error for layers with the same state for every text, or all equally far apart."""
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


# Libraries


def first_line(error: BaseException) -> str:
    """Return the first line of a library's message, or two if the first introduces the second."""
    first, *rest = str(error).strip().splitlines() or [type(error).__name__]
    text = f"{first} {rest[0].strip()}" if rest and first.endswith((":", "(")) else first
    return harmless(text.rstrip("."))


def require(module: str, *, extra: str) -> ModuleType:
    """Import an optional module. Raises `MissingExtraError`; a broken installation raises its own error."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module.partition(".")[0]:
            raise  # installed but broken
        raise MissingExtraError(module, extra) from error


@contextmanager
def errors_only(*packages: str) -> Iterator[None]:
    """Silence warnings of these packages' loggers."""
    levels = {log: log.level for log in map(logging.getLogger, packages)}
    for log in levels:
        log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        for log, level in levels.items():
            log.setLevel(level)
