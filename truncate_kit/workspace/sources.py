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
class TripletSource(Result):
    """Rows of contrastive training by name, and how they are read."""

    name: str
    columns: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Sources(Result):
    """The last model, the last pairs, and the rows of the last contrastive training; None where there were none.

    queries: The folder of a retrieval set, where that was taken later than the pairs.
    """

    model: ModelSource | None = None
    data: DataSource = field(default_factory=DataSource)
    triplets: TripletSource | None = None
    queries: str | None = None

    @classmethod
    def read(cls, path: Path) -> Self:
        """What `write` wrote; nothing where there was none or it is damaged."""
        return read_or_pass_over(super(Sources, cls).read, path) or cls()

    def write(self, path: Path) -> None:
        """Write a JSON file; paths are made absolute."""
        model, triplets = self.model and _absolute(self.model), self.triplets and _absolute(self.triplets)
        queries = self.queries and str(Path(self.queries).resolve())
        super(Sources, Sources(model, _absolute(self.data), triplets, queries)).write(path)


Source = TypeVar("Source", ModelSource, DataSource, TripletSource)


def _absolute(source: Source) -> Source:
    """With a path that exists made absolute; any other name as it is."""
    if source.name not in (None, _BUNDLED) and Path(source.name).exists():
        return replace(source, name=str(Path(source.name).resolve()))
    return source
