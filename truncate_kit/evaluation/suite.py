"""What every evaluation suite takes and gives: a run of a model on some data, and a report."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Self

from truncate_kit.core.files import local_path
from truncate_kit.core.progress import Progress, silent
from truncate_kit.core.results import Measurement

if TYPE_CHECKING:
    from truncate_kit.core.vectors import Rows


class TextEncoder(Protocol):
    """Anything that turns texts into vectors: an `Encoder`, an ONNX session, a peer's model."""

    def encode(self, texts: Sequence[str]) -> "Rows":
        """Vectors (n, d) in the order of the texts, as an array or a tensor."""


def measured_digest(model: str) -> str | None:
    """Return the SHA-256 of weights, configuration and modules in the folder of that name; None if there is none."""
    from truncate_kit.core.origin import model_digest

    folder = local_path(model)
    return model_digest(folder) if folder.is_dir() else None


@dataclass(frozen=True, slots=True, kw_only=True)
class SuiteReport(Measurement):
    """What a suite gives; it says how much it measured, and `truncate_kit.report` has a view of it.

    Attributes:
        model: Its name.
        sha256: Its `measured_digest`; None if that was not noted.
    """

    model: str
    sha256: str | None = None

    def covers(self, other: Self) -> bool:
        """See `Measurement`; nothing is left of a model in whose place there is another one."""
        known = None not in (self.sha256, other.sha256)
        replaced = known and self.model == other.model and self.sha256 != other.sha256
        return replaced or Measurement.covers(self, other)


@dataclass(frozen=True, slots=True, kw_only=True)
class SuiteRun:
    """A model that is ready to encode, what to score it on, and how.

    Attributes:
        encoder: Whatever has `.encode(texts)`.
        model: Its name in the report.
        runtime: What encodes, for the report.
        data: Path of the sets.
        options: Those that the suite's row names, by name; None or False where they were not given.
        threads: CPU threads as given, None where they were not.
        work: Folder that keeps what is finished, for whoever is interrupted; None keeps nothing.
        note: Takes sentences for whoever waits.
        progress: Called after each part of the work.
    """

    encoder: TextEncoder
    model: str
    runtime: str
    data: str
    options: Mapping[str, Any]
    threads: int | None = None
    work: Path | None = None
    note: Callable[[str], None] = lambda text: None
    progress: Progress = silent
