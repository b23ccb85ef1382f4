"""Commands that measure: analyze, evaluate, compare, bench."""

import os
import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from truncate_kit.core.errors import UsageError, known_name
from truncate_kit.core.files import local_path
from truncate_kit.core.origin import read_origin
from truncate_kit.core.results import file_for, first_free
from truncate_kit.core.settings import blocks_named, numbers
from truncate_kit.core.vectors import VectorFormat
from truncate_kit.core.workspace import DataSource, read_result
from truncate_kit.evaluation import SUITES
from truncate_kit.evaluation.suite import SuiteReport, SuiteRun, measured_digest

from . import options
from .console import progress_bar, show
from .options import (
    argument,
    command,
    data_option,
    given,
    layers_option,
    machine_option,
    names_in,
    refuse,
    results_option,
    scale_in,
    use_threads,
)
from .workspace import Workspace

if TYPE_CHECKING:
    from truncate_kit.analysis.result import AnalysisSettings, LayerProfile
    from truncate_kit.bench.result import BenchReport, BenchSettings
    from truncate_kit.data.pairs import PairSet, PairSplits
    from truncate_kit.data.retrieval import RetrievalSet
    from truncate_kit.export.runtime import OnnxEncoder
    from truncate_kit.models.encoder import Encoder

    TimedModel = Path | Encoder

CODES = (
    "Its vectors are codes that its own score compares (evaluate uses it, and a graph has it inside); the cosine of a "
    "search leaves out what the score has learnt."
)


@command(
    "truncate-kit analyze google/electra-base-discriminator --reference bert-base-cased --data stsb",
    "truncate-kit analyze MODEL --data FOLDER            # queries and documents",
)
def analyze(
    model: options.Model = None,
    data: options.PairsOrRetrieval = None,
    texts: Path | None = data_option(None, "File of texts to compare the layers on; needs no scores."),
    columns: options.Columns = None,
    scale: options.Scale = None,
    split: str | None = data_option(
        None, "train, dev or test; by default the last of them that is there. With queries: a file in qrels."
    ),
    search_metric: options.SearchMetric = None,
    pooling: options.Pooling = None,
    max_length: options.MaxLength = None,
    reference: str | None = layers_option(
        None, "Model to compare with, or none; by default mini-bert for the other miniatures, none for all else."
    ),
    blocks: options.Blocks = None,
    *,
    settings: "AnalysisSettings",
    device: options.Device = None,
    threads: options.Threads = None,
    folder: options.WorkspaceFolder = options.WORKSPACE,
    as_json: options.Json = False,
) -> None:
    """Compare all layers of a model with a reference; predict whether scores drop at its end, and from where on."""
    kept = None if blocks is None else blocks_named(blocks)
    only_texts = texts is not None and data is None
    if only_texts:
        refuse("--data", columns=columns, scale=scale, split=split, search_metric=search_metric)
    from truncate_kit.analysis.profile import profile
    from truncate_kit.analysis.result import LayerProfile
    from truncate_kit.core.origin import default_reference
    from truncate_kit.data.retrieval import read_retrieval
    from truncate_kit.data.seen import seen_among
    from truncate_kit.data.tables import iter_texts
    from truncate_kit.models.loading import load_encoder

    use_threads(threads)
    workspace = Workspace(folder, quiet=as_json)
    queries = None if only_texts else workspace.queries(data, columns, scale)
    if queries is None:
        refuse("a retrieval folder", search_metric=search_metric)
    searched = None if queries is None else read_retrieval(queries, split=split, **given(metric=search_metric))
    source = workspace.starting_model(model, pooling, max_length, or_miniature=data is None and texts is None)
    encoder = workspace.load(source, device=device)
    beside = default_reference(source.name) if reference is None else reference
    other = None
    if beside is not None and beside != "none":
        other = load_encoder(beside, max_length=source.max_length, device=device)
    if settings.raw and encoder.final_norm is None:
        workspace.note(f"{encoder.name} has no final norm: its states are the same without --raw.")
    pairs, found = None, None
    if searched is not None:
        workspace.note(f"Analyzed: {searched.name}.", seen_among(searched, source.name))
    elif not only_texts:
        splits, found = workspace.data(data, columns, scale)
        pairs = splits.split(split)
        workspace.note(f"Analyzed: {pairs.name}.", seen_among(pairs, source.name))
    with workspace.held(), progress_bar(quiet=as_json) as progress:
        result = profile(
            encoder,
            None if texts is None else list(iter_texts(texts)),
            reference=other,
            pairs=pairs,
            retrieval=searched,
            settings=replace(settings, blocks=kept, pooling=None if source.pooling is None else encoder.pooling),
            progress=progress,
        )
        path = first_free(workspace.profile, lambda file: not _saw_more(read_result(LayerProfile, file), result))
        result.write(path)
        workspace.remember(source, found, queries=queries)
    if path != workspace.profile:
        workspace.note(f"{workspace.profile} saw more of the same texts than this analysis and stays as it is.")
    ending = path.stem.removeprefix(workspace.profile.stem)
    (figure,) = show(result, as_json=as_json, figures=path.parent, ending=ending)
    if result.reference is None:
        workspace.note(
            "Name a model without such a drop, best a masked language model of the same depth, with --reference."
        )
    workspace.say(f"Saved: {path}, {figure}")


