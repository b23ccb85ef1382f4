"""The cells of a bench's tables; the command line draws them."""

from truncate_kit.bench.backends import BACKENDS, BASE
from truncate_kit.bench.bench_report import BenchReport, Contestant, Cost, Timing, percentile
from truncate_kit.wording import NONE, TableCells, number

_MEGA = 1e6


def bench_tables(report: BenchReport) -> list[TableCells]:
    """What a reader looks for first, then the fixed shapes, then the gain and where it came from."""
    return [table for table in (_overview(report), _shapes(report), _gains(report), _costs(report)) if table.rows]


def absences(report: BenchReport) -> list[str]:
    """One sentence for each contestant that was not measured."""
    return [
        f"Not measured: {row.role}, {BACKENDS[row.backend].title}: {row.absent.rstrip('.')}."
        for row in report.contestants
        if row.absent is not None
    ]


def machine_sentence(report: BenchReport) -> str:
    """Where it was measured and with what."""
    machine = report.machine
    where = machine.processor if machine.device == "cpu" else f"{machine.device}, {machine.processor}"
    return (
        f"Measured on {where}, {machine.threads} of {machine.cores} cores, bf16 instructions: "
        f"{machine.bf16_instructions or 'none'}; torch {machine.torch}, ONNX Runtime "
        f"{machine.onnxruntime or 'not installed'}, transformers {machine.transformers}; in {report.seconds:.0f} s."
    )


def scored_sentences(report: BenchReport) -> list[str]:
    """Which pairs the scores are of; nothing where none are."""
    return [] if report.scored is None else [report.scored.sentence]


def _overview(report: BenchReport) -> TableCells:
    models = "; ".join(f"{row.title}, {row.parameters:,} parameters" for row in report.models)
    on = "" if report.scored is None else f"; {report.metric} × 100 on {report.scored.words}"
    real = any(row.scenario == "one sentence" for row in report.timings)
    what = "one sentence" if real else "batch 1"
    return TableCells(
        models + on,
        (
            "model, runtime",
            report.metric,
            f"{what} p50 ms",
            "sentences/s",
            "file MB",
            "peak MB",
            "p95 ms",
            "tokens/s",
            "start s",
        ),
        [_overview_row(report, row, real) for row in report.contestants],
    )


def _overview_row(report: BenchReport, row: Contestant, real: bool) -> tuple[str, ...]:
    latency = report.timing(row.role, row.backend, "one sentence" if real else "latency")
    speed = report.timing(row.role, row.backend, "real set")
    return (
        f"{row.role}, {BACKENDS[row.backend].title}",
        number(row.score),
        number(latency.p50_seconds * 1e3 if latency else None, ".2f"),
        number(speed.sentences_per_second if speed else None, ",.0f"),
        number(row.file_bytes / _MEGA if row.file_bytes else None, ",.1f"),
        number(row.peak_bytes / _MEGA if row.peak_bytes else None, ",.0f"),
        number(latency.p95_seconds * 1e3 if latency else None, ".2f"),
        number(speed.tokens_per_second if speed else None, ",.0f"),
        number(row.prepare_seconds, ".1f"),
    )


def _shapes(report: BenchReport) -> TableCells:
    fixed = [row for row in report.timings if row.length is not None]
    on_gpu = any(row.device_seconds for row in fixed)
    gpu = ("GPU p50 ms",) if on_gpu else ()
    return TableCells(
        "Fixed shapes, model only",
        ("batch × tokens, model, runtime", "p50 ms", "p95 ms", *gpu, "sentences/s", "tokens/s"),
        [_shape_row(row, on_gpu=on_gpu) for row in fixed],
    )


def _shape_row(row: Timing, *, on_gpu: bool) -> tuple[str, ...]:
    gpu = f"{percentile(row.device_seconds, 0.5) * 1e3:.2f}" if row.device_seconds else NONE
    return (
        f"{row.batch_size} × {row.length}, {row.role}, {BACKENDS[row.backend].title}",
        f"{row.p50_seconds * 1e3:.2f}",
        f"{row.p95_seconds * 1e3:.2f}",
        *((gpu,) if on_gpu else ()),
        f"{row.sentences_per_second:,.0f}",
        f"{row.tokens_per_second:,.0f}",
    )


def _gains(report: BenchReport) -> TableCells:
    rows: list[tuple[str, ...]] = [
        (
            f"{_scenario(row.scenario, row.batch_size, row.length)}: {BACKENDS[row.backend].title}",
            f"×{row.depth:.2f}",
            f"×{row.runtime:.2f}",
            f"×{row.total:.2f}",
        )
        for row in report.gains
        if row.backend != row.base
    ]
    base = BACKENDS[BASE].title
    return TableCells(
        f"How much faster than the full model in {base}: what fewer layers gave × what the runtime gave",
        ("scenario, lean model in", "depth", "runtime", "total"),
        rows,
    )


def _costs(report: BenchReport) -> TableCells:
    machine = report.machine
    unit = f"hours on {machine.threads} CPU threads" if machine.device == "cpu" else "GPU-hours"
    kinds = tuple(report.costs[0].gigabytes_per_billion) if report.costs else ()
    return TableCells(
        "A billion sentences like these: time to encode, and storage of their vectors in GB",
        ("model, runtime", unit, "dimensions", *(f"{kind} GB" for kind in kinds)),
        [_cost_row(row, kinds) for row in report.costs],
    )


def _cost_row(row: Cost, kinds: tuple[str, ...]) -> tuple[str, ...]:
    return (
        f"{row.role}, {BACKENDS[row.backend].title}",
        f"{row.hours_per_billion:,.1f}",
        f"{row.dimensions:,}",
        *(f"{row.gigabytes_per_billion[kind]:,.0f}" for kind in kinds),
    )


def _scenario(scenario: str, batch_size: int | None, length: int | None) -> str:
    return scenario if batch_size is None else f"{batch_size} × {length}"
