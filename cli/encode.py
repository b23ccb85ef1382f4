"""`truncate-kit encode`."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from shutil import copyfileobj
from tempfile import NamedTemporaryFile
from typing import Annotated

import typer

from truncate_kit.errors import DataError, UsageError
from truncate_kit.vectors import VectorFormat
from truncate_kit.wording import counted

from . import options
from .machine import Machine
from .options import data_option, machine_option, results_option, use_threads
from .output import print_json, progress_bar, say
from .workspace import Workspace

FORM = VectorFormat()


def encode(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            help="Texts: .txt with one a line, or .csv, .tsv, .jsonl, .parquet; also .gz or .xz. - reads lines from "
            "standard input.",
        ),
    ],
    model: Annotated[
        str | None, data_option("Folder, hub name, miniature or .onnx file; by default the workspace's lean model.")
    ] = None,
    column: Annotated[str | None, data_option("Column of the texts, if no name says it.")] = None,
    pooling: options.Pooling = None,
    max_length: options.MaxLength = None,
    runtime: Annotated[
        str | None, machine_option("torch or onnx; by default onnx where the model has a graph for the device.")
    ] = None,
    graph: options.Graph = None,
    engine: options.Engine = "local",
    workers: options.Workers = None,
    ray_address: options.RayAddress = None,
    gpus_per_worker: options.Gpus = None,
    device: options.Device = None,
    threads: options.SharedThreads = None,
    out: Annotated[Path, results_option("Where the vectors go, row n for text n.")] = Path("vectors.npy"),
    precision: Annotated[str, results_option("Of the vectors: float32, float16, int8 or binary.")] = FORM.precision,
    dimensions: options.Dimensions = None,
    normalize: Annotated[
        bool | None,
        results_option(
            "Scale to length 1 after cutting dimensions, or not; by default as the model does.",
            "--normalize/--no-normalize",
            show_default=False,
        ),
    ] = None,
    folder: options.WorkspaceFolder = options.WORKSPACE,
    as_json: options.Json = False,
) -> None:
    """Write the vectors of a file of any size to a .npy file; killed at any instant, the same command continues."""
    from truncate_kit.encode import encode_file, gives_unit_vectors
    from truncate_kit.export.record import graph_sentence, graphs_in, suited_precision
    from truncate_kit.export.runtime import OnnxEncoder
    from truncate_kit.files import local_path

    machine = Machine(engine, workers, ray_address, gpus_per_worker, device, threads)
    use_threads(threads)
    workspace = Workspace(folder, quiet=as_json)
    form = VectorFormat(precision=precision, dimensions=dimensions)  # type: ignore[arg-type]  # checked there
    named = workspace.finished_model(model, pooling, max_length)
    place, inside = local_path(named.name), bool(named.pooling or named.max_length)
    where = "cuda" if gpus_per_worker or (device or "").startswith("cuda") else "cpu"  # of those that encode
    if graph is None and runtime != "torch" and not inside:
        graph = suited_precision(place, where)
    encoder = workspace.load_text_encoder(named, runtime, graph, threads, device)
    if isinstance(encoder, OnnxEncoder):
        workspace.note(graph_sentence(encoder.file, encoder.report, where))
    elif runtime is None and graphs_in(place):
        why = "a graph has its pooling and its length inside" if inside else f"{place} has no graph for {where}"
        workspace.note(f"This runs in torch: {why}.")
    wanted = gives_unit_vectors(encoder) if normalize is None else normalize
    form = VectorFormat(precision=form.precision, dimensions=dimensions, normalize=wanted)
    with machine.open() as chosen, progress_bar(quiet=as_json) as progress, _readable(file) as source:
        result = encode_file(encoder, source, out, column=column, form=form, engine=chosen, progress=progress)
    result = replace(result, source=str(file))
    if as_json:
        print_json(result)
        return
    if result.num_cut and encoder.reader is not None:
        of = f"{result.num_cut:,} of {counted(result.shape[0] - result.resumed_at, 'text')}"
        workspace.note(f"Cut: {of} had more than the {encoder.reader.max_length:,} tokens that this model takes.")
    rows, columns = result.shape
    before = f", {result.resumed_at:,} of them from before" if result.resumed_at else ""
    speed = f" ({result.rate:,.0f} a second)" if result.rate else ""
    say(f"Encoded: {counted(rows, 'text')}{before}, in {result.seconds:,.1f} s{speed}.")
    say(f"Saved: {result.file} ({rows:,} × {columns} {result.dtype}, {result.file_bytes / 1e6:,.1f} MB)")


@contextmanager
def _readable(file: Path) -> Iterator[Path]:
    """The file itself, or a copy of standard input, which is read twice: counted first, then encoded."""
    if str(file) != "-":
        yield file
        return
    if sys.stdin is None:  # closed by whoever started the process
        raise UsageError("Standard input is closed.", hint="Name a file, or send texts into the command.")
    with NamedTemporaryFile(suffix=".txt") as copy:
        copyfileobj(sys.stdin.buffer, copy)
        if not copy.tell():
            raise DataError("Standard input is empty.", hint="Send texts into the command, one a line.")
        copy.flush()
        try:
            yield Path(copy.name)
        except DataError as error:
            raise DataError(str(error).replace(copy.name, "Standard input"), hint=error.hint) from error
