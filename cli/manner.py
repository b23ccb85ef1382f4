"""How much a command says: `--quiet` and `--verbose`, which every command has."""

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, get_type_hints

import typer


@dataclass
class Manner:
    """Set anew by each command."""

    quiet: bool = False  # no notes and no progress on stderr; results and problems are said
    verbose: bool = False  # every table, with all columns
    more_said: bool = False  # that there are more tables


MANNER = Manner()


def _flag(text: str, *names: str) -> Any:
    return typer.Option(*names, help=text, rich_help_panel="Results")


_OPTIONS = {
    "quiet": Annotated[bool, _flag("Say results and problems only: no notes, no progress.", "--quiet", "-q")],
    "verbose": Annotated[bool, _flag("Show every table, with all columns.", "--verbose", "-v")],
}


def _print_schema(context: typer.Context, wanted: bool) -> None:
    if wanted:
        from .schemas import schema_text

        typer.echo(schema_text(context.info_name or ""), nl=False)
        raise typer.Exit


_SCHEMA = Annotated[
    bool,
    typer.Option(
        "--json-schema",
        help="Print the JSON Schema of what --json prints, and do nothing else.",
        rich_help_panel="Results",
        is_eager=True,
        callback=_print_schema,
    ),
]


def with_manner(command: Callable[..., Any]) -> Callable[..., Any]:
    """The command with the options that say how much it says, which are no parameters of what it does."""
    own = inspect.signature(command)
    options = _OPTIONS | ({"json_schema": _SCHEMA} if "as_json" in own.parameters else {})

    @functools.wraps(command)
    def run(*, quiet: bool, verbose: bool, json_schema: bool = False, **values: Any) -> Any:
        MANNER.quiet, MANNER.verbose, MANNER.more_said = quiet, verbose, False
        return command(**values)

    added = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=False, annotation=kind)
        for name, kind in options.items()
    ]
    run.__signature__ = own.replace(parameters=[*own.parameters.values(), *added])  # type: ignore[attr-defined]
    run.__annotations__ = get_type_hints(command, include_extras=True) | options
    del run.__wrapped__  # what reads a signature would follow it
    return run
