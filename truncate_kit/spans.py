"""A score over several seeds or splits: its mean, and how far single ones are from it."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from truncate_kit.results import Result


@dataclass(frozen=True, slots=True, kw_only=True)
class Span(Result):
    """A score in points over seeds or splits: mean, and standard deviation where there are several."""

    mean: float
    std: float | None

    @classmethod
    def of(cls, scores: Sequence[float]) -> "Span":
        """Of one score or more."""
        return cls(mean=fmean(scores), std=standard_deviation(scores))


def standard_deviation(values: Sequence[float]) -> float | None:
    """Of a sample; None for a single value."""
    return stdev(values) if len(values) > 1 else None
