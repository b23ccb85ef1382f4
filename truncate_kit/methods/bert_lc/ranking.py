"""Spearman correlation of many rows of similarities with one row of targets, by one sort each.

A row is sorted as whole numbers: above, the cosine in steps; below, which of the targets it belongs to. After the
sort the lower bits, read in order, are the targets by rising similarity: no index is sorted along. 32 bits take half
the time of 64, and hold all cosines of most rows apart; only rows in which two share their upper bits are sorted
again with 64, where steps are 2⁻⁴⁴ and what still shares them is a tie.

`truncate_kit.statistics` ranks, too, and a test holds the two against each other. This one stands for itself because a
search over all subsets of layers ranks millions of rows, for which an `unique` and an `argsort` each are too slow.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from truncate_kit.errors import DataError
from truncate_kit.evaluation.graded import require_ranks

Floats = NDArray[np.float64]
Keys = NDArray[Any]
STEP = 2.0**-44
"""Cosines closer than this (6e-14) count as equal. It is above the rounding of float64, so that the cosines of pairs
of identical texts are one tie, and far below any difference that float32 states can make: what `statistics.tied` does
by decimal digits, in the whole steps of two that a key is made of."""

# Added to a number in [−1, 1], it leaves 44 bits behind the point: the last 46 bits of the float are then a count of
# steps, never negative, and the six bits of its fraction above them are zero.
_ROUNDER = 2.0**8 + 2
_STEP_BITS = 46
_MOST_PAIRS = 65_535


class RankCorrelation:
    """Spearman correlation with fixed targets; ties on either side share their mean rank. Raises `DataError`."""

    def __init__(self, targets: Sequence[float]) -> None:
        self.count = len(targets)
        require_ranks(targets)
        if self.count > _MOST_PAIRS:
            raise DataError(f"{self.count:,} pairs are too many to rank at once.", hint="Use fewer pairs.")
        ranks = np.asarray(stats.rankdata(targets), dtype=np.float64)
        self._levels, places = np.unique(ranks, return_inverse=True)
        self._level_of = places.astype(np.int64)
        self._short_level_of = places.astype(np.uint32)
        self._bits = (len(self._levels) - 1).bit_length()
        self._short_suffices = self.count**2 < 1 << 32 - self._bits  # else most rows would be sorted twice
        self._spread = float(((ranks - ranks.mean()) ** 2).sum())
        self._places = np.arange(self.count) - (self.count - 1) / 2
        self._place_spread = float((self._places**2).sum())

    def of(self, cosines: Floats) -> Floats:
        """Correlations (r,) of rows of cosines (r, n), which are overwritten; NaN where a row is one single value."""
        # All sums are of halves of whole numbers, so that the result does not depend on the order of anything.
        cosines += _ROUNDER
        steps = cosines.view(np.int64)
        products = np.empty(len(cosines))
        spreads = np.full(len(cosines), self._place_spread)
        again = np.arange(len(cosines))
        if self._short_suffices:
            keys: Keys = np.right_shift(steps, _STEP_BITS - 32 + self._bits).astype(np.uint32)
            ranks, shared = self._sorted(keys, self._short_level_of)
            products[:] = ranks @ self._places
            again = np.flatnonzero(shared)
        if len(again):
            keys = steps[again]
            ranks, shared = self._sorted(keys, self._level_of)
            products[again] = ranks @ self._places
            tied = np.flatnonzero(shared)
            if len(tied):
                products[again[tied]], spreads[again[tied]] = self._with_ties(keys[tied] >> self._bits, ranks[tied])
        found: Floats = np.full(len(cosines), np.nan)
        np.divide(products, np.sqrt(spreads * self._spread), out=found, where=spreads > 0)
        return found

    def _sorted(self, keys: Keys, levels: Keys) -> tuple[Floats, NDArray[np.bool_]]:
        """Ranks of the targets by rising key (r, n), and whether two keys of a row are equal (r,); sorts `keys`."""
        np.left_shift(keys, self._bits, out=keys)
        np.bitwise_or(keys, levels, out=keys)
        keys.sort(axis=1)
        ranks: Floats = self._levels.take(np.bitwise_and(keys, (1 << self._bits) - 1), mode="clip")
        unsigned = keys.view(f"u{keys.itemsize}")  # equal upper bits leave a small difference, whatever the sign
        nearest = np.bitwise_xor(unsigned[:, 1:], unsigned[:, :-1]).min(axis=1)
        return ranks, nearest < (1 << self._bits)

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
        return np.einsum("rn,rn->r", places, ranks), np.einsum("rn,rn->r", places, places)