def _saw_more(before: "LayerProfile | None", now: "LayerProfile") -> bool:
    """Return whether an earlier profile is of the same model and texts, and of more of them or of more scores.

    That of another model or of other texts is replaced: the next commands take up what was looked at last.
    """
    if before is None:
        return False
    of = [(one.encoder_digest, one.kept_blocks, one.texts_digest) for one in (before, now)]
    amounts = [(one.num_texts, one.num_pairs, one.num_queries) for one in (before, now)]
    return of[0] == of[1] and any(more > less for more, less in zip(*amounts, strict=True))


@dataclass(frozen=True, slots=True)
class Evaluated:
    """A model that is ready to encode, what to score it on, and where. threads: None where they were not given."""

    encoder: "Encoder | OnnxEncoder"
    name: str
    runtime: str
    data: str
    workspace: Workspace
    threads: int | None


@command(
    "truncate-kit evaluate MODEL --data pairs.csv",
    "truncate-kit evaluate exported/lean --data FOLDER --graph int8",
)
def evaluate(
    model: options.Finished = None,
    data: options.PairsOrRetrieval = None,
    columns: options.Columns = None,
    scale: options.Scale = None,
    split: str | None = data_option(
        None, "train, dev or test; by default test, else dev, else what there is. With queries: a file in qrels."
    ),
    suite: str | None = data_option(
        None,
        f"{', '.join(SUITES)}: score on the sets that --data holds; transfer screens sets of layers with a ridge "
        "classifier, where the BERT-LC paper fits each.",
    ),
    seen: str | None = data_option(
        None, "With --suite sts: pairs the model was trained on, a file or folder of splits."
    ),
    fractions: str | None = data_option(
        None,
        "With --suite transfer: shares of the training rows, such as 0.1,0.5,1. Where a class is too small for its "
        "share, rows are drawn at random; fewer than 8 are left out.",
    ),
    quick: bool = data_option(False, "With --suite transfer: 3 splits, 2,000 rows a set: for a first look.", "--quick"),
    head: bool = layers_option(
        False, "With --suite transfer: feed means of layers through the model's trained pooler.", "--head"
    ),
    corpus: str | None = data_option(None, "With --suite retrieval: a file of more texts to search."),
    mteb: list[str] | None = data_option(
        None, "A task of the mteb package, such as STSBenchmark; give it once for each.", metavar="TASK"
    ),
    against: str | None = data_option(
        None, "With --mteb: the model before, to score beside: folder, hub name or .onnx file.", metavar="FULL"
    ),
    pooling: options.Pooling = None,
    max_length: options.MaxLength = None,
    runtime: str | None = machine_option(
        None, "torch or onnx; by default onnx with --graph or an .onnx file, else torch."
    ),
    graph: options.Graph = None,
    device: options.Device = None,
    threads: int | None = machine_option(
        None, "CPU threads; by default all cores, and one for the search of --suite retrieval.", min=1
    ),
    vectors: str = results_option("float32", "Score them as stored in float32, float16, int8 or binary."),
    dimensions: options.Dimensions = None,
    folder: options.WorkspaceFolder = options.WORKSPACE,
    as_json: options.Json = False,
) -> None:
    """Score a model on graded pairs (correlation), queries and documents (nDCG@10), a suite, or tasks of MTEB."""
    own = {"seen": seen, "fractions": _fractions(fractions), "quick": quick, "head": head, "corpus": corpus}
    if mteb:
        refuse("your own sets", suite=suite, data=data)
    else:
        refuse("--mteb", against=against)
    if suite is not None:
        known_name("suite", suite, SUITES)
        if data is None:
            raise UsageError(f"--suite {suite} needs its data.", hint=f"Name {SUITES[suite].data} with --data.")
    for name, other in SUITES.items():
        if name != suite:
            refuse(f"--suite {name}", **{option: own[option] for option in other.options})
    form = VectorFormat(precision=vectors, dimensions=dimensions)  # type: ignore[arg-type]  # checked there
    if suite is not None or mteb:
        refuse("graded pairs", split=split, columns=columns, scale=scale, dimensions=dimensions)
        if vectors != "float32":
            option = "--mteb" if mteb else "--suite"
            raise UsageError(f"{option} scores the vectors as the model gives them.", hint="Leave out `vectors`.")
    tasks = _mteb_tasks(mteb) if mteb else []

    from truncate_kit.export.record import graph_sentence  # seconds, so after the mistakes that need none of it
    from truncate_kit.export.runtime import OnnxEncoder

    use_threads(threads)
    workspace = Workspace(folder, quiet=as_json)
    queries = None if suite is not None or tasks else workspace.queries(data, columns, scale)
    source = workspace.finished_model(model, pooling, max_length)
    encoder = workspace.load_text_encoder(source, runtime, graph, threads, device)
    used = "torch"
    if isinstance(encoder, OnnxEncoder):
        used = "onnx"
        workspace.note(graph_sentence(encoder.file, encoder.report, encoder.device.type))
    run = Evaluated(encoder, source.name, used, queries or data or "", workspace, threads)
    if tasks:
        _run_mteb(tasks, run, against, max_length, device)
    elif suite is not None:
        _run_suite(suite, run, own)
    elif queries is not None:
        _search(run, split, form)
    else:
        splits, _ = workspace.data(data, columns, scale)
        measured = split is None or splits.split(split) is splits.evaluation  # whoever names another wants all of it
        if measured:
            splits = workspace.unseen(splits, source.name)
        show(_scored(run, splits, split, form), as_json=as_json)


