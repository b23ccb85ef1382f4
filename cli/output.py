"""The one way out: tables and JSON on stdout; notes, progress and problems on stderr."""

import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import typer

from truncate_kit.wording import capitalized, harmless, lasting

from .manner import MANNER
from .streams import writes_everything

if TYPE_CHECKING:
    from truncate_kit.progress import Progress
    from truncate_kit.results import Result

Clock = Callable[[], float]
"""Gives seconds since some moment."""

SILENCE = 60.0  # seconds after which a log without a new line looks dead
PROSE_WIDTH = 26  # of a column of words that is broken into lines
SHOWN_TASKS = 3  # of those that run at once, in a line


def print_problem(message: str, hint: str) -> None:
    """One line for what was found, one for what to do instead."""
    lines = [harmless(" ".join(text.split())) for text in (message, hint)]
    typer.echo(f"Error: {lines[0]}\nHint: {lines[1]}", err=True)


def note(text: str, *, quiet: bool = False) -> None:
    """A sentence beside the result, on stderr; nothing with `--quiet`, and with `--json`, where `quiet` is set."""
    if not quiet and not MANNER.quiet:
        typer.echo(harmless(text), err=True)


def print_json(result: "Result") -> None:
    """The result as one JSON document on stdout, with the version of the format; `schemas.py` says what is in it."""
    from truncate_kit.results import FORMAT

    values = {"format": FORMAT} | result.to_dict()
    typer.echo(json.dumps(values, indent=2, ensure_ascii=not writes_everything(), allow_nan=False))


def table(
    title: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    marked: int | None = None,
    detail: bool = False,
    prose: int | None = None,
) -> None:
    """A table on stdout, numbers to the right; no number is cut.

    Columns that do not fit beside the others are left out, unless `--verbose` continues them below.

    Args:
        title: What stands above.
        columns: Names, the most wanted first.
        rows: Cells by row.
        marked: Place of a row to stand out.
        detail: Shown with `--verbose` only.
        prose: Place of a column of words, which are broken into lines where there is no room.
    """
    if detail and not MANNER.verbose:
        _tell_of_more()
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    rows = [[harmless(cell) for cell in row] for row in rows]
    console = Console(width=None if sys.stdout.isatty() else 160)  # files and pipes have no width of their own
    widths = _widths(columns, rows)
    if prose is not None:
        widths[prose] = min(widths[prose], PROSE_WIDTH)
    parts = _side_by_side(widths, console.width)
    for part, places in enumerate(parts if MANNER.verbose else parts[:1]):
        drawn = Table(title=Text(harmless(title)) if part == 0 else None, title_justify="left", header_style="bold")
        for place in places:
            drawn.add_column(
                Text(harmless(columns[place])),
                justify="left" if place in (0, prose) else "right",
                min_width=widths[place],
            )
        for number, row in enumerate(rows):
            drawn.add_row(*(Text(row[place]) for place in places), style="bold green" if number == marked else None)
        console.print(drawn)
    if len(parts) > 1 and not MANNER.verbose:
        _tell_of_more()


def _tell_of_more() -> None:
    if not MANNER.more_said:
        note("More columns and tables: --verbose, or the page of truncate-kit report.")
        MANNER.more_said = True


def _widths(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[int]:
    """Characters that each column needs: its longest cell in one line, its heading broken between words."""
    return [
        max(len(text) for text in (*heading.split(), *(row[place] for row in rows)))
        for place, heading in enumerate(columns)
    ]


def _side_by_side(widths: Sequence[int], available: int) -> list[list[int]]:
    """Places of the columns that fit beside each other; the first one leads every group."""
    groups, edges = [[0]], len("|  ")
    for place in range(1, len(widths)):
        needed = sum(widths[other] + edges for other in (*groups[-1], place)) + 1
        if needed > available and len(groups[-1]) > 1:
            groups.append([0])
        groups[-1].append(place)
    return groups


def say(text: str) -> None:
    """A sentence of the result, on stdout."""
    typer.echo(harmless(text))


class Pace:
    """How far a task is, and how fast. What was done before the first call, as after a kill, took none of our time."""

    def __init__(self, done: int, total: int, clock: Clock) -> None:
        self._total, self._clock = total, clock
        self._begin(done)

    def _begin(self, done: int) -> None:
        self._first = self._done = done
        self._begun = self._latest = self._clock()

    def at(self, done: int) -> None:
        """The number of steps done so far; smaller than before where a lost worker's task is run again."""
        if done < self._done:
            self._begin(done)
        self._done, self._latest = done, self._clock()

    @property
    def seconds(self) -> float:
        """From the first to the latest call."""
        return self._latest - self._begun

    @property
    def left(self) -> float | None:
        """Seconds that the rest takes at this pace; None while it is unknown."""
        if self._done == self._first:
            return None
        return self.seconds * (self._total - self._done) / (self._done - self._first)

    def __str__(self) -> str:
        said = f"step {self._done:,} of {self._total:,}"
        return said if self.left is None else f"{said}, {lasting(self.left)} left"


class ProgressLines:
    """Progress as lines on stderr, where no bar can be drawn: what runs, whenever `SILENCE` went by without a line."""

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._clock, self._said = clock, clock()
        self._paces: dict[str, Pace] = {}  # of what runs now
        self._announced: set[str] = set()  # those of them that had a line, so that their end has one

    def say(self, line: str) -> None:
        """A line, after which there may be silence again."""
        note(line)
        self._said = self._clock()

    def progress(self, task: str, done: int, total: int) -> None:
        """Where the work at hand is; with several workers there are several at once."""
        pace = self._paces.setdefault(task, Pace(done, total, self._clock))
        pace.at(done)
        if done >= total:
            del self._paces[task]
            if task in self._announced:
                self._announced.remove(task)
                self.say(f"{capitalized(task)}: done after {lasting(pace.seconds)}.")
        elif self._clock() - self._said >= SILENCE:
            self._announced.update(self._paces)
            self.say(capitalized(self._standing()))

    def _standing(self) -> str:
        """What runs, and how far it is."""
        lines = [f"{task}: {pace}" for task, pace in self._paces.items()]
        more = [f"{len(lines) - SHOWN_TASKS} more"] if len(lines) > SHOWN_TASKS else []
        return "; ".join([*lines[:SHOWN_TASKS], *more]) + "."


@contextmanager
def progress_bar(*, quiet: bool = False) -> Iterator["Progress"]:
    """Draw progress on stderr when that is a terminal; elsewhere lines, of what takes more than a minute."""
    from truncate_kit.progress import silent

    quiet = quiet or MANNER.quiet
    if quiet or not sys.stderr.isatty():
        yield silent if quiet else ProgressLines().progress
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    bar = Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.completed}/{task.total}"),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    tasks: dict[str, int] = {}

    def show(task: str, done: int, total: int) -> None:
        if task not in tasks:
            tasks[task] = bar.add_task(harmless(task), total=total)
        bar.update(tasks[task], completed=done, total=total, visible=done < total)  # type: ignore[arg-type]

    with bar:
        yield show
