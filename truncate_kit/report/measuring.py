"""Views of measurements: benches, exported graphs, scores, searches, evaluation suites and encoded files."""

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from truncate_kit.bench.backends import BACKENDS, BASE, GRAPH
from truncate_kit.bench.bench_report import (
    BenchedModel,
    BenchReport,
    Contestant,
    QualityDifference,
    ScoredPairs,
    percentile,
)
from truncate_kit.core.precisions import PRECISIONS
from truncate_kit.core.vectors import PRECISIONS as VECTOR_PRECISIONS
from truncate_kit.core.vectors import VectorFormat
from truncate_kit.core.wording import FEWEST_COMPARED, FEWEST_COMPARED_QUERIES, NONE, counted, number, too_few
from truncate_kit.export.record import ExportReport
from truncate_kit.report.view import BLUE, GREY, INK, VERMILION, Cell, Plot, Series, Table, View

if TYPE_CHECKING:
    from truncate_kit.evaluation.graded import ModelScore, StsReport
    from truncate_kit.evaluation.mteb import MtebComparison, MtebReport
    from truncate_kit.evaluation.retrieval import RetrievalComparison, RetrievalReport, RetrievalScore
    from truncate_kit.evaluation.searching import Estimate
    from truncate_kit.evaluation.transfer import Kind, TransferPoint, TransferReport, TransferScore
    from truncate_kit.export.encode import EncodedFile

_WAYS = {("full", "full"): "full", ("lean", "lean"): "lean", ("lean", "full"): "lean queries, full index"}
_COMPARED = {
    "part": "the lean model is a part of another one and was not trained since: once it is, it may score otherwise.",
    "untuned": "neither model was fine-tuned: their scores say little about fine-tuned ones.",
    "unknown budget": "nothing says that both models had the same fine-tuning budget; `finetune()` makes such a pair.",
}
_CURVES: tuple[tuple["Kind", str, str, str], ...] = (
    ("as_is", "as it is", GREY, ":"),
    ("last", "last layer", BLUE, "-"),
    ("combined", "layers combined", VERMILION, "-"),
)
_MEANS: dict[str, "Kind"] = {
    "CLS pooler": "cls",
    "last layer": "last",
    "last four": "last_four",
    "random layers": "random",
    "layers combined": "combined",
}
"""Of accuracies, by heading."""


def view_bench(report: BenchReport) -> View:
    """Show speed, memory and quality of what was timed: the overview, fixed shapes, gains and costs."""
    machine = report.machine
    where = machine.processor if machine.device == "cpu" else f"{machine.device}, {machine.processor}"
    sentences = [
        f"Measured on {where}, {machine.threads} of {machine.cores} cores, bf16 instructions: "
        f"{machine.bf16_instructions or 'none'}; torch {machine.torch}, ONNX Runtime "
        f"{machine.onnxruntime or 'not installed'}, transformers {machine.transformers}; in {report.seconds:.0f} s."
    ]
    sentences += [
        f"Not measured: {row.role}, {BACKENDS[row.backend].title}: {row.absent.rstrip('.')}."
        for row in report.contestants
        if row.absent is not None
    ]
    sentences += [
        f"The {role} model has no graph: one was exported to {graph}." for role, graph in report.exported.items()
    ]
    fixed = Table.of(
        "Fixed shapes, model only",
        [row for row in report.timings if row.length is not None],
        {
            "batch × tokens, model, runtime": lambda row: f"{row.batch_size} × {row.length}, {_runs(row)}",
            "p50 ms": lambda row: row.p50_seconds * 1e3,
            "p95 ms": lambda row: row.p95_seconds * 1e3,
            "GPU p50 ms": lambda row: percentile(row.device_seconds, 0.5) * 1e3 if row.device_seconds else None,
            "sentences/s": lambda row: f"{row.sentences_per_second:,.0f}",
            "tokens/s": lambda row: f"{row.tokens_per_second:,.0f}",
        },
        detail=True,
    ).filled()
    plot, gained = bench_plot(report), gained_table(report)
    overview = [_overview(report)] if gained is None else [_overview(report), gained]
    return View(
        key="speed",
        title="Speed against quality",
        tables=[one for one in (*overview, fixed, _gains(report), _costs(report)) if one.rows],
        sentences=[*sentences, *report.notes, *_bench_sentences(report)],
        plots=() if plot is None else (plot,),
    )


