"""`truncate-kit evaluate`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .options import (
    DEFAULT_OUT,
    ColumnsOpt,
    DataOpt,
    DeviceOpt,
    JsonOpt,
    MaxLengthOpt,
    ModelArg,
    OutOpt,
    PoolingOpt,
    ScaleOpt,
    ThreadsOpt,
    use_threads,
)
from .output import print_json, table
from .workspace import Workspace

if TYPE_CHECKING:
    from truncate_kit.data import PairSet, PairSplits


def evaluate(
    model: ModelArg = None,
    split: Annotated[
        str | None, typer.Option("--split", help="train, dev or test; by default test, else dev, else what there is.")
    ] = None,
    runtime: Annotated[
        str | None, typer.Option("--runtime", help="torch or onnx (model.onnx of the folder); an .onnx file is onnx.")
    ] = None,
    precision: Annotated[
        str | None,
        typer.Option("--precision", help="Which graph of the folder: fp32, fp16 or int8; by default model.onnx."),
    ] = None,
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
    """Score a model on graded pairs: Spearman and Pearson correlation of cosine similarity with the scores."""
    from truncate_kit.export import load_text_encoder
    from truncate_kit.export.runtime import OnnxEncoder
    from truncate_kit.training.evaluation import ModelScore
    from truncate_kit.training.evaluation import evaluate as run

    use_threads(threads)
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
        precision=precision,
        threads=threads,
        device=device,
    )
    splits, _ = workspace.data(data, columns, scale, quiet=as_json)
    if Path(source.name).resolve().is_relative_to(workspace.out.resolve()):
        splits = workspace.unseen(splits, quiet=as_json)
    chosen, pairs = _split(splits, split)
    found = run(encoder, pairs.pairs)
    score = ModelScore(
        model=source.name,
        runtime="onnx" if isinstance(encoder, OnnxEncoder) else "torch",
        data=pairs.name,
        split=chosen,
        num_pairs=found.num_pairs,
        spearman=found.spearman,
        pearson=found.pearson,
    )
    if as_json:
        print_json(score)
        return
    table(
        f"{score.model} in {score.runtime}, correlation with the scores × 100",
        ("set", "pairs", "Spearman", "Pearson"),
        [(f"{score.data}, {chosen}", f"{score.num_pairs:,}", f"{score.spearman:.2f}", f"{score.pearson:.2f}")],
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
