"""`truncate-kit bench`."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from truncate_kit.bench.backends import BACKENDS, QUICK, BenchSettings
from truncate_kit.errors import UsageError
from truncate_kit.files import local_path
from truncate_kit.origin import read_origin
from truncate_kit.workspace import DataSource

from . import options
from .options import layers_option, machine_option, names_in, refuse, scale_in, whole_numbers_in
from .output import print_json, progress_bar, say, table
from .parameters import in_options
from .workspace import Workspace

if TYPE_CHECKING:
    from collections.abc import Sequence

    from truncate_kit.bench.bench_report import BenchReport
    from truncate_kit.data import PairSet, RetrievalSet
    from truncate_kit.models import Encoder

    Model = Path | Encoder

SETTINGS = BenchSettings()
BATCH_SIZES = ",".join(map(str, SETTINGS.batch_sizes))
ROUNDS = (
    f"Rounds, each of which times every model in turn; by default {SETTINGS.repeats}, {QUICK.repeats} with --quick."
)


def bench(
    lean: Annotated[
        str | None,
        typer.Argument(metavar="LEAN", help="Lean model: folder, hub name or miniature; by default WORKSPACE/lean."),
    ] = None,
    full: Annotated[
        str | None,
        layers_option("Compare with this model; by default the one that WORKSPACE/lean was made beside or cut from."),
    ] = None,
    random_weights: Annotated[
        str | None,
        layers_option("Time a shape: a config.json, folder or hub name, with random weights.", metavar="CONFIG"),
    ] = None,
    layer: Annotated[
        int | None, layers_option("With --random-weights: layer of the lean cut; by default half.")
    ] = None,
    blocks: Annotated[
        str | None, layers_option("Keep these of LEAN, such as 1,4,6 or 1..3,6, and compare with all of it.")
    ] = None,
    data: options.Data = None,
    columns: options.Columns = None,
    scale: options.Scale = None,
    batch_sizes: Annotated[str, machine_option("Texts per batch; latency is always timed.")] = BATCH_SIZES,
    lengths: Annotated[str | None, machine_option("Tokens per text; by default 16,128 or the models' limit.")] = None,
    backends: Annotated[
        str | None,
        machine_option(
            f"all, or some of {', '.join(BACKENDS)}; by default torch and ONNX Runtime, on CUDA compiled as well "
            "but with --quick."
        ),
    ] = None,
    repeats: Annotated[int | None, machine_option(ROUNDS)] = None,
    quick: Annotated[
        bool, machine_option("Fewer rounds and sentences, no memory, nothing compiled: for a first look.", "--quick")
    ] = False,
    device: options.Device = None,
    threads: options.Threads = None,
    folder: options.WorkspaceFolder = options.WORKSPACE,
    as_json: options.Json = False,
) -> Any:  # a BenchReport, whose module the command line must not import yet
    """Measure the lean model against the full one: latency, throughput, memory, file size and quality."""
    from truncate_kit.bench.run import bench as run
    from truncate_kit.hardware import select_device

    select_device(device)  # before anything is loaded
    kept = options.kept(layer, blocks)
    if random_weights is None:
        refuse("--random-weights", layer=layer)
    elif lean or full:
        raise UsageError("--random-weights stands for both models.", hint="Leave out LEAN and --full.")
    settings = replace(
        QUICK if quick else SETTINGS,
        batch_sizes=whole_numbers_in(batch_sizes, "--batch-sizes"),
        lengths=whole_numbers_in(lengths, "--lengths") if lengths is not None else None,
        backends=names_in(backends),
        threads=threads,
        device=device,
        blocks=kept if isinstance(kept, tuple) else None,
    )
    if repeats is not None:
        settings = replace(settings, repeats=repeats)
    workspace = Workspace(folder, quiet=as_json)
    whole = isinstance(kept, tuple)  # the bench keeps blocks itself
    if random_weights is None:
        ours, theirs = _pair(workspace, lean, full, whole=whole)
    else:
        ours, theirs = _random_pair(random_weights, layer, whole=whole)
    if quick:
        workspace.note("Quick: fewer rounds and sentences than without --quick, no peak memory, nothing compiled.")
    beside = theirs if isinstance(theirs, Path) else None
    pairs, texts = _scored_on(workspace, lean, beside, (data, columns, scale))
    with workspace.held():
        with progress_bar(quiet=as_json) as progress:
            report = run(
                ours,
                theirs,
                settings,
                pairs=pairs,
                texts=texts,
                graphs=workspace.graphs,
                progress=progress,
            )
        show(report, workspace, None if data is None else DataSource(data, names_in(columns), scale_in(scale)))
    return report


def _scored_on(
    workspace: Workspace, lean: str | None, full: "Model | None", named: tuple[str | None, str | None, str | None]
) -> "tuple[PairSet | RetrievalSet, Sequence[str]]":
    """What no model here has seen of the pairs, or a retrieval set, and the texts of either. named: as in `data`."""
    from truncate_kit.data import read_retrieval
    from truncate_kit.seen import seen_among, unseen_queries

    (data, columns, scale), ours = named, [str(lean or workspace.lean), *([] if full is None else [str(full)])]
    if (queries := workspace.queries(data)) is not None:
        refuse("graded pairs", columns=columns, scale=scale)
        found, chosen = unseen_queries(read_retrieval(queries), *ours)
        workspace.note(chosen)
        return found, [text for text in (*found.queries, *found.documents) if text]
    splits, _ = workspace.data(data, columns, scale)
    pairs = workspace.unseen(splits, *ours).evaluation
    workspace.note(*(seen_among(pairs, model) for model in ours))
    return pairs, pairs.texts()


def _random_pair(config_name: str, layer: int | None, *, whole: bool) -> "tuple[Model, Model]":
    """A shape cut at a layer and as it is; twice as it is where it is wanted whole."""
    from truncate_kit.models import load_config, random_encoder, truncated_config

    config = load_config(config_name)
    full = random_encoder(config, name=config_name)
    if whole:
        return full, full
    cut = truncated_config(config, config.num_hidden_layers // 2 if layer is None else layer)
    return random_encoder(cut, name=config_name), full


def _pair(workspace: Workspace, lean: str | None, full: str | None, *, whole: bool) -> "tuple[Model, Model | None]":
    """The models named, else those in the workspace; says which. Raises `UsageError` where there is no lean one.

    whole: what the lean one is compared with is all of it, unless another one is named.
    """
    source = workspace.finished_model(lean).name
    ours = local_path(source)
    if full is not None:
        return ours, local_path(full)
    if whole:
        workspace.note(f"Compared with: all of {source}.")
        return ours, ours
    made, other = (read_origin(folder) if lean is None else None for folder in (workspace.lean, workspace.full))
    beside = None
    if made is not None and made.method == "cut":
        beside = workspace.located(made.model)
    elif made is not None and other is not None:  # what lies in `full` may be of an earlier model than `lean`
        taught = made.method == "distill" and (other.method, other.source_digest) == ("copy", made.source_digest)
        beside = str(workspace.full) if taught or made.has_budget_of(other) else None
    if beside is not None:
        workspace.note(f"Compared with: {beside}.")
        return ours, local_path(beside)
    workspace.note("No full model to compare with: name it with --full.")
    return ours, None


def show(report: "BenchReport", workspace: Workspace, data: DataSource | None) -> None:
    """The report into the workspace, with the data it was given, and as JSON, or as tables and sentences."""
    from truncate_kit.report.bench_figure import draw_bench
    from truncate_kit.report.bench_tables import (
        absences,
        bench_tables,
        machine_sentence,
        scored_sentences,
    )
    from truncate_kit.results import file_for

    path = file_for(report, workspace.bench)
    report.write(path)
    figure = draw_bench(report, path.with_suffix(".png"))
    if figure is None:
        path.with_suffix(".png").unlink(missing_ok=True)  # that of the report that was replaced
    workspace.remember_benched(data)
    if workspace.quiet:
        print_json(report)
        return
    if path != workspace.bench:
        workspace.note(f"{workspace.bench} {_why_kept(report, workspace)} and stays as it is.")
    for place, cells in enumerate(bench_tables(report)):
        table(*cells, detail=place > 0)
    beside = machine_sentence(report), *scored_sentences(report), *absences(report)
    say(*(in_options(sentence, "bench") for sentence in (*beside, *report.notes)))
    say(f"Saved: {path}" + (f", {figure}" if figure else " (no figure without scores)"))


def _why_kept(report: "BenchReport", workspace: Workspace) -> str:
    """Why bench.json is not replaced by this report."""
    from truncate_kit.workspace import read_result

    before = read_result(type(report), workspace.bench)
    if before is None or before.lean_folder == report.lean_folder:
        return "measured more than this bench"
    return f"is of another lean model, {before.lean.name},"
