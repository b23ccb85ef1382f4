"""`truncate-kit doctor`."""

from typing import TYPE_CHECKING, Annotated

import typer

from . import options
from .options import machine_option
from .output import print_json, say, table
from .parameters import in_options
from .problems import EXIT_PROBLEM

if TYPE_CHECKING:
    from truncate_kit.doctor import Diagnosis


def doctor(
    device: Annotated[str | None, machine_option("What torch and exported graphs have to run on: cpu or cuda.")] = None,
    runtime: Annotated[str | None, machine_option("Which of them has to run: torch or onnx; by default both.")] = None,
    extra: Annotated[
        list[str] | None, machine_option("What has to be installed, such as cpu, gpu or ray; a wrong name lists them.")
    ] = None,
    precision: Annotated[
        str | None, machine_option("What has to run: fp32, bf16 (torch), fp16 (graphs on CUDA) or int8 (graphs).")
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Say what is installed and what really starts here, and what does not fit.

    Exit code 1 when something that was asked for cannot run.
    """
    from truncate_kit.doctor import Request, diagnose

    diagnosis = diagnose(Request(device=device, runtime=runtime, extras=tuple(extra or ()), precision=precision))
    if as_json:
        print_json(diagnosis)
    else:
        show(diagnosis)
    if not diagnosis.able:
        raise typer.Exit(EXIT_PROBLEM)


def show(diagnosis: "Diagnosis") -> None:
    """Show a table of what was found, then what to do, the worst first."""
    table(
        "This machine",
        ("what", "found", "verdict"),
        [(row.name, in_options(row.found), row.verdict) for row in diagnosis.checks],
        on_page=False,
    )
    for verdict in ("warning", "problem"):
        for row in diagnosis.checks:
            if row.verdict == verdict:
                say(f"{verdict.title()}: {row.name}: {in_options(row.found)}.\n  Do: {in_options(row.hint)}.")
    if diagnosis.able:
        say("Everything that was asked for can run.")
