"""The best combinations met so far: for each size, and without each layer."""

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

Masks = NDArray[np.int64]
Scores = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class ScoredSubset:
    """A combination as bits (bit l = layer l) and its correlation."""

    mask: int
    score: float

    @property
    def layers(self) -> tuple[int, ...]:
        """The layers, rising."""
        return layers_of(self.mask)

    def beats(self, other: "ScoredSubset | None") -> bool:
        """Whether this one ranks higher."""
        return other is None or self.rank() > other.rank()

    def rank(self) -> tuple[float, int, int]:
        """Higher score; of equal ones fewer layers, then the lower highest layer, then the next lower one."""
        return self.score, -self.mask.bit_count(), -self.mask


def layers_of(mask: int) -> tuple[int, ...]:
    """The places of the bits, rising."""
    return tuple(place for place in range(mask.bit_length()) if mask >> place & 1)


def mask_of(layers: tuple[int, ...]) -> int:
    """The bits of the layers."""
    return sum(1 << layer for layer in layers)


class BestSubsets:
    """The best combination of each size and the best that leaves each layer out; None where none had a correlation."""

    def __init__(self, num_layers: int) -> None:
        self.by_size: list[ScoredSubset | None] = [None] * num_layers  # at k − 1 the best of k layers
        self.without: list[ScoredSubset | None] = [None] * num_layers  # at l the best without layer l
        self.count = 0  # of all that were seen

    @property
    def best(self) -> ScoredSubset | None:
        """The best of all."""
        return max(filter(None, self.by_size), key=ScoredSubset.rank, default=None)

    def update(self, masks: Masks, scores: Scores) -> None:
        """Add combinations (r,) with their scores; NaN counts as seen and is never the best."""
        self.count += len(masks)
        defined = ~np.isnan(scores)
        sizes = np.bitwise_count(masks).astype(np.int64)
        # Rising size, then rising mask: the first of the highest scores is then the subset.
        order = np.flatnonzero(defined)[np.lexsort((masks[defined], sizes[defined]))]
        masks, scores, sizes = masks[order], scores[order], sizes[order]
        for size in np.unique(sizes):
            self._take_best(self.by_size, int(size) - 1, masks, scores, sizes == size)
        for layer in range(len(self.without)):
            self._take_best(self.without, layer, masks, scores, masks >> layer & 1 == 0)

    def merge(self, other: Self) -> None:
        """Add what another one has seen."""
        self.count += other.count
        for ours, theirs in ((self.by_size, other.by_size), (self.without, other.without)):
            for place, subset in enumerate(theirs):
                if subset is not None and subset.beats(ours[place]):
                    ours[place] = subset

    @staticmethod
    def _take_best(
        best: list[ScoredSubset | None], place: int, masks: Masks, scores: Scores, allowed: NDArray[np.bool_]
    ) -> None:
        if not allowed.any():
            return
        first = int(np.argmax(np.where(allowed, scores, -np.inf)))
        subset = ScoredSubset(int(masks[first]), float(scores[first]))
        if subset.beats(best[place]):
            best[place] = subset