def _fractions(text: str | None) -> tuple[float, ...] | None:
    try:
        return numbers(text) if text else None
    except ValueError as error:
        raise UsageError(
            f"`fractions` {text!r} is not a list of numbers.", hint="Write it as `fractions=0.1,0.5,1`."
        ) from error


def _search(run: Evaluated, split: str | None, form: VectorFormat) -> None:
    """Search the documents of a folder for its queries, and show the scores."""
    from truncate_kit.data.retrieval import read_retrieval
    from truncate_kit.data.seen import seen_among
    from truncate_kit.evaluation.retrieval import evaluate_retrieval, note_of_searched

    data = read_retrieval(run.data, split=split)
    run.workspace.note(seen_among(data, run.name), *note_of_searched(run.name, run.encoder, data))
    with progress_bar(quiet=run.workspace.quiet) as progress:
        score = evaluate_retrieval(run.encoder, data, model=run.name, runtime=run.runtime, form=form, progress=progress)
    show(score, as_json=run.workspace.quiet)
    if run.encoder.heads is not None:
        run.workspace.say(CODES)


def _scored(run: Evaluated, splits: "PairSplits", split: str | None, form: VectorFormat) -> SuiteReport:
    """Score a split, by default the one to measure on; say if the model was chosen on the same pairs."""
    from truncate_kit.data.seen import seen_among
    from truncate_kit.evaluation.graded import score_pairs

    pairs = splits.split(split)
    run.workspace.note(seen_among(pairs, run.name))
    last = splits.items()[-1][0]
    data = f"{pairs.name}, {split or ('all' if splits.one_file and last == 'train' else last)}"
    return score_pairs(run.encoder, pairs.pairs, model=run.name, runtime=run.runtime, data=data, form=form)


