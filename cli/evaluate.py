"""`truncate-kit evaluate`."""

from typing import TYPE_CHECKING, Annotated

from truncate_kit.errors import UsageError
from truncate_kit.evaluation.registry import SUITES
from truncate_kit.evaluation.transfer import FEWEST_ROWS
from truncate_kit.vectors import VectorFormat

from . import options
from .freeze import CODES
from .mteb import named_tasks, run_mteb
from .options import data_option, layers_option, machine_option, refuse, results_option, shares_in, use_threads
from .output import print_json, progress_bar, say, table
from .suites import Evaluated, check_suite, run_suite
from .workspace import Workspace

if TYPE_CHECKING:
    from truncate_kit.data import PairSplits
    from truncate_kit.evaluation.graded import ModelScore

FORM = VectorFormat()


def evaluate(
    model: options.Finished = None,
    data: options.PairsOrRetrieval = None,
    columns: options.Columns = None,
    scale: options.Scale = None,
    split: Annotated[
        str | None,
        data_option(
            "train, dev or test; by default test, else dev, else what there is. With queries: a file in qrels."
        ),
    ] = None,
    suite: Annotated[
        str | None,
        data_option(
            f"{', '.join(SUITES)}: score on the sets that --data holds; transfer screens sets of layers with a ridge "
            "classifier, where the BERT-LC paper fits each."
        ),
    ] = None,
    seen: Annotated[
        str | None, data_option("With --suite sts: pairs the model was trained on, a file or folder of splits.")
    ] = None,
    fractions: Annotated[
        str | None,
        data_option(
            "With --suite transfer: shares of the training rows, such as 0.1,0.5,1. Where a class is too small for its "
            f"share, rows are drawn at random; fewer than {FEWEST_ROWS} are left out."
        ),
    ] = None,
    quick: Annotated[
        bool, data_option("With --suite transfer: 3 splits, 2,000 rows a set: for a first look.", "--quick")
    ] = False,
    head: Annotated[
        bool,
        layers_option("With --suite transfer: feed means of layers through the model's trained pooler.", "--head"),
    ] = False,
    corpus: Annotated[str | None, data_option("With --suite retrieval: a file of more texts to search.")] = None,
    mteb: Annotated[
        list[str] | None,
        data_option("A task of the mteb package, such as STSBenchmark; give it once for each.", metavar="TASK"),
    ] = None,
    against: Annotated[
        str | None,
        data_option("With --mteb: the model before, to score beside: folder, hub name or .onnx file.", metavar="FULL"),
    ] = None,
    pooling: options.Pooling = None,
    max_length: options.MaxLength = None,
    runtime: Annotated[
        str | None, machine_option("torch or onnx; by default onnx with --graph or an .onnx file, else torch.")
    ] = None,
    graph: options.Graph = None,
    device: options.Device = None,
    threads: Annotated[
        int | None,
        machine_option("CPU threads; by default all cores, and one for the search of --suite retrieval.", min=1),
    ] = None,
    vectors: Annotated[str, results_option("Score them as stored in float32, float16, int8 or binary.")] = (
        FORM.precision
    ),
    dimensions: options.Dimensions = None,
    folder: options.WorkspaceFolder = options.WORKSPACE,
    as_json: options.Json = False,
) -> None:
    """Score a model on graded pairs (correlation), queries and documents (nDCG@10), a suite, or tasks of MTEB."""
    shares = shares_in(fractions, "--fractions") if fractions else None
    own = {"seen": seen, "fractions": shares, "quick": quick, "head": head, "corpus": corpus}
    if mteb:
        refuse("your own sets", suite=suite, data=data)
    else:
        refuse("--mteb", against=against)
    check_suite(suite, data, own)
    if suite is not None or mteb:
        refuse("graded pairs", split=split, columns=columns, scale=scale, dimensions=dimensions)
        if vectors != FORM.precision:
            option = "--mteb" if mteb else "--suite"
            raise UsageError(f"{option} scores the vectors as the model gives them.", hint="Leave out --vectors.")
    tasks = named_tasks(mteb) if mteb else []

    from truncate_kit.export.record import graph_sentence  # seconds, so after the mistakes that need none of it
    from truncate_kit.export.runtime import OnnxEncoder

    use_threads(threads)
    form = VectorFormat(precision=vectors, dimensions=dimensions)  # type: ignore[arg-type]  # checked there
    workspace = Workspace(folder, quiet=as_json)
    queries = None if suite is not None or tasks else workspace.queries(data)
    if queries is not None:
        refuse("graded pairs", columns=columns, scale=scale)
    source = workspace.finished_model(model, pooling, max_length)
    encoder = workspace.load_text_encoder(source, runtime, graph, threads, device)
    used = "torch"
    if isinstance(encoder, OnnxEncoder):
        used = "onnx"
        workspace.note(graph_sentence(encoder.file, encoder.report, encoder.device.type))
    run = Evaluated(encoder, source.name, used, queries or data or "", workspace, threads)
    if tasks:
        run_mteb(tasks, run, against, max_length, device)
        return
    if suite is not None:
        run_suite(suite, run, own)
        return
    if queries is not None:
        _search(run, split, form)
        return
    splits, _ = workspace.data(data, columns, scale)
    measured = split is None or splits.split(split) is splits.evaluation  # whoever names another wants all of it
    if measured:
        splits = workspace.unseen(splits, source.name)
    show(_scored(run, splits, split, form), workspace)


