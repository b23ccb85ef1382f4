"""Commands that measure: analyze, evaluate, compare, bench."""

import os
import tempfile
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from truncate_kit.core.errors import UsageError
from truncate_kit.core.files import local_path
from truncate_kit.core.hardware import Runtime
from truncate_kit.core.results import blocks_named
from truncate_kit.core.vectors import VectorFormat, VectorPrecision
from truncate_kit.core.workspace import Source, model_digest, read_origin
from truncate_kit.evaluation.suites import SUITES

from . import options
from .console import note, progress_bar, say, show
from .options import (
    Hardware,
    Output,
    Pairs,
    Workspace,
    argument,
    command,
    data_option,
    layers_option,
    machine_option,
    refuse,
    results_option,
)

if TYPE_CHECKING:
    from truncate_kit.analysis.result import AnalysisSettings
    from truncate_kit.bench.result import BenchSettings
    from truncate_kit.core.vectors import TextEncoder
    from truncate_kit.data.pairs import PairSet
    from truncate_kit.data.retrieval import RetrievalSet
    from truncate_kit.evaluation import SuiteReport
    from truncate_kit.models.encoder import Encoder

    TimedModel = Path | Encoder


@command(
    "truncate-kit analyze google/electra-base-discriminator --reference bert-base-cased --data stsb",
    "truncate-kit analyze MODEL --data FOLDER            # queries and documents",
    result="analysis.result:LayerProfile",
)
def analyze(
    model: options.Model = None,
    *,
    pairs: Pairs,
    texts: Path | None = data_option(None, "File of texts to compare the layers on; needs no scores."),
    split: str | None = data_option(None, "Split: train, dev, test or a qrels file; by default the last."),
    search_metric: options.SearchMetric = None,
    pooling: options.Pooling = None,
    max_length: options.MaxLength = None,
    reference: str | None = layers_option(None, "Reference model, or none; by default mini-bert for miniatures."),
    blocks: options.Blocks = None,
    settings: "AnalysisSettings",
    hardware: Hardware,
    workspace: Output,
) -> None:
    """Compare the layers of a model with a reference model; predict if scores drop, and from which layer."""
    kept, only_texts = None if blocks is None else blocks_named(blocks), texts is not None and pairs.data is None
    if only_texts:
        refuse("--data", split=split, search_metric=search_metric)
        pairs.refuse_details("--data")
    from truncate_kit.analysis.profile import profile
    from truncate_kit.core.workspace import default_reference
    from truncate_kit.data.retrieval import RetrievalSet
    from truncate_kit.data.seen import seen_among
    from truncate_kit.data.tables import iter_texts
    from truncate_kit.models.loading import load_encoder

    source = workspace.starting_model(model, pooling, max_length, or_miniature=pairs.data is None and texts is None)
    encoder = workspace.load(source, device=hardware.device)
    reference_name = default_reference(source.name) if reference is None else reference
    other = None
    if reference_name is not None and reference_name != "none":
        other = load_encoder(reference_name, max_length=source.max_length, device=hardware.device)
    if settings.raw and encoder.final_norm is None:
        note(f"{encoder.name} has no final norm, so --raw has no effect.")
    scored, data_source = None, None
    if not only_texts:
        data, data_source = workspace.read(pairs, split=split, metric=search_metric)
        scored = data if isinstance(data, RetrievalSet) else data.split(split)
        note(f"Analyzed: {scored.name}.", seen_among(scored, source.name))
    with workspace.held():
        result = profile(
            encoder,
            None if texts is None else list(iter_texts(texts)),
            reference=other,
            pairs=None if isinstance(scored, RetrievalSet) else scored,
            retrieval=scored if isinstance(scored, RetrievalSet) else None,
            settings=replace(settings, blocks=kept, pooling=None if source.pooling is None else encoder.pooling),
            progress=progress_bar(),
        )
        path = workspace.write(result, workspace.profile)
        workspace.remember(source, data_source)
    show(result, path, figures=path.parent)


