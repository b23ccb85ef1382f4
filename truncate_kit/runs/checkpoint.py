"""Where the state of a running trial waits between its epochs, and when it goes."""

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from truncate_kit.files import remove_leftovers


@dataclass(frozen=True, slots=True)
class Checkpoints:
    """The checkpoints of the runs in a folder, by the names of the runs; a name has no dot."""

    folder: Path

    def of(self, name: str, stage: str = "") -> Path | None:
        """File for the state of a run, or of a stage before it such as "prior"; None where the folder is not seen."""
        parts = (name, stage, "checkpoint") if stage else (name, "checkpoint")
        return self.folder / ".".join(parts) if self.folder.is_dir() else None

    def remove(self, name: str) -> None:
        """Of a run that is finished or given up, at all its stages."""
        for file in self.folder.glob(f"{name}.*checkpoint"):
            file.unlink(missing_ok=True)
        remove_leftovers(self.folder, name)  # of a worker that was lost while it wrote

    def tidy(self, finished: Collection[str]) -> None:
        """Remove those of finished runs: a process was killed between the end of a run and their removal."""
        for file in self.folder.glob("*.checkpoint"):
            if file.name.partition(".")[0] in finished:
                file.unlink(missing_ok=True)
