"""What a sweep shows while it runs: a live table in a terminal, lines elsewhere, TensorBoard logs by option."""

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from truncate_kit.progress import PlannedTrial, TrialEvent, TrialWatcher
from truncate_kit.wording import capitalized, harmless, lasting

from .output import Clock, Pace, ProgressLines
from .verbosity import VERBOSITY

SHOWN_TRIALS = 12  # a terminal's height, less what stands around it


@contextmanager
def watching(out: Path, *, tensorboard: bool, quiet: bool) -> Iterator[TrialWatcher]:
    """The watcher for a sweep. Raises `MissingExtraError` without TensorBoard."""
    with ExitStack() as stack:
        watchers: list[TrialWatcher] = []
        if tensorboard:
            from truncate_kit.report.tensorboard import TensorboardLog

            watchers.append(stack.enter_context(TensorboardLog(out / "tensorboard")))
        if not quiet and not VERBOSITY.quiet:
            watchers.append(stack.enter_context(_LiveTable()) if sys.stderr.isatty() else _Lines())
        yield _All(watchers)


class _All(TrialWatcher):
    """Calls several watchers."""

    def __init__(self, watchers: list[TrialWatcher]) -> None:
        self._watchers = watchers

    def progress(self, task: str, done: int, total: int) -> None:
        for watcher in self._watchers:
            watcher.progress(task, done, total)

    def part(self, name: str) -> None:
        for watcher in self._watchers:
            watcher.part(name)

    def planned(self, trials: Sequence[PlannedTrial]) -> None:
        for watcher in self._watchers:
            watcher.planned(trials)

    def trial(self, event: TrialEvent) -> None:
        for watcher in self._watchers:
            watcher.trial(event)


class _Plan:
    """The trials that were announced last: whose progress is whose, and how long all of them will still take.

    A trial is taken to cost as many block-steps as its layer has blocks, one at least. What there was before the first
    step, such as the start of workers, says nothing about the speed.
    """

    def __init__(self, trials: Sequence[PlannedTrial], clock: Clock) -> None:
        self._trials = {trial.task: trial for trial in trials}
        self._tasks = {trial.place: trial.task for trial in trials}
        self._open = set(self._trials)
        self._found: dict[str, float] = {}  # shares of trials that a killed run had left
        self._done: dict[str, float] = {}  # shares of trials that are done, with what was found
        self._clock, self._begun = clock, 0.0

    def trial(self, task: str) -> PlannedTrial | None:
        """The one whose progress is called so; None for anything else."""
        return self._trials.get(task)

    def steps(self, task: str, done: int, total: int) -> None:
        """The number of steps of a trial that are done; the first call comes after the first step of this run."""
        if not self._done:
            self._begun = self._clock()
            self._found[task] = done / total
        self._found.setdefault(task, (done - 1) / total)
        self._done[task] = done / total

    def ended(self, place: tuple[int, int, int]) -> None:
        """A trial is finished, or waits."""
        task = self._tasks.get(place)
        if task is not None:
            self._open.discard(task)
            self._found.setdefault(task, 1.0)
            self._done[task] = 1.0

    @property
    def runs(self) -> bool:
        """Whether some of them have not ended."""
        return bool(self._open)

    def __str__(self) -> str:
        """The number of finished trials, and about how long the others take; empty for a single one, and at the end."""
        if not self._open or len(self._trials) == 1:
            return ""
        said = f"{len(self._trials) - len(self._open)} of {len(self._trials)} planned trials done"
        costs = {task: max(1, trial.layer) for task, trial in self._trials.items()}
        made = sum(costs[task] * (share - self._found[task]) for task, share in list(self._done.items()))
        if made <= 0:
            return said
        rest = sum(cost * (1 - self._done.get(task, 0.0)) for task, cost in costs.items())
        return f"{said}, about {lasting((self._clock() - self._begun) * rest / made)} left"


