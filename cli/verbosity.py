"""How much a command says: `--quiet`, `--verbose` and `--json-schema`, which all commands have."""

from dataclasses import dataclass
from typing import Annotated, Any

import typer
import typer.main

from .options import results_option


@dataclass
class Verbosity:
    """Set anew by each command."""

    quiet: bool = False  # no notes and no progress on stderr; results and problems are said
    verbose: bool = False  # every table, with all columns
    more_said: bool = False  # that there are more tables


VERBOSITY = Verbosity()
_SHARED = typer.Typer(add_completion=False)


def _print_schema(context: typer.Context, wanted: bool) -> None:
    if wanted:
        from .schemas import schema_text

        typer.echo(schema_text(context.info_name or ""), nl=False)
        raise typer.Exit


@_SHARED.command()
def set_verbosity(
    quiet: Annotated[
        bool, results_option("Say results and problems only: no notes, no progress.", "--quiet", "-q")
    ] = False,
    verbose: Annotated[bool, results_option("Show every table, with all columns.", "--verbose", "-v")] = False,
    json_schema: Annotated[
        bool,
        results_option(
            "Print the JSON Schema of what --json prints, and do nothing else.",
            "--json-schema",
            is_eager=True,
            callback=_print_schema,
            expose_value=False,
        ),
    ] = False,
) -> None:
    """What every command begins with; its options are those that each has, one with `--json` the last as well."""
    VERBOSITY.quiet, VERBOSITY.verbose, VERBOSITY.more_said = quiet, verbose, False


def shared_options(own: list[Any]) -> list[Any]:
    """The options that a command has beside its own ones."""
    prints_json = any(parameter.name == "as_json" for parameter in own)
    shared = typer.main.get_command(_SHARED).params
    return shared if prints_json else [option for option in shared if option.name != "json_schema"]
