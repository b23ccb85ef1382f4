"""What a sweep shows while it runs: a live table in a terminal, lines elsewhere, TensorBoard logs by option."""

import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from truncate_kit.progress import TrialWatcher
from truncate_kit.wording import counted

from .output import note, progress_bar

if TYPE_CHECKING:
    from truncate_kit.progress import Progress

TensorboardOpt = Annotated[
    bool, typer.Option("--tensorboard", help="Log losses and scores of every trial to tensorboard/ under --out.")
]
SHOWN_TRIALS = 12  # a terminal's height, less what stands around it


@contextmanager
def watching(out: Path, *, tensorboard: bool, quiet: bool) -> Iterator[tuple["Progress", TrialWatcher]]:
    """What to hand to a sweep: its progress and its watcher. Raises `MissingExtraError` without TensorBoard."""
    with ExitStack() as stack:
        watchers: list[TrialWatcher] = []
        if tensorboard:
            from truncate_kit.report.tensorboard import TensorboardLog

            watchers.append(stack.enter_context(TensorboardLog(out / "tensorboard")))
        if quiet or not sys.stderr.isatty():
            progress = stack.enter_context(progress_bar(quiet=quiet))
            watchers += [] if quiet else [_Lines()]
        else:
            live = stack.enter_context(_LiveTable())
            progress = live.progress
            watchers.append(live)
        yield progress, _All(watchers)


class _All(TrialWatcher):
    """Tells several watchers."""

    def __init__(self, watchers: list[TrialWatcher]) -> None:
        self._watchers = watchers

    def part(self, name: str) -> None:
        for watcher in self._watchers:
            watcher.part(name)

    def epoch(self, layer: int, seed: int, epochs: int, done: int, loss: float, dev: float) -> None:
        for watcher in self._watchers:
            watcher.epoch(layer, seed, epochs, done, loss, dev)

    def again(self, layer: int, seed: int, epochs: int, reason: str) -> None:
        for watcher in self._watchers:
            watcher.again(layer, seed, epochs, reason)

    def finished(self, layer: int, seed: int, epochs: int, dev: float, test: float | None) -> None:
        for watcher in self._watchers:
            watcher.finished(layer, seed, epochs, dev, test)

    def stopped(self, layer: int, seed: int, epochs: int, done: int, dev: float) -> None:
        for watcher in self._watchers:
            watcher.stopped(layer, seed, epochs, done, dev)


class _Lines(TrialWatcher):
    """One line on stderr for every finished trial; each trial of a part of a study once."""

    def __init__(self) -> None:
        self._told: set[tuple[int, int, int]] = set()

    def part(self, name: str) -> None:
        self._told.clear()
        note(f"{name}:")

    def again(self, layer: int, seed: int, epochs: int, reason: str) -> None:
        note(f"Layer {layer}, seed {seed} is run again: its worker was lost, {reason}.")

    def finished(self, layer: int, seed: int, epochs: int, dev: float, test: float | None) -> None:
        if (layer, seed, epochs) not in self._told:
            self._told.add((layer, seed, epochs))
            note(f"Layer {layer}, seed {seed}, {counted(epochs, 'epoch')}: dev {dev:.2f}.")

    def stopped(self, layer: int, seed: int, epochs: int, done: int, dev: float) -> None:
        note(f"Layer {layer}, seed {seed}, {done} of {epochs} epochs: dev {dev:.2f}.")


class _Steps:
    """How far something is; what was done when it was first heard of, as after a kill, took none of our time."""

    def __init__(self, done: int, total: int) -> None:
        self.done, self._first, self._total, self._begun = done, done, total, time.monotonic()

    def __str__(self) -> str:
        said = f"step {self.done:,} of {self._total:,}"
        if self.done == self._first:
            return said
        left = (time.monotonic() - self._begun) * (self._total - self.done) / (self.done - self._first)
        return f"{said}, {left:,.0f} s left"


class _LiveTable(TrialWatcher):
    """The trials of a sweep as a table that is drawn anew: layer, seed, epoch, dev score, time left of the trial."""

    def __init__(self) -> None:
        self._trials: dict[tuple[int, int, int], tuple[str, str]] = {}
        self._steps: dict[str, _Steps] = {}  # of what runs now
        self._part: str | None = None
        self._live: Any = None

    def __enter__(self) -> "_LiveTable":
        from rich.console import Console
        from rich.live import Live

        self._live = Live(
            get_renderable=self._table, console=Console(stderr=True), transient=True, refresh_per_second=2
        )
        self._live.__enter__()
        return self

    def __exit__(self, *exception: Any) -> None:
        self._live.__exit__(*exception)

    def part(self, name: str) -> None:
        self._part = name
        self._trials.clear()

    def progress(self, task: str, done: int, total: int) -> None:
        """Where the work at hand is; with several workers there are several at once."""
        if done < total:
            self._steps.setdefault(task, _Steps(done, total)).done = done
        else:
            self._steps.pop(task, None)

    def epoch(self, layer: int, seed: int, epochs: int, done: int, loss: float, dev: float) -> None:
        self._trials.pop((layer, seed, epochs), None)  # to the end of the table
        self._trials[layer, seed, epochs] = (f"{done}/{epochs}", f"{dev:.2f}")

    def again(self, layer: int, seed: int, epochs: int, reason: str) -> None:
        self._trials[layer, seed, epochs] = ("again", "")

    def finished(self, layer: int, seed: int, epochs: int, dev: float, test: float | None) -> None:
        self._trials[layer, seed, epochs] = ("done", f"{dev:.2f}")

    def stopped(self, layer: int, seed: int, epochs: int, done: int, dev: float) -> None:
        self._trials[layer, seed, epochs] = (f"{done}/{epochs}", f"{dev:.2f}")

    def _table(self) -> Any:
        from rich.table import Table
        from rich.text import Text

        drawn = Table(title=None if self._part is None else Text(self._part), header_style="bold")
        for name in ("layer", "seed", "epoch", "dev"):
            drawn.add_column(name, justify="right")
        for (layer, seed, _), (state, dev) in list(self._trials.items())[-SHOWN_TRIALS:]:
            drawn.add_row(str(layer), str(seed), state, dev, style="dim" if state == "done" else None)
        lines = [f"{task}: {steps}" for task, steps in list(self._steps.items())]
        drawn.caption = Text("\n".join(lines)) if lines else None
        return drawn
