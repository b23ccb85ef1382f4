"""`truncate-kit export`."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from truncate_kit.errors import UsageError
from truncate_kit.export.settings import ExportSettings
from truncate_kit.origin import read_origin
from truncate_kit.workspace import ModelSource

from . import options
from .cut import save_cut
from .options import layers_option, machine_option, refuse, results_option, use_threads
from .output import print_json, progress_bar, say, table
from .pushing import check_push, push
from .workspace import Workspace

if TYPE_CHECKING:
    from truncate_kit.data import PairSplits, RetrievalSet
    from truncate_kit.export.record import ExportReport
    from truncate_kit.models import Encoder

SETTINGS = ExportSettings()


def export(
    model: options.Finished = None,
    onnx: Annotated[bool, results_option("Write one ONNX graph, from token ids to the vector.", "--onnx")] = False,
    data: options.Data = None,
    columns: options.Columns = None,
    scale: options.Scale = None,
    layer: Annotated[int | None, layers_option("Cut the model there first, without training.")] = None,
    blocks: options.Blocks = None,
    vocabulary_from: options.VocabularyFrom = None,
    precision: Annotated[
        str, machine_option("fp32, fp16 (for CUDA) or int8 (for the CPU); each has its own file.")
    ] = SETTINGS.precision,
    target: Annotated[
        str | None,
        machine_option(f"cpu or cuda, whose kernels the graph is for; by default {SETTINGS.target}, for fp16 cuda."),
    ] = None,
    budget: Annotated[
        float | None,
        machine_option(f"With int8: Spearman points it may cost on dev pairs; by default {SETTINGS.budget:g}."),
    ] = None,
    threads: options.Threads = None,
    folder: options.WorkspaceFolder = options.WORKSPACE,
    normalize: Annotated[
        bool | None,
        results_option(
            "Vectors of length 1, or not; by default as the model does.",
            "--normalize/--no-normalize",
            show_default=False,
        ),
    ] = SETTINGS.normalize,
    push_to: options.Push = None,
    public: options.Public = False,
    as_json: options.Json = False,
) -> None:
    """Write the model as one checked ONNX graph beside its tokenizer and configuration."""
    from truncate_kit.export.exporting import export_onnx
    from truncate_kit.precisions import check_target

    check_push(push_to, public)
    kept = options.kept(layer, blocks)
    if not onnx:
        raise UsageError("No format is named.", hint="Add --onnx.")
    chosen, where = check_target(precision, target)  # before anything is loaded
    settings = ExportSettings(precision=chosen, target=where, normalize=normalize)
    if budget is not None:
        settings = replace(settings, budget=budget)
    if precision != "int8":
        refuse("--precision int8", budget=budget)
    use_threads(threads)
    workspace = Workspace(folder, quiet=as_json)
    named = (data, columns, scale, kept, vocabulary_from)
    own = _own_pairs(workspace, model) if all(one is None for one in named) else None
    # Before a cut takes the place of what is there.
    searched = _searched(None if own is not None else workspace.queries(data), columns, scale)
    unlabelled = own if searched is None else searched
    given, found = workspace.data(data, columns, scale) if unlabelled is None else (unlabelled, None)
    if precision == "int8":
        _check_searchable(given)
    if kept is not None or vocabulary_from is not None:
        cut = save_cut(workspace.starting_model(model, None, None), kept, vocabulary_from, workspace)
        workspace.note(*cut.sentences)
        model = None
    source = _source(workspace, model)
    place = _place(workspace, source)
    encoder = workspace.load(source)
    splits = workspace.unseen(_pairs(given, encoder, workspace), source.name)
    if precision == "int8":
        splits = _searchable(splits, workspace)
    with workspace.held(), progress_bar(quiet=as_json) as progress:
        _check_replaceable(workspace, model)  # once more: the model was loaded while others could write
        report = export_onnx(
            encoder,
            place,
            settings,
            pairs=splits.evaluation,
            search_pairs=splits.dev if precision == "int8" else None,
            progress=progress,
        )
    own_model = Path(source.name).resolve() == place.resolve()
    workspace.remember(None if own_model else source, found)
    show(report, place, quiet=as_json)
    push(place, push_to, public, quiet=as_json)


def _own_pairs(workspace: Workspace, model: str | None) -> "PairSplits | None":
    """What the distilled model here is judged by without labels; says so. None for another model, or labels."""
    from truncate_kit.methods.distill.own_pairs import own_pairs_of

    if model is not None and Path(model).resolve() != workspace.lean.resolve():
        return None
    found = own_pairs_of(workspace)
    workspace.note(*(() if found is None else found.statements()))
    return found


def _searched(folder: str | None, columns: str | None, scale: str | None) -> "RetrievalSet | None":
    """The retrieval set in a folder, None where there is none; `DataError` where it has too few texts."""
    from truncate_kit.data import read_retrieval
    from truncate_kit.methods.distill.own_pairs import texts_of

    if folder is None:
        return None
    refuse("graded pairs", columns=columns, scale=scale)
    found = read_retrieval(folder)
    texts_of(found)
    return found


def _pairs(given: "PairSplits | RetrievalSet", encoder: "Encoder", workspace: Workspace) -> "PairSplits":
    """The pairs as they are, or those that the encoder's own cosines make of a retrieval set; says so."""
    from truncate_kit.data import PairSplits
    from truncate_kit.methods.distill.own_pairs import search_pairs_of

    if isinstance(given, PairSplits):
        return given
    found = search_pairs_of(encoder, given)
    workspace.note(*found.statements())
    return found


