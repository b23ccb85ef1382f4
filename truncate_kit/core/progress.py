"""Run tasks in turn, and report progress to callbacks or bars."""

import logging
import math
import sys
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal, NamedTuple, Protocol, Self, TypeVar
from urllib.parse import quote

from truncate_kit.core.errors import counted, harmless, lasting, require

_logger = logging.getLogger(__name__)
# Seconds, without a terminal: before a task's first line, between lines, least remaining time.
TELL_AFTER, TELL_EVERY, TELL_LEFT = 10.0, 60.0, 20.0

_ALL = "all trials"  # the bar above those of single trials

Progress = Callable[[str, int, int], None]
"""Called with task name, steps done and total steps, which end the task."""

Task = TypeVar("Task", bound=Hashable)
Done = TypeVar("Done")
TaskIn = TypeVar("TaskIn", contravariant=True)
DoneOut = TypeVar("DoneOut", covariant=True)
Send = Callable[[Any], None]
"""Called with a message of a running task, such as (name, steps done, all steps)."""


class Work(Protocol[TaskIn, DoneOut]):
    """Data that all tasks share; pickled for workers, read-only."""

    def move(self, device: str) -> None:
        """Move the data to another device."""

    def perform(self, task: TaskIn, send: Send) -> DoneOut:
        """Do one task; the result depends only on work and task."""


class Engine:
    """Runs tasks one after another in this process, in a `with` block."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *problem: object) -> None:
        pass

    def run(self, work: Work[Task, Done], tasks: Iterable[Task], send: Send) -> Iterator[tuple[Task, Done]]:
        """Yield each finished task with its result; take the next one when a worker is free.

        Raises a task's errors, `DeviceError` if a worker dies. Closing the iterator stops running tasks.
        """
        for task in tasks:
            yield task, work.perform(task, send)


class TrialEvent(NamedTuple):
    """Event of a trial: an epoch is done, or it is finished or paused (`stopped`)."""

    kind: Literal["epoch", "finished", "stopped"]
    layer: int
    seed: int
    epochs: int  # planned
    done: int = 0
    dev: float = math.nan  # points, of this epoch, at the end of the best
    loss: float = math.nan  # mean of this epoch
    test: float | None = None  # points, of the best epoch; not while searching

    @property
    def place(self) -> tuple[int, int, int]:
        """Identify the trial by layer, seed and epochs."""
        return self.layer, self.seed, self.epochs

    def __str__(self) -> str:
        epochs = counted(self.epochs, "epoch")
        part = epochs if self.kind == "finished" else f"{self.done} of {epochs}"
        loss = f"loss {self.loss:.4f}, " if self.kind == "epoch" else ""
        test = "" if self.test is None else f" Test {self.test:.2f}."
        return f"Layer {self.layer}, seed {self.seed}, {part}: {loss}dev {self.dev:.2f}.{test}"


def silent(task: str, done: int, total: int) -> None:
    """Ignore progress."""


class TrialWatcher:
    """Logs trials as they progress."""

    progress: Progress = staticmethod(silent)
    """Called for the steps of trials and other work."""

    def part(self, name: str) -> None:
        """Begin a part of a study: one model on one task."""
        _logger.info("%s:", name)

    def planned(self, costs: Mapping[str, int]) -> None:
        """Expect these trials; `costs` maps task name to relative cost."""

    def trial(self, event: TrialEvent) -> None:
        """Log an event of a trial."""
        _logger.info("%s", event)


def announce(progress: Progress, sentence: str) -> None:
    """Write a sentence with `progress.say`, if it exists, or to the log."""
    getattr(progress, "say", _logger.info)(sentence)


ProgressOption = Progress | bool
"""True draws bars, False is silent; a function is called with the steps."""
WatchOption = TrialWatcher | ProgressOption
"""A `ProgressOption`, or a `TrialWatcher`."""


def reporter(progress: ProgressOption) -> Progress:
    """Convert a `ProgressOption` to a function."""
    if isinstance(progress, bool):
        return Bars() if progress else silent
    return progress


def watcher_of(progress: WatchOption) -> TrialWatcher:
    """Convert a `WatchOption` to a `TrialWatcher`."""
    if isinstance(progress, TrialWatcher):
        return progress
    if progress is True:
        return Bars()
    watcher = TrialWatcher()
    watcher.progress = reporter(progress)
    return watcher


class Bars(TrialWatcher):
    """Draws a bar for each running task, and one for all planned trials.

    Args:
        say: Takes lines, such as scores of finished trials; by default the log at INFO.
        beside: Second watcher of the trials.
    """

    def __init__(self, say: Callable[[str], object] = _logger.info, beside: TrialWatcher | None = None) -> None:
        self.say, self._beside = say, beside
        self._bars: dict[str, tuple[Any, float, int]] = {}  # bar, start time, steps at start
        self._due: dict[str, float] = {}  # time of the next line
        self._told: float | None = None  # time of the last line
        self._said: set[TrialEvent] = set()  # a trial may be reported several times
        self._costs: Mapping[str, int] = {}
        self._shares: dict[str, float] = {}  # done share of each trial
        self._line = _Line()
        self.progress = self

    def __call__(self, task: str, done: int, total: int) -> None:
        """Update the bars of the task and, for planned trials, of all trials."""
        if task in self._costs:
            self._shares[task] = done / total
            made = sum(self._costs[name] * share for name, share in self._shares.items())
            self._draw(_ALL, int(100 * made), 100 * sum(self._costs.values()))
        self._draw(task, done, total)

    def _draw(self, task: str, done: int, total: int) -> None:
        now = time.monotonic()
        if task not in self._bars:
            _logger.info("%s: step %s of %s.", task, f"{done:,}", f"{total:,}")
            self._bars[task], self._due[task] = (_bar(task, done, total, self._line), now, done), now + TELL_AFTER
            self._told = self._told or now
        bar, begun, first = self._bars[task]
        bar.total = total
        bar.update(done - bar.n)
        if done >= total:
            bar.close()
            del self._bars[task]
            _logger.info("%s: done after %.1f s.", task, now - begun)
        elif bar.disable and task not in self._costs and done > first:
            left = (now - begun) * (total - done) / (done - first)
            if (now >= self._due[task] and left >= TELL_LEFT) or now >= (self._told or 0.0) + TELL_EVERY:
                self._told, self._due[task] = now, now + TELL_EVERY
                self.say(f"{task}: {done:,} of {total:,}, about {lasting(left)} left.")

    def part(self, name: str) -> None:
        """Write the name of the part that begins."""
        if self._beside:
            self._beside.part(name)
        self._said.clear()
        self.say(f"{name}:")

    def planned(self, costs: Mapping[str, int]) -> None:
        """Prepare the bar of all trials, if there are several."""
        if _ALL in self._bars:  # of a part that was stopped
            self._bars.pop(_ALL)[0].close()
        self._costs, self._shares = costs if len(costs) > 1 else {}, {}

    def trial(self, event: TrialEvent) -> None:
        """Write a finished or paused trial's score; log an epoch's."""
        if self._beside:
            self._beside.trial(event)
        if event not in self._said:
            self._said.add(event)
            (_logger.info if event.kind == "epoch" else self.say)(str(event))


class _Line:
    """A line of a notebook without widgets, shared by all bars."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}
        self._shown: Any = None

    def file(self, task: str) -> Any:
        return SimpleNamespace(write=partial(self._write, task), flush=lambda: None, encoding="utf-8")

    def _write(self, task: str, text: str) -> None:
        self._texts[task] = text.strip()
        line = {"text/plain": "  ".join(filter(None, self._texts.values()))}
        if self._shown is None:
            self._shown = import_module("IPython.display").display(line, raw=True, display_id=True)
        else:
            self._shown.update(line, raw=True)


