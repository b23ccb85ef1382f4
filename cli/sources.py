"""What a command worked on, by name, noted for the next one."""

import contextlib
import json
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Self, TypeVar

from truncate_kit.files import write_json


@dataclass(frozen=True, slots=True)
class ModelSource:
    """A model by name (folder, hub name, miniature), and how its texts are read."""

    name: str
    pooling: str | None = None
    max_length: int | None = None


@dataclass(frozen=True, slots=True)
class DataSource:
    """Pairs by name, None for the bundled set, and the options that read them."""

    name: str | None = None
    columns: str | None = None
    scale: str | None = None


@dataclass(frozen=True, slots=True)
class TripletSource:
    """Rows of contrastive training by name, and the option that reads them."""

    name: str
    columns: str | None = None


@dataclass(frozen=True, slots=True)
class Sources:
    """The last model, the last pairs, and the rows of the last contrastive training; None where there were none."""

    model: ModelSource | None = None
    data: DataSource = field(default_factory=DataSource)
    triplets: TripletSource | None = None

    @classmethod
    def read(cls, path: Path) -> Self:
        """What `write` wrote; nothing where there was none or it is damaged."""
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError, AttributeError):
            values = json.loads(path.read_text(encoding="utf-8"))
            model, triplets = values["model"], values.get("triplets")
            return cls(
                None if model is None else ModelSource(**model),
                DataSource(**values["data"]),
                None if triplets is None else TripletSource(**triplets),
            )
        return cls()

    def write(self, path: Path) -> None:
        """Write a JSON file; paths are made absolute."""
        named: dict[str, Any] = {"model": self.model, "data": self.data, "triplets": self.triplets}
        write_json(path, {part: asdict(_absolute(source)) if source else None for part, source in named.items()})


Source = TypeVar("Source", ModelSource, DataSource, TripletSource)


def _absolute(source: Source) -> Source:
    """With a path that exists made absolute; any other name as it is."""
    if source.name is not None and Path(source.name).exists():
        return replace(source, name=str(Path(source.name).resolve()))
    return source
