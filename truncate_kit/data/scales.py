"""The lowest and the highest possible score of a set."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from truncate_kit.data.types import ScaleSource
from truncate_kit.errors import UsageError

# Scales in use for graded pairs, narrowest first: the first one that holds all values is taken.
USUAL_SCALES = ((0.0, 1.0), (1.0, 5.0), (0.0, 5.0), (0.0, 10.0))


@dataclass(frozen=True, slots=True)
class Scale:
    """Lowest and highest possible score, how that is known, and the number of values it was inferred from."""

    low: float
    high: float
    source: ScaleSource
    num_values: int = 0

    def holds(self, score: float) -> bool:
        """Whether the score lies on the scale; NaN does not."""
        return self.low <= score <= self.high


def given_scale(scale: Sequence[float]) -> Scale:
    """The scale a user named. Raises `UsageError` unless it is two finite numbers, the lower first."""
    if (
        isinstance(scale, str)
        or len(scale) != 2
        or not all(isinstance(end, (int, float)) and not isinstance(end, bool) for end in scale)
        or not 0 < scale[1] - scale[0] < math.inf
        or not math.isfinite(scale[0])
    ):
        said = scale if isinstance(scale, str) else ",".join(map(str, scale))
        raise UsageError(
            f"{said} is not a scale: it takes the lowest and then the highest possible score.",
            hint="For example `scale=(0, 5)`.",
        )
    return Scale(float(scale[0]), float(scale[1]), "given")


def infer_scale(scores: Iterable[float]) -> Scale | None:
    """The narrowest usual scale that holds all scores, or None where none does."""
    # Of all splits together: a split without extreme scores must not get a scale of its own.
    values = list(scores)
    low, high = min(values), max(values)
    for bottom, top in USUAL_SCALES:
        if bottom <= low and high <= top:
            return Scale(bottom, top, "inferred", len(values))
    return None
