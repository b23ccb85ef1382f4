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
    """A table on stdout, numbers to the right. marked: place of a row to stand out."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    width = None if sys.stdout.isatty() else 160  # files and pipes have no width of their own
    drawn = Table(title=Text(title), title_justify="left", header_style="bold")
    for place, column in enumerate(columns):
        drawn.add_column(column, justify="left" if place == 0 else "right")
    for place, row in enumerate(rows):
        drawn.add_row(*map(Text, row), style="bold green" if place == marked else None)
    Console(width=width).print(drawn)


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
