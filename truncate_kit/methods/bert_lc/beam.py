"""Combinations by beam search, where there are too many layers to try all subsets."""

from dataclasses import dataclass

import numpy as np

from truncate_kit.methods.bert_lc.best_subsets import BestSubsets
from truncate_kit.methods.bert_lc.grams import Floats, PairGrams, cosines_of
from truncate_kit.methods.bert_lc.ranking import RankCorrelation
from truncate_kit.progress import Progress, silent


@dataclass(frozen=True, slots=True)
class _Item:
    """A combination: its sums (3, n), and what each layer would add to them, (3, L', n)."""

    mask: int
    sums: Floats
    gains: Floats

    def joined(self, layer: int, forms: Floats) -> "_Item":
        return _Item(self.mask | 1 << layer, self.sums + self.gains[:, layer], self.gains + forms[:, :, layer])


def search_beam(
    grams: PairGrams, ranks: RankCorrelation, *, up_to: int, width: int, progress: Progress = silent
) -> BestSubsets:
    """Score combinations that grow from the `width` best of each size by one layer; ties as in `ScoredSubset.beats`."""
    best_subsets = BestSubsets(grams.num_layers)
    layers = np.arange(grams.num_layers)
    own = grams.forms[:, layers, layers]
    items = [_Item(0, np.zeros((3, grams.num_pairs)), own)]
    for size in range(1, up_to + 1):
        scored: dict[int, tuple[float, _Item, int]] = {}
        for item in items:
            free = [layer for layer in range(grams.num_layers) if not item.mask >> layer & 1]
            new = [layer for layer in free if item.mask | 1 << layer not in scored]
            if not new:
                continue
            scores = ranks.of(cosines_of(item.sums[:, None] + item.gains[:, new]))
            masks = np.array([item.mask | 1 << layer for layer in new], dtype=np.int64)
            best_subsets.update(masks, scores)
            for layer, mask, score in zip(new, masks.tolist(), scores.tolist(), strict=True):
                scored[mask] = (-np.inf if np.isnan(score) else score, item, layer)
        kept = sorted(scored, key=lambda mask: (-scored[mask][0], mask))[:width]
        items = [scored[mask][1].joined(scored[mask][2], grams.forms) for mask in kept]
        progress("Searching combinations", size, up_to)
    return best_subsets
