"""`truncate-kit doctor`."""

from typing import TYPE_CHECKING, Annotated

import typer

from . import options
from .options import machine_option
from .output import print_json, say, table
from .parameters import in_options
from .problems import EXIT_PROBLEM

if TYPE_CHECKING:
    from truncate_kit.doctor.facts import Diagnosis


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
    """Say what is installed and what really starts here, what does not fit, and the pins that would.

    Exit code 1 when something that was asked for cannot run.
    """
    from truncate_kit.doctor.diagnosis import diagnose
    from truncate_kit.doctor.facts import Request

    diagnosis = diagnose(Request(device=device, runtime=runtime, extras=tuple(extra or ()), precision=precision))
    if as_json:
        print_json(diagnosis)
    else:
        show(diagnosis)
    if not diagnosis.able:
        raise typer.Exit(EXIT_PROBLEM)


def show(diagnosis: "Diagnosis") -> None:
    """A table of what is there, what starts, then the findings, the worst ones first."""
    facts = diagnosis.facts
    table(
        f"Packages (Python {facts.python})",
        ("package", "needs", "installed", "for", "fits"),
        [
            (row.name, row.wanted or "any", row.installed or "–", f"extra {row.extra}" if row.extra else "all", fits)
            for row, fits in ((row, "yes" if row.fits else "no") for row in facts.requirements)
            if row.extra != "test" or "test" in diagnosis.request.extras
        ],
        on_page=False,
    )
    wheels = ", ".join(f"{name} {version}" for name, version in facts.wheels.items()) or "ONNX Runtime"
    say(f"{wheels} starts on: {', '.join(row.name for row in facts.providers if row.starts) or 'nothing'}.")
    for row in facts.providers:
        if not row.starts:
            say(f"{row.name} does not start: {row.reason}")
    cuda, processor = facts.cuda, facts.processor
    say(
        f"CUDA: driver {cuda.driver or 'none'}, torch {cuda.torch or 'without'}, cuDNN {cuda.cudnn or 'none'}, "
        f"ONNX Runtime {cuda.onnxruntime or 'without'}."
    )
    granted = f", a quota of {processor.quota:g}" if processor.quota is not None else ""
    say(
        f"Processor: {processor.name}, {processor.cores} cores, {processor.usable} usable{granted}, torch threads "
        f"{processor.torch_threads or 'unknown'}, bf16 {processor.bf16 or 'none'}, VNNI {processor.int8 or 'none'}."
    )
    for finding in sorted(diagnosis.findings, key=lambda finding: finding.severity):
        say(f"{finding.severity.title()}: {in_options(finding.text)}\n  Do: {in_options(finding.remedy)}")
    if diagnosis.able:
        say("Everything that was asked for can run.")