def _bench_sentences(report: BenchReport) -> list[str]:
    """Say what the scores and the timings of a bench stand for."""
    from truncate_kit.report.distillation import rough_speeds

    found, missing = [], report.distinct_texts - report.num_texts
    if report.scored is not None and report.scored.bundled:
        found.append("These scores are of the bundled pairs, which a grammar made: they say little of your task.")
    if report.comparison == "unfair":
        tuned, raw = sorted((row.role for row in report.models), key=lambda role: not _model(report, role).fine_tuned)
        found.append(
            f"Warning: the {raw} model was not fine-tuned and the {tuned} one was: their scores cannot be compared, so "
            "no difference is stated."
        )
    elif report.comparison is not None and report.comparison in _COMPARED:
        found.append(f"Warning: {_COMPARED[report.comparison]}")
    if report.quality is not None and report.scored is not None:
        found.append(quality_sentence(report.quality, report.scored))
    if report.random_ids:
        found.append("The weights are random: there are no scores, and the texts are random ids of their lengths.")
    if not report.num_texts:
        found.append("No sentences given: nothing was timed on a real set.")
    elif missing > 0:
        found.append(
            f"The real set is {report.num_texts:,} of {report.distinct_texts:,} distinct texts, evenly spread."
        )
    found += rough_speeds(report.machine.others_busy)
    measured, on_gpu = {row.backend for row in report.contestants}, report.machine.device != "cpu"
    compiling = [row for row in BACKENDS.values() if row.compiled and not row.rival and (on_gpu or not row.on_cuda)]
    left_out = [row.title for row in compiling if row.name not in measured]
    if left_out:
        found.append(f"Left out: {' and '.join(left_out)}, which compile for a minute or more: name them to add them.")
    return found


def quality_sentence(quality: QualityDifference, of: ScoredPairs) -> str:
    """Put the difference with its interval into words, and what may be read from it; nothing of the bundled pairs.

    Over a few pairs or queries there is no interval: resamples of three hardly differ.
    """
    scores = f"{of.metric} lean {quality.lean:.2f}, full {quality.full:.2f}: {quality.difference:+.2f} points"
    if few := too_few(quality.num_pairs, *of.unit):
        return f"{scores}; {few}."
    verdict = ": no difference shown"
    if not quality.low <= 0 <= quality.high:
        verdict = f": lean is {'better' if quality.low > 0 else 'worse'}"
    return (
        f"{scores} ({quality.level:.0%} interval {quality.low:+.2f} to {quality.high:+.2f}, paired bootstrap over "
        f"{counted(quality.num_pairs, *of.unit)}, {quality.resamples:,} resamples){'' if of.bundled else verdict}."
    )


def _model(report: BenchReport, role: str) -> BenchedModel:
    return next(row for row in report.models if row.role == role)


def _runs(row: Any) -> str:
    """Name a model and a runtime."""
    return f"{row.role}, {BACKENDS[row.backend].title}"


def _overview(report: BenchReport) -> Table:
    models = "; ".join(f"{row.title}, {row.parameters:,} parameters" for row in report.models)
    on = "" if report.scored is None else f"; {report.metric} × 100 on {report.scored.words}"
    real = any(row.scenario == "one sentence" for row in report.timings)

    def timed(row: Contestant, field: str) -> str:
        timing = report.timing(row.role, row.backend, "real set")
        return NONE if timing is None else f"{getattr(timing, field):,.0f}"

    def single(row: Contestant, field: str) -> float | None:
        timing = report.timing(row.role, row.backend, "one sentence" if real else "latency")
        return None if timing is None else 1e3 * getattr(timing, field)

    def megabytes(size: int | None, form: str) -> str:
        return number(size / 1e6 if size else None, form)

    return Table.of(
        models + on,
        report.contestants,
        {
            "model, runtime": _runs,
            report.metric: lambda row: row.score,
            f"{'one sentence' if real else 'batch 1'} p50 ms": lambda row: single(row, "p50_seconds"),
            "sentences/s": lambda row: timed(row, "sentences_per_second"),
            "file MB": lambda row: megabytes(row.file_bytes, ",.1f"),
            "peak MB": lambda row: megabytes(row.peak_bytes, ",.0f"),
            "p95 ms": lambda row: single(row, "p95_seconds"),
            "tokens/s": lambda row: timed(row, "tokens_per_second"),
            "start s": lambda row: number(row.prepare_seconds, ".1f"),
        },
    )


