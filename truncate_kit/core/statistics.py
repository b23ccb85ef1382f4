"""Rank correlations, spreads over seeds, and bootstrap intervals."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

import numpy as np
from numpy.typing import NDArray

from truncate_kit.core.results import Result

Array = NDArray[np.float64]
Counts = NDArray[np.int64]

LEVEL = 0.95
RESAMPLES = 2_000  # of scored pairs or queries
TEXT_RESAMPLES = 500  # of texts: twenty pairs each, ranked anew
DRAWS = 200  # of a trial's dev pairs, kept in its record


def tied(cosines: Sequence[float]) -> list[float]:
    """Round to 12 digits, so that pairs of identical texts tie."""
    return [round(value, 12) for value in cosines]


def rank_correlations(
    first: Sequence[float], second: Sequence[float], counts: Counts | None = None, *, cells: int = 4_000_000
) -> Array:
    """Return the Spearman correlation of each resample, (resamples,); NaN for a constant one.

    Pearson's correlation of the ranks within the resample, ties at their mean rank (Spearman 1904). Only equal values
    tie: see `tied`. Exact up to 100,000 pairs.

    Args:
        first: One value of each pair.
        second: The other.
        counts: Occurrences of each pair, (resamples, pairs); by default once in a single one.
        cells: Counts processed at once.
    """
    counts = np.ones((1, len(first)), np.int64) if counts is None else counts
    correlations: list[Array] = []
    for block in np.array_split(counts, max(1, counts.size // cells)):
        centre = (block.sum(axis=1, keepdims=True) + 1) / 2
        x, y = _ranks(first, block) - centre, _ranks(second, block) - centre
        with np.errstate(invalid="ignore", divide="ignore"):
            norms = np.sqrt((block * x * x).sum(axis=1) * (block * y * y).sum(axis=1))
            correlations.append((block * x * y).sum(axis=1) / norms)
    return np.concatenate(correlations)


def _ranks(values: Sequence[float], counts: Counts) -> Array:
    """Return mean ranks within each resample, (resamples, pairs)."""
    group = np.unique(np.asarray(values, dtype=np.float64), return_inverse=True)[1]
    order = np.argsort(group, kind="stable")
    starts = np.flatnonzero(np.diff(group[order], prepend=-1))
    sizes = np.add.reduceat(counts[:, order], starts, axis=1)
    ranks: Array = np.cumsum(sizes, axis=1) - (sizes - 1) / 2
    return ranks[:, group]


def draws(number: int, resamples: int, seed: int = 0) -> Iterator[Counts]:
    """Yield the drawn places (number,) of each bootstrap resample."""
    generator = np.random.default_rng(seed)
    return (generator.integers(number, size=number) for _ in range(resamples))


def draw_counts(number: int, resamples: int, seed: int = 0) -> Counts:
    """Count each place in each of the `draws`, (resamples, number)."""
    return np.stack([np.bincount(drawn, minlength=number) for drawn in draws(number, resamples, seed)])


def interval(values: Sequence[float] | Array, level: float = LEVEL) -> tuple[float, float]:
    """Return the percentile interval of (resamples,) values (Efron and Tibshirani 1993, ch. 13)."""
    low, high = np.quantile(values, ((1 - level) / 2, (1 + level) / 2))
    return float(low), float(high)


@dataclass(frozen=True, slots=True, kw_only=True)
class Span(Result):
    """A score in points over seeds or splits."""

    mean: float
    std: float | None

    @classmethod
    def of(cls, scores: Sequence[float]) -> "Span":
        """Summarise one or more scores."""
        return cls(mean=fmean(scores), std=standard_deviation(scores))


def standard_deviation(values: Sequence[float]) -> float | None:
    """Return the sample standard deviation; None for one value."""
    return stdev(values) if len(values) > 1 else None