def _run_suite(name: str, model: Evaluated, own: Mapping[str, Any]) -> None:
    """Run a suite, write its result into the workspace, and show it."""
    suite, workspace = SUITES[name], model.workspace
    with workspace.held(), progress_bar(quiet=workspace.quiet) as progress:
        run = SuiteRun(
            encoder=model.encoder,
            model=model.name,
            runtime=model.runtime,
            data=model.data,
            options=own,
            threads=model.threads,
            work=workspace.folder / "trials",
            note=lambda text: workspace.note(text),
            progress=progress,
        )
        report = replace(suite.run(run), sha256=measured_digest(model.name))
        path = _write_report(report, workspace)
    _show_report(report, workspace, path, codes=suite.by_cosine and model.encoder.heads is not None)


def _write_report(report: SuiteReport, workspace: Workspace) -> Path:
    """Write a report under the name of its suite, or beside one there that measured more, and say so."""
    usual = workspace.suite(report.suite)
    path = file_for(report, usual)
    report.write(path)
    if path != usual:
        workspace.note(f"{usual} measured more than this run and stays as it is.")
    return path


def _show_report(report: SuiteReport, workspace: Workspace, path: Path, *, codes: bool) -> None:
    """Draw and show a report that is written to `path`. codes: whether cosines leave out what heads have learnt."""
    path.with_suffix(".png").unlink(missing_ok=True)  # that of a report whose place this one takes
    ending = re.sub(r"^suite-[a-z-]*[a-z]", "", path.stem)
    drawn = show(report, as_json=workspace.quiet, figures=path.parent, ending=ending)
    workspace.say(*([CODES] if codes else []), f"Saved: {', '.join(map(str, [path, *drawn]))}")


def _mteb_tasks(names: Sequence[str]) -> list[Any]:
    """Find tasks of the mteb package, before anything is loaded. Raises `UsageError`."""
    # mteb makes the folder of its own result cache when it is imported, which nobody asked for.
    os.environ.setdefault("MTEB_CACHE", tempfile.gettempdir())
    from truncate_kit.evaluation.mteb import find_tasks

    return find_tasks(names)


def _run_mteb(
    tasks: Sequence[Any], run: Evaluated, against: str | None, max_length: int | None, device: str | None
) -> None:
    """Score the model, and the one to compare it with, which reads as many tokens; write and show the result."""
    from truncate_kit.evaluation.mteb import compare_mteb, evaluate_mteb
    from truncate_kit.export.runtime import OnnxEncoder, load_text_encoder

    encoders = [(run.name, run.encoder)]
    if against is not None:
        encoders.append(
            (against, load_text_encoder(against, max_length=max_length, threads=run.threads, device=device))
        )
    with run.workspace.held(), progress_bar(quiet=run.workspace.quiet) as progress:
        lean, *others = (
            evaluate_mteb(
                encoder,
                tasks,
                model=name,
                runtime="onnx" if isinstance(encoder, OnnxEncoder) else "torch",
                progress=progress,
            )
            for name, encoder in encoders
        )
        report = compare_mteb(others[0], lean) if others else lean
        report = replace(report, sha256=measured_digest(run.name))
        path = _write_report(report, run.workspace)
    codes = any(encoder.heads is not None for _, encoder in encoders)
    _show_report(report, run.workspace, path, codes=codes)