@command(
    "truncate-kit evaluate MODEL --data pairs.csv",
    "truncate-kit evaluate exported/lean --data FOLDER --graph int8",
    result="evaluation:SuiteReport",
)
def evaluate(
    model: options.Finished = None,
    *,
    pairs: Pairs,
    split: str | None = data_option(None, "Split: train, dev, test or a qrels file; by default test."),
    suite: str | None = data_option(None, "Score on the data sets in --data.", choices=SUITES),
    seen: str | None = data_option(None, "With --suite sts: the model's training pairs, a file or folder."),
    fractions: str | None = data_option(None, "With --suite transfer: shares of training rows, such as 0.1,0.5,1."),
    quick: bool = data_option(False, "With --suite transfer: a faster estimate on fewer rows and splits.", "--quick"),
    head: bool = layers_option(
        False, "With --suite transfer: pass means through the model's trained pooler.", "--head"
    ),
    corpus: str | None = data_option(None, "With --suite retrieval: a file of additional texts to search."),
    mteb: list[str] | None = data_option(None, "A task of the mteb package; repeatable.", metavar="TASK"),
    against: str | None = data_option(None, "With --mteb: also score this full model.", metavar="FULL"),
    pooling: options.Pooling = None,
    max_length: options.MaxLength = None,
    runtime: Runtime | None = machine_option(None, "By default that of --graph or of a graph file."),
    graph: options.Graph = None,
    hardware: Hardware,
    vectors: VectorPrecision = results_option("float32", "Precision of the scored vectors."),
    dimensions: options.Dimensions = None,
    workspace: Workspace,
) -> None:
    """Score a model on graded pairs (correlation), queries and documents (nDCG@10), a suite, or tasks of MTEB."""
    own: dict[str, Any] = {"seen": seen, "quick": quick, "head": head, "corpus": corpus, "fractions": None}
    if fractions:
        own["fractions"] = options.numbers_of("fractions", fractions)
    if mteb:
        refuse("your own data, not with --mteb", suite=suite, data=pairs.data)
    else:
        refuse("--mteb", against=against)
    if suite is not None and pairs.data is None:
        hint = "Give the suite's data folder as --data, or for retrieval a file of queries and answers."
        raise UsageError(f"--suite {suite} needs its data.", hint=hint)
    for name, (_, others) in SUITES.items():
        if name != suite:
            refuse(f"--suite {name}", **{option: own[option] for option in others})
    form = VectorFormat(precision=vectors, dimensions=dimensions)
    if suite is not None or mteb:
        pairs.refuse_details()
        refuse("your own pairs or queries", split=split, dimensions=dimensions, vectors=vectors != "float32")
    tasks = _mteb_tasks(mteb) if mteb else []

    from truncate_kit.evaluation.suites import run_suite

    source = workspace.finished_model(model, pooling, max_length)
    encoder = workspace.load_text_encoder(source, runtime, graph, hardware)
    stored = suite is not None or bool(tasks)
    with workspace.held() if stored else nullcontext():
        if tasks:
            load = {"max_length": max_length, "threads": hardware.threads, "device": hardware.device}
            report = _mteb(tasks, encoder, source.name, against, load)
        elif suite is not None:
            run: dict[str, Any] = {"work": workspace.folder / "trials", "note": note, "progress": progress_bar()}
            report = run_suite(suite, encoder, pairs.data, own, model=source.name, threads=hardware.threads, **run)
        else:
            report = _scored(encoder, source.name, pairs, split, form, workspace)
        report = replace(report, sha256=model_digest(source.name)) if stored else report
        saved = [workspace.write(report, workspace.suite(report.suite))] if stored else []
    show(report, *saved, figures=workspace.folder if stored else None)
    if encoder.heads is not None and (tasks or report.suite in ("search", "retrieval")):
        from truncate_kit.report.training import CODES

        say(CODES)


def _scored(
    encoder: "TextEncoder", model: str, pairs: Pairs, split: str | None, form: VectorFormat, workspace: Workspace
) -> "SuiteReport":
    from truncate_kit.data.retrieval import RetrievalSet
    from truncate_kit.data.seen import seen_among
    from truncate_kit.evaluation.graded import score_pairs

    splits, _ = workspace.read(pairs, split=split)
    if isinstance(splits, RetrievalSet):
        from truncate_kit.evaluation.retrieval import evaluate_retrieval, note_of_searched

        note(seen_among(splits, model), *note_of_searched(model, encoder, splits))
        return evaluate_retrieval(encoder, splits, model=model, form=form, progress=progress_bar())
    if split is None or splits.split(split) is splits.evaluation:  # other splits are scored whole
        splits = workspace.unseen(splits, model)
    scored, last = splits.split(split), splits.items()[-1][0]
    note(seen_among(scored, model))
    data = f"{scored.name}, {split or ('all' if splits.one_file and last == 'train' else last)}"
    return score_pairs(encoder, scored.pairs, model=model, data=data, form=form)


