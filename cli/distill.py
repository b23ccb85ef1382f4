"""`truncate-kit distill`: the smallest choice of blocks that gives the full model's vectors, without labels."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from truncate_kit.errors import UsageError
from truncate_kit.methods.distill.settings import Budget, DistillSettings
from truncate_kit.workspace import DataSource, ModelSource

from . import options
from .machine import Machine
from .options import data_option, given, layers_option, refuse, training_option, use_threads
from .output import print_json, progress_bar, say, table
from .parameters import in_options
from .pushing import check_push, push
from .verbosity import VERBOSITY
from .workspace import Workspace

if TYPE_CHECKING:
    from collections.abc import Iterator

    from truncate_kit.data import PairSplits, RetrievalSet
    from truncate_kit.methods.distill.result import DistillResult
    from truncate_kit.models import Encoder

USUAL = DistillSettings()
_DIGITS = 10  # more are no layer's number


def distill(
    model: options.Model = None,
    texts: Annotated[
        list[Path] | None,
        data_option(
            "Raw text to learn from, tens of thousands or more, as long as yours, or a folder for retrieval, of which "
            "the documents count; needed, repeatable.",
            metavar="PATH",
        ),
    ] = None,
    queries: Annotated[
        Path | None, data_option("Texts that will be searched with; they get the model's prompt for queries.")
    ] = None,
    data: Annotated[
        str | None,
        data_option("Graded pairs, or a retrieval folder, to choose by; by default agreement with the full model."),
    ] = None,
    columns: options.Columns = None,
    scale: options.Scale = None,
    search_metric: options.SearchMetric = None,
    exclude: Annotated[
        list[Path] | None,
        data_option(
            "Texts or pairs, a folder of them or for retrieval, not to learn from; whole texts count; repeatable.",
            metavar="PATH",
        ),
    ] = None,
    max_texts: Annotated[
        int | None, data_option("Learn from the first texts, this number at most, and from all queries.", min=1)
    ] = None,
    pooling: options.Pooling = None,
    max_length: options.MaxLength = None,
    within: Annotated[
        float | None,
        layers_option(
            "The fewest blocks that lose at most these points; 1 by default. Without --data a point is three points of "
            "agreement with the full model."
        ),
    ] = None,
    blocks: Annotated[str | None, layers_option("How many blocks (3), or which ones (1,4,6).")] = None,
    speedup: Annotated[float | None, layers_option("The most blocks that are this number of times as fast.")] = None,
    megabytes: Annotated[float | None, layers_option("The most blocks that fit in this size, in float32.")] = None,
    layer: Annotated[
        str,
        layers_option("Learn this layer's vectors: a number, last, or auto, the one before a predicted drop."),
    ] = "auto",
    vocabulary_from: options.VocabularyFrom = None,
    frontier: Annotated[
        bool,
        layers_option(
            "Measure graphs of what learned as well, with --blocks of one size: precisions, dimensions, words.",
            "--frontier",
        ),
    ] = False,
    epochs: Annotated[int, training_option("Passes over the texts; ends earlier where agreement stops growing.")] = (
        USUAL.epochs
    ),
    batch_size: Annotated[
        int, training_option("Texts per step; 64 and more keep a GPU busy, few teach more.")
    ] = USUAL.batch_size,
    learning_rate: Annotated[
        float | None,
        training_option(
            "Peak rate; by default 5e-4 at width 384, up to 1e-3 below, less above; a third where few blocks go."
        ),
    ] = USUAL.learning_rate,
    similarity: Annotated[
        float, training_option("Weight of the cosines within a batch beside the vectors themselves.")
    ] = USUAL.similarity,
    states: Annotated[
        float,
        training_option("Weight of the states behind each kept block; runs the full model at every step."),
    ] = USUAL.states,
    train_embeddings: Annotated[
        bool, training_option("Let word and position embeddings learn as well.", "--train-embeddings")
    ] = USUAL.train_embeddings,
    query_weight: Annotated[float, training_option("Weight of a query against a text.")] = USUAL.query_weight,
    precision: options.Precision = USUAL.precision,
    engine: options.Engine = "local",
    workers: options.Workers = None,
    ray_address: options.RayAddress = None,
    gpus_per_worker: options.Gpus = None,
    device: options.Device = None,
    threads: options.SharedThreads = None,
    folder: options.WorkspaceFolder = options.WORKSPACE,
    push_to: options.Push = None,
    public: options.Public = False,
    as_json: options.Json = False,
) -> None:
    """Keep the fewest blocks that still give the full model's vectors, which they learn from raw text."""
    if not texts:
        raise UsageError("There are no texts to learn from.", hint="Give --texts FILE, like those to be served.")
    from truncate_kit.data import iter_texts
    from truncate_kit.methods.distill.distilling import distill as run
    from truncate_kit.methods.distill.texts import RawTexts
    from truncate_kit.training.distributed import joined

    if data is None:
        refuse("--data", columns=columns, scale=scale, search_metric=search_metric)
    check_push(push_to, public)
    machine = Machine(engine, workers, ray_address, gpus_per_worker, device, threads)
    budget = Budget(within=within, speedup=speedup, megabytes=megabytes, blocks=blocks)
    settings = DistillSettings(
        epochs=epochs,
        batch_size=batch_size,
        learning_rate=learning_rate,
        similarity=similarity,
        states=states,
        train_embeddings=train_embeddings,
        max_texts=max_texts,
        query_weight=query_weight,
        precision=precision,  # type: ignore[arg-type]  # checked by the settings themselves
        frontier=frontier,
    )
    _layer_named(layer)
    if queries is None and query_weight != USUAL.query_weight:
        raise UsageError("--query-weight weighs queries.", hint="Add --queries.")
    use_threads(threads)
    left_out = {text for path in exclude or () for text in _texts_in(path)}
    with joined(device) as (group, here):
        workspace = Workspace(folder, quiet=as_json or not group.leads)
        source = workspace.starting_model(model, pooling, max_length)
        held_out, found = _held_out(data, columns, scale, search_metric, workspace)
        encoder = workspace.load(source, device=here, precision=precision)
        vocabulary = None if vocabulary_from is None else _texts_in(vocabulary_from)
        aim = _aim(layer, encoder, source, texts, budget, workspace) if group.leads else None
        settings = replace(settings, layer=group.agree(aim))
        asked = iter_texts(queries) if queries is not None else ()
        workspace.note_replaced(source, distilled=True)
        with machine.open() as at_work, progress_bar(quiet=workspace.quiet) as progress:
            result = run(
                encoder,
                RawTexts(texts=_learned_from(texts), queries=asked, exclude=left_out, vocabulary=vocabulary),
                out=folder,
                budget=budget,
                settings=settings,
                data=held_out,
                engine=at_work,
                group=group,
                progress=progress,
            )
        if not group.leads:
            return
    workspace.remember(source, found, queries=None if found else data)
    _show(result, workspace)
    push(workspace.lean, push_to, public, quiet=as_json)


