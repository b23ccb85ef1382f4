"""Callbacks by which long work reports its progress, and bars and a log made of them."""

import logging
import sys
import time
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any, NamedTuple, Protocol

_logger = logging.getLogger(__name__)


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


def announce(progress: Progress, sentence: str) -> None:
    """Say what is ahead: by the `say` of `progress` where it has one, as that of the command line; else in the log."""
    getattr(progress, "say", _logger.info)(sentence)


ProgressOption = Progress | bool
"""What `progress` of a public function takes: True shows it (`Bars`), False is silent, anything else is called."""
WatchOption = TrialWatcher | ProgressOption
"""The same where trials are trained, whose epochs and scores a `TrialWatcher` hears of as well."""


def reporter(progress: ProgressOption) -> Progress:
    """What is called as the work goes on."""
    if isinstance(progress, bool):
        return Bars() if progress else silent
    return progress


def watcher_of(progress: WatchOption) -> TrialWatcher:
    """Who hears of trials."""
    return progress if isinstance(progress, TrialWatcher) else _Logging(reporter(progress))


class Bars:
    """A bar for each task that runs, in a terminal or a notebook; begin and end of each in the log, at level INFO."""

    def __init__(self) -> None:
        self._bars: dict[str, tuple[Any, float]] = {}

    def __call__(self, task: str, done: int, total: int) -> None:
        """See `Progress`."""
        if task not in self._bars:
            _logger.info("%s: step %s of %s.", task, f"{done:,}", f"{total:,}")
            self._bars[task] = _bar(task, done, total), time.perf_counter()
        bar, begun = self._bars[task]
        bar.total = total
        bar.update(done - bar.n)
        if done >= total:
            bar.close()
            del self._bars[task]
            _logger.info("%s: done after %.1f s.", task, time.perf_counter() - begun)


def _bar(task: str, done: int, total: int) -> Any:
    """A bar that goes when it is full: the notebook's own where ipywidgets is there, else of text; none elsewhere."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    in_notebook = "IPKernelApp" in getattr(shell, "config", {})
    if in_notebook and find_spec("ipywidgets") is not None:
        from tqdm.notebook import tqdm
    else:
        from tqdm import tqdm
    hidden = not in_notebook and not sys.stderr.isatty()
    return tqdm(desc=task, initial=done, total=total, leave=False, disable=hidden)


class _Logging(TrialWatcher):
    """Hands progress on, and logs epochs and scores at level INFO."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress

    def progress(self, task: str, done: int, total: int) -> None:
        self._progress(task, done, total)

    def part(self, name: str) -> None:
        _logger.info("%s:", name)

    def epoch(self, layer: int, seed: int, epochs: int, done: int, loss: float, dev: float) -> None:
        _logger.info("Layer %d, seed %d, epoch %d of %d: loss %.4f, dev %.2f.", layer, seed, done, epochs, loss, dev)

    def again(self, layer: int, seed: int, epochs: int, reason: str) -> None:
        _logger.warning("Layer %d, seed %d is run again: its worker was lost, %s.", layer, seed, reason)

    def finished(self, layer: int, seed: int, epochs: int, dev: float, test: float | None) -> None:
        _logger.info("Layer %d, seed %d: dev %.2f%s.", layer, seed, dev, "" if test is None else f", test {test:.2f}")
