"""The command `truncate-kit`."""

import os
import shlex
import sys
import traceback
from collections.abc import Iterable
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer
import typer.main
from typer.core import TyperCommand, TyperGroup

from truncate_kit.core.results import VERSION

from . import console
from .options import WORKSPACE

PANELS = {
    "Main jobs": ("compress", "analyze", "finetune", "distill", "export", "bench", "demo"),
    "Other training": ("contrast", "freeze", "combine", "cut"),
    "Measure and use": ("evaluate", "compare", "encode", "study", "report", "status", "doctor"),
}
MODULES = {
    "train": ("finetune", "distill", "contrast", "freeze", "combine"),
    "models": ("compress", "cut", "export", "encode"),
    "measure": ("analyze", "evaluate", "compare", "bench"),
    "project": ("demo", "study", "report", "status", "doctor"),
}
"""Commands by module; a module is imported for its first command."""
COMMANDS = tuple(name for names in PANELS.values() for name in names)
_EXPORT = "export{option}"
NEXT = {
    "compress": "report {folder} --open",
    "analyze": "finetune --data pairs.csv{option}; without scores: truncate-kit distill --texts raw.txt{option}",
    "finetune": _EXPORT,
    "distill": _EXPORT,
    "contrast": _EXPORT,
    "cut": _EXPORT,
    "freeze": "export {folder}/frozen{option}",
    "combine": "export {folder}/combined{option}",
    "export": "bench{option}",
    "bench": "report {folder} --open",
    "evaluate": "bench{option}",
    "compare": "encode documents.txt --model LEAN",
    "encode": "evaluate --data pairs.csv{option}",
    "study": "finetune MODEL --layer LAYER",
    "report": "status {folder}",
    "status": "report {folder} --open",
    "doctor": "compress MODEL",
}
"""Next step after each command but demo; commands may return others."""
NEEDS = {"bench": "lean", "evaluate": "lean", "report": "."}
"""Folders in the workspace that steps need."""
_HELP = {"help_option_names": ["-h", "--help"], "max_content_width": 160}
_PLAIN: dict[str, Any] = {"pretty_exceptions_enable": False, "rich_markup_mode": None}
_HYPHEN = "\u2011"  # not broken across lines, as in depth-bonus


class PanelCommand(TyperCommand):
    """A command; its help lists the options by panel."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the words of the command line."""
        try:
            return super().parse_args(ctx, args)
        except Exception as error:
            if isinstance(text := getattr(error, "message", None), str):  # pydantic's words
                error.message = text.removeprefix("Value error, ")  # type: ignore[attr-defined]
            raise

    def invoke(self, ctx: Any) -> Any:
        """Store the command for messages; run it."""
        console.begin(self, **{name: ctx.params.get(name, False) for name in ("quiet", "verbose", "as_json")})
        result = super().invoke(ctx)
        folder = ctx.params.get("folder") or ctx.params.get("run") or WORKSPACE
        place = shlex.quote(str(folder))
        option = "" if folder == WORKSPACE else f" --workspace {place}"
        if step := result or NEXT.get(self.name or ""):
            step = step.format(option=option, folder=place)
            needed = NEEDS.get(step.partition(" ")[0])
            if needed is not None and not (Path(folder) / needed).is_dir():
                step = f"compress MODEL{option}"
            for name in ("model", "lean"):
                step = step.replace(f" {name.upper()}", f" {shlex.quote(ctx.params.get(name) or name.upper())}")
            hint = "   (with --verbose: all rows, columns and tables)" if console.RUN.shortened else ""
            console.note(f"Next: truncate-kit {step}{hint}")

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the parameters to the help."""
        _write(self.get_params(ctx), ctx, formatter)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Write the examples to the help."""
        with formatter.section("Examples"):
            for line in function_of(self.name or "").examples:
                formatter.write(f"{'':>{formatter.current_indent}}{line}\n")


class PanelGroup(TyperGroup):
    """The program; its help lists the commands by panel."""

    def list_commands(self, ctx: Any) -> list[str]:
        """List all commands."""
        return [*COMMANDS]

    def get_command(self, ctx: Any, name: str) -> Any:
        """Import a command, if known."""
        return command_of(name) if name in COMMANDS else None

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write options and commands to the help."""
        _write(self.get_params(ctx), ctx, formatter)
        for panel, names in PANELS.items():
            _section(panel, [(name, function_of(name).__doc__.splitlines()[0]) for name in names], formatter)


def function_of(name: str) -> Any:
    """Return the `Command` of this name."""
    module = next(module for module, names in MODULES.items() if name in names)
    return getattr(import_module(f".{module}", __package__), name)


@cache
def command_of(name: str) -> Any:
    """Build the typer command."""
    alone = typer.Typer(add_completion=False, **_PLAIN)
    alone.command(name, cls=PanelCommand, context_settings=_HELP)(function_of(name))
    return typer.main.get_command(alone)


def _write(parameters: Iterable[Any], ctx: Any, formatter: Any) -> None:
    order = ("Arguments", "Data", "Layers", "Training", "Machine", "Results")
    panels: dict[str, list[tuple[str, str]]] = {panel: [] for panel in order}
    for parameter in parameters:
        default = "Arguments" if parameter.param_type_name == "argument" else "Options"
        if line := parameter.get_help_record(ctx):
            panels.setdefault(parameter.rich_help_panel or default, []).append(line)
    for panel, rows in panels.items():
        _section(panel, rows, formatter)


def _section(title: str, rows: list[tuple[str, str]], formatter: Any) -> None:
    if rows:
        with formatter.section(title):
            formatter.write_dl([(name, text.replace("-", _HYPHEN)) for name, text in rows])
        formatter.buffer[:] = [text.replace(_HYPHEN, "-") for text in formatter.buffer]


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"truncate-kit {VERSION}")
        raise typer.Exit


app = typer.Typer(name="truncate-kit", cls=PanelGroup, no_args_is_help=True, context_settings=_HELP, **_PLAIN)


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", "-V", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Find a text encoder's best layer, or the few blocks it needs; train, export and benchmark the small model."""


def main(argv: list[str] | None = None) -> None:
    """Run the command line. Exit codes: 1 error of the user, 2 wrong usage, 70 defect, 130 interruption."""
    os.environ["MPLBACKEND"] = "agg"  # draw without a display
    try:
        app(argv, prog_name="truncate-kit")
    except SystemExit as end:
        if end.code == console.EXIT_INTERRUPTED:
            sys.stderr.write("Interrupted. Repeat the command to continue from saved work, if there is any.\n")
        raise
    except Exception as error:
        if os.environ.get("TRUNCATE_KIT_TRACEBACK"):
            traceback.print_exception(error)
        message, hint, code = console.describe(error)
        console.print_problem(message, hint)
        raise SystemExit(code) from None
