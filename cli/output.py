"""The one way out: tables and JSON on stdout; notes, progress and problems on stderr."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from truncate_kit.progress import Progress
    from truncate_kit.results import Result


def print_problem(message: str, hint: str) -> None:
    """One line for what was found, one for what to do instead."""
    lines = " ".join(message.split()), " ".join(hint.split())
    typer.echo(f"Error: {lines[0]}\nHint: {lines[1]}", err=True)


def note(text: str, *, quiet: bool = False) -> None:
    """A sentence beside the result, on stderr; nothing with `--json`."""
    if not quiet:
        typer.echo(text, err=True)


def print_json(result: "Result") -> None:
    """The result as one JSON document on stdout."""
    typer.echo(result.to_json())


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], *, marked: int | None = None) -> None:
    """A table on stdout, numbers to the right; one too wide for the terminal continues below, so no number is cut.

    marked: place of a row to stand out.
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(width=None if sys.stdout.isatty() else 160)  # files and pipes have no width of their own
    widths = _widths(columns, rows)
    for part, places in enumerate(_side_by_side(widths, console.width)):
        drawn = Table(title=Text(title) if part == 0 else None, title_justify="left", header_style="bold")
        for place in places:
            drawn.add_column(columns[place], justify="left" if place == 0 else "right", min_width=widths[place])
        for number, row in enumerate(rows):
            drawn.add_row(*(Text(row[place]) for place in places), style="bold green" if number == marked else None)
        console.print(drawn)


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
    typer.echo(text)


@contextmanager
def progress_bar(*, quiet: bool = False) -> Iterator["Progress"]:
    """Draw progress on stderr when that is a terminal; otherwise stay silent."""
    from truncate_kit.progress import silent

    if quiet or not sys.stderr.isatty():
        yield silent
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
            tasks[task] = bar.add_task(task, total=total)
        bar.update(tasks[task], completed=done, total=total, visible=done < total)  # type: ignore[arg-type]

    with bar:
        yield show
