"""`truncate-kit encode`."""

from pathlib import Path
from typing import Annotated

import typer

from .engines import EngineOpt, GpusOpt, RayAddressOpt, WorkersOpt, open_engine
from .options import (
    DEFAULT_OUT,
    GRAPH_HELP,
    DeviceOpt,
    DimensionsOpt,
    JsonOpt,
    MaxLengthOpt,
    PoolingOpt,
    ThreadsOpt,
    use_threads,
)
from .output import note, print_json, progress_bar, say
from .sources import ModelSource
from .workspace import Workspace


def encode(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            help="Texts: .txt with one a line, or .csv, .tsv, .jsonl, .parquet; also .gz or .xz.",
        ),
    ],
    out: Annotated[Path, typer.Option("--out", help="Where the vectors go, row n for text n.")] = Path("vectors.npy"),
    model: Annotated[
        str | None,
        typer.Option("--model", help="Folder, hub name, miniature or .onnx file; by default the last command's."),
    ] = None,
    runtime: Annotated[
        str | None,
        typer.Option("--runtime", help="torch or onnx; by default onnx where the model has a graph for the device."),
    ] = None,
    graph: Annotated[str | None, typer.Option("--graph", help=GRAPH_HELP)] = None,
    column: Annotated[str | None, typer.Option("--column", help="Column of the texts, if no name tells.")] = None,
    precision: Annotated[
        str, typer.Option("--precision", help="Of the vectors: float32, float16, int8 or binary.")
    ] = "float32",
    dimensions: DimensionsOpt = None,
    normalize: Annotated[
        bool | None,
        typer.Option(
            "--normalize/--no-normalize",
            help="Scale to length 1 after cutting dimensions, or not; by default as the model does.",
            show_default=False,
        ),
    ] = None,
    pooling: PoolingOpt = None,
    max_length: MaxLengthOpt = None,
    engine: EngineOpt = "local",
    workers: WorkersOpt = None,
    ray_address: RayAddressOpt = None,
    gpus_per_worker: GpusOpt = None,
    device: DeviceOpt = None,
    threads: ThreadsOpt = None,
    as_json: JsonOpt = False,
) -> None:
    """Write the vectors of a file of any size to a .npy file; killed at any instant, the same command continues."""
    from truncate_kit.export import OnnxEncoder, load_text_encoder
    from truncate_kit.export.record import graph_sentence, graphs_in, suited_precision
    from truncate_kit.serving import encode_file, gives_unit_vectors
    from truncate_kit.vectors import VectorFormat

    use_threads(threads)
    form = VectorFormat(precision=precision, dimensions=dimensions)  # type: ignore[arg-type]  # checked there
    source = _model(model, pooling, max_length, quiet=as_json)
    folder, inside = Path(source.name).expanduser(), bool(source.pooling or source.max_length)
    where = "cuda" if gpus_per_worker or (device or "").startswith("cuda") else "cpu"  # of those that encode
    if graph is None and runtime != "torch" and not inside:
        graph = suited_precision(folder, where)
    encoder = load_text_encoder(
        source.name,
        runtime=runtime,
        pooling=source.pooling,
        max_length=source.max_length,
        precision=graph,
        threads=threads,
        device=device,
    )
    if isinstance(encoder, OnnxEncoder):
        note(graph_sentence(encoder.file, encoder.report, where), quiet=as_json)
    elif runtime is None and graphs_in(folder):
        why = "a graph has its pooling and its length inside" if inside else f"{folder} has no graph for {where}"
        note(f"This runs in torch: {why}.", quiet=as_json)
    wanted = gives_unit_vectors(encoder) if normalize is None else normalize
    form = VectorFormat(precision=form.precision, dimensions=dimensions, normalize=wanted)
    with (
        open_engine(engine, workers, ray_address, gpus_per_worker, device=device, threads=threads) as chosen,
        progress_bar(quiet=as_json) as progress,
    ):
        result = encode_file(encoder, file, out, column=column, form=form, engine=chosen, progress=progress)
    if as_json:
        print_json(result)
        return
    rows, columns = result.shape
    before = f", {result.resumed_at:,} of them from before" if result.resumed_at else ""
    say(f"Encoded: {rows:,} texts{before}, in {result.seconds:,.1f} s ({result.rate:,.0f} a second).")
    say(f"Saved: {result.file} ({rows:,} × {columns} {result.dtype}, {result.file_bytes / 1e6:,.1f} MB)")


def _model(named: str | None, pooling: str | None, max_length: int | None, *, quiet: bool) -> ModelSource:
    """The model named, else the lean one in `exported`, else as for every command."""
    workspace = Workspace(DEFAULT_OUT)
    if named is None and workspace.lean.is_dir():
        workspace.note_lean(quiet=quiet)
        named = str(workspace.lean)
    return workspace.model(named, pooling, max_length, quiet=quiet)