def _mteb_tasks(names: Sequence[str]) -> list[Any]:
    # mteb makes a cache folder on import.
    os.environ.setdefault("MTEB_CACHE", tempfile.gettempdir())
    from truncate_kit.evaluation.mteb import find_tasks

    return find_tasks(names)


def _mteb(
    tasks: Sequence[Any], encoder: "TextEncoder", model: str, against: str | None, options: dict[str, Any]
) -> "SuiteReport":
    from truncate_kit.evaluation.mteb import compare_mteb, evaluate_mteb
    from truncate_kit.export.runtime import load_text_encoder

    progress = progress_bar()
    lean = evaluate_mteb(encoder, tasks, model=model, progress=progress)
    if against is None:
        return lean
    full = load_text_encoder(against, **options)
    return compare_mteb(evaluate_mteb(full, tasks, model=against, progress=progress), lean)


@command("truncate-kit compare FULL exported/lean --data FOLDER", result="evaluation:SuiteReport")
def compare(
    full: str = argument(..., "FULL", "Full model that made the index: folder, hub name or graph file."),
    lean: str = argument(..., "LEAN", "Lean model, preferably distilled from FULL."),
    *,
    data: str = data_option(..., "Folder of corpus.jsonl, queries.jsonl and qrels/test.tsv (BEIR's layout)."),
    split: str | None = data_option(None, "Split: a qrels file; by default test, else dev."),
    max_length: options.MaxLength = None,
    hardware: Hardware,
    top: int = results_option(10, "Number of retrieved documents scored for each query.", min=1),
) -> None:
    """Compare search by a full model, a lean model, and lean queries on the full model's index, in float32 and int8."""
    from truncate_kit.data.retrieval import read_retrieval
    from truncate_kit.data.seen import seen_among
    from truncate_kit.evaluation.retrieval import compare as run
    from truncate_kit.evaluation.retrieval import note_of_searched
    from truncate_kit.export.runtime import load_text_encoder

    searched = read_retrieval(data, split=split)
    note(*dict.fromkeys(seen_among(searched, name) for name in (full, lean)))
    load: dict[str, Any] = {"max_length": max_length, "threads": hardware.threads, "device": hardware.device}
    first, second = (load_text_encoder(name, **load) for name in (full, lean))
    note(*note_of_searched(lean, second, searched))
    report = run(first, second, searched, names=(full, lean), top=top, progress=progress_bar())
    show(report)
    if any(encoder.heads is not None for encoder in (first, second)):
        from truncate_kit.report.training import CODES

        say(CODES)