def gained_table(report: BenchReport) -> Table | None:
    """Set lean against full: sizes, score, and speed; None if no runtime timed both.

    Full runs as most people run it, in `BASE`, and lean as a graph, where both were timed; else both in one runtime.
    """
    shared = compared_in(report)
    if shared is None:
        return None
    plain = shared if rate(report, "full", BASE) is None or rate(report, "lean", BASE) is None else BASE
    fast = shared if rate(report, "lean", GRAPH) is None else GRAPH
    lean, full = _model(report, "lean"), _model(report, "full")
    rows: list[tuple[str, ...]] = [
        (name, f"{ours:,}", f"{theirs:,}", f"{theirs / ours:.2f}× {how}")
        for name, ours, theirs, how in (
            ("layers", lean.layer, full.layer, "fewer"),
            ("parameters", lean.parameters, full.parameters, "fewer"),
            ("weights on disk, kB", (lean.weights_bytes or 0) // 1000, (full.weights_bytes or 0) // 1000, "smaller"),
        )
        if ours and theirs
    ]
    if (found := report.quality) is not None:
        difference = f"{found.difference:+.1f} [{found.low:+.1f}, {found.high:+.1f}]"
        rows.append((f"score ({report.metric} × 100)", f"{found.lean:.1f}", f"{found.full:.1f}", difference))
    for name, scenario in (("one sentence, ms", "one sentence"), ("sentences per second", "real set")):
        other, cut, ran = (
            report.timing(*place, scenario) for place in (("full", plain), ("lean", plain), ("lean", fast))
        )
        if other is None or cut is None or ran is None:
            continue
        ours, theirs = (
            f"{1e3 * one.p50_seconds:.2f}" if scenario == "one sentence" else f"{one.sentences_per_second:,.0f}"
            for one in (ran, other)
        )
        depth, runtime = other.p50_seconds / cut.p50_seconds, cut.p50_seconds / ran.p50_seconds
        factors = "" if plain == fast else f" ({depth:.1f} × {runtime:.1f})"
        rows.append((name, ours, theirs, f"{depth * runtime:.1f}× faster{factors}"))
    runtimes = f"lean in {BACKENDS[fast].title}, full in {BACKENDS[plain].title}"
    by = "" if plain == fast else "; in brackets fewer layers × the other runtime"
    return Table(f"What the cut gained: {runtimes}{by}", ("", "lean", "full", "lean against full"), rows)


def _gains(report: BenchReport) -> Table:
    """Show how much faster lean is than the full model in `BASE`, as the product of two factors."""
    rows = []
    for row in report.timings:
        place = row.scenario, row.batch_size, row.length
        full, lean = (report.timing(role, BASE, *place) for role in ("full", "lean"))
        if row.role == "lean" and row.backend != BASE and full is not None and lean is not None:
            scenario = row.scenario if row.batch_size is None else f"{row.batch_size} × {row.length}"
            depth, runtime = full.p50_seconds / lean.p50_seconds, lean.p50_seconds / row.p50_seconds
            factors = (f"×{depth:.2f}", f"×{runtime:.2f}", f"×{depth * runtime:.2f}")
            rows.append((f"{scenario}: {BACKENDS[row.backend].title}", *factors))
    title = f"How much faster than the full model in {BACKENDS[BASE].title}: by fewer layers × by the runtime"
    return Table(title, ("scenario, lean model in", "depth", "runtime", "total"), rows, detail=True)


def _costs(report: BenchReport) -> Table:
    """Show what a billion sentences like those of the real set cost: the machine's hours, and storage of vectors."""
    machine = report.machine
    unit = f"hours on {machine.threads} CPU threads" if machine.device == "cpu" else "GPU-hours"
    forms = [VectorFormat(precision=kind) for kind in VECTOR_PRECISIONS]
    rows = []
    for row in report.timings:
        if row.scenario == "real set":
            width = _model(report, row.role).width
            gigabytes = (f"{form.bytes_per_vector(width):,}" for form in forms)  # 10⁹ vectors, 10⁹ bytes
            hours = f"{1e9 / row.sentences_per_second / 3600:,.1f}"
            rows.append((_runs(row), hours, f"{width:,}", *gigabytes))
    columns = ("model, runtime", unit, "dimensions", *(f"{kind} GB" for kind in VECTOR_PRECISIONS))
    title = "A billion sentences like these: time to encode, and storage of their vectors in GB"
    return Table(title, columns, rows, detail=True)


def bench_plot(report: BenchReport) -> Plot | None:
    """Draw speed against quality of every model in every runtime; None without scores.

    Color is the precision, shape the runtime; filled is lean, hollow is full; a line joins both in one runtime, with
    the gain in speed at its end.
    """
    series, places = list[Series](), dict[tuple[str, str], tuple[float, float]]()
    for row in report.measured():
        timing = report.timing(row.role, row.backend, "real set")
        if timing is not None and row.score is not None:
            places[row.role, row.backend] = timing.sentences_per_second, row.score
    if not places:
        return None
    named = set[str]()
    for (role, backend), (speed, score) in places.items():
        color, title = PRECISIONS[BACKENDS[backend].precision].color, BACKENDS[backend].title
        if role == "lean" and (other := places.get(("full", backend))):
            x, y, gained = (other[0], speed), (other[1], score), f"×{speed / other[0]:.1f}"
            series.append(Series(x, y, "", color, texts=["", gained], marker="", width=1))
        look: dict[str, Any] = {"marker": _marker(backend), "hollow": role == "full", "size": 11, "line": ""}
        look["tip"] = f"{role}, {title}: {speed:,.0f} sentences/s, {report.metric} {score:.2f}"
        series.append(Series([speed], [score], "" if backend in named else title, color, **look))
        named.add(backend)
    for role, what in (("lean", "filled: the lean model"), ("full", "hollow: the full model")):
        if any(row == role for row, _ in places):
            series.append(Series((), (), what, INK, line="", hollow=role == "full", size=8))
    speeds, scores = zip(*places.values(), strict=True)
    margin = max(1.0, 0.35 * (max(scores) - min(scores)))  # rounding between runtimes must not look like a cliff
    on = "" if report.scored is None else f" on {report.scored.words}"
    machine = report.machine
    place = counted(machine.threads, "thread") if machine.device == "cpu" else machine.device
    return Plot(
        "speed",
        f"Speed against quality{on}; {machine.processor}, {place}",
        f"sentences per second ({report.num_texts:,} real sentences, tokeniser included)",
        f"{report.metric} × 100",
        series,
        x_range=(0.0, 1.15 * max(speeds)),
        y_range=(min(scores) - margin, max(scores) + margin),
        file="bench",
    )


def compared_in(report: BenchReport) -> str | None:
    """Return the runtime in which to compare both models: of those that timed both, the fastest of lean.

    Runtimes of the precision that the interval of the scores is of come first.
    """
    base = BASE if report.quality is None else report.quality.backend

    def rank(backend: str) -> tuple[bool, float]:
        return BACKENDS[backend].precision == BACKENDS[base].precision, rate(report, "lean", backend) or 0.0

    timed = {row.backend for row in report.timings}
    shared = [name for name in timed if None not in (rate(report, "lean", name), rate(report, "full", name))]
    return max(sorted(shared), key=rank, default=None)


def rate(report: BenchReport, role: str, backend: str) -> float | None:
    """Return the sentences a second of a model on the real set in one runtime."""
    timing = report.timing(role, backend, "real set")
    return None if timing is None else timing.sentences_per_second


def measures(report: BenchReport, role: str, backend: str) -> dict[str, float | None]:
    """Return what was measured of a model in a runtime, by the name of the row of a table."""
    model = _model(report, role)
    row = next(row for row in report.contestants if (row.role, row.backend) == (role, backend))
    one = report.timing(role, backend, "one sentence") or report.timing(role, backend, "latency")
    memory, weights, file = row.peak_bytes, model.weights_bytes, row.file_bytes
    return {
        f"score, {report.metric} × 100": row.score,
        "sentences a second": rate(report, role, backend),
        "one sentence, milliseconds": None if one is None else 1e3 * one.p50_seconds,
        "peak memory, MB": memory and memory / 1e6,
        "weights, MB": weights and weights / 1e6,
        "file that runs, MB": file and file / 1e6,
        "blocks": model.layer,
        "parameters": model.parameters,
    }


def measured(value: float | None) -> str:
    """Write a number of `measures`."""
    return number(value, ",.0f" if (value is not None and value >= 1000) or isinstance(value, int) else ".2f")


def _marker(name: str) -> str:
    backend = BACKENDS[name]
    if backend.runtime == "onnx":
        return "X" if backend.tensorrt else "v" if backend.captured else "D"
    if backend.runtime == "sentence-transformers":
        return "P" if backend.attention is None else "*"
    if backend.compiled:
        return "^" if backend.captured else "h" if backend.static else "s"
    return "o" if backend.attention is None else "<"


def view_export(report: ExportReport) -> View:
    """Show a graph, and how far it is from the encoder in torch."""
    precision = PRECISIONS[report.precision]
    rows = [(name, f"{value:.1e}", number(precision.vector_limit, "g")) for name, value in report.checks.items()]
    task = report.task
    for measure in ("spearman", "pearson") if task is not None else ():
        before, after = (getattr(task, f"{measure}_{side}") for side in ("before", "after"))
        name = f"{measure.title()} × 100 on {task and task.data}: {before:.2f} to {after:.2f}"
        rows.append((name, f"{round(after - before, 4) + 0.0:+.4f}", number(precision.score_limit, "g")))
    fused = f"Attention is fused: {counted(report.fused_attention_found, 'node')}, one per layer."
    if not report.fused_attention_expected:
        fused = f"Attention is not fused: ONNX Runtime has no kernel for that of {report.family}."
    if not report.layers:
        fused = "A model cut at its embeddings has no attention."
    sentences = [
        f"{report.file}: {report.precision} for {report.target}, {report.file_bytes / 1e6:.1f} MB, opset "
        f"{report.opset}; vectors of {report.width} numbers{' and length 1' if report.normalized else ''}.",
        fused,
    ]
    if (int8 := report.quantization) is not None:
        lost = "an undefined score" if int8.drop_all_int8 is None else f"{int8.drop_all_int8:.2f} points"
        kept = f", with {len(int8.in_float)} in float {int8.drop:.2f}" if int8.in_float else ""
        bits = "" if int8.weight_bits == 8 else " Weights have 7 bits: the processor lacks VNNI."
        few = f" {counted(int8.num_pairs, 'pair')}: too few to say what eight bits cost."
        sentences.append(
            f"All layers in int8 cost {lost} on {int8.searched_on}{kept}; {int8.budget:g} are allowed. Layers in "
            f"float: {', '.join(int8.in_float) or 'none'}.{bits}{few * (int8.num_pairs < FEWEST_COMPARED)}"
        )
    if report.float32_islands is not None:
        sentences.append(f"The largest value in float16 is {report.largest_half:,.0f} of 65,504.")
    if (found := report.invariance) is not None:
        sentences.append(
            f"Vectors in a batch have a cosine of at least {found.batch_cosine:.4f} with those of texts alone, padded "
            f"{found.padding_cosine:.4f}; Spearman alone {found.spearman_alone:.2f}, in batches "
            f"{found.spearman_batched:.2f} ({counted(found.num_pairs, 'pair')} of {found.data})."
        )
    table = Table("Graph against torch: largest difference", ("check", "difference", "allowed"), rows)
    return View(key="graph", title=f"The graph {report.file}", tables=(table,), sentences=sentences)


def view_encoded(result: "EncodedFile") -> View:
    """Show how many texts were encoded, and how fast."""
    rows, columns = result.shape
    before = f", {result.resumed_at:,} of them from before" if result.resumed_at else ""
    speed = f" ({result.rate:,.0f} a second)" if result.rate else ""
    return View(
        key="encoded",
        title="What was encoded",
        sentences=(
            f"Encoded: {counted(rows, 'text')}{before}, in {result.seconds:,.1f} s{speed}.",
            f"Saved: {result.file} ({rows:,} × {columns} {result.dtype}, {result.file_bytes / 1e6:,.1f} MB)",
        ),
    )


_VECTORS: dict[str, Callable[[Any], Cell]] = {
    "vectors": lambda score: score.vectors,
    "dimensions": lambda score: score.dimensions,
    "bytes per vector": lambda score: score.bytes_per_vector,
}


def view_score(score: "ModelScore") -> View:
    """Show the correlation of a model's similarities with graded pairs."""
    columns: dict[str, Callable[[ModelScore], Cell]] = {
        "set": lambda score: f"{score.data}, {score.split}",
        "pairs": lambda score: score.num_pairs,
        "Spearman": lambda score: score.spearman,
        "Pearson": lambda score: score.pearson,
    }
    title = f"{score.model} in {score.runtime}, correlation with the scores × 100"
    return View(key="score", title="Similarity", tables=(Table.of(title, [score], columns | _VECTORS),))


def view_search(score: "RetrievalScore") -> View:
    """Show how well a model's queries find their documents; few queries have no intervals."""
    few, top = score.num_queries < FEWEST_COMPARED_QUERIES, score.top

    def estimated(name: str, score: "RetrievalScore") -> str:
        one = getattr(score, name)
        return f"{one.value:.2f}" + ("" if few else f" ({one.low:.2f} to {one.high:.2f})")

    found = {f"nDCG@{top}": "ndcg", f"MRR@{top}": "mrr", f"recall@{top}": "recall"}
    columns = {heading: partial(estimated, name) for heading, name in found.items()}
    title = f"{score.model} in {score.runtime}: {_searched(score)}, by {score.measure}, × 100"
    said = f"{counted(score.num_queries, 'query', 'queries')}: too few for an interval."
    table = Table.of(title, [score], {**columns, **_VECTORS})
    return View(key="search", title="Search", tables=(table,), sentences=(said,) if few else ())


def view_comparison(report: "RetrievalComparison") -> View:
    """Show what the full model finds, the lean one, and lean queries on the full model's index."""
    top, few = report.top, too_few(report.num_queries, "query", "queries")

    def interval(found: "Estimate | None") -> str | None:
        if found is None:
            return None
        return f"{found.value:+.2f}" + ("" if few else f" ({found.low:+.2f} to {found.high:+.2f})")

    table = Table.of(
        f"{report.full} (full) and {report.lean} (lean): {_searched(report)}, × 100",
        report.rows,
        {
            "search": lambda row: _WAYS[row.queries, row.index],
            "vectors": lambda row: row.vectors,
            f"nDCG@{top}": lambda row: row.ndcg,
            f"MRR@{top}": lambda row: row.mrr,
            f"recall@{top}": lambda row: row.recall,
            f"overlap@{top}": lambda row: row.overlap,
            "nDCG less full": lambda row: interval(row.difference),
        },
    )
    sentences = [f"Overlap: share of the {top} documents that the full model finds in float32.", *report.notes]
    if few:
        sentences.append(f"Differences have no interval: {few}.")
    mixed = report.row("lean", "full")
    if mixed is not None and (by := mixed.difference) is not None and not few:
        verdict = "no difference shown" if by.low <= 0 <= by.high else "better" if by.low > 0 else "worse"
        sentences.append(f"Lean queries on the full model's index: {verdict}.")
    return View(key="comparison", title="Old against new vectors", tables=(table,), sentences=sentences)


def _searched(result: "RetrievalScore | RetrievalComparison") -> str:
    queries = counted(result.num_queries, "query", "queries")
    return f"{queries} of {result.data} among {counted(result.num_documents, 'document')}"


_TASK: dict[str, Callable[[Any], Cell]] = {
    "task": lambda row: row.task,
    "metric": lambda row: row.metric,
    "split": lambda row: ", ".join(row.splits),
}


def view_mteb(report: "MtebReport") -> View:
    """Show the main score of each MTEB task, and their mean."""
    table = Table.of(
        f"{report.model} in {report.runtime}: main scores of MTEB {report.version} × 100",
        report.scores,
        {**_TASK, "score": lambda row: row.score, "seconds": lambda row: f"{row.seconds:.1f}"},
        last=(f"mean of {len(report.scores)}", "", "", report.mean, f"{report.seconds:.1f}"),
    )
    return View(key="mteb", title="MTEB", tables=(table,), sentences=_mteb_sentences(report))


def view_mteb_comparison(report: "MtebComparison") -> View:
    """Show two models on the same MTEB tasks."""
    full, lean = report.full, report.lean
    models = " and ".join(f"{one.model} in {one.runtime} ({name})" for one, name in ((full, "full"), (lean, "lean")))
    after = {row.task: row.score for row in lean.scores}
    table = Table.of(
        f"{models}: main scores of MTEB {full.version} × 100",
        full.scores,
        {
            **_TASK,
            "full": lambda row: row.score,
            "lean": lambda row: after[row.task],
            "lean less full": lambda row: f"{after[row.task] - row.score:+.2f}",
        },
        last=(f"mean of {len(full.scores)}", "", "", full.mean, lean.mean, f"{lean.mean - full.mean:+.2f}"),
    )
    return View(key="mteb", title="MTEB", tables=(table,), sentences=_mteb_sentences(lean))


def _mteb_sentences(report: "MtebReport") -> list[str]:
    subsets = [row for row in report.scores if row.num_subsets > 1]
    succeeded = [row for row in report.scores if row.successor is not None]
    return [
        *(f"{row.task}: the mean over {row.num_subsets} subsets, mostly languages." for row in subsets),
        *(f"{row.task}: MTEB recommends {row.successor} instead, for new comparisons." for row in succeeded),
    ]


def view_retrieval(report: "RetrievalReport") -> View:
    """Show an inverted-file index beside the exact search."""
    inverted = f"IVF, {counted(report.lists, 'list')}, {report.probes} searched"
    rows = [
        (name, number(mrr), f"{seconds * 1e3:.3f}", f"{size / 1e6:.1f}")
        for name, mrr, seconds, size in (
            (inverted, report.mrr, report.search_seconds, report.index_bytes),
            ("exact", report.exact_mrr, report.exact_seconds, report.exact_bytes),
        )
    ]
    of = f"{counted(report.num_queries, 'query', 'queries')} of {report.data}"
    title = f"{report.model} in {report.runtime}: {of} among {counted(report.num_texts, 'text')}"
    said = (
        f"Times are medians, one query at a time on {counted(report.threads, 'CPU thread')}; encoding a query takes "
        f"{report.encode_seconds * 1e3:.2f} ms more. The index was built in {report.build_seconds:.1f} s."
    )
    table = Table(title, ("search", "MRR@10 × 100", "ms per query", "index MB"), rows)
    return View(key="retrieval", title="Retrieval", tables=(table,), sentences=(said,))


def view_sts(report: "StsReport") -> View:
    """Show the correlation on each similarity set, also without the pairs that the model has seen."""
    table = Table.of(
        f"{report.model} in {report.runtime}: semantic similarity × 100",
        report.sets,
        {
            "set": lambda row: row.name,
            "pairs": lambda row: row.num_pairs,
            "Spearman": lambda row: row.spearman,
            "Pearson": lambda row: row.pearson,
            "unseen pairs": lambda row: None if report.seen is None else row.unseen_pairs or 0,
            "Spearman unseen": lambda row: row.unseen_spearman,
        },
        last=(f"mean of {len(report.sets)}", "", report.mean_spearman, "", "", report.mean_unseen),
    )
    sentences = [
        f"{row.name} here has {row.num_pairs:,} of the published {row.published_pairs:,} pairs: not comparable."
        for row in report.sets
        if row.num_pairs != row.published_pairs
    ]
    return View(key="sts", title="Semantic similarity", tables=(table,), sentences=sentences)


def view_transfer(report: "TransferReport") -> View:
    """Show the accuracy of classifiers on vectors, by set and share of the training rows."""
    settings, sentences = report.settings, list[str]()
    rows: list[tuple[TransferScore, TransferPoint | None, str]] = []
    for score in report.sets:
        rows += [(score, None, f"{few}, too few") for _, few in settings.left_out(score.num_rows)]
        rows += [(score, point, f"{point.train_rows:,}") for point in score.curve]
        if score.repeated_rows * 100 >= score.num_rows:
            sentences.append(f"{score.name}: {score.repeated_rows:,} of {score.num_rows:,} rows repeat a text.")
    columns: dict[str, Callable[[tuple[TransferScore, TransferPoint | None, str]], Cell]] = {
        "set": lambda row: row[0].name,
        "rows to train on": lambda row: row[2],
        "classes": lambda row: row[0].num_classes,
        "most frequent": lambda row: row[0].majority,
        "as it is": lambda row: None if row[1] is None else row[1].mean("as_is"),
    }
    last: list[Cell] = [f"mean of {sum(bool(score.curve) for score in report.sets)}", "", "", "", report.mean_as_is]
    if report.num_subsets:
        for heading, kind in _MEANS.items():
            columns[heading] = lambda row, kind=kind: None if row[1] is None else row[1].mean(kind)  # type: ignore[misc]  # a default
            last.append(getattr(report, f"mean_{kind}"))
        columns["fewer errors %"] = lambda row: number(getattr(row[1], "relative_error_reduction", None), "+.1f")
        columns["layers chosen most often"] = lambda row: None if row[1] is None else _chosen_often(row[1])
        last += [number(report.mean_relative_error_reduction, "+.1f"), ""]
        subsets = f"{report.num_subsets:,} subsets of up to {settings.max_layers} layers"
        sentences.append(f"Layers were chosen inside the training part, among {subsets}.")
    if settings.max_rows is not None:
        sentences.append(f"At most {settings.max_rows:,} rows of each set were used: not comparable with other runs.")
    how = f"accuracy × 100 of logistic regression, {settings.splits} splits, tested on {settings.test_share:.0%}"
    return View(
        key="transfer",
        title="Transfer",
        tables=(Table.of(f"{report.model} in {report.runtime}: {how}", rows, columns, last=last),),
        sentences=[*sentences, f"Took {report.seconds:.0f} s."],
        plots=_transfer_plots(report),
    )


def _chosen_often(point: "TransferPoint") -> str | None:
    """Name the layers that at least half of the splits chose."""
    counts = Counter(layer for split in point.splits for layer in split.chosen or ())
    return " ".join(str(layer) for layer, count in sorted(counts.items()) if count * 2 >= len(point.splits)) or None


def _transfer_plots(report: "TransferReport") -> Sequence[Plot]:
    """Draw accuracy against the number of training rows, a panel a set; only if there are several shares of them."""
    if len(report.settings.fractions) < 2:
        return ()
    plots = list[Plot]()
    for score in report.sets:
        series = []
        for kind, label, color, line in _CURVES:
            values = [point.mean(kind) for point in score.curve]
            if values and None not in values:
                rows = [point.train_rows for point in score.curve]
                series.append(Series(rows, values, label, color, line=line, size=4))
        if series:
            name = f"transfer-{len(plots)}"
            plots.append(Plot(name, score.name, "rows to train on", "accuracy × 100", series, file="suite-transfer"))
    return plots
