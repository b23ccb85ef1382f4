"""The one way out: tables and JSON on stdout; notes, progress and problems on stderr."""

import json
import shutil
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal, TextIO

import typer

from truncate_kit.cells import TableCells
from truncate_kit.wording import capitalized, harmless, harmless_json, lasting

from .streams import writes_everything
from .verbosity import VERBOSITY

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress
    from rich.progress import TaskID

    from truncate_kit.progress import Progress
    from truncate_kit.results import Result

Clock = Callable[[], float]
"""Gives seconds since some moment."""

SILENCE = 60.0  # seconds after which a log without a new line looks dead
PROSE_WIDTH = 24  # characters of a cell that are never broken into lines: hardly a number is longer, names are
SHOWN_TASKS = 3  # of those that run at once, in a line


def print_problem(message: str, hint: str) -> None:
    """One line for what was found, one for what to do instead."""
    lines = [harmless(" ".join(text.split())) for text in (message, hint)]
    typer.echo(f"Error: {lines[0]}\nHint: {lines[1]}", err=True)


def note(*texts: str | None, quiet: bool = False) -> None:
    """Sentences beside the result, on stderr; nothing with `--quiet`, and with `--json`, where `quiet` is set.

    None, and an empty one, say nothing.
    """
    for text in filter(None, () if quiet or VERBOSITY.quiet else texts):
        typer.echo(_in_lines(harmless(text), sys.stderr), err=True)


def print_json(result: "Result") -> None:
    """The result as one JSON document on stdout, with the version of the format; `schemas.py` says what is in it."""
    from truncate_kit.results import FORMAT

    values = {"format": FORMAT} | result.to_dict()
    text = json.dumps(values, indent=2, ensure_ascii=not writes_everything(), allow_nan=False)
    typer.echo(harmless_json(text))


def table(
    title: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    marked: int | None = None,
    detail: bool = False,
    on_page: bool = True,
) -> None:
    """A table on stdout, numbers to the right; no number is cut, and long cells are broken between words.

    Columns that do not fit beside the others are left out, unless `--verbose` continues them below; so are those in
    which nothing stands.

    Args:
        title: What stands above.
        columns: Names, the most wanted first.
        rows: Cells by row.
        marked: Place of a row to stand out.
        detail: Shown with `--verbose` only.
        on_page: Whether the page of the workspace holds it as well.
    """
    if detail and not VERBOSITY.verbose:
        _tell_of_more(on_page)
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    cells = TableCells(title, tuple(columns), [tuple(row) for row in rows]).filled()
    columns, rows = cells.columns, [list(map(harmless, row)) for row in cells.rows]
    available = Console(width=None if sys.stdout.isatty() else 160).width  # files and pipes have no width of their own
    least, most = _widths(columns, rows)
    parts = _side_by_side(least, available)
    for part, places in enumerate(parts if VERBOSITY.verbose else parts[:1]):
        drawn = Table(title=Text(harmless(title)) if part == 0 else None, title_justify="left", header_style="bold")
        widths = _spread([least[place] for place in places], [most[place] for place in places], available)
        for place, width in zip(places, widths, strict=True):
            words = place == 0 or _holds_words([row[place] for row in rows])
            side: Literal["left", "right"] = "left" if words else "right"
            drawn.add_column(Text(harmless(columns[place])), justify=side, width=width, overflow="fold")
        for number, row in enumerate(rows):
            drawn.add_row(*(Text(row[place]) for place in places), style="bold green" if number == marked else None)
        Console(width=max(available, _drawn_width(widths))).print(drawn)  # a terminal breaks what is wider still
    if len(parts) > 1 and not VERBOSITY.verbose:
        _tell_of_more(on_page)


def _tell_of_more(on_page: bool) -> None:
    if not VERBOSITY.more_said:
        page = ", or the page of truncate-kit report" if on_page else ""
        note(f"More columns and tables: --verbose{page}.")
        VERBOSITY.more_said = True


def _holds_words(cells: Sequence[str]) -> bool:
    """Whether a column says something, where others count."""
    return any(cell[:1].isalpha() for cell in cells) and not any(cell[:1].isdigit() for cell in cells)


def _widths(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> tuple[list[int], list[int]]:
    """Characters that each column needs, its heading and its long cells broken between words, and those it can use."""
    least, most = [], []
    for place, heading in enumerate(columns):
        cells = [row[place] for row in rows]
        unbroken = min(max((len(cell) for cell in cells), default=0), PROSE_WIDTH)
        least.append(max(unbroken, *(len(word) for word in heading.split()), 1))
        most.append(max(len(text) for text in (heading, *cells)))
    return least, most


def _drawn_width(widths: Sequence[int]) -> int:
    """Characters of a whole line, with borders."""
    return sum(width + len("│  ") for width in widths) + 1


def _side_by_side(widths: Sequence[int], available: int) -> list[list[int]]:
    """Places of the columns that fit beside each other; the first one leads every group."""
    groups = [[0]]
    for place in range(1, len(widths)):
        if _drawn_width([widths[other] for other in (*groups[-1], place)]) > available and len(groups[-1]) > 1:
            groups.append([0])
        groups[-1].append(place)
    return groups


def _spread(least: Sequence[int], most: Sequence[int], available: int) -> list[int]:
    """The least widths, with what is left of a line added from the first column on, up to what each can use.

    Every width is set, because rich may take from a column with a least width what it then gives back, and so cuts
    the table's right border off.
    """
    left, widths = max(available - _drawn_width(least), 0), []
    for smallest, largest in zip(least, most, strict=True):
        more = min(left, max(largest - smallest, 0))
        left -= more
        widths.append(smallest + more)
    return widths


def say(*texts: str) -> None:
    """Sentences of the result, on stdout."""
    for text in texts:
        typer.echo(_in_lines(harmless(text), sys.stdout))


def _in_lines(text: str, stream: TextIO) -> str:
    """The text broken between words where a terminal would break within them; a command stays whole, to be copied."""
    if not stream.isatty() or "truncate-kit " in text:
        return text
    width = shutil.get_terminal_size().columns
    indents = [line[: len(line) - len(line.lstrip())] for line in text.split("\n")]
    return "\n".join(
        textwrap.fill(line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
        for line, indent in zip(text.split("\n"), indents, strict=True)
    )


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

    def __call__(self, task: str, done: int, total: int) -> None:
        """See `Progress`."""
        self.progress(task, done, total)

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

    quiet = quiet or VERBOSITY.quiet
    if quiet or not sys.stderr.isatty():
        yield silent if quiet else ProgressLines()
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
    with bar:
        yield _Drawn(bar)


class _Drawn:
    """Progress as bars of `rich`."""

    def __init__(self, bar: "RichProgress") -> None:
        self._bar = bar
        self._tasks: dict[str, TaskID] = {}

    def __call__(self, task: str, done: int, total: int) -> None:
        """See `Progress`."""
        if task not in self._tasks:
            self._tasks[task] = self._bar.add_task(harmless(task), total=total)
        self._bar.update(self._tasks[task], completed=done, total=total, visible=done < total)

    def say(self, line: str) -> None:
        """A line above the bars."""
        self._bar.console.print(harmless(line), markup=False, highlight=False)
