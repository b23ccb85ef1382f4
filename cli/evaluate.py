"""`truncate-kit evaluate`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .options import (
    DEFAULT_OUT,
    GRAPH_HELP,
    ColumnsOpt,
    DataOpt,
    DeviceOpt,
    DimensionsOpt,
    JsonOpt,
    MaxLengthOpt,
    ModelArg,
    OutOpt,
    PoolingOpt,
    ScaleOpt,
    ThreadsOpt,
    use_threads,
)
from .output import note, print_json, table
from .suites import SuiteRun, run_suite, suite_options
from .workspace import Workspace

if TYPE_CHECKING:
    from truncate_kit.data import PairSet, PairSplits


def evaluate(
    model: ModelArg = None,
    split: Annotated[
        str | None, typer.Option("--split", help="train, dev or test; by default test, else dev, else what there is.")
    ] = None,
    runtime: Annotated[
        str | None,
        typer.Option("--runtime", help="torch or onnx; by default onnx with --graph or an .onnx file, else torch."),
    ] = None,
    suite: Annotated[
        str | None,
        typer.Option("--suite", help="sts, transfer or retrieval: score on the sets that --data holds."),
    ] = None,
    seen: Annotated[
        str | None,
        typer.Option("--seen", help="With --suite sts: pairs the model was trained on, a file or folder of splits."),
    ] = None,
    fractions: Annotated[
        str | None,
        typer.Option("--fractions", help="With --suite transfer: shares of the training rows, such as 0.1,0.5,1."),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="With --suite transfer: 3 splits, 2,000 rows a set: for a first look.")
    ] = False,
    corpus: Annotated[
        str | None, typer.Option("--corpus", help="With --suite retrieval: a file of more texts to search.")
    ] = None,
    vectors: Annotated[
        str, typer.Option("--vectors", help="Score them as stored in float32, float16, int8 or binary.")
    ] = "float32",
    dimensions: DimensionsOpt = None,
    graph: Annotated[str | None, typer.Option("--graph", "--precision", help=GRAPH_HELP)] = None,
    data: DataOpt = None,
    columns: ColumnsOpt = None,
    scale: ScaleOpt = None,
    pooling: PoolingOpt = None,
    max_length: MaxLengthOpt = None,
    device: DeviceOpt = None,
    threads: ThreadsOpt = None,
    out: OutOpt = DEFAULT_OUT,
    as_json: JsonOpt = False,
) -> None:
    """Score a model on graded pairs, by the correlation of cosine similarity with the scores, or on a whole suite."""
    from truncate_kit.errors import UsageError

    options = suite_options(suite, data, seen=seen, corpus=corpus, fractions=fractions, quick=quick)
    if options is not None and (split is not None or columns is not None or scale is not None):
        raise UsageError("--suite knows its splits, columns and scales.", hint="Leave those options out.")
    if options is not None and (vectors != "float32" or dimensions is not None):
        raise UsageError("--suite scores the vectors as the model gives them.", hint="Leave out --vectors.")

    from truncate_kit.export import load_text_encoder  # seconds, so after the mistakes that need none of it
    from truncate_kit.export.record import graph_sentence
    from truncate_kit.export.runtime import OnnxEncoder
    from truncate_kit.training.evaluation import ModelScore
    from truncate_kit.training.evaluation import evaluate as run
    from truncate_kit.vectors import StoredVectors, VectorFormat

    use_threads(threads)
    form = VectorFormat(precision=vectors, dimensions=dimensions)  # type: ignore[arg-type]  # checked there
    workspace = Workspace(out)
    if model is None and workspace.lean.is_dir():
        model = str(workspace.lean)
        workspace.note_lean(quiet=as_json)
    source = workspace.model(model, pooling, max_length, quiet=as_json)
    encoder = load_text_encoder(
        source.name,
        runtime=runtime,
        pooling=source.pooling,
        max_length=source.max_length,
        precision=graph,
        threads=threads,
        device=device,
    )
    used = "onnx" if isinstance(encoder, OnnxEncoder) else "torch"
    if isinstance(encoder, OnnxEncoder):
        note(graph_sentence(encoder.file, encoder.report, encoder.device.type), quiet=as_json)
    if options is not None:
        run_suite(SuiteRun(encoder, source.name, used, options, workspace, threads, as_json))
        return
    splits, _ = workspace.data(data, columns, scale, quiet=as_json)
    if Path(source.name).resolve().is_relative_to(workspace.out.resolve()):
        splits = workspace.unseen(splits, quiet=as_json)
    chosen, pairs = _split(splits, split)
    workspace.note_combined(source.name, pairs.name, quiet=as_json)
    stored = StoredVectors(encoder, form)
    found = run(stored, pairs.pairs)
    score = ModelScore(
        model=source.name,
        runtime=used,
        data=pairs.name,
        split=chosen,
        num_pairs=found.num_pairs,
        spearman=found.spearman,
        pearson=found.pearson,
        vectors=form.precision,
        dimensions=form.kept(stored.width),
        bytes_per_vector=form.bytes_per_vector(stored.width),
    )
    if as_json:
        print_json(score)
        return
    table(
        f"{score.model} in {score.runtime}, correlation with the scores × 100",
        ("set", "pairs", "Spearman", "Pearson", "vectors", "dimensions", "bytes per vector"),
        [
            (
                f"{score.data}, {chosen}",
                f"{score.num_pairs:,}",
                f"{score.spearman:.2f}",
                f"{score.pearson:.2f}",
                score.vectors,
                f"{score.dimensions:,}",
                f"{score.bytes_per_vector:,}",
            )
        ],
    )


def _split(splits: "PairSplits", name: str | None) -> "tuple[str, PairSet]":
    """The split of that name, by default the one to measure on. Raises `UsageError` where there is none."""
    from truncate_kit.errors import UsageError

    found = dict(splits.items())
    if name is None:
        return splits.items()[-1]
    if name not in found:
        raise UsageError(f"{splits.name} has no split {name!r}.", hint=f"Use one of: {', '.join(found)}.")
    return name, found[name]
