"""The one way out: tables and JSON on stdout; notes, progress and problems on stderr."""

import contextlib
import errno
import json
import shutil
import sys
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TextIO

import typer

from truncate_kit.core.errors import NO_FOLDER, TruncateKitError
from truncate_kit.core.wording import harmless, harmless_json

from .options import in_options

if TYPE_CHECKING:
    from truncate_kit.core.progress import Progress, TrialWatcher
    from truncate_kit.core.results import Result
    from truncate_kit.report.view import Table

EXIT_PROBLEM, EXIT_DEFECT, EXIT_INTERRUPTED = 1, 70, 130
PROSE_WIDTH = 24  # characters of a cell that are never broken into lines: hardly a number is longer, names are


@dataclass
class Verbosity:
    """How much the command that runs says: set by `--quiet` and `--verbose`."""

    quiet: bool = False  # no notes and no progress on stderr; results and problems are said
    verbose: bool = False  # every table, with all columns
    more_said: bool = False  # that there are more tables


VERBOSITY = Verbosity()


def prepare_streams() -> None:
    """Let no character that a terminal lacks end a command."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError):  # a stream of a test, or of a program that calls this one
            if not _is_unicode(stream):
                stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]  # not of all TextIO


def _is_unicode(stream: TextIO) -> bool:
    return (stream.encoding or "utf-8").lower().replace("-", "").startswith("utf")


def print_problem(message: str, hint: str) -> None:
    """Print one line for what was found, one for what to do instead."""
    lines = [harmless(" ".join(in_options(text).split())) for text in (message, hint)]
    typer.echo(f"Error: {lines[0]}\nHint: {lines[1]}", err=True)


def note(*texts: str | None, quiet: bool = False) -> None:
    """Print sentences beside the result on stderr, but with `--quiet`, and with `--json`, where `quiet` is set."""
    for text in filter(None, () if quiet or VERBOSITY.quiet else texts):
        typer.echo(_in_lines(text, sys.stderr), err=True)


def say(*texts: str | None) -> None:
    """Print sentences of the result on stdout."""
    for text in texts:
        if text is not None:
            typer.echo(_in_lines(text, sys.stdout))


def _in_lines(text: str, stream: TextIO) -> str:
    """Break a text between words where a terminal would break within them; a command stays whole, to be copied."""
    text = harmless(in_options(text))
    if not stream.isatty() or "truncate-kit " in text:
        return text
    width = shutil.get_terminal_size().columns
    return "\n".join(
        textwrap.fill(line, width, break_long_words=False, break_on_hyphens=False) for line in text.split("\n")
    )


def print_json(result: "Result") -> None:
    """Print the result as one JSON document, with the version of the format; `--json-schema` says what is in it."""
    from truncate_kit.core.results import FORMAT

    values = {"format": FORMAT} | result.to_dict()
    text = json.dumps(values, indent=2, ensure_ascii=not _is_unicode(sys.stdout), allow_nan=False)
    typer.echo(harmless_json(text))


def show(
    result: "Result", *, as_json: bool | None = False, figures: Path | None = None, ending: str = ""
) -> list[Path]:
    """Draw a result by its view, or print it as JSON; return the figures that were written.

    Args:
        result: Of any kind.
        as_json: Print JSON instead; None prints nothing at all.
        figures: The folder of its figures; None draws none.
        ending: Follows the names of the figures.
    """
    from truncate_kit.report.view import view_of

    view, drawn = view_of(result), []
    if figures is not None:
        from truncate_kit.report.chart import write_figures

        drawn = write_figures(view, figures, ending)
    if as_json:
        print_json(result)
    elif as_json is not None:
        note(*view.notes)
        for one in view.tables:
            table(one)
        say(*view.sentences, *(view.details if VERBOSITY.verbose else ()))
    return drawn


def table(cells: "Table") -> None:
    """Draw a table on stdout, numbers to the right; no number is cut, and long cells are broken between words.

    Columns that do not fit beside the others are left out, unless `--verbose` continues them below; so are those in
    which nothing stands.
    """
    if cells.detail and not VERBOSITY.verbose:
        _tell_of_more()
        return
    from rich.console import Console
    from rich.table import Table as Drawn
    from rich.text import Text

    drawn_rows = [[harmless(cell) for cell in row] for row in cells.rows]
    console = Console(width=None if sys.stdout.isatty() else 160)  # files and pipes have no width of their own
    inner = [[row[place] for row in drawn_rows] for place in range(len(cells.columns))]
    least = [
        max(min(max(map(len, below), default=1), PROSE_WIDTH), *map(len, heading.split()), 1)
        for heading, below in zip(cells.columns, inner, strict=True)
    ]
    parts = _side_by_side(least, console.width)
    for part in parts if VERBOSITY.verbose else parts[:1]:
        drawn = Drawn(title=Text(harmless(cells.title)) if part == parts[0] else None, title_justify="left")
        # Every width is set: rich may take from a column what it then gives back, and so cut the right border off.
        left = max(console.width - _drawn_width([least[place] for place in part]), 0)
        widths: list[int] = []
        for place in part:
            more = min(left, max(map(len, (cells.columns[place], *inner[place]))) - least[place])
            left, widths = left - max(more, 0), [*widths, least[place] + max(more, 0)]
            words = place == 0 or _holds_words(inner[place])
            side: Literal["left", "right"] = "left" if words else "right"
            heading = Text(harmless(cells.columns[place]))
            drawn.add_column(heading, justify=side, width=widths[-1], overflow="fold")
        for number, row in enumerate(drawn_rows):
            drawn.add_row(*(Text(row[place]) for place in part), style="bold green" if number == cells.marked else None)
        Console(width=max(console.width, _drawn_width(widths))).print(drawn)
    if len(parts) > 1 and not VERBOSITY.verbose:
        _tell_of_more()


def _holds_words(cells: Sequence[str]) -> bool:
    """Return whether a column says something, where others count."""
    return any(cell[:1].isalpha() for cell in cells) and not any(cell[:1].isdigit() for cell in cells)


def _tell_of_more() -> None:
    if not VERBOSITY.more_said:
        note("More columns and tables: --verbose, or the page of truncate-kit report.")
        VERBOSITY.more_said = True


def _drawn_width(widths: Sequence[int]) -> int:
    """Return the characters of a whole line, with borders."""
    return sum(width + len("│  ") for width in widths) + 1


def _side_by_side(widths: Sequence[int], available: int) -> list[list[int]]:
    """Return the places of the columns that fit beside each other; the first one leads every group."""
    groups = [[0]]
    for place in range(1, len(widths)):
        if _drawn_width([widths[other] for other in (*groups[-1], place)]) > available and len(groups[-1]) > 1:
            groups.append([0])
        groups[-1].append(place)
    return groups


@contextmanager
def progress_bar(*, quiet: bool = False) -> Iterator["Progress"]:
    """Draw progress on stderr when that is a terminal."""
    from truncate_kit.core.progress import Bars, silent

    yield silent if quiet or VERBOSITY.quiet else Bars(_above_bars)


@contextmanager
def watching(out: Path, *, tensorboard: bool, quiet: bool) -> Iterator["TrialWatcher"]:
    """Draw trials as bars and say what becomes of each. Raises `MissingExtraError` without TensorBoard."""
    from truncate_kit.core.progress import Bars, TrialWatcher

    with contextlib.ExitStack() as stack:
        beside = None
        if tensorboard:
            from truncate_kit.core.progress import TensorboardLog

            beside = stack.enter_context(TensorboardLog(out / "tensorboard"))
        hidden = quiet or VERBOSITY.quiet
        yield (beside or TrialWatcher()) if hidden else Bars(_above_bars, beside)


def _above_bars(line: str) -> None:
    from tqdm import tqdm

    with tqdm.external_write_mode(sys.stderr):
        note(line)


_SPACE = "Free some space or name another place as `out`; what was there before is unchanged."
_RIGHTS = "Check who may read and write there, or name another place as `out`."
_MEMORY = "Use a smaller `batch_size` or `max_length`, or close other programs."
_OS_HINTS = {
    errno.ENOENT: "Check the path; a relative one starts in the current folder.",
    errno.ENOSPC: _SPACE,
    errno.EDQUOT: _SPACE,
    errno.EROFS: _RIGHTS,
    errno.EACCES: _RIGHTS,
    errno.EPERM: _RIGHTS,
    errno.ENOTDIR: NO_FOLDER,
    errno.ENOMEM: _MEMORY,
    errno.EMFILE: "Raise the limit of open files (ulimit -n) and run the same command again.",
}


def describe(error: Exception) -> tuple[str, str, int]:
    """Return message, hint and exit code of whatever escaped a command."""
    from truncate_kit.core.hardware import is_out_of_memory

    if isinstance(error, TruncateKitError):
        return str(error), error.hint, EXIT_PROBLEM
    if is_out_of_memory(error):
        return f"Out of memory. {error}".strip(), _MEMORY, EXIT_PROBLEM
    if isinstance(error, OSError):
        where = f" ({error.filename})" if error.filename else ""
        hint = _OS_HINTS.get(error.errno or 0, "Check the path, its permissions, the free space and the connection.")
        return f"{error.strerror or str(error).rstrip('.') or type(error).__name__}{where}.", hint, EXIT_PROBLEM
    return (
        f"This is a defect of truncate-kit: {type(error).__name__}: {error}",
        "Set TRUNCATE_KIT_TRACEBACK=1 to see where, and report it.",
        EXIT_DEFECT,
    )
