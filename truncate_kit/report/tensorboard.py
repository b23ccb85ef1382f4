"""Trials as TensorBoard logs: one run for each part of a study, layer, seed and number of epochs."""

from pathlib import Path
from typing import Any
from urllib.parse import quote

from truncate_kit.extras import require
from truncate_kit.progress import TrialWatcher


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

    def epoch(self, layer: int, seed: int, epochs: int, done: int, loss: float, dev: float) -> None:
        """Scalars `loss` and `dev` at this epoch."""
        writer = self._writer(layer, seed, epochs)
        writer.add_scalar("loss", loss, done)
        writer.add_scalar("dev", dev, done)
        writer.flush()

    def finished(self, layer: int, seed: int, epochs: int, dev: float, test: float | None) -> None:
        """Scalars `best dev` and `test` at the last epoch."""
        writer = self._writer(layer, seed, epochs)
        writer.add_scalar("best dev", dev, epochs)
        if test is not None:
            writer.add_scalar("test", test, epochs)
        writer.flush()

    def _writer(self, layer: int, seed: int, epochs: int) -> Any:
        from torch.utils.tensorboard import SummaryWriter

        name = f"layer{layer:02d}-seed{seed}-epochs{epochs}"
        if name not in self._writers:
            self._writers[name] = SummaryWriter(str(self._folder / name))
        return self._writers[name]