class _Lines(ProgressLines, TrialWatcher):
    """A line on stderr for every finished trial of a part, for begin and end of what is no trial, and signs of life."""

    def __init__(self, clock: Clock = time.monotonic) -> None:
        super().__init__(clock)
        self._seen: set[tuple[int, int, int]] = set()
        self._plan = _Plan((), clock)

    def part(self, name: str) -> None:
        self._seen.clear()
        self.say(f"{name}:")

    def planned(self, trials: Sequence[PlannedTrial]) -> None:
        self._plan = _Plan(trials, self._clock)

    def progress(self, task: str, done: int, total: int) -> None:
        trial = self._plan.trial(task)
        if trial is not None:
            total = total * trial.until // trial.epochs
            self._plan.steps(task, done, total)
            if done >= total:
                self._announced.discard(task)  # the line with its score says that it ended
        if task not in self._paces and done < total and not self._plan.runs:
            self._announced.add(task)
            self.say(f"{capitalized(task)}: {Pace(done, total, self._clock)}.")
        super().progress(task, done, total)

    def trial(self, event: TrialEvent) -> None:
        if event.kind in ("finished", "stopped"):
            self._plan.ended(event.place)
        if event.kind == "epoch" or (event.kind == "finished" and event.place in self._seen):
            return
        if event.kind == "finished":
            self._seen.add(event.place)
        self.say(str(event))

    def _standing(self) -> str:
        whole = str(self._plan)
        return super()._standing() + (f" {whole}." if whole else "")


@dataclass(slots=True)
class _Row:
    """A trial in the table. pace: None where it does not run now."""

    epoch: str = ""
    dev: str = ""
    pace: Pace | None = None

    @property
    def left(self) -> str:
        """The time that its steps still take; nothing while that is unknown, and where there are none left."""
        seconds = self.pace.left if self.pace is not None else None
        return lasting(seconds) if seconds else ""


class _LiveTable(TrialWatcher):
    """The trials of a sweep as a table that is drawn anew; below it what else runs, and the time left of all trials."""

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self._rows: dict[tuple[int, int, int], _Row] = {}
        self._others: dict[str, Pace] = {}  # of what runs now and is no trial
        self._plan = _Plan((), clock)
        self._part: str | None = None
        self._live: Any = None

    def __enter__(self) -> "_LiveTable":
        from rich.console import Console
        from rich.live import Live

        self._live = Live(
            get_renderable=self._drawn, console=Console(stderr=True), transient=True, refresh_per_second=2
        )
        self._live.__enter__()
        return self

    def __exit__(self, *exception: Any) -> None:
        self._live.__exit__(*exception)

    def part(self, name: str) -> None:
        self._part = name
        self._rows.clear()

    def planned(self, trials: Sequence[PlannedTrial]) -> None:
        self._plan = _Plan(trials, self._clock)

    def progress(self, task: str, done: int, total: int) -> None:
        """Where the work at hand is; with several workers there are several at once."""
        trial = self._plan.trial(task)
        if trial is not None:
            self._trial_steps(trial, done, total)
        elif done < total:
            self._others.setdefault(task, Pace(done, total, self._clock)).at(done)
        else:
            self._others.pop(task, None)

    def _trial_steps(self, trial: PlannedTrial, done: int, total: int) -> None:
        now = total * trial.until // trial.epochs
        self._plan.steps(trial.task, done, now)
        row = self._rows.get(trial.place)
        pace = None if row is None else row.pace
        if row is None or pace is None:  # it begins, perhaps again: what an earlier run reached is no news
            pace = Pace(done, now, self._clock)
            row = self._rows[trial.place] = _Row(pace=pace)
        pace.at(done)
        row.epoch = f"{done * trial.epochs // total}/{trial.epochs}"

    def trial(self, event: TrialEvent) -> None:
        if event.kind in ("finished", "stopped"):
            self._plan.ended(event.place)
        if event.kind == "again":
            self._rows[event.place] = _Row("again")
            return
        row = self._rows.get(event.place)
        self._rows[event.place] = _Row(
            "done" if event.kind == "finished" else f"{event.done}/{event.epochs}",
            f"{event.dev:.2f}",
            row.pace if row is not None and event.kind == "epoch" else None,
        )

    def _drawn(self) -> Any:
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        table = Table(header_style="bold")
        for name in ("layer", "seed", "epoch", "dev", "left"):
            table.add_column(name, justify="right", min_width=6)  # so that it does not jump as it fills
        # Those that run come last: however many are done, they are seen.
        rows = sorted(self._rows.items(), key=lambda item: item[1].pace is not None)[-SHOWN_TRIALS:]
        for (layer, seed, _), row in rows:
            style = "dim" if row.epoch == "done" else None
            table.add_row(str(layer), str(seed), row.epoch, row.dev, row.left, style=style)
        lines = [*(f"{task}: {pace}" for task, pace in list(self._others.items())), str(self._plan)]
        title = [Text(harmless(self._part), style="bold")] if self._part else []
        return Group(*title, *([table] if rows else []), *(Text(harmless(line)) for line in lines if line))
