"""Commands about a whole project: demo, study, report, status, doctor."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from truncate_kit.core.errors import UsageError
from truncate_kit.core.hardware import Runtime, Target

from . import options
from .console import EXIT_PROBLEM, RUN, note, progress_bar, say, show, watching
from .options import Machine, Output, Workspace, argument, command, machine_option, results_option

if TYPE_CHECKING:
    from truncate_kit.methods.study.result import StudyResult

EPOCHS, SEEDS = 3, 1  # a few minutes on two cores
WHOLE, HALF, PASSES = "mini-bert", "4", 3  # HALF: 4 of 8 blocks; PASSES: epochs over the bundled texts


@command("truncate-kit demo")
def demo(
    threads: options.Threads = None,
    folder: Path = results_option(options.WORKSPACE / "demo", "Folder for the demo's files.", "--workspace"),
) -> None:
    """Shorten a miniature ELECTRA by finetune and a miniature BERT by distill, in about two minutes, offline."""
    from truncate_kit.core.workspace import DEFAULT_MINIATURE
    from truncate_kit.data.pairs import BUNDLED, BUNDLED_TEXTS
    from truncate_kit.report.page import write_page

    from .measure import analyze, bench
    from .models import export
    from .train import distill, finetune

    say(f"1 of 5  analyze {DEFAULT_MINIATURE}: compare its layers before any training.")
    analyze(model=DEFAULT_MINIATURE, data=BUNDLED, folder=folder)
    say(f"\n2 of 5  finetune --layer auto --epochs {EPOCHS} --seeds {SEEDS}: find the best layer and train there.")
    finetune(model=DEFAULT_MINIATURE, data=BUNDLED, epochs=EPOCHS, seeds=SEEDS, threads=threads, folder=folder)
    say("\n3 of 5  export: write and check one graph, token ids to vector.")
    export(onnx=True, folder=folder)
    say("\n4 of 5  bench --quick: the lean model against the full one, trained with the same budget.")
    bench(quick=True, threads=threads, folder=folder)
    say(f"The lean model is an ordinary sentence-transformers folder: SentenceTransformer({str(folder / 'lean')!r}).")
    say(f"\n5 of 5  distill {WHOLE} --blocks {HALF}: train half of the blocks to reproduce the vectors of all.")
    texts = BUNDLED_TEXTS
    distill(model=WHOLE, texts=[texts], blocks=HALF, epochs=PASSES, threads=threads, folder=folder / "distilled")
    say("")
    say("Next, your own model: truncate-kit analyze MODEL --data PAIRS.csv, then finetune, export, bench;")
    say("or, if there is no drop or you have no scores: truncate-kit distill MODEL --texts sentences.txt.")
    say("")
    for part, title in ((folder, "All results"), (folder / "distilled", "The distilled BERT")):
        say(f"{title} on one page, with figures: {write_page(part).page}")


@command("truncate-kit study study.toml --workers 2", result="methods.study.result:StudyResult")
def study(
    file: Path = argument(..., "FILE", "TOML file with models, tasks and optional priors."),
    *,
    machine: Machine,
    workspace: Output,
    tensorboard: options.Tensorboard = False,
) -> None:
    """Fine-tune every model of a study at every layer on every task; write tables and figures as in the TMFT paper.

    A minimal FILE:

    \b
      [[models]]
      model = "mini-electra-discriminator"
      [[tasks]]
      data = "bundled"

    docs/guides/study.md explains the keys. At the top: seeds, layers, read_earlier, cka, published. [training] and
    each task: objective, epochs, batch_size, learning_rate, precision. [[models]]: model, name, weights, pooling,
    max_length, blocks, published. [[priors]], trained before the tasks: words, texts, name, layer, epochs, batch_size,
    learning_rate, precision, tasks. [[tasks]]: data, name, columns, scale, retrieval, search_metric, read_earlier,
    published, models.
    """
    from truncate_kit.methods.study.plan import read_study
    from truncate_kit.methods.study.running import adapt_all, run_study
    from truncate_kit.report.study import PAGE, SCORES
    from truncate_kit.training.loop import joined

    from .train import check_shared

    plan, out = read_study(file), workspace.study
    with joined(machine.device) as (group, place):
        check_shared(group, any(prior.texts for prior in plan.priors))
        if group.size > 1:
            RUN.quiet |= not group.leads
            adapt_all(plan, out, device=place, group=group, progress=progress_bar())
    if not group.leads:  # the processes share only adaptations
        return
    with machine.open() as engine, watching(out, tensorboard=tensorboard) as watcher:
        work: dict[str, Any] = {"engine": engine, "device": machine.device}
        result = run_study(plan, out, progress=watcher, finished=lambda so_far: _write(so_far, out), **work)
    show(result, f"{out / PAGE} with figures", out / SCORES)


def _write(result: "StudyResult", out: Path) -> None:
    from truncate_kit.methods.study.result import STUDY_FILE
    from truncate_kit.report.chart import write_figures
    from truncate_kit.report.study import write_tables
    from truncate_kit.report.view import view_of

    result.write(out / STUDY_FILE)
    write_tables(result, out)
    write_figures(view_of(result), out)


@command(
    "truncate-kit report --open",
    "truncate-kit report A B                             # two workspaces",
    result="report.page:PageReport",
)
def report(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Workspace to report.")] = options.WORKSPACE,
    other: Path | None = argument(None, "OTHER", "Second workspace, to compare the two."),
    out: Path | None = results_option(None, "HTML file; by default report.html in RUN, or comparison.html for two."),
    open_page: bool = results_option(False, "Open the page in the browser.", "--open"),
) -> None:
    """Write an HTML page, readable offline, with the recommendation and the results of a workspace."""
    from truncate_kit.report.page import write_page

    page = write_page(run, other, out=out)
    show(page)
    if open_page:
        import webbrowser

        if not webbrowser.open(Path(page.page).resolve().as_uri()):
            note(f"No browser was found. Open {page.page} yourself.")


@command("truncate-kit status --clean", result="core.workspace:Contents")
def status(
    run: Path | None = argument(None, "RUN", "Workspace to list; the same as --workspace."),
    *,
    workspace: Workspace,
    clean: bool = results_option(False, "Remove files that are needed only to repeat finished runs.", "--clean"),
) -> None:
    """List the models, runs and exports of a workspace with their sizes; with --clean, remove unneeded files."""
    from truncate_kit.core.workspace import clean as remove_spare
    from truncate_kit.core.workspace import contents

    if run is not None and workspace.folder not in (options.WORKSPACE, run):
        raise UsageError(f"{run} and {workspace.folder} are two workspaces.", hint="Give RUN or --workspace.")
    if run is not None:
        workspace = Workspace(folder=run)
    if workspace.folder != options.WORKSPACE and not workspace.folder.is_dir():
        raise UsageError(f"There is no folder {workspace.folder}.", hint="Name a workspace that a command has written.")
    show(remove_spare(workspace) if clean else contents(workspace))


@command("truncate-kit doctor --device cuda --runtime torch", result="doctor:Diagnosis")
def doctor(
    device: Target | None = machine_option(None, "Device that must work."),
    runtime: Runtime | None = machine_option(None, "Runtime that must work; by default torch and onnx."),
    extra: list[str] | None = machine_option(None, "Extra that must be installed: cpu, gpu, ray, …; repeatable."),
    precision: Literal["fp32", "bf16", "fp16", "int8"] | None = machine_option(None, "Precision that must run."),
    *,
    workspace: Workspace,
) -> None:
    """Check which packages and runtimes are installed, start on this machine, and fit together.

    The exit code is 1 if a requested part cannot run.
    """
    from truncate_kit.bench.result import BenchReport
    from truncate_kit.core.hardware import processor_name
    from truncate_kit.doctor import MachineCheck, diagnose

    diagnosis = diagnose(device=device, runtime=runtime, extras=tuple(extra or ()), precision=precision)
    measured = BenchReport.read_if_whole(workspace.bench)
    if measured is not None and measured.fastest and measured.processor == processor_name():
        fastest = MachineCheck("fastest measured", f"{measured.fastest} ({workspace.bench})")
        diagnosis = replace(diagnosis, checks=(*diagnosis.checks, fastest))
    show(diagnosis)
    if not diagnosis.able:
        raise typer.Exit(EXIT_PROBLEM)
