"""What fewer layers gave and what the runtime gave."""

from collections.abc import Sequence

from truncate_kit.bench.results import Gain, Timing


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