def _searchable(splits: "PairSplits", workspace: Workspace) -> "PairSplits":
    """Splits with dev pairs to choose on and others to report on, out of train where they are missing."""
    return splits if splits.dev is not None and splits.test is not None else workspace.divided(splits)


def _check_searchable(splits: "PairSplits | RetrievalSet") -> None:
    """Raise `UsageError` where there are no dev or no test pairs, and no others to take them out of."""
    from truncate_kit.data import RetrievalSet

    if isinstance(splits, RetrievalSet):  # of which both are made
        return
    if None in (splits.dev, splits.test) and splits.train is None and not splits.one_file:
        raise UsageError(
            f"int8 chooses its layers on dev pairs and reports on test pairs; {splits.name} has only "
            f"{' and '.join(name for name, _ in splits.items())}.",
            hint="Give a folder with both, or one file: it is divided. Or use --precision fp32.",
        )


def _source(workspace: Workspace, named: str | None) -> ModelSource:
    """The model named, else the lean one here.

    Raises `UsageError` where there is neither, or where another model than the lean one would take its place.
    """
    _check_replaceable(workspace, named)
    return workspace.finished_model(named)


def _check_replaceable(workspace: Workspace, named: str | None) -> None:
    lean = workspace.lean
    if named is not None and lean.is_dir() and not _inside(workspace, named) and not _is_copy(lean, named):
        raise UsageError(
            f"{lean} holds another model, which exporting {named} would replace.",
            hint="Name another folder with --workspace, or leave MODEL out to export the one that is there.",
        )


def _is_copy(folder: Path, named: str) -> bool:
    """Whether a folder holds a copy of the model of this name, as an export left it."""
    from truncate_kit.models import encoder_digest, load_encoder

    origin = read_origin(folder)
    if origin is None or origin.method != "copy" or Path(origin.model).resolve() != Path(named).resolve():
        return False
    return encoder_digest(load_encoder(folder)) == origin.source_digest


def _place(workspace: Workspace, source: ModelSource) -> Path:
    """Where the graph goes: beside a model of the workspace, else with a copy of the model into `lean`."""
    return Path(source.name) if _inside(workspace, source.name) else workspace.lean


def _inside(workspace: Workspace, named: str) -> bool:
    """Whether this is the folder of one of the workspace's models."""
    models = (workspace.lean, workspace.full, workspace.combined, workspace.frozen)
    return any(model.is_dir() and Path(named).resolve() == model.resolve() for model in models)


def show(report: "ExportReport", place: Path, *, quiet: bool = False) -> None:
    """The report as JSON, or as a table and sentences."""
    from truncate_kit.report.measuring import view_export
    from truncate_kit.report.training_tables import check_table

    if quiet:
        print_json(report)
        return
    table(*check_table(report))
    say(*view_export(report).sentences[1:])
    say(
        f"Exported: {place / report.file} ({report.file_bytes / 1e6:.1f} MB), vectors of {report.width} "
        f"numbers{' and length 1' if report.normalized else ''}."
    )
