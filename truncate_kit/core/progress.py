"""Callbacks by which long work reports its progress, and bars that draw it."""

import logging
import math
import sys
import time
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol
from urllib.parse import quote

from truncate_kit.core.errors import require
from truncate_kit.core.wording import counted

_logger = logging.getLogger(__name__)
TELL_EVERY = 60.0  # seconds between two lines of progress where stderr is no terminal


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


class TrialEvent(NamedTuple):
    """What happened to a trial; scores are in points.

    kind: One more epoch is done; the trial is complete, trained now or read from the store; it waits, and goes on only
        if its layer stays among the best; or it is run again, because its process or machine was lost.
    """

    kind: Literal["epoch", "finished", "stopped", "again"]
    layer: int
    seed: int
    epochs: int  # of the whole trial
    done: int = 0  # of them
    dev: float = math.nan  # of the epoch that is done, and of the best one at the end
    loss: float = math.nan  # mean over the steps of the epoch that is done
    test: float | None = None  # of the best epoch at the end; None while searching
    reason: str = ""  # what is known of why it is run again

    @property
    def place(self) -> tuple[int, int, int]:
        """As that of `PlannedTrial`."""
        return self.layer, self.seed, self.epochs

    def __str__(self) -> str:
        named = f"Layer {self.layer}, seed {self.seed}"
        match self.kind:
            case "again":
                return f"{named} is run again: its worker was lost, {self.reason}."
            case "epoch":
                return f"{named}, epoch {self.done} of {self.epochs}: loss {self.loss:.4f}, dev {self.dev:.2f}."
            case "stopped":
                return f"{named}, {self.done} of {self.epochs} epochs: dev {self.dev:.2f}."
        return f"{named}, {counted(self.epochs, 'epoch')}: dev {self.dev:.2f}."


class TrialWatcher:
    """Called as trials go on; this one ignores it all."""

    def progress(self, task: str, done: int, total: int) -> None:
        """As `Progress`, for trials and for what runs beside them."""

    def part(self, name: str) -> None:
        """The trials from now on are of this part of a study, a model on a task; a single sweep has no parts."""

    def planned(self, trials: Sequence[PlannedTrial]) -> None:
        """These are run next, one after another or at once; what comes after them may depend on their scores."""

    def trial(self, event: TrialEvent) -> None:
        """Something happened to one of them, or to one that is there already."""


def silent(task: str, done: int, total: int) -> None:
    """Ignore progress."""


def announce(progress: Progress, sentence: str) -> None:
    """Say what is ahead: by the `say` of `progress` where it has one, else in the log."""
    getattr(progress, "say", _logger.info)(sentence)


ProgressOption = Progress | bool
"""What `progress` of a public function takes: True shows it (`Bars`), False is silent, anything else is called."""
WatchOption = TrialWatcher | ProgressOption
"""The same where trials are trained, whose epochs and scores a `TrialWatcher` hears of as well."""


def reporter(progress: ProgressOption) -> Progress:
    """Return what is called as the work goes on."""
    if isinstance(progress, bool):
        return Bars() if progress else silent
    return progress


def watcher_of(progress: WatchOption) -> TrialWatcher:
    """Return the watcher of trials that `progress` stands for."""
    if isinstance(progress, TrialWatcher):
        return progress
    return Bars() if progress is True else _Logging(reporter(progress))


class Bars(TrialWatcher):
    """A bar for each task that runs, in a terminal or a notebook, and one for all planned trials.

    Args:
        say: Takes a line for each trial that ends; by default the log at level INFO, where epochs go in any case.
        beside: Hears of trials as well.
    """

    def __init__(self, say: Callable[[str], object] = _logger.info, beside: TrialWatcher | None = None) -> None:
        self.say, self._beside = say, beside or TrialWatcher()
        self._bars: dict[str, tuple[Any, float]] = {}  # each with the time at which it began
        self._told = time.monotonic()
        self._shares: dict[str, tuple[PlannedTrial, float]] = {}  # how much of a planned trial is done

    def __call__(self, task: str, done: int, total: int) -> None:
        """See `Progress`."""
        self.progress(task, done, total)

    def progress(self, task: str, done: int, total: int) -> None:
        """See `Progress`; a trial counts by the layers that it trains in the bar of all."""
        if task in self._shares:
            trial = self._shares[task][0]
            total = max(1, total * trial.until // trial.epochs)
            self._shares[task] = trial, done / total
            costs = {name: max(1, one.layer) for name, (one, _) in self._shares.items()}
            made = sum(costs[name] * share for name, (_, share) in self._shares.items())
            self._draw("all trials", int(100 * made), 100 * sum(costs.values()))
        self._draw(task, done, total)

    def _draw(self, task: str, done: int, total: int) -> None:
        now = time.monotonic()
        if task not in self._bars:
            _logger.info("%s: step %s of %s.", task, f"{done:,}", f"{total:,}")
            self._bars[task] = _bar(task, done, total), now
        bar, begun = self._bars[task]
        bar.total = total
        bar.update(done - bar.n)
        if done >= total:
            bar.close()
            del self._bars[task]
            _logger.info("%s: done after %.1f s.", task, now - begun)
        elif bar.disable and now - self._told >= TELL_EVERY:  # where no bar is drawn, a line now and then
            self._told = now
            self.say(f"{task}: {done:,} of {total:,} after {(now - begun) / 60:.0f} min.")

    def part(self, name: str) -> None:
        """Say which part begins."""
        self._beside.part(name)
        self.say(f"{name}:")

    def planned(self, trials: Sequence[PlannedTrial]) -> None:
        """Begin the bar of all trials anew."""
        self._shares = {trial.task: (trial, 0.0) for trial in trials} if len(trials) > 1 else {}

    def trial(self, event: TrialEvent) -> None:
        """Say what became of a trial."""
        self._beside.trial(event)
        test = "" if event.test is None else f" Test {event.test:.2f}."
        (_logger.info if event.kind == "epoch" else self.say)(f"{event}{test}")


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

    def trial(self, event: TrialEvent) -> None:
        test = "" if event.test is None else f" Test {event.test:.2f}."
        _logger.log(logging.WARNING if event.kind == "again" else logging.INFO, "%s%s", event, test)


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