def _search(run: Evaluated, split: str | None, form: "VectorFormat") -> None:
    """Search the documents of a folder for its queries, and show the scores."""
    from truncate_kit.data import read_retrieval
    from truncate_kit.evaluation.retrieval import evaluate_retrieval, note_of_searched
    from truncate_kit.report.search_tables import search_sentences, search_table
    from truncate_kit.seen import seen_among

    data = read_retrieval(run.data, split=split)
    run.workspace.note(seen_among(data, run.name), *note_of_searched(run.name, run.encoder, data))
    with progress_bar(quiet=run.workspace.quiet) as progress:
        score = evaluate_retrieval(run.encoder, data, model=run.name, runtime=run.runtime, form=form, progress=progress)
    if run.workspace.quiet:
        print_json(score)
        return
    table(*search_table(score), on_page=False)
    say(*search_sentences(score))
    if run.encoder.heads is not None:
        say(CODES)


def _scored(run: Evaluated, splits: "PairSplits", split: str | None, form: "VectorFormat") -> "ModelScore":
    """The score on a split, by default on the one to measure on; says where the model was chosen on the same pairs."""
    from truncate_kit.evaluation.graded import ModelScore, evaluate
    from truncate_kit.seen import seen_among
    from truncate_kit.vectors import StoredVectors

    pairs = splits.split(split)
    run.workspace.note(seen_among(pairs, run.name))
    stored = StoredVectors(run.encoder, form)
    found = evaluate(stored, pairs.pairs)
    return ModelScore(
        model=run.name,
        runtime=run.runtime,
        data=pairs.name,
        split=split or _split(splits),
        num_pairs=found.num_pairs,
        spearman=found.spearman,
        pearson=found.pearson,
        vectors=form.precision,
        dimensions=form.kept(stored.width),
        bytes_per_vector=form.bytes_per_vector(stored.width),
    )


def _split(splits: "PairSplits") -> str:
    """The split that is scored by default; `all` of a file that is not divided and not called after one."""
    name = splits.items()[-1][0]
    return "all" if splits.one_file and name == "train" else name


def show(score: "ModelScore", workspace: Workspace) -> None:
    """The score as JSON or as a table of one row."""
    if workspace.quiet:
        print_json(score)
        return
    found = f"{score.data}, {score.split}", f"{score.num_pairs:,}", f"{score.spearman:.2f}", f"{score.pearson:.2f}"
    cells = *found, score.vectors, f"{score.dimensions:,}", f"{score.bytes_per_vector:,}"
    columns = ("set", "pairs", "Spearman", "Pearson", "vectors", "dimensions", "bytes per vector")
    title = f"{score.model} in {score.runtime}, correlation with the scores × 100"
    table(title, columns, [cells], on_page=False)
