"""Spearman correlation of many rows of similarities with one row of targets, by one sort each.

A row is sorted as 64-bit integers: above, the cosine as a whole number of steps of 2⁻⁴⁴; below, the doubled rank of
its target. After the sort the lower bits, read in order, are the targets' ranks by rising similarity: no index is
sorted along and nothing is looked up.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from truncate_kit.errors import DataError

Floats = NDArray[np.float64]
STEP = 2.0**-44
"""Cosines closer than this (6e-14) count as equal. It is above the rounding of float64, so that the cosines of pairs
of identical texts are one tie, and far below any difference that float32 states can tell."""

# Added to a number in [−1, 1], it leaves 44 bits behind the point: the last 46 bits of the float are then a count of
# steps, never negative, and the six bits of its fraction above them are zero.
_ROUNDER = 2.0**8 + 2
_MOST_BITS = 63 - 46


class RankCorrelation:
    """Spearman correlation with fixed targets; ties on either side share their mean rank.

    Raises `DataError` for fewer than three targets, targets that are all equal, or more than 65,535.
    """

    def __init__(self, targets: Sequence[float]) -> None:
        count = len(targets)
        if count < 3 or len(set(targets)) < 2:
            raise DataError(
                f"A correlation needs at least three pairs with two different scores; here are {count} pairs.",
                hint="Use a larger set, or check that the score column is the right one.",
            )
        self._bits = (2 * count).bit_length()
        if self._bits > _MOST_BITS:
            raise DataError(f"{count:,} pairs are too many to rank at once.", hint="Use fewer pairs.")
        ranks = np.asarray(stats.rankdata(targets), dtype=np.float64)
        self._doubled = np.rint(2 * ranks).astype(np.int64)
        self._spread = float(((ranks - ranks.mean()) ** 2).sum())
        self._places = np.arange(count) - (count - 1) / 2
        self.count = count

    def of(self, cosines: Floats) -> Floats:
        """Correlations (r,) of rows of cosines (r, n), which are overwritten; NaN where a row is one single value.

        Sums of whole numbers, so that the result does not depend on the order of anything.
        """
        cosines += _ROUNDER
        keys = cosines.view(np.int64)
        np.left_shift(keys, self._bits, out=keys)
        np.bitwise_or(keys, self._doubled, out=keys)
        keys.sort(axis=1)
        ranks = np.bitwise_and(keys, (1 << self._bits) - 1).astype(np.float64)
        products = np.einsum("rn,n->r", ranks, self._places) / 2
        spreads = np.full(len(cosines), float((self._places**2).sum()))
        unsigned = keys.view(np.uint64)
        nearest = np.bitwise_xor(unsigned[:, 1:], unsigned[:, :-1]).min(axis=1)
        tied = np.flatnonzero(nearest < (1 << self._bits))
        if len(tied):
            products[tied], spreads[tied] = self._with_ties(keys[tied] >> self._bits, ranks[tied])
        found: Floats = np.full(len(cosines), np.nan)
        np.divide(products, np.sqrt(spreads * self._spread), out=found, where=spreads > 0)
        return found

    def _with_ties(self, steps: NDArray[np.int64], ranks: Floats) -> tuple[Floats, Floats]:
        """Σ place × rank and Σ place² of sorted rows in which equal cosines stand at the mean of their places."""
        last = steps.shape[1] - 1
        index = np.arange(last + 1)
        new = np.ones(steps.shape, dtype=bool)
        np.not_equal(steps[:, 1:], steps[:, :-1], out=new[:, 1:])
        begins = np.maximum.accumulate(np.where(new, index, 0), axis=1)
        final = np.ones(steps.shape, dtype=bool)
        final[:, :-1] = new[:, 1:]
        ends = np.minimum.accumulate(np.where(final, index, last)[:, ::-1], axis=1)[:, ::-1]
        places = (begins + ends - last) / 2
        return np.einsum("rn,rn->r", places, ranks) / 2, np.einsum("rn,rn->r", places, places)
