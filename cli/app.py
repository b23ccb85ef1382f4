"""The command `truncate-kit`: all commands are registered here, and every problem becomes one line and a hint."""

import os
import sys
import traceback
from importlib import import_module
from typing import Annotated

import typer

from truncate_kit import __version__

from .problems import EXIT_INTERRUPTED, describe

COMMANDS = ("analyze", "finetune", "combine", "export", "bench", "evaluate", "encode", "study", "demo", "doctor")

app = typer.Typer(
    name="truncate-kit",
    help="Find the best layer of a text encoder, fine-tune it there, strip the rest, export it, and measure the gain.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
for name in COMMANDS:
    app.command(name)(getattr(import_module(f".{name}", __package__), name))


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"truncate-kit {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Find the best layer of a text encoder, fine-tune it there, strip the rest, export it, and measure the gain."""


def main(argv: list[str] | None = None) -> None:
    """Run the command line. Exit code 1: something the user can mend; 2: usage; 70: a defect; 130: interrupted."""
    try:
        app(argv, prog_name="truncate-kit")
    except SystemExit as end:
        if end.code == EXIT_INTERRUPTED:  # what typer makes of KeyboardInterrupt
            sys.stderr.write("Interrupted; the same command continues where it stopped.\n")
        raise
    except Exception as error:
        from .output import print_problem

        message, hint, code = describe(error)
        if os.environ.get("TRUNCATE_KIT_TRACEBACK"):
            traceback.print_exception(error)
        print_problem(message, hint)
        raise SystemExit(code) from None