def _bar(task: str, done: int, total: int, line: _Line) -> Any:
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    in_notebook = "IPKernelApp" in getattr(shell, "config", {})
    options = {"desc": harmless(task), "initial": done, "total": total, "leave": False}
    if in_notebook and find_spec("ipywidgets") is not None:
        from tqdm.notebook import tqdm
    else:
        from tqdm import tqdm

        options |= {"file": line.file(task), "position": 0} if in_notebook else {}
    return tqdm(**options, disable=not in_notebook and not sys.stderr.isatty())


class TensorboardLog(TrialWatcher):
    """Writes losses and scores of trials (in points) for TensorBoard. Raises `MissingExtraError`."""

    def __init__(self, folder: Path) -> None:
        require("tensorboard", extra="tensorboard")
        self._home = self._folder = folder
        self._writers: dict[Path, Any] = {}

    def __enter__(self) -> "TensorboardLog":
        return self

    def __exit__(self, *_: object) -> None:
        for writer in self._writers.values():
            writer.close()

    def part(self, name: str) -> None:
        """Write this part's trials to its own folder."""
        self._folder = self._home / quote(name, safe=" ,")  # distinct and inside the folder

    def trial(self, event: TrialEvent) -> None:
        """Write `loss` and `dev` of an epoch, `best dev` and `test` of a finished trial."""
        from torch.utils.tensorboard import SummaryWriter

        if event.kind == "stopped":
            return
        folder = self._folder / f"layer{event.layer:02d}-seed{event.seed}-epochs{event.epochs}"
        if folder not in self._writers:
            self._writers[folder] = SummaryWriter(str(folder))
        ended = event.kind == "finished"
        scores = {"best dev": event.dev, "test": event.test} if ended else {"loss": event.loss, "dev": event.dev}
        for name, value in scores.items():
            if value is not None:
                self._writers[folder].add_scalar(name, value, event.done)
        self._writers[folder].flush()
