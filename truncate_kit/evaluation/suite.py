"""What every evaluation suite takes and gives: a run of a model on some data, and a report."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from truncate_kit.files import local_path
from truncate_kit.progress import Progress, silent
from truncate_kit.results import Measurement, Result

if TYPE_CHECKING:
    from truncate_kit.evaluation.graded import TextEncoder


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredModel(Result):
    """Which model was measured."""

    name: str
    sha256: str  # of its weights, configuration and modules

    @classmethod
    def of(cls, name: str) -> "MeasuredModel | None":
        """Identify the folder of that name; None if there is none."""
        from truncate_kit.origin import model_digest

        folder = local_path(name)
        return cls(name=name, sha256=model_digest(folder)) if folder.is_dir() else None


@dataclass(frozen=True, slots=True, kw_only=True)
class SuiteReport(Measurement):
    """What a suite gives; it says how much it measured, and `truncate_kit.report` has a view of it.

    Attributes:
        measured: The model; None where nobody noted it, or it has no folder.
    """

    measured: MeasuredModel | None = None

    def covers(self, other: Self) -> bool:
        """See `Measurement`; nothing is left of a model in whose place there is another one."""
        ours, theirs = self.measured, other.measured
        if ours is not None and theirs is not None and ours.name == theirs.name and ours != theirs:
            return True
        return Measurement.covers(self, other)


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

    encoder: "TextEncoder"
    model: str
    runtime: str
    data: str
    options: Mapping[str, Any]
    threads: int | None = None
    work: Path | None = None
    note: Callable[[str], None] = lambda text: None
    progress: Progress = silent
