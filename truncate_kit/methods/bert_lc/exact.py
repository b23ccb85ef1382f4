"""All combinations of layers by their mean, exactly: no subset is left out, and none costs more than a few additions.

The highest layers of a subset are fixed by walking a tree, layer by layer; on the way the three sums of its forms and
what each lower layer would add to them are kept up. The lowest layers come as a block: one small product with all
their indicator vectors, and a table of what they add among themselves.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import combinations
from math import comb

import numpy as np
from numpy.typing import NDArray

from truncate_kit.methods.bert_lc.best_subsets import BestSubsets, Masks
from truncate_kit.methods.bert_lc.grams import Floats, PairGrams, cosines_of
from truncate_kit.methods.bert_lc.ranking import RankCorrelation
from truncate_kit.progress import Progress, silent

_BLOCK = 100_000  # cosines at a time: about what a core caches; smaller ones keep threads waiting for each other
_CHUNK_LAYERS = 16  # subsets of the 16 lowest layers are one task


def count_subsets(num_layers: int, up_to: int) -> int:
    """Non-empty subsets of at most `up_to` of the layers."""
    return sum(comb(num_layers, size) for size in range(1, up_to + 1))


@dataclass(frozen=True, slots=True)
class _Lowest:
    """All subsets of the lowest layers, by rising size."""

    masks: Masks  # (r,)
    with_one: Floats  # indicator vectors after a leading 1, (r, 1 + m)
    among: Floats  # what the layers of each subset add to each other, own products left out, (3, r, n)
    ends: tuple[int, ...]  # at k the number of subsets of at most k layers

    @classmethod
    def of(cls, grams: PairGrams, layers: int) -> "_Lowest":
        masks = np.arange(1 << layers, dtype=np.int64)
        sizes = np.bitwise_count(masks)
        masks = masks[np.argsort(sizes, kind="stable")]
        chosen = (masks[:, None] >> np.arange(layers) & 1).astype(np.float64)
        among = np.zeros((3, len(masks), grams.num_pairs))
        for high in range(layers):
            for low in range(high):
                both = np.flatnonzero(chosen[:, low] * chosen[:, high])
                among[:, both] += grams.forms[:, None, low, high]
        ends = tuple(int((sizes <= size).sum()) for size in range(layers + 1))
        return cls(masks, np.concatenate([np.ones((len(masks), 1)), chosen], axis=1), among, ends)


@dataclass(frozen=True, slots=True)
class _Node:
    """A subset of the higher layers: its sums (3, n), and what each layer below would add to them, (3, layers, n)."""

    mask: int
    sums: Floats
    gains: Floats

    def with_next(self, forms: Floats) -> "_Node":
        """With the highest of the layers below taken in."""
        layer = self.gains.shape[1] - 1
        gains = self.gains[:, :layer] + forms[:, :layer, layer]
        return _Node(self.mask | 1 << layer, self.sums + self.gains[:, layer], gains)

    def without_next(self) -> "_Node":
        """With the highest of the layers below left out."""
        return _Node(self.mask, self.sums, self.gains[:, :-1])

    @classmethod
    def of(cls, mask: int, grams: PairGrams, *, down_to: int) -> "_Node":
        """The node of the layers in `mask`, all of them from `down_to` on."""
        layers = np.arange(grams.num_layers)
        node = cls(0, np.zeros((3, grams.num_pairs)), grams.forms[:, layers, layers])
        for layer in range(grams.num_layers - 1, down_to - 1, -1):
            node = node.with_next(grams.forms) if mask >> layer & 1 else node.without_next()
        return node


def search_exact(
    grams: PairGrams, ranks: RankCorrelation, *, up_to: int, threads: int = 1, progress: Progress = silent
) -> BestSubsets:
    """Score every non-empty subset of at most `up_to` layers by the Spearman correlation of its cosines."""
    # As many layers as keep a block in the cache, and small enough for one BLAS thread.
    rows = max(1, _BLOCK // grams.num_pairs)
    lowest = _Lowest.of(grams, min(grams.num_layers, 7, rows.bit_length() - 1))
    chunk = max(len(lowest.ends) - 1, min(_CHUNK_LAYERS, grams.num_layers - 3))
    higher = grams.num_layers - chunk
    subsets = (some for size in range(up_to + 1) for some in combinations(range(higher), size))
    tasks = [sum(1 << chunk + place for place in some) for some in subsets]
    best_subsets = BestSubsets(grams.num_layers)

    def run(mask: int) -> BestSubsets:
        return _search_below(_Node.of(mask, grams, down_to=chunk), grams, ranks, lowest, up_to)

    with ThreadPoolExecutor(threads) as pool:
        for done, found in enumerate(pool.map(run, tasks), 1):
            best_subsets.merge(found)
            progress("Searching combinations", done, len(tasks))
    return best_subsets


def _walk(node: _Node, forms: Floats, *, down_to: int, up_to: int) -> Iterator[_Node]:
    """All choices among the layers from `down_to` on, of at most `up_to` layers; the lower masks first."""
    if node.gains.shape[1] == down_to:
        yield node
        return
    yield from _walk(node.without_next(), forms, down_to=down_to, up_to=up_to)
    if node.mask.bit_count() < up_to:
        yield from _walk(node.with_next(forms), forms, down_to=down_to, up_to=up_to)


def _search_below(node: _Node, grams: PairGrams, ranks: RankCorrelation, lowest: _Lowest, up_to: int) -> BestSubsets:
    """All subsets that extend `node` by lower layers."""
    layers = len(lowest.ends) - 1
    parts = np.empty((3, 1 + layers, grams.num_pairs))
    block = np.empty((3, len(lowest.masks), grams.num_pairs))
    masks: list[Masks] = []
    scores: list[NDArray[np.float64]] = []
    for leaf in _walk(node, grams.forms, down_to=layers, up_to=up_to):
        begin = 0 if leaf.mask else 1  # the empty set is no combination
        end = lowest.ends[min(layers, up_to - leaf.mask.bit_count())]
        parts[:, 0], parts[:, 1:] = leaf.sums, leaf.gains
        sums = np.matmul(lowest.with_one[begin:end], parts, out=block[:, begin:end])
        sums += lowest.among[:, begin:end]
        masks.append(lowest.masks[begin:end] | leaf.mask)
        scores.append(ranks.of(cosines_of(sums)))
    best_subsets = BestSubsets(grams.num_layers)
    if masks:
        best_subsets.update(np.concatenate(masks), np.concatenate(scores))
    return best_subsets