@command(
    "truncate-kit bench --quick",
    "truncate-kit bench LEAN --full FULL --data pairs.csv --backends torch-fp32,onnx-fp32",
    result="bench.result:BenchReport",
)
def bench(
    lean: str | None = argument(None, "LEAN", "Lean model: folder, hub name or miniature; by default WORKSPACE/lean."),
    *,
    full: str | None = layers_option(None, "Model to compare with; by default the lean model's full model."),
    random_weights: str | None = layers_option(
        None, "Time models with random weights: config.json, folder or hub name.", metavar="CONFIG"
    ),
    layer: int | None = layers_option(None, "With --random-weights: layers of the lean model; by default half."),
    blocks: str | None = layers_option(None, "Compare these blocks of LEAN with all blocks of LEAN."),
    pairs: Pairs,
    values: "Annotated[dict[str, Any], BenchSettings]",
    quick: bool = machine_option(False, "Faster: fewer rounds and texts, no peak memory, no torch.compile.", "--quick"),
    hardware: Hardware,
    workspace: Output,
) -> None:
    """Measure the lean model against the full one: latency, throughput, memory, file size and quality."""
    from truncate_kit.bench.result import QUICK, BenchSettings
    from truncate_kit.bench.run import bench as run
    from truncate_kit.report.card import add_result

    kept = options.kept(layer, blocks)
    blocked = kept if isinstance(kept, tuple) else None  # the bench cuts LEAN to these blocks
    if random_weights is None:
        refuse("--random-weights", layer=layer)
    elif lean or full:
        raise UsageError("--random-weights makes both models.", hint="Leave out LEAN and --full.")
    machine: dict[str, Any] = {"threads": hardware.threads, "device": hardware.device}
    settings = replace(QUICK if quick else BenchSettings(), **values, **machine, blocks=blocked)
    if random_weights is None:
        ours, theirs = _pair(workspace, lean, full, whole=blocked is not None)
    else:
        ours, theirs = _random_pair(random_weights, layer, whole=blocked is not None)
        note("The weights are random, so no scores are measured; each word is one token.")
    if quick:
        note("Quick: fewer rounds and texts than without --quick, no peak memory, no torch.compile.")
    named = [str(lean or workspace.lean), *([str(theirs)] if isinstance(theirs, Path) else [])]
    scored, texts = _scored_on(workspace, named, pairs)
    source = None if pairs.data is None else Source(pairs.data, **pairs.details())
    data, graphs = (scored, workspace.graphs) if random_weights is None else (None, None)
    with workspace.held():
        report = run(ours, theirs, settings, pairs=data, texts=texts, graphs=graphs, progress=progress_bar())
        path = workspace.write(report, workspace.bench)
        workspace.remember_benched(source)
    if isinstance(ours, Path) and ours.resolve().parent == workspace.folder.resolve():
        add_result(ours, replace(report, exported={}))
    show(report, path, figures=path.parent)


def _scored_on(
    workspace: Workspace, models: Sequence[str], pairs: Pairs
) -> "tuple[PairSet | RetrievalSet, Sequence[str]]":
    from truncate_kit.data.retrieval import RetrievalSet
    from truncate_kit.data.seen import seen_among, unseen_queries

    data, _ = workspace.read(pairs)
    if isinstance(data, RetrievalSet):
        searched, chosen = unseen_queries(data, *models)
        note(chosen)
        return searched, [text for text in (*searched.queries, *searched.documents) if text]
    scored = workspace.unseen(data, *models).evaluation
    note(*(seen_among(scored, model) for model in models))
    return scored, scored.texts()


def _random_pair(config_name: str, layer: int | None, *, whole: bool) -> "tuple[TimedModel, TimedModel]":
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import WhitespaceSplit
    from transformers import PreTrainedTokenizerFast

    from truncate_kit.models.loading import load_config, random_encoder
    from truncate_kit.models.truncation import truncate

    full = random_encoder(load_config(config_name), name=config_name)
    words = Tokenizer(WordLevel({"[UNK]": 0, "[PAD]": 1}, "[UNK]"))
    words.pre_tokenizer = WhitespaceSplit()
    full.tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, unk_token="[UNK]", pad_token="[PAD]")
    return full if whole else truncate(full, full.depth // 2 if layer is None else layer, copy_weights=False), full


def _pair(
    workspace: Workspace, lean: str | None, full: str | None, *, whole: bool
) -> "tuple[TimedModel, TimedModel | None]":
    """Find the models by name, else in the workspace; with `whole`, return the lean one twice."""
    source = workspace.finished_model(lean).name
    ours = local_path(source)
    if full is not None:
        return ours, local_path(full)
    if whole:
        note(f"Compared with: all blocks of {source}.")
        return ours, ours
    made, other = (read_origin(folder) if lean is None else None for folder in (workspace.lean, workspace.full))
    full_name = None
    if made is not None and made.method == "cut":
        full_name = workspace.located(made.model)
    elif made is not None and other is not None:  # `full` may belong to an earlier model
        taught = made.method == "distill" and (other.method, other.source_digest) == ("copy", made.source_digest)
        full_name = str(workspace.full) if taught or made.has_budget_of(other) else None
    if full_name is not None:
        note(f"Compared with: {full_name}.")
        return ours, local_path(full_name)
    note("No full model to compare with: name it with --full.")
    return ours, None
