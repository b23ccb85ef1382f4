"""What a billion sentences cost: hours and energy from what was measured, storage from the size of a vector."""

from collections.abc import Iterable, Mapping

from truncate_kit.bench.results import Cost, Role, Timing
from truncate_kit.encoders import Encoder
from truncate_kit.encoders.tail import Dense
from truncate_kit.vectors import PRECISIONS, VectorFormat

BILLION = 1_000_000_000
JOULES_PER_KILOWATT_HOUR = 3_600_000


def costs(timings: Iterable[Timing], encoders: Mapping[Role, Encoder]) -> tuple[Cost, ...]:
    """One row per model and runtime that was timed on the real set, tokeniser included."""
    forms = [VectorFormat(precision=name) for name in PRECISIONS]
    found = []
    for row in timings:
        if row.scenario != "real set":
            continue
        width = vector_width(encoders[row.role])
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


def vector_width(encoder: Encoder) -> int:
    """Dimensions of the encoder's sentence vectors: those of its last Dense module or of its heads, else of a state."""
    if encoder.heads is not None:
        return encoder.heads.out_width
    sizes = [module.linear.out_features for module in encoder.tail if isinstance(module, Dense)]
    return sizes[-1] if sizes else encoder.width
