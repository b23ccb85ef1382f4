"""Views of measurements: benches, exported graphs, scores, searches, evaluation suites and encoded files."""

from collections.abc import Sequence
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
from truncate_kit.core.wording import FEWEST_COMPARED, NONE, counted, number, too_few
from truncate_kit.export.record import ExportReport
from truncate_kit.report.view import BLUE, GREY, INK, VERMILION, Plot, Series, Table, View

if TYPE_CHECKING:
    from truncate_kit.evaluation.suite import Score, SuiteReport
    from truncate_kit.export.encode import EncodedFile

_COMPARED = {
    "part": "the lean model is a part of another one and was not trained since: once it is, it may score otherwise.",
    "untuned": "neither model was fine-tuned: their scores say little about fine-tuned ones.",
    "unknown budget": "nothing says that both models had the same fine-tuning budget; `finetune()` makes such a pair.",
}
_CURVES = {"as it is": (GREY, ":"), "last layer": (BLUE, "-"), "layers combined": (VERMILION, "-")}
_FORMS = {"lean less full": "+.2f", "nDCG less full": "+.2f", "fewer errors %": "+.1f", "seconds": ".1f",
          "ms per query": ".3f", "index MB": ".1f"}  # fmt: skip
"""Of numbers, by heading."""
_TITLES = {
    "pairs": "Similarity",
    "search": "Search",
    "comparison": "Old against new vectors",
    "mteb": "MTEB",
    "mteb-comparison": "MTEB",
    "sts": "Semantic similarity",
    "transfer": "Transfer",
    "retrieval": "Retrieval",
}
"""Of reports, by suite."""


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


def view_suite(report: "SuiteReport") -> View:
    """Show the scores of a suite, of a search or of graded pairs: a row per task, and their means."""
    labels = dict.fromkeys(heading for row in report.rows for heading in row.labels)
    headings = dict.fromkeys(heading for row in report.rows for heading in row.values)
    cells = [[row.task, *map(row.labels.get, labels), *(_scored(row, name) for name in headings), row.remark]
             for row in report.rows]  # fmt: skip
    if (tasks := len({row.task for row in report.rows})) > 1:
        means = (_written(name, report.means[name]) if name in report.means else "" for name in headings)
        cells.append([f"mean of {tasks}", *[""] * len(labels), *means, ""])
    rows = [[NONE if cell is None else cell for cell in row] for row in cells]
    table = Table(report.title, ["task", *labels, *headings, "remark"], rows).filled()
    key, title = report.suite, _TITLES.get(report.suite, report.suite)
    return View(key=key, title=title, tables=(table,), sentences=report.notes, plots=_curves(report))


def _scored(row: "Score", heading: str) -> str:
    ends = row.intervals.get(heading)
    between = "" if ends is None else f" ({_written(heading, ends[0])} to {_written(heading, ends[1])})"
    return _written(heading, row.values.get(heading)) + between


def _written(heading: str, value: float | None) -> str:
    return number(value, "," if isinstance(value, int) else _FORMS.get(heading, ".2f"))


def _curves(report: "SuiteReport") -> Sequence[Plot]:
    """Draw accuracy against the number of training rows, a panel per set, if there are several shares of them."""
    plots = list[Plot]()
    rows = [row for row in report.rows if "as it is" in row.values]
    for task in dict.fromkeys(row.task for row in rows if "share" in row.labels):
        points = [row.values for row in rows if row.task == task]
        series = [
            Series([point["rows to train on"] or 0 for point in points], [point[name] for point in points], name, color,
                   line=line, size=4)
            for name, (color, line) in _CURVES.items() if all(name in point for point in points)
        ]  # fmt: skip
        name = f"transfer-{len(plots)}"
        plots.append(Plot(name, task, "rows to train on", "accuracy × 100", series, file="suite-transfer"))
    return plots if len({row.labels.get("share") for row in report.rows}) > 1 else ()
