"""Everything that can go wrong for a reason the user can mend.

Each error says what was found; its `hint` says what to do instead. The command line prints both on stderr and exits
with 1. Anything else that escapes is a defect of this package.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any


class TruncateKitError(Exception):
    """Base of all errors a user can cause or mend.

    message: one sentence that says what was found. hint: one sentence that says what to do instead.
    """

    def __init__(self, message: str, *, hint: str) -> None:
        super().__init__(message)
        self.hint = hint

    def __reduce__(self) -> tuple[Any, ...]:
        """Errors travel between processes as they are; the constructors of some build the message from other parts."""
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
    """An option has a value that makes no sense, alone or beside another."""


class DeviceError(TruncateKitError, RuntimeError):
    """The hardware that was asked for is not there or does not start."""


class FileProblemError(TruncateKitError, OSError):
    """A file or folder cannot be read or written."""


class CannotWriteError(FileProblemError):
    """Writing failed: full disk, read-only folder, a file where a folder should be."""

    def __init__(self, path: Path, reason: OSError) -> None:
        super().__init__(
            f"Cannot write {path}: {reason.strerror or reason}.",
            hint="Free some space or name another place with --out; what was there before is unchanged.",
        )


class RunInUseError(TruncateKitError, RuntimeError):
    """Another process is working in the same run folder."""

    def __init__(self, folder: Path) -> None:
        super().__init__(
            f"Another process is working in {folder}.",
            hint="Wait until it ends, stop it, or name another folder with --out.",
        )


class WorkerLostError(TruncateKitError, RuntimeError):
    """What was to be done was begun several times, and each time its process or machine was lost."""

    def __init__(self, task: str, runs: int, reason: str) -> None:
        super().__init__(
            f"The worker of {task} was lost {runs} times; the last time {reason}.",
            hint="Memory may have run out: use fewer workers or a smaller --batch-size; the same command continues.",
        )


class ClusterError(TruncateKitError, RuntimeError):
    """The Ray cluster cannot be reached, or cannot run what it is given."""


# Models


class ModelError(TruncateKitError, ValueError):
    """A model cannot be loaded, cut or used as an encoder."""


class LayerOutOfRangeError(ModelError):
    """A layer outside 0 … depth."""

    def __init__(self, layer: int, depth: int) -> None:
        super().__init__(
            f"Layer {layer} does not exist: this encoder has layers 0 (embeddings) to {depth}.",
            hint=f"Use --layer 0..{depth}, or --layer auto.",
        )


class LayerNotHeldError(ModelError):
    """A layer that exists but at which a truncated model cannot be stored and reloaded exactly."""


class UnknownFamilyError(ModelError):
    """An architecture without a row in the family table."""


class PushError(TruncateKitError, RuntimeError):
    """The hub cannot be reached, or does not take a model."""


# Data


class DataError(TruncateKitError, ValueError):
    """A data file that cannot be used: the message names file, row and what is wrong."""


class DataFileError(DataError):
    """A file or folder that cannot be read as data at all: missing, empty, broken, of an unknown kind."""


class ColumnsError(DataError):
    """The columns of a file do not say which of them hold the two texts and the score."""

    def __init__(self, source: str, problem: str, found: Iterable[str], *, hint: str) -> None:
        super().__init__(f"{source}: {problem} Columns found: {', '.join(map(repr, found)) or 'none'}.", hint=hint)


class RowError(DataError):
    """One row that cannot be used. place: "line 7" as an editor counts, or "row 7" where there are no lines."""

    def __init__(self, source: str, place: str, problem: str, *, hint: str) -> None:
        super().__init__(f"{source}, {place}: {problem}", hint=hint)


class HubError(DataError):
    """A data set that the hub does not hold or that cannot be fetched now."""


# Similarity


class SimilarityError(TruncateKitError, ValueError):
    """States that cannot be compared or scored."""


class BatchTooSmallError(SimilarityError):
    """Fewer texts than an estimator needs."""

    def __init__(self, count: int, *, needed: int = 4) -> None:
        super().__init__(
            f"{count} texts are too few: this estimate needs at least {needed}.",
            hint=f"Give at least {needed} distinct texts; some hundred make the estimate steady.",
        )


class StatesShapeError(SimilarityError):
    """States whose shapes do not fit together."""


class NonFiniteStatesError(SimilarityError):
    """States that hold NaN or infinity."""

    def __init__(self, layers: list[int]) -> None:
        super().__init__(
            f"The states of layer {', '.join(map(str, layers))} hold NaN or infinity.",
            hint="Run the model in float32: half precision overflows in some models.",
        )


class UndefinedCKAError(SimilarityError):
    """CKA has no value at some layers: their states are the same for every text, or all equally far apart."""

    def __init__(self, layers: list[int], side: str, reason: str) -> None:
        super().__init__(
            f"CKA is not defined at layer {', '.join(map(str, layers))} of {side}: {reason}.",
            hint="Use more texts, or mean pooling: with CLS pooling layer 0 is the same for every text.",
        )


# Training


class TrainingDivergedError(TruncateKitError, ArithmeticError):
    """The gradients are no longer numbers."""

    def __init__(self, epoch: int, step: int, rate: float) -> None:
        super().__init__(
            f"Training diverged in epoch {epoch + 1}, step {step + 1}, at a learning rate of {rate:g}.",
            hint="Use a smaller --learning-rate, or --precision fp32.",
        )


# Export


class ExportError(TruncateKitError, RuntimeError):
    """An encoder that cannot be exported as it should be."""


class ExportCheckError(ExportError):
    """A graph that was exported and does not do what the encoder does."""

    def __init__(self, finding: str) -> None:
        super().__init__(
            f"The exported graph failed its checks: {finding}.",
            hint="Nothing was written. Use the model in torch, or report the architecture and the versions.",
        )
