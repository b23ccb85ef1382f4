"""What was measured of one model in one runtime, side by side with others."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from truncate_kit.bench.backends import BACKENDS, BASE
from truncate_kit.bench.bench_report import BenchReport, Role, Timing
from truncate_kit.cells import NONE, TableCells, number
from truncate_kit.naming import place_in_words
from truncate_kit.report.evidence import too_few_in
from truncate_kit.report.layout import MEASURE

ALIKE = 0.1  # points of Spearman by which runtimes of one precision differ at most
HALF = 1.5  # times as many bytes a weight as the other: another precision, for poolers and the like are far smaller


@dataclass(frozen=True, slots=True, kw_only=True)
class Measures:
    """One model in one runtime; None where something was not measured.

    Attributes:
        role: Lean or full.
        place: What it has of the whole model.
        backend: Name of the runtime.
        layers: Number of blocks.
        parameters: Their number, pooler excluded.
        score: × 100.
        metric: What the score is.
        sentences_per_second: Of the real set, tokeniser included.
        milliseconds: Median of one sentence.
        peak_bytes: Of memory.
        weights_bytes: Of the safetensors.
        file_bytes: What this runtime loads.
    """

    role: Role
    place: str
    backend: str
    layers: int
    parameters: int
    score: float | None
    metric: str
    sentences_per_second: float | None
    milliseconds: float | None
    peak_bytes: int | None
    weights_bytes: int | None
    file_bytes: int | None

    @property
    def runtime(self) -> str:
        """What to call the runtime."""
        return BACKENDS[self.backend].title


def measures(report: BenchReport, role: Role, backend: str) -> Measures | None:
    """What a bench measured of a model in a runtime, None where that did not take part."""
    model = next((row for row in report.models if row.role == role), None)
    row = next((row for row in report.measured() if (row.role, row.backend) == (role, backend)), None)
    if model is None or row is None:
        return None
    speed, one = report.timing(role, backend, "real set"), _one_sentence(report, role, backend)
    return Measures(
        role=role,
        place=place_in_words(model.layer, model.blocks),
        backend=backend,
        layers=model.layer,
        parameters=model.parameters,
        score=row.score,
        metric=report.metric,
        sentences_per_second=None if speed is None else speed.sentences_per_second,
        milliseconds=None if one is None else 1e3 * one.p50_seconds,
        peak_bytes=row.peak_bytes,
        weights_bytes=model.weights_bytes,
        file_bytes=row.file_bytes,
    )


def _one_sentence(report: BenchReport, role: Role, backend: str) -> Timing | None:
    return report.timing(role, backend, "one sentence") or report.timing(role, backend, "latency")


def best_runtime(report: BenchReport, role: Role = "lean") -> str | None:
    """The runtime in which a model encodes the most sentences a second; None where none was timed so."""
    found = [timing for timing in report.timings if timing.role == role and timing.scenario == "real set"]
    return max(found, key=lambda timing: timing.sentences_per_second).backend if found else None


def shared_runtimes(report: BenchReport) -> list[str]:
    """The runtimes that timed both models on the real set, that in which lean is fastest first."""
    timed = [row for row in report.timings if row.scenario == "real set"]
    full = {row.backend for row in timed if row.role == "full"}
    lean = [row for row in timed if row.role == "lean" and row.backend in full]
    return [row.backend for row in sorted(lean, key=lambda row: -row.sentences_per_second)]


def compared_in(report: BenchReport) -> str | None:
    """The one runtime in which a page compares both models; None where none timed both.

    That in which lean is fastest, among those that score both as the interval says, where there are such.
    """
    shared = shared_runtimes(report)
    return next((name for name in shared if has_interval(report, name)), next(iter(shared), None))


def lean_and_full(report: BenchReport) -> tuple[Measures | None, Measures | None]:
    """Both models in one runtime and precision, that of `compared_in`.

    Where none timed both, each in its own fastest: what they differ by is then not of fewer blocks alone.
    """
    one = compared_in(report)
    lean, full = (one, one) if one is not None else (best_runtime(report), best_runtime(report, "full") or BASE)
    return (None if lean is None else measures(report, "lean", lean)), measures(report, "full", full)


def gain_in(report: BenchReport, backend: str) -> float | None:
    """Sentences a second of the lean model over those of the full one in the same runtime and precision.

    None where it did not time both.
    """
    lean, full = (report.timing(role, backend, "real set") for role in ("lean", "full"))
    return None if lean is None or full is None else lean.sentences_per_second / full.sentences_per_second


def has_interval(report: BenchReport, backend: str) -> bool:
    """Whether the interval of lean − full is that of this runtime, too: each scores as much there."""
    quality = report.quality
    if quality is None or backend == quality.backend:
        return quality is not None
    scores = {(row.role, row.backend): row.score for row in report.measured()}
    lean, full = ((scores.get((role, backend)), scores.get((role, quality.backend))) for role in ("lean", "full"))
    return _alike(*lean) and (full[0] is None or _alike(*full))


def _alike(here: float | None, there: float | None) -> bool:
    return here is not None and there is not None and abs(here - there) <= ALIKE


def against_table(report: BenchReport) -> TableCells | None:
    """Lean against full, with what lean gained; None where one of the two was not measured.

    What depends on the runtime has no factor where the two were measured in different ones.
    """
    lean, full = lean_and_full(report)
    if lean is None or full is None:
        return None
    there = full
    if full.backend != lean.backend:
        there = replace(full, sentences_per_second=None, milliseconds=None, peak_bytes=None, file_bytes=None)
    quality = report.quality
    if quality is None:  # the two cannot be compared, such as a model that was tuned with one that was not
        score = NONE
    elif too_few_in(report) or not has_interval(report, lean.backend):
        score = _ratio(lean.score, full.score, "{:+.2f} points", difference=True)
    else:
        score = f"{quality.difference:+.1f} points [{quality.low:+.1f}, {quality.high:+.1f}]"
    gained = (
        score,
        _ratio(lean.sentences_per_second, there.sentences_per_second, "{:.1f} × as many"),
        _ratio(there.milliseconds, lean.milliseconds, "{:.1f} × as fast"),
        _saved(there.peak_bytes, lean.peak_bytes, "less", "more"),
        _saved(full.weights_bytes, lean.weights_bytes, "smaller", "larger"),
        _saved(there.file_bytes, lean.file_bytes, "smaller", "larger"),
        _saved(full.layers, lean.layers, "fewer", "more", digits=1),
        _saved(full.parameters, lean.parameters, "fewer", "more"),
    )
    cells = _side_by_side({"lean": lean, "full": full})
    rows = [(*row, gain) for row, gain in zip(cells.rows, gained, strict=True)]
    return _measured(TableCells(cells.title, (*cells.columns, "lean against full"), rows))


def stored_otherwise(report: BenchReport) -> str | None:
    """That a weight of one model takes fewer bytes, so bytes do not tell which is smaller; None where it does not."""
    lean, full = lean_and_full(report)
    if lean is None or full is None or not lean.weights_bytes or not full.weights_bytes:
        return None
    ours, theirs = (one.weights_bytes / one.parameters for one in (lean, full) if one.weights_bytes)
    if max(ours, theirs) < HALF * min(ours, theirs):
        return None
    return (
        f"A weight takes {ours:.1f} bytes in the lean model's file and {theirs:.1f} in the full one's, so their sizes "
        "do not compare the models: what is trained or cut here is saved in single precision."
    )


def side_by_side(found: Mapping[str, Measures]) -> TableCells:
    """One column for each, under its name and runtime; what was measured of none has no row."""
    return _measured(_side_by_side(found))


def _measured(cells: TableCells) -> TableCells:
    return cells._replace(rows=[row for row in cells.rows if set(row[1:]) != {NONE}])


def _side_by_side(found: Mapping[str, Measures]) -> TableCells:
    models = tuple(found.values())
    metric = " or ".join(dict.fromkeys(one.metric for one in models))
    rows: list[tuple[str, ...]] = [
        (f"score, {metric} × 100", *(number(one.score, ".2f") for one in models)),
        ("sentences a second", *(number(one.sentences_per_second, ",.0f") for one in models)),
        ("one sentence, milliseconds", *(number(one.milliseconds, ".2f") for one in models)),
        ("peak memory, MB", *(number(one.peak_bytes and one.peak_bytes / 1e6, ",.0f") for one in models)),
        ("weights, MB", *(number(one.weights_bytes and one.weights_bytes / 1e6, ",.1f") for one in models)),
        ("file that runs, MB", *(number(one.file_bytes and one.file_bytes / 1e6, ",.1f") for one in models)),
        ("blocks", *(f"{one.layers:,}" for one in models)),
        ("parameters", *(f"{one.parameters:,}" for one in models)),
    ]
    columns = (MEASURE, *(f"{name}, {one.runtime}" for name, one in found.items()))
    return TableCells("; ".join(f"{name}: {one.place}" for name, one in found.items()), columns, rows)


def _saved(full: int | None, lean: int | None, less: str, more: str, *, digits: int = 2) -> str:
    """How much less the lean model takes, or more: weights that came in half precision are saved in single."""
    if full is not None and full == lean:
        return "the same"
    if full is not None and lean is not None and lean > full:
        return _ratio(lean, full, f"{{:.{digits}f}} × {more}")
    return _ratio(full, lean, f"{{:.{digits}f}} × {less}")


def _ratio(above: float | None, below: float | None, form: str, *, difference: bool = False) -> str:
    if above is None or below is None:
        return NONE
    if difference:
        return form.format(above - below)
    return form.format(above / below) if below else NONE
