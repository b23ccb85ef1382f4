"""The command `truncate-kit`: all commands are registered here, and every problem becomes one line and a hint."""

import os
import sys
from importlib import import_module
from typing import Annotated

import typer

from truncate_kit import __version__
from truncate_kit.errors import TruncateKitError

COMMANDS = ("analyze", "finetune", "export", "bench", "evaluate", "demo")

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
    from .output import print_problem

    try:
        app(argv)
    except TruncateKitError as error:
        print_problem(str(error), error.hint)
        raise SystemExit(1) from None
    except OSError as error:
        where = f" ({error.filename})" if error.filename else ""
        print_problem(f"{error.strerror or error}{where}.", "Check the path, its permissions and the free space.")
        raise SystemExit(1) from None
    except KeyboardInterrupt:
        sys.stderr.write("Interrupted; the same command continues where it stopped.\n")
        raise SystemExit(130) from None
    except Exception as error:
        if os.environ.get("TRUNCATE_KIT_TRACEBACK"):
            raise
        if type(error).__name__ == "OutOfMemoryError":
            print_problem("The memory does not suffice.", "Use a smaller --batch-size or --max-length.")
            raise SystemExit(1) from None
        print_problem(
            f"This is a defect of truncate-kit: {type(error).__name__}: {error}",
            "Set TRUNCATE_KIT_TRACEBACK=1 to see where, and report it.",
        )
        raise SystemExit(70) from None
