"""`truncate-kit analyze`."""

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
from .output import note, print_json, progress_bar, say, table
from .workspace import Workspace

if TYPE_CHECKING:
    from truncate_kit.analysis import LayerProfile
    from truncate_kit.encoders import Encoder


def analyze(
    model: ModelArg = None,
    reference: Annotated[
        str | None,
        typer.Option(
            "--reference",
            help="Model to compare with, or none; by default mini-bert for the other miniatures, none for all else.",
        ),
    ] = None,
    data: DataOpt = None,
    texts: Annotated[
        Path | None, typer.Option("--texts", help="File of texts to compare the layers on; needs no scores.")
    ] = None,
    columns: ColumnsOpt = None,
    scale: ScaleOpt = None,
    split: Annotated[
        str | None, typer.Option("--split", help="train, dev or test; by default the last of them that is there.")
    ] = None,
    pooling: PoolingOpt = None,
    estimator: Annotated[str, typer.Option("--estimator", help="Of CKA: debiased or biased.")] = "debiased",
    kernel: Annotated[str, typer.Option("--kernel", help="Of CKA: linear or rbf.")] = "linear",
    raw: Annotated[
        bool, typer.Option("--raw", help="States as the blocks give them, without the final norm some families have.")
    ] = False,
    max_texts: Annotated[int, typer.Option("--max-texts", help="Texts that are drawn if there are more.")] = 10_000,
    max_length: MaxLengthOpt = None,
    device: DeviceOpt = None,
    threads: ThreadsOpt = None,
    out: OutOpt = DEFAULT_OUT,
    as_json: JsonOpt = False,
) -> None:
    """Compare all layers of a model with a reference and predict whether its end falls, and from which layer on."""
    from truncate_kit.analysis import profile
    from truncate_kit.data import iter_texts
    from truncate_kit.encoders import load_encoder

    use_threads(threads)
    workspace = Workspace(out)
    source = workspace.model(model, pooling, max_length, quiet=as_json)
    encoder = load_encoder(source.name, pooling=source.pooling, max_length=source.max_length, device=device)
    beside = _reference(source.name, reference, max_length=source.max_length, device=device)
    pairs, found = None, None
    if texts is None or data is not None:
        splits, found = workspace.data(data, columns, scale, quiet=as_json)
        pairs = splits.split(split)
        note(f"Analyzed: {pairs.name}.", quiet=as_json)
    with progress_bar(quiet=as_json) as progress:
        result = profile(
            encoder,
            None if texts is None else list(iter_texts(texts)),
            reference=beside,
            pairs=pairs,
            estimator=estimator,  # type: ignore[arg-type]  # checked by the library
            kernel=kernel,  # type: ignore[arg-type]
            pooling=None if source.pooling is None else encoder.pooling,
            raw=raw,
            max_texts=max_texts,
            progress=progress,
        )
    result.write(workspace.profile)
    workspace.remember(source, found)
    show(result, workspace, as_json=as_json)


def _reference(name: str, told: str | None, *, max_length: int | None, device: str | None) -> "Encoder | None":
    """The reference told, or the usual one of a miniature; None where there is none or none is wanted."""
    from truncate_kit.encoders import default_reference, load_encoder

    wanted = default_reference(name) if told is None else told
    if wanted is None or wanted == "none":
        return None
    return load_encoder(wanted, max_length=max_length, device=device)


def show(result: "LayerProfile", workspace: Workspace, *, as_json: bool) -> None:
    """The profile as JSON, or as sentences and a table; the figure in either case."""
    from truncate_kit.report.analysis_figure import draw_analysis
    from truncate_kit.report.analysis_table import table_columns, table_rows, table_title

    draw_analysis(result, workspace.analysis_curve)
    if as_json:
        print_json(result)
        return
    for statement in result.statements():
        note(statement)
    if result.reference is None:
        note("Name a model that does not fall, best a masked language model of the same depth, with --reference.")
    table(table_title(result), table_columns(result), table_rows(result))
    say(result.sentence)
    say(f"Saved: {workspace.profile}, {workspace.analysis_curve}")