@command("truncate-kit compare FULL exported/lean --data FOLDER")
def compare(
    full: str = argument(..., "FULL", "The model whose index there is: folder, hub name or .onnx file."),
    lean: str = argument(..., "LEAN", "The lean model, best one that distill made of it."),
    data: str = data_option(..., "Folder of corpus.jsonl, queries.jsonl and qrels/test.tsv (BEIR's layout)."),
    split: str | None = data_option(None, "The name of a file in qrels; by default test, else dev, else the only one."),
    max_length: options.MaxLength = None,
    device: options.Device = None,
    threads: options.Threads = None,
    top: int = results_option(10, "Number of documents that count for each query.", min=1),
    as_json: options.Json = False,
) -> None:
    """Search with a full model, a lean one, and lean queries on the full model's index, in float32 and int8."""
    from truncate_kit.data.retrieval import read_retrieval
    from truncate_kit.data.seen import seen_among
    from truncate_kit.evaluation.retrieval import compare as run
    from truncate_kit.evaluation.retrieval import note_of_searched
    from truncate_kit.export.runtime import load_text_encoder

    from .console import note, say

    use_threads(threads)
    found = read_retrieval(data, split=split)
    note(*dict.fromkeys(seen_among(found, name) for name in (full, lean)), quiet=as_json)
    first, second = (
        load_text_encoder(name, max_length=max_length, threads=threads, device=device) for name in (full, lean)
    )
    note(*note_of_searched(lean, second, found), quiet=as_json)
    with progress_bar(quiet=as_json) as progress:
        report = run(first, second, found, names=(full, lean), top=top, progress=progress)
    show(report, as_json=as_json)
    if not as_json and any(encoder.heads is not None for encoder in (first, second)):
        say(CODES)


@command(
    "truncate-kit bench --quick",
    "truncate-kit bench LEAN --full FULL --data pairs.csv --backends torch-fp32,onnx-fp32",
)
def bench(
    lean: str | None = argument(None, "LEAN", "Lean model: folder, hub name or miniature; by default WORKSPACE/lean."),
    full: str | None = layers_option(
        None, "Compare with this model; by default the one that WORKSPACE/lean was made beside or cut from."
    ),
    random_weights: str | None = layers_option(
        None, "Time a shape: a config.json, folder or hub name, with random weights.", metavar="CONFIG"
    ),
    layer: int | None = layers_option(None, "With --random-weights: layer of the lean cut; by default half."),
    blocks: str | None = layers_option(
        None, "Keep these of LEAN, such as 1,4,6 or 1..3,6, and compare with all of it."
    ),
    data: options.Data = None,
    columns: options.Columns = None,
    scale: options.Scale = None,
    *,
    values: "Annotated[dict[str, Any], BenchSettings]",
    quick: bool = machine_option(
        False, "Fewer rounds and sentences, no memory, nothing compiled: for a first look.", "--quick"
    ),
    device: options.Device = None,
    threads: options.Threads = None,
    folder: options.WorkspaceFolder = options.WORKSPACE,
    as_json: options.Json = False,
) -> None:
    """Measure the lean model against the full one: latency, throughput, memory, file size and quality."""
    from truncate_kit.bench.result import QUICK, BenchSettings
    from truncate_kit.bench.run import bench as run
    from truncate_kit.core.hardware import select_device

    select_device(device)  # before anything is loaded
    kept = options.kept(layer, blocks)
    blocked = kept if isinstance(kept, tuple) else None  # the bench keeps blocks itself
    whole = blocked is not None
    if random_weights is None:
        refuse("--random-weights", layer=layer)
    elif lean or full:
        raise UsageError("--random-weights stands for both models.", hint="Leave out LEAN and --full.")
    settings = replace(QUICK if quick else BenchSettings(), **values, threads=threads, device=device, blocks=blocked)
    workspace = Workspace(folder, quiet=as_json)
    if random_weights is None:
        ours, theirs = _pair(workspace, lean, full, whole=whole)
    else:
        ours, theirs = _random_pair(random_weights, layer, whole=whole)
    if quick:
        workspace.note("Quick: fewer rounds and sentences than without --quick, no peak memory, nothing compiled.")
    beside = theirs if isinstance(theirs, Path) else None
    pairs, texts = _scored_on(workspace, lean, beside, (data, columns, scale))
    with workspace.held(), progress_bar(quiet=as_json) as progress:
        report = run(ours, theirs, settings, pairs=pairs, texts=texts, graphs=workspace.graphs, progress=progress)
        path = file_for(report, workspace.bench)
        report.write(path)
        workspace.remember_benched(None if data is None else DataSource(data, names_in(columns), scale_in(scale)))
    if path != workspace.bench:
        workspace.note(f"{workspace.bench} {_why_kept(report, workspace)} and stays as it is.")
    path.with_suffix(".png").unlink(missing_ok=True)  # that of the report that was replaced
    figures = show(report, as_json=as_json, figures=path.parent, ending=path.stem.removeprefix(workspace.bench.stem))
    workspace.say(f"Saved: {path}" + (f", {figures[0]}" if figures else " (no figure without scores)"))


