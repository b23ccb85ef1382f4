"""Compute rank correlations, spreads over seeds, and the draws and intervals of every bootstrap."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

import numpy as np
from numpy.typing import NDArray

from truncate_kit.core.results import Result

Array = NDArray[np.float64]
Counts = NDArray[np.int64]

LEVEL = 0.95  # of every interval
RESAMPLES = 2_000  # of pairs or queries with known scores
TEXT_RESAMPLES = 500  # of texts: each has twenty pairs, which are ranked anew
DRAWS = 200  # of the dev pairs of a trial, which its record keeps


def tied(cosines: Sequence[float]) -> list[float]:
    """Round to 12 digits, so that pairs of identical texts share a rank."""
    return [round(value, 12) for value in cosines]


def rank_correlations(
    first: Sequence[float], second: Sequence[float], counts: Counts | None = None, *, cells: int = 4_000_000
) -> Array:
    """Return the Spearman correlation of each resample, (resamples,); NaN if a resample holds one value only.

    This is Pearson's correlation of the ranks within the resample (Spearman 1904); repeats and ties share their mean
    rank. Only equal values tie: for cosines see `tied`. Sums are exact up to 100,000 pairs in any order.

    Args:
        first: One value of each pair.
        second: The other.
        counts: Occurrences of each pair in each resample, (resamples, pairs); by default once in a single one.
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
    """Return the mean rank of each value within each resample, (resamples, pairs)."""
    group = np.unique(np.asarray(values, dtype=np.float64), return_inverse=True)[1]
    order = np.argsort(group, kind="stable")
    starts = np.flatnonzero(np.diff(group[order], prepend=-1))
    sizes = np.add.reduceat(counts[:, order], starts, axis=1)
    ranks: Array = np.cumsum(sizes, axis=1) - (sizes - 1) / 2
    return ranks[:, group]


def draws(number: int, resamples: int, seed: int = 0) -> Iterator[Counts]:
    """Yield the places (number,) that each resample of a bootstrap draws."""
    generator = np.random.default_rng(seed)
    return (generator.integers(number, size=number) for _ in range(resamples))


def draw_counts(number: int, resamples: int, seed: int = 0) -> Counts:
    """Count each place in each of the `draws`, (resamples, number); rows sum to number."""
    return np.stack([np.bincount(drawn, minlength=number) for drawn in draws(number, resamples, seed)])


def interval(values: Sequence[float] | Array, level: float = LEVEL) -> tuple[float, float]:
    """Return the percentile interval of resampled values, (resamples,) (Efron and Tibshirani 1993, ch. 13)."""
    low, high = np.quantile(values, ((1 - level) / 2, (1 + level) / 2))
    return float(low), float(high)


@dataclass(frozen=True, slots=True, kw_only=True)
class Span(Result):
    """A score in points over seeds or splits; std only of several."""

    mean: float
    std: float | None

    @classmethod
    def of(cls, scores: Sequence[float]) -> "Span":
        """Summarise one score or more."""
        return cls(mean=fmean(scores), std=standard_deviation(scores))


def standard_deviation(values: Sequence[float]) -> float | None:
    """Return the standard deviation of a sample of several values."""
    return stdev(values) if len(values) > 1 else None
