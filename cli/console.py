"""Print results on stdout; notes, progress and problems on stderr."""

import contextlib
import json
import re
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import typer

from truncate_kit.core.errors import TruncateKitError, harmless, harmless_json

if TYPE_CHECKING:
    from truncate_kit.core.progress import Progress, TrialWatcher
    from truncate_kit.core.results import Result
    from truncate_kit.report.view import Table

EXIT_PROBLEM, EXIT_DEFECT, EXIT_INTERRUPTED = 1, 70, 130
GAP = 3  # spaces between columns
PROSE_WIDTH = 24  # characters; longer cells may wrap
MOST_ROWS = 16  # shown of a table by layer without --verbose
RUN = SimpleNamespace(command=None, quiet=False, verbose=False, as_json=False, shortened=False)
OTHER_NAMES = {
    "count": "workers",
    "cpus": "threads",
    "gpus": "gpus_per_worker",
    "layers": "layer",
    "out": "folder",
    "pairs": "data",
    "precision": "vectors",
    "raw": "texts",
    "search_pairs": "data",
}
"""Option of each library parameter that has another name."""
FUNCTIONS = {
    "combine": "truncate-kit combine MODEL",
    "diagnose": "truncate-kit doctor",
    "export_onnx": "truncate-kit export MODEL",
    "finetune": "truncate-kit finetune MODEL",
    "finetune_contrastive": "truncate-kit contrast MODEL",
    "finetune_frozen": "truncate-kit freeze MODEL",
    "keep_words": "truncate-kit cut MODEL --vocabulary-from FILE",
    "truncate": "truncate-kit cut MODEL --layer N",
}
_NAMED = re.compile(r"`(\w+)(?:=([^`]+)|\(([^`]*)\))?`")


def begin(command: Any, *, quiet: bool = False, verbose: bool = False, as_json: bool = False) -> None:
    """Store the running command and its output options in `RUN`."""
    vars(RUN).update(command=command, quiet=quiet or as_json, verbose=verbose, as_json=as_json, shortened=False)


def in_options(text: str) -> str:
    """Replace parameters in backticks by options of the running command.

    `batch_size` becomes --batch-size, `device="cpu"` becomes --device cpu, `truncate()` its command in `FUNCTIONS`.
    """
    options = {} if RUN.command is None else {parameter.name: parameter for parameter in RUN.command.params}

    def replaced(match: re.Match[str]) -> str:
        name, value, arguments = match.groups()
        if arguments is not None:
            values = "".join(f" --{key} {text}" for key, text in re.findall(r'(\w+)="?(\w+)"?(?=[,)]|$)', arguments))
            return f"{FUNCTIONS[name]}{values}" if name in FUNCTIONS else match[0]
        option = options.get(name) or options.get(OTHER_NAMES.get(name, ""))
        plain = re.sub(r"[\"'()\[\]]", "", value or "").replace(", ", ",")
        plain = shlex.quote(plain) if plain else ""
        if option is None:
            return f"{name.replace('_', ' ')} {plain}".strip()
        if option.param_type_name == "argument":
            return str(option.metavar or name.upper())
        if plain in ("True", "False"):
            return str((option.opts if plain == "True" else option.secondary_opts or option.opts)[0])
        return f"{option.opts[-1]} {plain}".strip()

    return _NAMED.sub(replaced, text)


def print_problem(message: str, hint: str) -> None:
    """Print the message and the hint, one line each."""
    lines = [harmless(" ".join(in_options(text).split())) for text in (message, hint)]
    typer.echo(f"Error: {lines[0]}\nHint: {lines[1]}", err=True)


def note(*texts: str | None) -> None:
    """Print notes on stderr unless quiet."""
    for text in filter(None, () if RUN.quiet else texts):
        typer.echo(harmless(in_options(text)), err=True)


def say(*texts: str | None) -> None:
    """Print sentences on stdout, except with `--json`."""
    for text in texts:
        if text is not None and not RUN.as_json:
            typer.echo(harmless(in_options(text)))


def print_json(result: "Result") -> None:
    """Print the result as JSON with the format version."""
    from truncate_kit.core.results import FORMAT

    values = {"format": FORMAT} | result.to_dict()
    ascii_only = not (getattr(sys.stdout, "encoding", None) or "utf").lower().startswith("utf")
    text = json.dumps(values, indent=2, ensure_ascii=ascii_only, allow_nan=False)
    typer.echo(harmless_json(text))


