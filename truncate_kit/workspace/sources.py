"""What a command worked on, by name, noted for the next one."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Self, TypeVar

from truncate_kit.results import Result, read_or_pass_over

_BUNDLED = "bundled"  # `truncate_kit.data.BUNDLED`, whose import would take a second


@dataclass(frozen=True, slots=True)
class ModelSource(Result):
    """A model by name (folder, hub name, miniature), and how its texts are read."""

    name: str
    pooling: str | None = None
    max_length: int | None = None


@dataclass(frozen=True, slots=True)
class DataSource(Result):
    """Pairs by name, None for the bundled set, and how they are read."""

    name: str | None = None
    columns: tuple[str, ...] | None = None
    scale: tuple[float, ...] | None = None


@dataclass(frozen=True, slots=True)
class CopiedSource(Result):
    """The model of which `lean` is a copy, by name, and the digest of that copy."""

    name: str
    digest: str


@dataclass(frozen=True, slots=True)
class LearnedSource(Result):
    """The model and the pairs of a sweep, and the fingerprint by which its result knows these."""

    fingerprint: str
    model: ModelSource
    data: DataSource


@dataclass(frozen=True, slots=True)
class Sources(Result):
    """The last model and the last pairs; None where there were none.

    queries: The folder of a retrieval set, where that was taken later than the pairs.
    learned: What the last sweep took, whatever other commands took since.
    benched: The pairs or the retrieval set that the last bench was given; None where it was given none.
    copied: What the last export copied into the workspace, before it wrote the graph.
    """

    model: ModelSource | None = None
    data: DataSource = field(default_factory=DataSource)
    queries: str | None = None
    learned: LearnedSource | None = None
    benched: DataSource | None = None
    copied: CopiedSource | None = None

    @classmethod
    def read(cls, path: Path) -> Self:
        """What `write` wrote; nothing where there was none or it is damaged."""
        return read_or_pass_over(super(Sources, cls).read, path) or cls()

    def write(self, path: Path) -> None:
        """Write a JSON file; paths are made absolute."""
        learned = self.learned
        if learned is not None:
            learned = replace(learned, model=_absolute(learned.model), data=_absolute(learned.data))
        found = Sources(
            model=self.model and _absolute(self.model),
            data=_absolute(self.data),
            queries=self.queries and str(Path(self.queries).resolve()),
            learned=learned,
            benched=self.benched and _absolute(self.benched),
            copied=self.copied and _absolute(self.copied),
        )
        super(Sources, found).write(path)


Source = TypeVar("Source", ModelSource, DataSource, CopiedSource)


def _absolute(source: Source) -> Source:
    """With a path that exists made absolute; any other name as it is."""
    if source.name not in (None, _BUNDLED) and Path(source.name).exists():
        return replace(source, name=str(Path(source.name).resolve()))
    return source
