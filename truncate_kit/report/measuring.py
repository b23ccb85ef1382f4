"""Show benches, evaluation suites and encoded files."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import prod
from typing import TYPE_CHECKING, Any

from truncate_kit.core.errors import counted
from truncate_kit.core.hardware import PRECISIONS
from truncate_kit.report.view import BLUE, GREY, INK, VERMILION, Column, Plot, Series, Table, View, number, rough_speeds

if TYPE_CHECKING:
    from truncate_kit.bench.result import BenchedModel, BenchReport
    from truncate_kit.evaluation import Score, SuiteReport
    from truncate_kit.export.encode import EncodedFile

_COMPARED = {
    "part": "Warning: the lean model was cut and not trained since: training may change its score.",
    "untuned": "Warning: neither model was fine-tuned: their scores say little about fine-tuned ones.",
    "unknown budget": "Warning: the fine-tuning budgets may differ; `finetune()` trains both models with one budget.",
    "unfair": "Warning: only one model was fine-tuned: their scores cannot be compared, so no difference is stated.",
}


BUNDLED_SAY_LITTLE = "The bundled pairs are synthetic: their scores say little about your task."
_CURVES = {"as it is": (GREY, ":"), "last layer": (BLUE, "-"), "layers combined": (VERMILION, "-")}
_FORMS = {"lean less full": "+.2f", "nDCG less full": "+.2f", "fewer errors %": "+.1f", "seconds": ".1f",
          "ms per query": ".3f", "index MB": ".1f"}  # fmt: skip
"""Number formats by column heading."""


def view_bench_report(report: BenchReport) -> View:
    """Show what the lean model gains, then each runtime and each timing."""
    where = report.processor if report.device == "cpu" else f"{report.device}, {report.processor}"
    versions = ", ".join(f"{name} {version}" for name, version in report.versions.items())
    absent = [
        f"{_runs(report, row)} ({row.absent.rstrip('.')})" for row in report.contestants if row.absent is not None
    ]
    part = report.num_texts < report.distinct_texts
    gained = gained_table(report)
    scores = [report.quality and quality_sentence(report, report.quality), report.bundled and BUNDLED_SAY_LITTLE]
    sentences = [
        *(scores if gained is None or report.too_few else ()),
        report.fastest and f"Fastest of the lean model here: {report.fastest}.",
        _COMPARED.get(report.comparison or ""),
        absent and f"Not measured: {'; '.join(absent)}.",
        *report.notes,
        *rough_speeds(report.others_busy),
    ]
    details = [
        *(() if gained is None or report.too_few else scores),
        f"Measured on {where}, {report.threads} of {report.cores} cores, bf16 instructions: "
        f"{report.bf16_instructions or 'none'}; {versions}; in {report.seconds:.0f} s.",
        *(f"The graph of the {role} model was exported to {graph}." for role, graph in report.exported.items()),
        part and f"Real set: {report.num_texts:,} of {report.distinct_texts:,} distinct texts, evenly spread.",
    ]
    tables = [gained, _overview(report), _timings(report)]
    return View("speed", "Speed against quality", tables, sentences, details=details, plots=[_plot(report)])


def quality_sentence(report: BenchReport, quality: dict[str, float]) -> str:
    """Describe the difference in score, with its interval."""
    from truncate_kit.bench.result import BACKENDS

    alone = len(report.models) == 1
    lean, full = (BACKENDS[name].title for name in report.quality_of) if alone else ("lean", "full")
    scores = f"{report.metric} {full} {quality['full']:.2f}, {lean} {quality['lean']:.2f}: "
    scores += f"{quality['difference']:+.2f} points"
    if report.too_few:
        return f"{scores}; {report.too_few}."
    low, high, compared = quality["low"], quality["high"], counted(int(quality["num_pairs"]), *report.unit)
    verdict = "lean is better" if low > 0 else "lean is worse" if high < 0 else "no difference shown"
    return (
        f"{scores} ({quality['level']:.0%} interval {low:+.2f} to {high:+.2f}, paired bootstrap over {compared}, "
        f"{quality['resamples']:,.0f} resamples){'' if report.bundled or alone else f': {verdict}'}."
    )


def _model(report: BenchReport, role: str) -> BenchedModel:
    return next(row for row in report.models if row.role == role)


def _runs(report: BenchReport, row: Any) -> str:
    from truncate_kit.bench.result import BACKENDS

    title = BACKENDS[row.backend].title
    return f"{row.role}, {title}" if len(report.models) > 1 else title


def _overview(report: BenchReport) -> Table:
    on = "" if report.scored_on is None else f"; {report.metric} × 100 on {report.scored}"
    one = "one sentence" if any(row.scenario == "one sentence" for row in report.timings) else "latency"

    def timed(scenario: str, field: str, form: str, factor: float = 1.0) -> Column:
        return lambda row: (
            format(factor * getattr(timing, field), form)
            if (timing := report.timing(row.role, row.backend, scenario))
            else None
        )

    def megabytes(field: str, form: str) -> Column:
        return lambda row: number(size / 1e6 if (size := getattr(row, field)) else None, form)

    columns: dict[str, Column] = {
        "model, runtime": lambda row: _runs(report, row),
        report.metric: "score",
        f"{'one sentence' if one != 'latency' else 'batch 1'} p50 ms": timed(one, "p50_seconds", ".2f", 1e3),
        "sentences/s": timed("real set", "sentences_per_second", ",.0f"),
        "file MB": megabytes("file_bytes", ",.1f"),
        "peak MB": megabytes("peak_bytes", ",.0f"),
        "p95 ms": timed(one, "p95_seconds", ".2f", 1e3),
        "tokens/s": timed("real set", "tokens_per_second", ",.0f"),
        "start s": "prepare_seconds:.1f",
    }
    models = "; ".join(f"{row.title}, {row.parameters:,} parameters" for row in reversed(report.models))
    backends = list(dict.fromkeys(row.backend for row in report.measured()))
    rows = sorted(report.measured(), key=lambda row: (backends.index(row.backend), row.role == "lean"))
    return Table.of(models + on, rows, columns)


def _timings(report: BenchReport) -> Table:
    from truncate_kit.bench.result import percentile

    unit = f"hours on {counted(report.threads, 'CPU thread')}" if report.device == "cpu" else "GPU-hours"
    columns: dict[str, Column] = {
        "texts × tokens, model, runtime": lambda row: (
            f"{row.scenario if row.length is None else f'{row.batch_size} × {row.length}'}, {_runs(report, row)}"
        ),
        "p50 ms": lambda row: row.p50_seconds * 1e3,
        "p95 ms": lambda row: row.p95_seconds * 1e3,
        "GPU p50 ms": lambda row: percentile(row.device_seconds, 0.5) * 1e3 if row.device_seconds else None,
        "sentences/s": "sentences_per_second:,.0f",
        "tokens/s": "tokens_per_second:,.0f",
        f"{unit} for a billion": lambda row: f"{1e9 / row.sentences_per_second / 3600:,.1f}",
    }
    return Table.of("All timings", report.timings, columns, detail=True)


def gained_table(report: BenchReport) -> Table | None:
    """Compare size, score and speed of today's run and the recommended one, if they were timed."""
    steps = report.steps()
    if len(steps) < 2:
        return None
    today, *_, best = steps.values()
    now, then, quality = _model(report, today[0]), report.lean, report.quality
    rows = list[Sequence[str]]()
    sizes = [("layers", "fewer", now.layer, then.layer), ("parameters", "fewer", now.parameters, then.parameters)]
    files = [report.contestant(*step).file_bytes or _model(report, step[0]).weights_bytes for step in (today, best)]
    sizes += [("files, kB", "smaller", (files[0] or 0) // 1000, (files[1] or 0) // 1000)]
    rows += [(name, f"{a:,}", f"{b:,}", f"{a / b:.2f}× {word}") for name, word, a, b in sizes if a and b and a != b]
    if quality is not None:
        difference = ("{difference:+.1f}" + " [{low:+.1f}, {high:+.1f}]" * (not report.too_few)).format(**quality)
        rows.append((f"score ({report.metric} × 100)", f"{quality['full']:.1f}", f"{quality['lean']:.1f}", difference))
    for name, scenario in (("one sentence, ms", "one sentence"), ("sentences per second", "real set")):
        runs = [timing for step in steps.values() if (timing := report.timing(*step, scenario)) is not None]
        if len(runs) == len(steps):
            factors = [slow.p50_seconds / quick.p50_seconds for slow, quick in pairwise(runs)]
            shown = f" ({' × '.join(f'{one:.1f}' for one in factors)})" if len(factors) > 1 else ""
            per_second = scenario == "real set"
            ends = [
                f"{one.sentences_per_second:,.0f}" if per_second else f"{1e3 * one.p50_seconds:.2f}"
                for one in (runs[0], runs[-1])
            ]
            rows.append((name, *ends, f"{prod(factors):.1f}× faster{shown}"))
    by = f"; in brackets: gain by {' × '.join([*steps][1:])}" if len(steps) > 2 else ""
    title = f"What you run now, and the fastest run of the lean model{by}"
    return Table(title, ("", *(_runs(report, report.contestant(*step)) for step in (today, best)), "gain"), rows)


def _plot(report: BenchReport) -> Plot | None:
    """Draw speed against quality of each model in each runtime.

    Color: precision. Shape: runtime. Filled marks: lean; hollow marks: full.
    """
    from truncate_kit.bench.result import BACKENDS

    series, places = list[Series](), dict[tuple[str, str], tuple[float, float]]()
    for row in report.measured():
        speed = report.rate(row.role, row.backend)
        if speed is not None and row.score is not None:
            places[row.role, row.backend] = speed, row.score
    if not places:
        return None
    named = set[str]()
    for (role, backend), (speed, score) in places.items():
        color, title = PRECISIONS[BACKENDS[backend].precision].color, BACKENDS[backend].title
        if role == "lean" and (other := places.get(("full", backend))):
            gained = ["", f"×{speed / other[0]:.1f}"]
            series.append(Series((other[0], speed), (other[1], score), "", color, texts=gained, marker="", width=1))
        style: dict[str, Any] = {"marker": BACKENDS[backend].marker, "hollow": role == "full", "size": 11, "line": ""}
        style["tip"] = f"{role}, {title}: {speed:,.0f} sentences/s, {report.metric} {score:.2f}"
        series.append(Series([speed], [score], "" if backend in named else title, color, **style))
        named.add(backend)
    for role, label in (("lean", "filled: the lean model"), ("full", "hollow: the full model")):
        if any(row == role for row, _ in places):
            series.append(Series((), (), label, INK, line="", hollow=role == "full", size=8))
    speeds, scores = zip(*places.values(), strict=True)
    margin = max(1.0, 0.35 * (max(scores) - min(scores)))  # so that rounding differences look small
    on = "" if report.scored_on is None else f" on {report.scored}"
    place = counted(report.threads, "thread") if report.device == "cpu" else report.device
    return Plot(
        f"Speed against quality{on}; {report.processor}, {place}",
        f"sentences per second ({report.num_texts:,} real sentences, tokeniser included)",
        f"{report.metric} × 100",
        series,
        x_range=(0.0, 1.15 * max(speeds)),
        y_range=(min(scores) - margin, max(scores) + margin),
        file="bench",
    )


def view_encoded_file(result: EncodedFile) -> View:
    """Show how many texts were encoded, and how fast."""
    rows, columns = result.shape
    before = f", {result.resumed_at:,} of these in an earlier run" if result.resumed_at else ""
    speed = f" ({result.rate:,.0f} a second)" if result.rate else ""
    size = f"{rows:,} × {columns} {result.dtype}, {result.file_bytes / 1e6:,.1f} MB"
    encoded = f"Encoded: {counted(rows, 'text')}{before}, in {result.seconds:,.1f} s{speed}."
    return View("encoded", "Encoded texts", (), [encoded, f"Saved: {result.file} ({size})"])


def view_suite_report(report: SuiteReport) -> View:
    """Show the scores of tasks and their means."""
    labels = dict.fromkeys(heading for row in report.rows for heading in row.labels)
    headings = dict.fromkeys(heading for row in report.rows for heading in row.values)
    tasks = {row.task for row in report.rows}
    named = len(tasks) > 1 or report.rows[0].task not in report.title
    columns: dict[str, Column] = {"task": "task"} if named else {}
    columns |= {name: lambda row, name=name: row.labels.get(name) for name in labels}  # type: ignore[misc]  # a default
    columns |= {name: lambda row, name=name: _scored(row, name) for name in headings}  # type: ignore[misc]  # a default
    columns["remark"], last = "remark", list[str]()
    if len(tasks) > 1:
        means = (_written(name, report.means[name]) if name in report.means else "" for name in headings)
        last = [f"mean of {len(tasks)}", *[""] * len(labels), *means, ""]
    table = Table.of(report.title, report.rows, columns, last=last)
    return View(report.suite, f"Scores: {report.suite}", [table], report.notes, plots=_curves(report))


def _scored(row: Score, heading: str) -> str:
    ends = row.intervals.get(heading)
    between = "" if ends is None else f" ({_written(heading, ends[0])} to {_written(heading, ends[1])})"
    return _written(heading, row.values.get(heading)) + between


def _written(heading: str, value: float | None) -> str:
    return number(value, "," if isinstance(value, int) else _FORMS.get(heading, ".2f"))


def _curves(report: SuiteReport) -> Sequence[Plot]:
    plots = list[Plot]()
    rows = [row for row in report.rows if "as it is" in row.values]
    for task in dict.fromkeys(row.task for row in rows if "share" in row.labels):
        points = [row.values for row in rows if row.task == task]
        series = [
            Series([point["rows to train on"] or 0 for point in points], [point[name] for point in points], name, color,
                   line=line, size=4)
            for name, (color, line) in _CURVES.items() if all(name in point for point in points)
        ]  # fmt: skip
        plots.append(Plot(task, "rows to train on", "accuracy × 100", series, file="suite-transfer"))
    return plots if len({row.labels.get("share") for row in report.rows}) > 1 else ()
