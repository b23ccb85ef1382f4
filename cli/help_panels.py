"""Help in plain text, grouped by panel: rich takes longer to import and leaves 20 of 80 columns for a sentence."""

from collections.abc import Iterable
from typing import Any

from typer.core import TyperCommand, TyperGroup

from .examples import EXAMPLES
from .verbosity import set_verbosity, shared_options

_HYPHEN = "\u2011"  # one at which no line is broken: a value such as depth-bonus stays whole, to be copied


class PanelCommand(TyperCommand):
    """A command whose options stand under the names of their panels, in the order of its parameters; last those of all.

    What it is given of these sets how much it says, and is no parameter of what it does.
    """

    def __init__(self, name: str | None, *, params: list[Any], **details: Any) -> None:
        super().__init__(name, params=[*params, *shared_options(params)], **details)

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        set_verbosity(quiet=ctx.params.pop("quiet"), verbose=ctx.params.pop("verbose"))
        return super().invoke(ctx)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the parameters to the help."""
        _write(_parameters(self, ctx), formatter)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Write the examples, each in a line, to be copied."""
        with formatter.section("Examples"):
            for line in EXAMPLES[self.name or ""]:
                formatter.write(f"{'':>{formatter.current_indent}}{line}\n")


class PanelGroup(TyperGroup):
    """The program, whose commands stand under the names of their panels."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write options and commands to the help."""
        _write(_parameters(self, ctx), formatter)
        commands: dict[str, Any] = dict(self.commands)
        lines = ((name, command.get_short_help_str(limit=200)) for name, command in commands.items())
        _write(((commands[line[0]].rich_help_panel, line) for line in lines), formatter)


def _parameters(command: Any, ctx: Any) -> Iterable[tuple[str, tuple[str, str]]]:
    for parameter in command.get_params(ctx):
        default = "Arguments" if parameter.param_type_name == "argument" else "Options"
        if line := parameter.get_help_record(ctx):
            yield parameter.rich_help_panel or default, line


def _write(lines: Iterable[tuple[str, tuple[str, str]]], formatter: Any) -> None:
    panels: dict[str, list[tuple[str, str]]] = {"Arguments": []}  # first, wherever they stand
    for panel, line in lines:
        panels.setdefault(panel, []).append(line)
    for panel, rows in ((panel, rows) for panel, rows in panels.items() if rows):
        with formatter.section(panel):
            formatter.write_dl([(name, text.replace("-", _HYPHEN)) for name, text in rows])
    formatter.buffer[:] = [text.replace(_HYPHEN, "-") for text in formatter.buffer]
