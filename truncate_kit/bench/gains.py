"""What follows from the timings: what fewer layers and the runtime gave, and what a billion sentences cost."""

from collections.abc import Iterable, Mapping, Sequence

from truncate_kit.bench.bench_report import Cost, Gain, Role, Timing
from truncate_kit.models import Encoder
from truncate_kit.vectors import PRECISIONS, VectorFormat

BILLION = 1_000_000_000
JOULES_PER_KILOWATT_HOUR = 3_600_000


def gains(timings: Sequence[Timing], base: str) -> tuple[Gain, ...]:
    """One `Gain` per scenario, shape and runtime (`base` too: there the runtime gave nothing), from the medians.

    depth = full in base / lean in base, runtime = lean in base / lean in the runtime; their product is the total:
    full in base / lean in the runtime. None where one of the three was not measured.
    """
    median = {_key(row.role, row.backend, row): row.p50_seconds for row in timings}
    found = []
    for row in timings:
        full, lean = median.get(_key("full", base, row)), median.get(_key("lean", base, row))
        if row.role != "lean" or full is None or lean is None:
            continue
        found.append(
            Gain(
                scenario=row.scenario,
                batch_size=row.batch_size,
                length=row.length,
                base=base,
                backend=row.backend,
                depth=full / lean,
                runtime=lean / row.p50_seconds,
                total=full / row.p50_seconds,
            )
        )
    return tuple(found)


def _key(role: str, backend: str, row: Timing) -> tuple[str, str, str, int | None, int | None]:
    return role, backend, row.scenario, row.batch_size, row.length


def costs(timings: Iterable[Timing], encoders: Mapping[Role, Encoder]) -> tuple[Cost, ...]:
    """One row per model and runtime that was timed on the real set, tokeniser included."""
    forms = [VectorFormat(precision=name) for name in PRECISIONS]
    found = []
    for row in timings:
        if row.scenario != "real set":
            continue
        width = encoders[row.role].vector_width
        joules = None if row.joules is None else BILLION / row.sentences * row.joules
        found.append(
            Cost(
                role=row.role,
                backend=row.backend,
                hours_per_billion=BILLION / row.sentences_per_second / 3600,
                dimensions=width,
                gigabytes_per_billion={form.precision: BILLION * form.bytes_per_vector(width) / 1e9 for form in forms},
                kilowatt_hours_per_billion=None if joules is None else joules / JOULES_PER_KILOWATT_HOUR,
            )
        )
    return tuple(found)
