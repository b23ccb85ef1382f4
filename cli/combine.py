"""`truncate-kit combine`."""

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
    from truncate_kit.combine import CombinationReport
    from truncate_kit.combine.results import Span
    from truncate_kit.encoders import Encoder
    from truncate_kit.encoders.pipeline import Dense


def combine(
    model: ModelArg = None,
    over: Annotated[str, typer.Option("--over", help="mean or max over the layers.")] = "mean",
    head: Annotated[
        bool, typer.Option("--head", help="Feed the mean through the model's trained pooler head.")
    ] = False,
    up_to: Annotated[
        int | None, typer.Option("--layers-up-to", metavar="SIZE", help="Most layers in a combination; else all.")
    ] = None,
    search: Annotated[str, typer.Option("--search", help="exact, beam, or auto: exact for up to 27 layers.")] = "auto",
    width: Annotated[int, typer.Option("--beam-width", help="Combinations of each size that a beam keeps.")] = 64,
    dev_pairs: Annotated[int, typer.Option("--dev-pairs", help="Pairs to choose on; the rest is for testing.")] = 350,
    num_splits: Annotated[int, typer.Option("--splits", help="Random divisions into dev and test.")] = 5,
    split: Annotated[
        str | None, typer.Option("--split", help="Split that is divided: train, dev or test; by default as evaluate.")
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
    """Find the layers whose mean or maximum makes the best sentence vectors (BERT-LC); save the model cut above."""
    from truncate_kit.combine import CombineSettings
    from truncate_kit.combine import combine as run
    from truncate_kit.encoders import load_encoder, load_pooler_head
    from truncate_kit.hardware import usable_cores

    settings = CombineSettings(
        over=over, head=head, up_to=up_to, search=search, width=width, dev_pairs=dev_pairs, splits=num_splits
    )
    use_threads(threads)
    workspace = Workspace(out)
    if model is None and workspace.lean.is_dir():
        model = str(workspace.lean)
        workspace.note_lean(quiet=as_json)
    source = workspace.model(model, pooling, max_length, quiet=as_json)
    encoder = load_encoder(source.name, pooling=source.pooling, max_length=source.max_length, device=device)
    trained = load_pooler_head(source.name) if head else None
    splits, _ = workspace.data(data, columns, scale, quiet=as_json)
    pairs = workspace.unseen(splits, quiet=as_json).split(split)
    if len(pairs) // 2 < dev_pairs:
        note(f"{pairs.name} holds {len(pairs):,} pairs: half of them are for choosing.", quiet=as_json)
    with progress_bar(quiet=as_json) as progress:
        report = run(
            encoder, pairs, settings=settings, head=trained, threads=threads or usable_cores(), progress=progress
        )
    saved = _save(encoder, report, trained, workspace)
    show(report, workspace, saved, as_json=as_json)


def _save(encoder: "Encoder", report: "CombinationReport", head: "Dense | None", workspace: Workspace) -> str:
    """Write report, figures and, where a folder can hold it, the model; what to tell about the model."""
    from truncate_kit.combine import combined_encoder
    from truncate_kit.combine.card import combination_card
    from truncate_kit.encoders import save_encoder
    from truncate_kit.errors import ModelError
    from truncate_kit.report.combination_figure import draw_effects, draw_sizes

    report.write(workspace.combination / "combination.json")
    draw_sizes(report, workspace.combination / "sizes.png")
    draw_effects(report, workspace.combination / "without.png")
    earlier = f" {workspace.combined} is that of an earlier search." if workspace.combined.is_dir() else ""
    over = report.settings.over
    try:
        lean = combined_encoder(encoder, report.chosen, over=over, head=head)  # type: ignore[arg-type]  # checked there
    except ModelError as error:
        return f"The model was not saved: {error} {error.hint}{earlier}"
    save_encoder(lean, workspace.combined, model_card=combination_card(report, lean))
    saved = f"Saved: {workspace.combined} ({lean.depth} of {report.depth} layers, {lean.num_parameters:,} parameters)."
    if lean.pooler is not None:
        saved += " sentence-transformers loads it with trust_remote_code=True."
    return (
        f"{saved} As a graph: truncate-kit export {workspace.combined} --onnx --out {workspace.out / 'combined-onnx'}"
    )


def show(report: "CombinationReport", workspace: Workspace, saved: str, *, as_json: bool) -> None:
    """The report as JSON, or as sentences and tables."""
    if as_json:
        print_json(report)
        return
    for statement in report.statements():
        say(statement)
    names = [row.name for row in report.splits[0].baselines]
    rows = [("best combination", _points(report.best("dev")), _points(report.best("test")))]
    rows += [(name, _points(report.baseline(name, "dev")), _points(report.baseline(name, "test"))) for name in names]
    table(f"{report.model} on {report.data}, Spearman × 100", ("vectors", "dev", "test"), rows, marked=0)
    table(
        "The best of each size",
        ("layers", "dev", "test", "first split's"),
        [
            (str(size), _points(report.size(size, "dev")), _points(report.size(size, "test")), _layers(row.layers))
            for size, row in enumerate(report.splits[0].by_size, 1)
            if row is not None
        ],
    )
    table(
        "Without a layer: change of the best, in points",
        ("layer", "dev", "test"),
        [(str(effect.layer), f"{effect.dev:+.2f}", f"{effect.test:+.2f}") for effect in report.effects()],
    )
    unseen = "" if report.unseen is None else f", {report.unseen:.2f} on the {report.num_unseen} that none chose on"
    kind = "layers" if len(report.chosen) > 1 else "layer"
    say(f"Chosen: {kind} {_layers(report.chosen)} (dev {report.chosen_dev:.2f} over the splits{unseen}).")
    say(saved)
    say(f"Figures: {workspace.combination / 'sizes.png'}, {workspace.combination / 'without.png'}")


def _points(span: "Span | None") -> str:
    from truncate_kit.sweep.card import points

    return points(None, None) if span is None else points(span.mean, span.std)


def _layers(layers: tuple[int, ...]) -> str:
    return ", ".join(map(str, layers))