def _scored_on(
    workspace: Workspace, lean: str | None, full: Path | None, named: tuple[str | None, str | None, str | None]
) -> "tuple[PairSet | RetrievalSet, Sequence[str]]":
    """Return what no model here has seen of the pairs, or a retrieval set, and the texts of either."""
    from truncate_kit.data.retrieval import read_retrieval
    from truncate_kit.data.seen import seen_among, unseen_queries

    (data, columns, scale), ours = named, [str(lean or workspace.lean), *([] if full is None else [str(full)])]
    if (queries := workspace.queries(data, columns, scale)) is not None:
        found, chosen = unseen_queries(read_retrieval(queries), *ours)
        workspace.note(chosen)
        return found, [text for text in (*found.queries, *found.documents) if text]
    splits, _ = workspace.data(data, columns, scale)
    pairs = workspace.unseen(splits, *ours).evaluation
    workspace.note(*(seen_among(pairs, model) for model in ours))
    return pairs, pairs.texts()


def _random_pair(config_name: str, layer: int | None, *, whole: bool) -> "tuple[TimedModel, TimedModel]":
    """Make a shape cut at a layer and as it is; twice as it is where it is wanted whole."""
    from truncate_kit.models.loading import load_config, random_encoder
    from truncate_kit.models.truncation import truncated_config

    config = load_config(config_name)
    full = random_encoder(config, name=config_name)
    if whole:
        return full, full
    cut = truncated_config(config, config.num_hidden_layers // 2 if layer is None else layer)
    return random_encoder(cut, name=config_name), full


def _pair(
    workspace: Workspace, lean: str | None, full: str | None, *, whole: bool
) -> "tuple[TimedModel, TimedModel | None]":
    """Return the models named, else those in the workspace; say which. Raises `UsageError` without a lean one.

    whole: what the lean one is compared with is all of it, unless another one is named.
    """
    source = workspace.finished_model(lean).name
    ours = local_path(source)
    if full is not None:
        return ours, local_path(full)
    if whole:
        workspace.note(f"Compared with: all of {source}.")
        return ours, ours
    made, other = (read_origin(folder) if lean is None else None for folder in (workspace.lean, workspace.full))
    beside = None
    if made is not None and made.method == "cut":
        beside = workspace.located(made.model)
    elif made is not None and other is not None:  # what lies in `full` may be of an earlier model than `lean`
        taught = made.method == "distill" and (other.method, other.source_digest) == ("copy", made.source_digest)
        beside = str(workspace.full) if taught or made.has_budget_of(other) else None
    if beside is not None:
        workspace.note(f"Compared with: {beside}.")
        return ours, local_path(beside)
    workspace.note("No full model to compare with: name it with --full.")
    return ours, None


def _why_kept(report: "BenchReport", workspace: Workspace) -> str:
    """Say why bench.json is not replaced by this report."""
    before = read_result(type(report), workspace.bench)
    if before is None or before.lean_folder == report.lean_folder:
        return "measured more than this bench"
    return f"is of another lean model, {before.lean.name},"
