"""The command `truncate-kit`: commands by panel, their help, and how a run ends."""

import ast
import os
import sys
import traceback
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer
import typer.main
from typer.core import TyperCommand, TyperGroup

from truncate_kit.core.errors import UsageError
from truncate_kit.core.results import VERSION

PANELS = {
    "Main jobs": ("analyze", "finetune", "distill", "export", "bench", "demo"),
    "Other training": ("contrast", "freeze", "combine", "cut"),
    "Measure and use": ("evaluate", "compare", "encode", "study", "report", "status", "doctor"),
}
"""Every command by panel of the help."""
MODULES = {
    "train": ("finetune", "distill", "contrast", "freeze", "combine"),
    "models": ("cut", "export", "encode"),
    "measure": ("analyze", "evaluate", "compare", "bench"),
    "project": ("demo", "study", "report", "status", "doctor"),
}
"""The module that a command's function is in, imported when the command is asked for."""
COMMANDS = tuple(name for names in PANELS.values() for name in names)
_HELP = {"help_option_names": ["-h", "--help"], "max_content_width": 160}
_HYPHEN = "\u2011"  # one at which no line is broken: a value such as depth-bonus stays whole, to be copied


class PanelCommand(TyperCommand):
    """A command whose options stand under their panels in plain text; last those that each command has."""

    def __init__(self, name: str | None, *, params: list[Any], **details: Any) -> None:
        shared = typer.main.get_command(_SHARED).params
        prints_json = any(parameter.name == "as_json" for parameter in params)
        own = [option for option in shared if prints_json or option.name != "json_schema"]
        super().__init__(name, params=[*params, *own], **details)

    def invoke(self, ctx: Any) -> Any:
        """Run the command, in whose options messages are worded."""
        from . import console, options

        options.speak_for(self)
        said = console.VERBOSITY
        said.quiet, said.verbose, said.more_said = ctx.params.pop("quiet"), ctx.params.pop("verbose"), False
        return super().invoke(ctx)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the parameters to the help."""
        _write(_lines(self, ctx), formatter)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Write the examples, each in a line, to be copied."""
        with formatter.section("Examples"):
            for line in examples(self.name or ""):
                formatter.write(f"{'':>{formatter.current_indent}}{line}\n")


class PanelGroup(TyperGroup):
    """The program, whose commands stand under their panels."""

    def __init__(self, **details: Any) -> None:
        super().__init__(**details)
        self.commands = _Commands()  # type: ignore[assignment]  # typer has a dict

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write options and commands to the help."""
        _write(_lines(self, ctx), formatter)
        does = _summaries()
        _write(((panel, (name, does[name])) for panel, names in PANELS.items() for name in names), formatter)


class _Commands(Mapping[str, Any]):
    """The commands by name; the module of each is imported when it is taken out."""

    def __getitem__(self, name: str) -> Any:
        if name not in COMMANDS:
            raise KeyError(name)
        return _command(name)

    def __iter__(self) -> Iterator[str]:
        return iter(COMMANDS)

    def __len__(self) -> int:
        return len(COMMANDS)


def _function(name: str) -> Any:
    module = next(module for module, names in MODULES.items() if name in names)
    return getattr(import_module(f".{module}", __package__), name)


@cache
def _command(name: str) -> Any:
    alone = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    panel = next(panel for panel, names in PANELS.items() if name in names)
    alone.command(name, cls=PanelCommand, rich_help_panel=panel, context_settings=_HELP)(_function(name))
    return typer.main.get_command(alone)


def _summaries() -> dict[str, str]:
    """Return what each command does, in the first line of its function, of which nothing is imported."""
    found: dict[str, str] = {}
    for module, names in MODULES.items():
        tree = ast.parse(Path(__file__).with_name(f"{module}.py").read_bytes())
        functions = [one for one in tree.body if isinstance(one, ast.FunctionDef) and one.name in names]
        found |= {one.name: (ast.get_docstring(one) or "").splitlines()[0] for one in functions}
    return found


def examples(name: str) -> tuple[str, ...]:
    """Return what is typed most, for the end of a command's help."""
    return tuple(_function(name).examples)


def _lines(command: Any, ctx: Any) -> Iterable[tuple[str, tuple[str, str]]]:
    for parameter in command.get_params(ctx):
        default = "Arguments" if parameter.param_type_name == "argument" else "Options"
        if line := parameter.get_help_record(ctx):
            yield parameter.rich_help_panel or default, line


def _write(lines: Iterable[tuple[str, tuple[str, str]]], formatter: Any) -> None:
    order = ("Arguments", "Data", "Layers", "Training", "Machine", "Results")
    panels: dict[str, list[tuple[str, str]]] = {panel: [] for panel in order}
    for panel, line in lines:
        panels.setdefault(panel, []).append(line)
    for panel, rows in ((panel, rows) for panel, rows in panels.items() if rows):
        with formatter.section(panel):
            formatter.write_dl([(name, text.replace("-", _HYPHEN)) for name, text in rows])
    formatter.buffer[:] = [text.replace(_HYPHEN, "-") for text in formatter.buffer]


