"""Trials as TensorBoard logs: one run for each part of a study, layer, seed and number of epochs."""

from pathlib import Path
from typing import Any
from urllib.parse import quote

from truncate_kit.errors import require
from truncate_kit.progress import TrialEvent, TrialWatcher


class TensorboardLog(TrialWatcher):
    """Writes loss and dev score by epoch, and the final scores in points. Raises `MissingExtraError`."""

    def __init__(self, folder: Path) -> None:
        require("tensorboard", extra="tensorboard")
        self._home = self._folder = folder
        self._writers: dict[str, Any] = {}

    def __enter__(self) -> "TensorboardLog":
        return self

    def __exit__(self, *_: object) -> None:
        for writer in self._writers.values():
            writer.close()
        self._writers.clear()

    def part(self, name: str) -> None:
        """What follows goes to a folder of that name."""
        self.__exit__()
        self._folder = self._home / quote(name, safe=" ,")  # no two names give the same folder, none leaves it

    def trial(self, event: TrialEvent) -> None:
        """Scalars `loss` and `dev` of an epoch; `best dev` and `test` at the last epoch of a finished trial."""
        found: dict[str, float | None] = {}
        if event.kind == "epoch":
            found = {"loss": event.loss, "dev": event.dev}
        elif event.kind == "finished":
            found = {"best dev": event.dev, "test": event.test}
        for name, value in found.items():
            if value is not None:
                self._writer(event).add_scalar(name, value, event.done)
        if found:
            self._writer(event).flush()

    def _writer(self, event: TrialEvent) -> Any:
        from torch.utils.tensorboard import SummaryWriter

        name = f"layer{event.layer:02d}-seed{event.seed}-epochs{event.epochs}"
        if name not in self._writers:
            self._writers[name] = SummaryWriter(str(self._folder / name))
        return self._writers[name]
