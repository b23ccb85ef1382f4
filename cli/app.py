"""The command `truncate-kit`: all commands are registered here, and every problem becomes one line and a hint."""

import os
import sys
import traceback
from importlib import import_module
from typing import Annotated

import typer

from truncate_kit import __version__

from .help_panels import PanelCommand, PanelGroup
from .problems import EXIT_INTERRUPTED, check_arguments, describe, interruption
from .streams import prepare_streams

PANELS = {
    "Main jobs": ("analyze", "finetune", "distill", "export", "bench", "demo"),
    "Other training": ("contrast", "freeze", "combine", "cut"),
    "Measure and use": ("evaluate", "compare", "encode", "study", "report", "status", "doctor"),
}
"""Every command by panel of the help; each is a function of the module that has its name."""
COMMANDS = tuple(name for names in PANELS.values() for name in names)

HELP = {"help_option_names": ["-h", "--help"], "max_content_width": 160}

app = typer.Typer(
    name="truncate-kit",
    cls=PanelGroup,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings=HELP,
)
for panel, names in PANELS.items():
    for name in names:
        command = getattr(import_module(f".{name}", __package__), name)
        app.command(name, cls=PanelCommand, rich_help_panel=panel, context_settings=HELP)(command)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"truncate-kit {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", "-V", callback=_print_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Find the best layer of a text encoder, or the few blocks that are enough; train, export, and measure the gain."""


def main(argv: list[str] | None = None) -> None:
    """Run the command line. Exit code 1: something the user can mend; 2: usage; 70: a defect; 130: interrupted."""
    prepare_streams()
    os.environ["MPLBACKEND"] = "agg"  # figures go to files only, whatever is set for windows
    try:
        check_arguments(sys.argv[1:] if argv is None else argv)
        app(argv, prog_name="truncate-kit")
    except SystemExit as end:
        if end.code == EXIT_INTERRUPTED:  # what typer makes of KeyboardInterrupt
            sys.stderr.write(f"{interruption(sys.argv[1:] if argv is None else argv)}\n")
        raise
    except Exception as error:
        from .output import print_problem

        given = sys.argv[1:] if argv is None else argv
        message, hint, code = describe(error, next((word for word in given if not word.startswith("-")), ""))
        if os.environ.get("TRUNCATE_KIT_TRACEBACK"):
            traceback.print_exception(error)
        print_problem(message, hint)
        raise SystemExit(code) from None