def show(result: "Result", *saved: Path | str, figures: Path | None = None) -> list[Path]:
    """Print a result and its `saved` paths; draw figures into `figures`, and return their paths.

    Figures of a numbered file, such as bench-2.json, get the same number.
    """
    from truncate_kit.report.view import view_of

    view, drawn = view_of(result), []
    if figures is not None:
        from truncate_kit.report.chart import write_figures

        drawn = write_figures(view, figures, "".join(re.findall(r"-\d+$", Path(saved[0]).stem)) if saved else "")
    if RUN.as_json:
        print_json(result)
    else:
        note(*view.notes)
        for cells in view.tables:
            table(cells)
        say(*view.sentences, *(view.details if RUN.verbose else ()))
    if saved:
        say(f"Saved: {', '.join(map(str, (*saved, *drawn)))}")
    return drawn


def table(cells: "Table") -> None:
    """Print a table, shortened without `--verbose`."""
    if cells.detail and not RUN.verbose:
        RUN.shortened = True
        return
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table as Drawn
    from rich.text import Text

    console = Console(width=None if sys.stdout.isatty() else 160)  # files and pipes have no width
    columns = [[harmless(row[place]) for row in cells.rows] for place in range(len(cells.columns))]
    least = [
        max(min(max(map(len, column), default=1), PROSE_WIDTH), *map(len, heading.split()), 1)
        for heading, column in zip(cells.columns, columns, strict=True)
    ]
    by_layer = bool(columns[0]) and all(cell.partition(" ")[0].isdigit() for cell in columns[0])
    parts, step = _side_by_side(least, console.width), 1
    if by_layer and not RUN.verbose:
        step += (len(cells) - 1) // MOST_ROWS
    ends = (0, len(cells) - 1, cells.marked)
    for part in parts if RUN.verbose else parts[:1]:
        title = [Text(harmless(cells.title), style="italic")] if cells.title and part == parts[0] else []
        drawn = Drawn(box=SIMPLE_HEAD, show_edge=False, pad_edge=False)
        left = max(console.width, narrow := sum(least[place] + GAP for place in part) - GAP) - narrow
        for place in part:
            words = place == 0 or not any(re.match(r"\W*\d", cell) for cell in columns[place])
            side: Any = "left" if words else "right"
            wanted = max(map(len, (cells.columns[place], *columns[place])))
            width = max(least[place], min(wanted, least[place] + left))  # rich would shrink number columns too
            left -= width - least[place]
            drawn.add_column(Text(harmless(cells.columns[place])), justify=side, width=width, overflow="fold")
        for number in (number for number in range(len(cells)) if number % step == 0 or number in ends):
            style = "bold green" if number == cells.marked else None
            drawn.add_row(*(Text(columns[place][number]) for place in part), style=style)
        # A title of the table would wrap at the table's width.
        Console(width=max(console.width, narrow)).print(*title, drawn)
    RUN.shortened |= (len(parts) > 1 or step > 1) and not RUN.verbose


def _side_by_side(widths: Sequence[int], available: int) -> list[list[int]]:
    groups = [[0]]
    for place in range(1, len(widths)):
        if sum(widths[other] + GAP for other in (*groups[-1], place)) - GAP > available and len(groups[-1]) > 1:
            groups.append([0])
        groups[-1].append(place)
    return groups


def progress_bar() -> "Progress":
    """Return progress bars, silent with `--quiet`."""
    from truncate_kit.core.progress import Bars, silent

    return silent if RUN.quiet else Bars(_above_bars)


@contextmanager
def watching(out: Path, *, tensorboard: bool) -> Iterator["TrialWatcher"]:
    """Yield a watcher that shows and may log trials. Raises `MissingExtraError`."""
    from truncate_kit.core.progress import Bars, TensorboardLog, TrialWatcher

    with TensorboardLog(out / "tensorboard") if tensorboard else contextlib.nullcontext(TrialWatcher()) as log:
        yield log if RUN.quiet else Bars(_above_bars, log)


def _above_bars(line: str) -> None:
    from tqdm import tqdm

    with tqdm.external_write_mode(sys.stderr):
        note(line)


def describe(error: Exception) -> tuple[str, str, int]:
    """Return an error's message, hint and exit code."""
    from truncate_kit.core.hardware import is_out_of_memory

    if isinstance(error, TruncateKitError):
        return str(error), error.hint, EXIT_PROBLEM
    if is_out_of_memory(error):
        hint = "Use a smaller `batch_size` or `max_length`, or close other programs."
        return f"Out of memory. {error}".strip(), hint, EXIT_PROBLEM
    if isinstance(error, OSError):
        file = f" ({error.filename})" if error.filename else ""
        hint = "Check the path, its permissions, the free disk space and the network connection."
        return f"{error.strerror or str(error).rstrip('.') or type(error).__name__}{file}.", hint, EXIT_PROBLEM
    return (
        f"This is a defect of truncate-kit: {type(error).__name__}: {error}",
        "Repeat the command with the environment variable TRUNCATE_KIT_TRACEBACK=1, and report the traceback.",
        EXIT_DEFECT,
    )
