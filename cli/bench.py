"""`truncate-kit bench`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .options import (
    DEFAULT_OUT,
    ColumnsOpt,
    DataOpt,
    DeviceOpt,
    JsonOpt,
    OutOpt,
    ScaleOpt,
    ThreadsOpt,
    numbers_of,
)
from .output import note, print_json, progress_bar, say, table
from .workspace import Workspace

if TYPE_CHECKING:
    from truncate_kit.bench import BenchReport
    from truncate_kit.encoders import Encoder

    Model = Path | Encoder

QUICK_REPEATS, QUICK_TEXTS = 3, 256


def bench(
    lean: Annotated[
        str | None,
        typer.Argument(metavar="[LEAN]", help="Lean model: folder, hub name or miniature; by default OUT/lean."),
    ] = None,
    full: Annotated[str | None, typer.Option("--full", help="The model to compare with; by default OUT/full.")] = None,
    data: DataOpt = None,
    columns: ColumnsOpt = None,
    scale: ScaleOpt = None,
    batch_sizes: Annotated[str, typer.Option("--batch-sizes", help="Texts per batch; latency is always timed.")] = (
        "1,32"
    ),
    lengths: Annotated[
        str | None, typer.Option("--lengths", help="Tokens per text; by default 16,128 or the models' limit.")
    ] = None,
    backends: Annotated[
        str | None,
        typer.Option(
            "--backends",
            help="all, or some, such as torch-bf16,compile-bf16,st-fp32,onnx-fp32,onnx-int8 (a wrong name lists them); "
            "by default torch and ONNX Runtime, compiled as well on CUDA.",
        ),
    ] = None,
    repeats: Annotated[int | None, typer.Option("--repeats", help="Rounds; each times every model in turn.")] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Fewer rounds and sentences, no memory: for a first look.")
    ] = False,
    random_weights: Annotated[
        str | None,
        typer.Option("--random-weights", metavar="CONFIG", help="Time a shape: a config.json, folder or hub name."),
    ] = None,
    layer: Annotated[
        int | None, typer.Option("--layer", help="With --random-weights: layer of the lean cut; by default half.")
    ] = None,
    device: DeviceOpt = None,
    threads: ThreadsOpt = None,
    out: OutOpt = DEFAULT_OUT,
    as_json: JsonOpt = False,
) -> None:
    """Measure the lean model against the full one: latency, throughput, memory, file size and quality."""
    from truncate_kit.bench import bench as run
    from truncate_kit.bench.run import MAX_TEXTS, REPEATS
    from truncate_kit.encoders import select_device
    from truncate_kit.errors import UsageError

    select_device(device)  # before anything is loaded
    if random_weights is None and layer is not None:
        raise UsageError("--layer goes with --random-weights only.", hint="Cut a model with finetune, then bench it.")
    if random_weights is not None and (lean or full):
        raise UsageError("--random-weights stands for both models.", hint="Leave out LEAN and --full.")
    workspace = Workspace(out)
    ours, theirs = (
        _pair(workspace, lean, full, quiet=as_json) if random_weights is None else _random_pair(random_weights, layer)
    )
    if quick:
        note("Quick: fewer rounds and sentences than without --quick, and no peak memory.", quiet=as_json)
    splits, _ = workspace.data(data, columns, scale, quiet=as_json)
    pairs = workspace.unseen(splits, quiet=as_json).evaluation
    with progress_bar(quiet=as_json) as progress:
        report = run(
            ours,
            theirs,
            pairs=pairs.pairs,
            texts=pairs.texts(),
            batch_sizes=numbers_of(batch_sizes, "--batch-sizes"),
            lengths=numbers_of(lengths, "--lengths") if lengths is not None else None,
            backends=[name.strip() for name in backends.split(",")] if backends is not None else None,
            repeats=repeats if repeats is not None else QUICK_REPEATS if quick else REPEATS,
            threads=threads,
            device=device,
            memory=not quick,
            max_texts=QUICK_TEXTS if quick else MAX_TEXTS,
            progress=progress,
        )
    show(report, workspace, as_json=as_json)


def _random_pair(config_name: str, layer: int | None) -> "tuple[Model, Model]":
    from truncate_kit.encoders import load_config, random_encoder, truncated_config

    config = load_config(config_name)
    cut = truncated_config(config, config.num_hidden_layers // 2 if layer is None else layer)
    return random_encoder(cut, name=config_name), random_encoder(config, name=config_name)


def _pair(workspace: Workspace, lean: str | None, full: str | None, *, quiet: bool) -> "tuple[Model, Model | None]":
    """The models named, else those in the workspace, else the bundled miniature cut at half depth; says which."""
    from truncate_kit.encoders import DEFAULT_MINIATURE, load_encoder, truncate
    from truncate_kit.errors import ModelError

    if lean is None and full is None and not workspace.lean.is_dir():
        whole = load_encoder(DEFAULT_MINIATURE)
        half = whole.depth // 2
        note(
            f"{workspace.lean} does not exist yet, so this is the bundled miniature {DEFAULT_MINIATURE}, cut at layer "
            f"{half} of {whole.depth} and not fine-tuned: read the speed, not the scores. "
            "`truncate-kit finetune` makes the pair to compare.",
            quiet=quiet,
        )
        return truncate(whole, half), whole
    if lean is None and not workspace.lean.is_dir():
        raise ModelError(f"There is no lean model {workspace.lean}.", hint="Name it, or make it with finetune first.")
    ours: Model = workspace.lean if lean is None else _model(lean)
    if full is not None:
        return ours, _model(full)
    if lean is None and workspace.full.is_dir():
        note(f"Models: {workspace.lean} against {workspace.full}.", quiet=quiet)
        return ours, workspace.full
    note("No full model to compare with: name it with --full.", quiet=quiet)
    return ours, None


def _model(name: str) -> "Model":
    """A folder as it is, so that it gets its ONNX graph; what is only known by name, loaded."""
    from truncate_kit.encoders import load_encoder

    path = Path(name).expanduser()
    return path if path.is_dir() else load_encoder(name)


def show(report: "BenchReport", workspace: Workspace, *, as_json: bool) -> None:
    """The report into the workspace, and as JSON, or as tables and sentences."""
    from truncate_kit.report.bench_figure import draw_bench
    from truncate_kit.report.bench_tables import absences, bench_tables, ceiling_sentences, machine_sentence

    report.write(workspace.bench_report)
    figure = draw_bench(report, workspace.bench_figure)
    if as_json:
        print_json(report)
        return
    for cells in bench_tables(report):
        table(cells.title, cells.columns, cells.rows)
    for sentence in (machine_sentence(report), *ceiling_sentences(report), *absences(report), *report.notes):
        say(sentence)
    say(f"Saved: {workspace.bench_report}" + (f", {figure}" if figure else " (no figure without scores)"))