def result_kinds() -> dict[str, list[type[Any]]]:
    """Return the classes of what each command prints with --json; `demo` has no --json."""
    from truncate_kit.analysis.result import LayerProfile
    from truncate_kit.bench.result import BenchReport
    from truncate_kit.core.workspace import Contents
    from truncate_kit.doctor import Diagnosis
    from truncate_kit.evaluation.suite import SuiteReport
    from truncate_kit.export.encode import EncodedFile
    from truncate_kit.export.record import ExportReport
    from truncate_kit.methods.bert_lc.settings import CombinationReport
    from truncate_kit.methods.contrast.settings import ContrastiveResult
    from truncate_kit.methods.distill.settings import DistillResult
    from truncate_kit.methods.frozen.settings import FrozenReport
    from truncate_kit.methods.study.result import StudyResult
    from truncate_kit.methods.tmft.result import SweepResult
    from truncate_kit.report.page import PageReport
    from truncate_kit.training.cutting import CutResult

    return {
        "analyze": [LayerProfile],
        "finetune": [SweepResult],
        "export": [ExportReport],
        "bench": [BenchReport],
        "distill": [DistillResult],
        "contrast": [ContrastiveResult],
        "freeze": [FrozenReport],
        "combine": [CombinationReport],
        "cut": [CutResult],
        "evaluate": [SuiteReport],
        "compare": [SuiteReport],
        "encode": [EncodedFile],
        "study": [StudyResult],
        "report": [PageReport],
        "status": [Contents],
        "doctor": [Diagnosis],
    }


def schema_text(command: str) -> str:
    """Return the JSON Schema of what a command prints with --json, made from its result classes."""
    import json

    from truncate_kit.core.results import json_schema

    return json.dumps(json_schema(command, result_kinds()[command]), indent=1)


_SHARED = typer.Typer(add_completion=False)


def _print_schema(context: typer.Context, wanted: bool) -> None:
    if wanted:
        typer.echo(schema_text(context.info_name or ""))
        raise typer.Exit


def _shared(text: str, *names: str, **details: Any) -> Any:
    return typer.Option(*names, help=text, rich_help_panel="Results", **details)


@_SHARED.command()
def _options_of_all(
    quiet: Annotated[bool, _shared("Say results and problems only: no notes, no progress.", "--quiet", "-q")] = False,
    verbose: Annotated[bool, _shared("Show every table, with all columns.", "--verbose", "-v")] = False,
    json_schema: Annotated[
        bool,
        _shared(
            "Print the JSON Schema of what --json prints, and do nothing else.",
            "--json-schema",
            is_eager=True,
            callback=_print_schema,
            expose_value=False,
        ),
    ] = False,
) -> None:
    """Hold the options that every command has; the last goes with `--json`."""


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"truncate-kit {VERSION}")
        raise typer.Exit


app = typer.Typer(
    name="truncate-kit",
    cls=PanelGroup,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings=_HELP,
)


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", "-V", callback=_print_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Find the best layer of a text encoder, or the few blocks that are enough; train, export, and measure the gain."""


# Commands that write nothing before they end; of `evaluate`, one suite does.
_BEGIN_ANEW = ("analyze", "bench", "combine", "compare", "cut", "doctor", "export", "report", "status")


def _check_text(arguments: list[str]) -> None:
    """Raise `UsageError` for an argument that no file of results could hold: names are kept there as UTF-8."""
    for argument in arguments:
        if argument.encode(errors="replace").decode() != argument:
            raise UsageError(
                f"The argument {argument!a} is not UTF-8 text.",
                hint="Rename the file or folder, or set a locale with UTF-8.",
            )


def main(argv: list[str] | None = None) -> None:
    """Run the command line. Exit code 1: something the user can mend; 2: usage; 70: a defect; 130: interrupted."""
    given = sys.argv[1:] if argv is None else argv
    command = next((word for word in given if not word.startswith("-")), "")
    os.environ["MPLBACKEND"] = "agg"  # figures go to files only, whatever is set for windows
    from . import console

    console.prepare_streams()
    try:
        _check_text(given)
        app(argv, prog_name="truncate-kit")
    except SystemExit as end:
        if end.code == console.EXIT_INTERRUPTED:  # what typer makes of KeyboardInterrupt
            kept = "the same command goes on from what was kept, if anything was."
            anew = f"{command} keeps nothing unfinished: the same command begins anew."
            sys.stderr.write(f"Interrupted; {anew if command in _BEGIN_ANEW else kept}\n")
        raise
    except Exception as error:
        if os.environ.get("TRUNCATE_KIT_TRACEBACK"):
            traceback.print_exception(error)
        message, hint, code = console.describe(error)
        console.print_problem(message, hint)
        raise SystemExit(code) from None
