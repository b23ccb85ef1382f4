"""Everything that can go wrong for a reason the user can mend.

Each error says what was found; its `hint` says what to do instead. The command line prints both on stderr and exits
with 1. Anything else that escapes is a defect of this package.
"""

import errno
import logging
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from truncate_kit.core.wording import counted, harmless

Name = TypeVar("Name", bound=str)
NO_FOLDER = "A file stands where a folder is needed: name another place as `out`."


class TruncateKitError(Exception):
    """Base of all errors a user can cause or mend: what was found, and in the hint what to do instead."""

    def __init__(self, message: str, *, hint: str) -> None:
        super().__init__(message)
        self.hint = hint

    def __reduce__(self) -> tuple[Any, ...]:
        # Errors travel between processes as they are; the constructors of some build the message from other parts.
        return _arrived, (type(self), str(self), self.hint)


def _arrived(kind: type[TruncateKitError], message: str, hint: str) -> TruncateKitError:
    error = kind.__new__(kind)
    error.args, error.hint = (message,), hint  # an OSError would take its message in its constructor only
    return error


class MissingExtraError(TruncateKitError, ImportError):
    """An optional dependency is not installed."""

    def __init__(self, module: str, extra: str) -> None:
        super().__init__(
            f"This needs the module {module!r}, which is not installed.",
            hint=f"Install it with: pip install 'truncate-kit[{extra}]'",
        )


class UsageError(TruncateKitError, ValueError):
    """A parameter has a value that makes no sense, alone or beside another."""


class DeviceError(TruncateKitError, RuntimeError):
    """The hardware or the cluster that was asked for is not there, does not start, or was lost."""


class DivergedError(TruncateKitError, ArithmeticError):
    """A loss that is no longer a number: these weights and settings do not train."""


class FileProblemError(TruncateKitError, OSError):
    """A file or folder cannot be read or written, or another process is working in it."""


# Models


class ModelError(TruncateKitError, ValueError):
    """A model cannot be loaded, cut, exported or used as an encoder."""


class LayerOutOfRangeError(ModelError):
    """A layer outside 0 … depth, or a block outside 1 … depth.

    Args:
        lowest: That can be given, where the model has lower ones that cannot.
    """

    def __init__(self, layer: int, depth: int, *, block: bool = False, lowest: int = 0) -> None:
        what, first = ("block", "1") if block else ("layer", "0")
        has = f"{what}s {first}{'' if block else ' (embeddings)'} to {depth}"
        super().__init__(
            f"{what.capitalize()} {layer} does not exist: this encoder has {has}.",
            hint=f"Give a {what} from {lowest or first} to {depth}.",
        )


class LayerNotHeldError(ModelError):
    """A layer that exists but at which a truncated model cannot be stored and reloaded exactly."""


# Data


class DataError(TruncateKitError, ValueError):
    """Data that cannot be used: the message names file, row and what is wrong."""


class ColumnsError(DataError):
    """The columns of a file do not say which of them hold the two texts and the score."""

    def __init__(self, source: str, problem: str, found: Iterable[str], *, hint: str) -> None:
        super().__init__(f"{source}: {problem} Columns found: {', '.join(map(repr, found)) or 'none'}.", hint=hint)


class RowError(DataError):
    """One row that cannot be used. place: "line 7" as an editor counts, or "row 7" where there are no lines."""

    def __init__(self, source: str, place: str, problem: str, *, hint: str) -> None:
        super().__init__(f"{source}, {place}: {problem}", hint=hint)


# What several modules find in the same way


def first_line(error: BaseException) -> str:
    """What a library says in the first line of its message, and the next where that one only leads to it; no stop."""
    first, *rest = str(error).strip().splitlines() or [type(error).__name__]
    text = f"{first} {rest[0].strip()}" if rest and first.endswith((":", "(")) else first
    return harmless(text.rstrip("."))


def known_name(what: str, name: object, known: Collection[Name]) -> Name:
    """The one of the known names that this is.

    Args:
        what: In words.
        name: What has to be a known one.
        known: The known names.

    Raises:
        UsageError: It is none of them.
    """
    for one in known:
        if one == name:
            return one
    raise UsageError(f"There is no {what} {name!r}.", hint=f"Use one of: {', '.join(known)}.")


def cannot_write(path: Path, reason: OSError) -> FileProblemError:
    """Writing failed: full disk, read-only folder, a file where a folder should be."""
    if reason.errno in (errno.ENOTDIR, errno.EEXIST):
        hint = NO_FOLDER
    else:
        hint = "Free some space or name another place as `out`; what was there before is unchanged."
    return FileProblemError(f"Cannot write {path}: {(reason.strerror or str(reason)).rstrip('.')}.", hint=hint)


def too_few_texts(count: int, *, needed: int = 4) -> DataError:
    """Fewer texts than an estimator needs."""
    return DataError(
        f"{counted(count, 'text is', 'texts are')} too few: this estimate needs at least {needed}.",
        hint=f"Give at least {needed} distinct texts; some hundred make the estimate steady.",
    )


def not_finite(layers: list[int]) -> ModelError:
    """States that hold NaN or infinity."""
    return ModelError(
        f"The states of layer {', '.join(map(str, layers))} hold NaN or infinity.",
        hint="Run the model in float32: half precision overflows in some models.",
    )


def undefined_cka(layers: list[int], side: str, reason: str) -> DataError:
    """CKA has no value at some layers: their states are the same for every text, or all equally far apart."""
    return DataError(
        f"CKA is not defined at layer {', '.join(map(str, layers))} of {side}: {reason}.",
        hint="Use more texts, or mean pooling: with CLS pooling layer 0 is the same for every text.",
    )


def failed_check(finding: str) -> ModelError:
    """A graph that was exported and does not do what the encoder does."""
    return ModelError(
        f"The exported graph failed its checks: {finding}.",
        hint="Nothing was written. Use the model in torch, or report the architecture and the versions.",
    )


# Libraries


def require(module: str, *, extra: str) -> ModuleType:
    """Import an optional module, or raise `MissingExtraError` naming the extra that installs it.

    A module that is installed but cannot be imported raises its own error: reinstalling would not help.
    """
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module.partition(".")[0]:
            raise  # installed but broken
        raise MissingExtraError(module, extra) from error


@contextmanager
def errors_only(*packages: str) -> Iterator[None]:
    """Let the loggers of these packages write errors only in the block."""
    levels = {log: log.level for log in map(logging.getLogger, packages)}
    for log in levels:
        log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        for log, level in levels.items():
            log.setLevel(level)