def _held_out(
    data: str | None, columns: str | None, scale: str | None, search_metric: str | None, workspace: Workspace
) -> "tuple[PairSplits | RetrievalSet | None, DataSource | None]":
    """What is chosen by and reported on, and what the workspace remembers of it where these are pairs."""
    from truncate_kit.data import is_retrieval_folder, read_retrieval

    if data is None:
        return None, None
    if is_retrieval_folder(data):
        refuse("graded pairs", columns=columns, scale=scale)
        searched = read_retrieval(data, chooses=True, **given(metric=search_metric))
        workspace.note(searched.note)
        return searched, None
    refuse("a retrieval folder", search_metric=search_metric)
    pairs, found = workspace.data(data, columns, scale)
    return pairs if pairs.dev is not None else workspace.divided(pairs), found  # no train pairs are needed


def _aim(
    layer: str, encoder: "Encoder", source: ModelSource, texts: list[Path], budget: Budget, workspace: Workspace
) -> int | None:
    """The layer whose vectors are learned, None for the last; by default the one before a predicted drop."""
    from truncate_kit.methods.distill.distilling import find_aim

    named = _layer_named(layer)
    if named is not None or layer == "last":
        return named
    aim, drop = find_aim(encoder, _learned_from(texts), budget, max_length=source.max_length)
    if drop is not None and aim is None:
        workspace.note(
            f"{drop.sentence} The vectors of its end are no good aim: cut it first (`truncate-kit cut {source.name} "
            f"--layer {drop.last_before}`), or train it with `truncate-kit finetune`."
        )
    elif drop is not None:
        workspace.note(
            f"{drop.sentence} So the vectors of layer {aim} are learned; --layer last learns those of the end."
        )
    return aim


def _layer_named(layer: str) -> int | None:
    """The layer, None where it is to be found or the last one. Raises `UsageError` for what is none of these."""
    if layer.isdecimal() and len(layer) < _DIGITS:
        return int(layer)
    if layer not in ("auto", "last"):
        raise UsageError(f"{layer!r} is no layer.", hint="Give --layer as a number, as auto or as last.")
    return None


def _learned_from(paths: list[Path]) -> "Iterator[str]":
    """The texts of files and the documents of retrieval folders, one after the other; documents may be empty."""
    from truncate_kit.data import is_retrieval_folder, iter_texts, read_retrieval

    for path in paths:
        if is_retrieval_folder(path):
            yield from filter(None, read_retrieval(path, chooses=True).documents)
        else:
            yield from iter_texts(path)


def _texts_in(path: Path) -> list[str]:
    """All texts of a file, of the files of a folder, or of a retrieval folder."""
    from truncate_kit.data import is_retrieval_folder, read_retrieval, read_texts

    if is_retrieval_folder(path):
        return sorted(read_retrieval(path, chooses=True).held_out - {""})
    files = sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]
    return [text for file in files for text in read_texts(file)]


def _show(result: "DistillResult", workspace: Workspace) -> None:
    from truncate_kit.report.frontier_figure import draw_frontier
    from truncate_kit.report.training_tables import frontier_table, rules_table, sizes_table

    figure = draw_frontier(result, workspace.folder / "frontier.png")
    if workspace.quiet:
        print_json(result)
        return
    say(f"Texts: {result.texts.sentence}", *(result.vocabulary.sentences if result.vocabulary is not None else ()))
    say(*(in_options(sentence, "distill") for sentence in result.notes))
    sizes = [row.blocks for row in result.candidates]
    measured = result.frontier is not None  # whose table holds what these rows are for
    table(*sizes_table(result), marked=sizes.index(result.chosen), detail=measured)
    table(*rules_table(result.search, result.metric), detail=True)
    say(result.search_sentence)
    if result.tryout_sentence:
        say(result.tryout_sentence)
    if result.frontier is not None:
        table(*frontier_table(result.frontier, result.metric, result.graph, every=VERBOSITY.verbose))
    say(result.sentence)
    if result.graph_sentence:
        say(in_options(result.graph_sentence, "distill"))
    say(f"Saved: {workspace.lean}, {workspace.full}, {figure}")
