"""`truncate-kit study`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from . import options
from .machine import Machine
from .options import use_threads
from .output import print_json, progress_bar, say, table
from .priors import check_shared
from .workspace import Workspace

if TYPE_CHECKING:
    from truncate_kit.methods.study.study_result import StudyResult


def study(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="TOML file with models, tasks and, if wanted, priors.")],
    engine: options.Engine = "local",
    workers: options.Workers = None,
    ray_address: options.RayAddress = None,
    gpus_per_worker: options.Gpus = None,
    device: options.Device = None,
    threads: options.SharedThreads = None,
    folder: options.WorkspaceFolder = options.WORKSPACE,
    tensorboard: options.Tensorboard = False,
    as_json: options.Json = False,
) -> None:
    """Fine-tune every model of a study at every layer on every task; tables and figures as the TMFT paper has them.

    The least that FILE may hold:

    \b
      [[models]]
      model = "mini-electra-discriminator"
      [[tasks]]
      data = "bundled"

    docs/guides/study.md explains the keys. At the top: seeds, layers, read_earlier, cka, published. [training] and
    each task: objective, epochs, batch_size, learning_rate, precision. [[models]]: model, name, weights, pooling,
    max_length, blocks, published. [[priors]], learned before the tasks: words, texts, name, layer, epochs, batch_size,
    learning_rate, precision, tasks. [[tasks]]: data, name, columns, scale, retrieval, search_metric, read_earlier,
    published, models.
    """
    from truncate_kit.methods.study.running import adapt_all, run_study
    from truncate_kit.methods.study.study_file import read_study
    from truncate_kit.training.distributed import joined

    machine = Machine(engine, workers, ray_address, gpus_per_worker, device, threads)
    use_threads(threads)
    plan, out = read_study(file), Workspace(folder).study
    with joined(device) as (group, place):
        check_shared(group, any(prior.texts for prior in plan.priors))
        if group.size > 1:
            with progress_bar(quiet=as_json or not group.leads) as progress:
                adapt_all(plan, out, device=place, group=group, progress=progress)
    if not group.leads:  # only adaptations are shared
        return
    with machine.at_work(out, tensorboard=tensorboard, quiet=as_json) as (at_work, watcher):
        result = run_study(
            plan, out, progress=watcher, finished=lambda so_far: _write(so_far, out), engine=at_work, device=device
        )
    if as_json:
        print_json(result)
        return
    show(result, out)


def _write(result: "StudyResult", out: Path) -> None:
    """Tables and figures of what is there: a study that is stopped leaves those of its finished models."""
    from truncate_kit.methods.study.plan import figure_name
    from truncate_kit.methods.study.study_result import STUDY_FILE
    from truncate_kit.report.study_figures import draw_cka, draw_curves, draw_layers, draw_pareto
    from truncate_kit.report.study_tables import write_tables

    result.write(out / STUDY_FILE)
    write_tables(result, out)
    for task in result.tasks():
        draw_curves(result, task, out / figure_name(task, "curves"))
        draw_layers(result, task, out / figure_name(task, "layers"))
        draw_pareto(result, task, out / figure_name(task, "pareto"))
        if any(row.task == task for row in result.cka):
            draw_cka(result, task, out / figure_name(task, "cka"))


def show(result: "StudyResult", out: Path) -> None:
    """The best layers of each task, and where everything is."""
    from truncate_kit.methods.study.study_result import summaries
    from truncate_kit.report.study_tables import PAGE, SCORES, last_cells

    lines = summaries(result)
    for task in result.tasks():
        mine = [line for line in lines if line.task == task]
        cells = []
        for line in mine:
            best = line.best_dev.scores
            cells.append((line.model, f"{best.layer}", best.cells[1], *last_cells(line, " drop")))
        columns = ("model", "best dev", "test", "last", "test", "drops by")
        table(f"{task}: layers and their test scores, {mine[0].metric}", columns, cells, on_page=False)
    say(f"Saved: {out / PAGE} with figures, {out / SCORES}")
