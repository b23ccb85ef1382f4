"""Callbacks by which long work reports its progress."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol


class Progress(Protocol):
    """Called as work goes on; the command line draws a bar, the library's default is `silent`."""

    def __call__(self, task: str, done: int, total: int) -> None:
        """`done` of `total` steps of `task` are done; `done == total` ends the task."""


class PlannedTrial(NamedTuple):
    """A trial that is to be run. task: the name of its `Progress`; until: epochs after which it ends or waits."""

    task: str
    layer: int
    seed: int
    epochs: int
    until: int

    @property
    def place(self) -> tuple[int, int, int]:
        """Layer, seed and epochs, by which a watcher knows it."""
        return self.layer, self.seed, self.epochs


class TrialWatcher:
    """Called as trials go on, epoch by epoch; this one ignores it all."""

    def progress(self, task: str, done: int, total: int) -> None:
        """As `Progress`, for trials and for what runs beside them."""

    def part(self, name: str) -> None:
        """The trials from now on are of this part of a study, a model on a task; a single sweep has no parts."""

    def planned(self, trials: Sequence[PlannedTrial]) -> None:
        """These are run next, one after another or at once; what comes after them may depend on their scores."""

    def epoch(self, layer: int, seed: int, epochs: int, done: int, loss: float, dev: float) -> None:
        """`done` of the `epochs` epochs of a trial are done. loss: mean over this epoch's steps; dev: in points."""

    def again(self, layer: int, seed: int, epochs: int, reason: str) -> None:
        """The process or machine of a running trial was lost, so it is run again; reason: what is known of it."""

    def finished(self, layer: int, seed: int, epochs: int, dev: float, test: float | None) -> None:
        """A trial is complete, trained now or read from the store; scores in points, test None while searching."""

    def stopped(self, layer: int, seed: int, epochs: int, done: int, dev: float) -> None:
        """A trial of `epochs` epochs waits after `done` of them; it goes on only if its layer stays among the best."""


def silent(task: str, done: int, total: int) -> None:
    """Ignore progress."""
