"""`truncate-kit analyze`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from truncate_kit.analysis.settings import AnalysisSettings
from truncate_kit.results import first_free
from truncate_kit.workspace import read_result

from . import options
from .options import data_option, given, layers_option, refuse, use_threads
from .output import note, print_json, progress_bar, say, table
from .workspace import Workspace

if TYPE_CHECKING:
    from truncate_kit.analysis.layer_profile import LayerProfile
    from truncate_kit.models import Encoder

SETTINGS = AnalysisSettings()


def analyze(
    model: options.Model = None,
    data: options.PairsOrRetrieval = None,
    texts: Annotated[Path | None, data_option("File of texts to compare the layers on; needs no scores.")] = None,
    columns: options.Columns = None,
    scale: options.Scale = None,
    split: Annotated[
        str | None,
        data_option("train, dev or test; by default the last of them that is there. With queries: a file in qrels."),
    ] = None,
    search_metric: options.SearchMetric = None,
    max_texts: Annotated[
        int | None, data_option("Number of texts that are drawn if there are more.")
    ] = SETTINGS.max_texts,
    pooling: options.Pooling = None,
    max_length: options.MaxLength = None,
    reference: Annotated[
        str | None,
        layers_option(
            "Model to compare with, or none; by default mini-bert for the other miniatures, none for all else."
        ),
    ] = None,
    blocks: options.Blocks = None,
    estimator: Annotated[
        str, layers_option("Of CKA: debiased, or biased as the TMFT paper's authors have it.")
    ] = SETTINGS.estimator,
    kernel: Annotated[str, layers_option("Of CKA: linear or rbf.")] = SETTINGS.kernel,
    raw: Annotated[
        bool, layers_option("States as the blocks give them, without the final norm some families have.", "--raw")
    ] = SETTINGS.raw,
    device: options.Device = None,
    threads: options.Threads = None,
    folder: options.WorkspaceFolder = options.WORKSPACE,
    as_json: options.Json = False,
) -> None:
    """Compare all layers of a model with a reference; predict whether scores drop at its end, and from where on."""
    from truncate_kit.analysis.layer_profile import LayerProfile
    from truncate_kit.analysis.profiling import profile
    from truncate_kit.data import iter_texts, read_retrieval
    from truncate_kit.seen import seen_among

    kept = options.blocks_in(blocks)
    if texts is not None and data is None:
        refuse("--data", columns=columns, scale=scale, split=split, search_metric=search_metric)
    use_threads(threads)
    workspace = Workspace(folder, quiet=as_json)
    queries = None if texts is not None and data is None else workspace.queries(data)
    if queries is not None:
        refuse("graded pairs", columns=columns, scale=scale)
    else:
        refuse("a retrieval folder", search_metric=search_metric)
    searched = None if queries is None else read_retrieval(queries, split=split, **given(metric=search_metric))
    source = workspace.starting_model(model, pooling, max_length, or_miniature=data is None and texts is None)
    encoder = workspace.load(source, device=device)
    beside = _reference(source.name, reference, max_length=source.max_length, device=device)
    if raw and encoder.final_norm is None:
        workspace.note(f"{encoder.name} has no final norm: its states are the same without --raw.")
    pairs, found = None, None
    if searched is not None:
        workspace.note(f"Analyzed: {searched.name}.", seen_among(searched, source.name))
    elif texts is None or data is not None:
        splits, found = workspace.data(data, columns, scale)
        pairs = splits.split(split)
        workspace.note(f"Analyzed: {pairs.name}.", seen_among(pairs, source.name))
    with workspace.held(), progress_bar(quiet=as_json) as progress:
        result = profile(
            encoder,
            None if texts is None else list(iter_texts(texts)),
            reference=beside,
            pairs=pairs,
            retrieval=searched,
            settings=AnalysisSettings(
                estimator=estimator,  # type: ignore[arg-type]  # checked by the library
                kernel=kernel,  # type: ignore[arg-type]  # likewise
                blocks=kept,
                pooling=None if source.pooling is None else encoder.pooling,
                raw=raw,
                max_texts=max_texts,
            ),
            progress=progress,
        )
        path = first_free(workspace.profile, lambda file: not _saw_more(read_result(LayerProfile, file), result))
        result.write(path)
        workspace.remember(source, found, queries=queries)
    if path != workspace.profile:
        workspace.note(f"{workspace.profile} saw more of the same texts than this analysis and stays as it is.")
    show(result, workspace, path)


def _reference(name: str, named: str | None, *, max_length: int | None, device: str | None) -> "Encoder | None":
    """The reference named, or the usual one of a miniature; None where there is none or none is wanted."""
    from truncate_kit.models import load_encoder
    from truncate_kit.naming import default_reference

    wanted = default_reference(name) if named is None else named
    if wanted is None or wanted == "none":
        return None
    return load_encoder(wanted, max_length=max_length, device=device)


def _saw_more(before: "LayerProfile | None", now: "LayerProfile") -> bool:
    """Whether an earlier profile is of the same model and texts, and of more of them, or of scores this one lacks.

    That of another model or of other texts is replaced: the next commands take up what was looked at last.
    """
    if before is None:
        return False
    of = [(one.encoder_digest, one.kept_blocks, one.texts_digest) for one in (before, now)]
    amounts = [(one.num_texts, one.num_pairs, one.num_queries) for one in (before, now)]
    return of[0] == of[1] and any(more > less for more, less in zip(*amounts, strict=True))


def show(result: "LayerProfile", workspace: Workspace, path: Path) -> None:
    """The profile, which was written to `path`, as JSON, or as sentences and a table; the figure in either case."""
    from truncate_kit.report.analysis_figure import draw_analysis
    from truncate_kit.report.analysis_table import analysis_table

    figure = draw_analysis(result, path.with_name(f"{path.stem.replace('profile', 'curve')}.png"))
    if workspace.quiet:
        print_json(result)
        return
    note(*result.statements())
    if result.reference is None:
        note("Name a model without such a drop, best a masked language model of the same depth, with --reference.")
    table(*analysis_table(result))
    if result.best_sentence is not None:
        say(result.best_sentence)
    say(result.sentence)
    say(f"Saved: {path}, {figure}")
