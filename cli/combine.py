"""`truncate-kit combine`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from truncate_kit.methods.bert_lc.settings import CombineSettings

from . import options
from .options import data_option, layers_option, refuse, use_threads
from .output import print_json, progress_bar, say, table
from .parameters import in_options
from .workspace import Workspace

if TYPE_CHECKING:
    from truncate_kit.data import PairSet
    from truncate_kit.methods.bert_lc.result import CombinationReport
    from truncate_kit.models import Encoder
    from truncate_kit.models.pipeline import Dense


SETTINGS = CombineSettings()


def combine(
    model: Annotated[
        str | None,
        typer.Argument(
            metavar="MODEL",
            help="Model folder, hub name or bundled miniature; by default WORKSPACE/lean, else as for finetune.",
            show_default=False,
        ),
    ] = None,
    data: options.Data = None,
    columns: options.Columns = None,
    scale: options.Scale = None,
    split: Annotated[
        str | None, data_option("Split that is divided: train, dev or test; by default as evaluate. BERT-LC joins all.")
    ] = None,
    dev_pairs: Annotated[
        int, data_option("Pairs to choose on; the rest is for testing. Pairs with the same two texts stay together.")
    ] = SETTINGS.dev_pairs,
    splits: Annotated[int, data_option("Random divisions into dev and test.")] = SETTINGS.splits,
    pooling: options.Pooling = None,
    max_length: options.MaxLength = None,
    over: Annotated[str, layers_option("mean or max over the layers.")] = SETTINGS.over,
    head: Annotated[
        bool, layers_option("Feed the mean through the model's trained pooler head.", "--head")
    ] = SETTINGS.head,
    up_to: Annotated[
        int | None,
        layers_option(
            "Most layers in a combination; by default all, where BERT-LC has 8 for large models.",
            "--layers-up-to",
            metavar="SIZE",
        ),
    ] = SETTINGS.up_to,
    search: Annotated[
        str,
        layers_option(
            "exact, beam, or auto: exact up to 27 layers; max and --head try all up to 14 layers, else smaller sizes."
        ),
    ] = SETTINGS.search,
    width: Annotated[
        int, layers_option("Combinations of each size that a beam keeps.", "--beam-width")
    ] = SETTINGS.width,
    device: options.Device = None,
    threads: options.Threads = None,
    folder: options.WorkspaceFolder = options.WORKSPACE,
    as_json: options.Json = False,
) -> None:
    """Find the layers whose mean or maximum makes the best sentence vectors (BERT-LC); save the model cut above."""
    from truncate_kit.data import PairSplits
    from truncate_kit.hardware import usable_cores
    from truncate_kit.methods.bert_lc.combine import combine as run
    from truncate_kit.models import find_pooler_head, load_pooler_head
    from truncate_kit.training.output import output_folder

    settings = CombineSettings(
        over=over, head=head, up_to=up_to, search=search, width=width, dev_pairs=dev_pairs, splits=splits
    )
    if search == "exact" or not settings.has_grams:
        refuse("a beam search", beam_width=None if width == SETTINGS.width else width)
    use_threads(threads)
    workspace = Workspace(folder, quiet=as_json)
    if model is None and workspace.lean.is_dir():
        source = workspace.finished_model(None, pooling, max_length)
    else:
        source = workspace.starting_model(model, pooling, max_length)
    encoder = workspace.load(source, device=device)
    trained = (load_pooler_head if head else find_pooler_head)(source.name)  # without --head a baseline alone
    found, named = workspace.data(data, columns, scale)
    if split is not None:
        found = PairSplits(name=found.name, test=found.split(split), notes=found.notes)
    pairs = workspace.unseen(found, source.name).evaluation
    if len(pairs) // 2 < dev_pairs:
        workspace.note(f"{pairs.name} holds {len(pairs):,} pairs: half of them are for choosing.")
    with output_folder(folder, encoder, workspace.combined.name):  # before a search whose model could not be saved
        with progress_bar(quiet=as_json) as progress:
            report = run(
                encoder, pairs, settings=settings, head=trained, threads=threads or usable_cores(), progress=progress
            )
        report.write(workspace.combination_file)
        saved = _save(encoder, report, pairs, trained if head else None, workspace)
        workspace.remember(None if workspace.holds(source.name) else source, named)
    if report.method == "exact" and width != SETTINGS.width:
        workspace.note("The search was exact: --beam-width goes with a beam search only.")
    show(report, workspace, saved)


def _save(
    encoder: "Encoder", report: "CombinationReport", pairs: "PairSet", head: "Dense | None", workspace: Workspace
) -> str:
    """Write the figures and, where a folder can hold it, the model; what to say of the model."""
    from truncate_kit.errors import ModelError
    from truncate_kit.methods.bert_lc.combine import combined_encoder
    from truncate_kit.models import save_encoder
    from truncate_kit.models.saving import origin_of
    from truncate_kit.report.card import combination_card
    from truncate_kit.report.combination_figure import draw_effects, draw_sizes

    draw_sizes(report, workspace.combination / "sizes.png")
    draw_effects(report, workspace.combination / "without.png")
    earlier = f" {workspace.combined} is that of an earlier search." if workspace.combined.is_dir() else ""
    over = report.settings.over
    try:
        lean = combined_encoder(encoder, report.chosen, over=over, head=head)  # type: ignore[arg-type]  # checked there
    except ModelError as error:
        return in_options(f"The model was not saved: {error} {error.hint}{earlier}", "combine")
    settings = report.settings.to_dict() | {"layers": report.chosen}
    origin = origin_of("combine", encoder, lean, data=pairs, settings=settings)
    save_encoder(lean, workspace.combined, model_card=combination_card(report, lean).text(lean), origin=origin)
    saved = f"Saved: {workspace.combined} ({lean.depth} of {report.depth} layers, {lean.num_parameters:,} parameters)."
    if lean.pooler is not None:
        saved += " sentence-transformers loads it with trust_remote_code=True."
    return f"{saved} As a graph: truncate-kit export {workspace.combined} --onnx --workspace {workspace.folder}"


def show(report: "CombinationReport", workspace: Workspace, saved: str) -> None:
    """The report as JSON, or as sentences and tables."""
    from truncate_kit.report.combination_tables import best_of_sizes_table, effects_table, scores_table

    if workspace.quiet:
        print_json(report)
        return
    say(*report.statements())
    title = f"{Path(report.model).name} on {report.data}, Spearman × 100"
    table(*scores_table(report, title), marked=0)
    table(*best_of_sizes_table(report, with_layers=True), detail=True)
    table(*effects_table(report), detail=True)
    say(report.choice_sentence, saved)
    say(f"Figures: {workspace.combination / 'sizes.png'}, {workspace.combination / 'without.png'}")
