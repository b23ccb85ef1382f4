"""Search for combinations of layers: exact with Gram matrices, by beam search, or exact with vectors."""

import copy
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import reduce
from itertools import combinations, islice
from math import comb
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from scipy import stats
from torch import Tensor

from truncate_kit.core.errors import DataError, ModelError, not_finite
from truncate_kit.core.progress import Progress, silent
from truncate_kit.data.pairs import check_ranks
from truncate_kit.models.pipeline import Dense

Floats = NDArray[np.float64]
Masks = NDArray[np.int64]
Keys = NDArray[Any]
STEP = 2.0**-44
"""Cosines closer than this (6e-14) are equal: above float64 rounding, far below differences of float32 states."""
MOST_SUBSETS = 2**14 - 1
"""Limit without Gram matrices: all subsets of 14 layers, or small subsets of more layers."""

# Added to a number in [−1, 1], so that the float's low 46 bits count steps of 2⁻⁴⁴ and the six above are zero.
_ROUNDER = 2.0**8 + 2
_STEP_BITS = 46
_MOST_PAIRS = 65_535
_PAIRS_AT_ONCE = 32  # their float64 states stay in the cache
_ROWS = 128
_BLOCK = 100_000  # cosines at a time: fit a core's cache; smaller blocks keep threads waiting
_CHUNK_LAYERS = 16  # one task: subsets of the 16 lowest layers


class RankCorrelation:
    """Spearman correlation with fixed targets, of many rows of cosines; ties share their mean rank.

    Rows are sorted as integers with the cosine in the upper bits and the target's rank in the lower bits, so no index
    is needed. Sorting 32 bits takes half the time; rows with equal upper bits are sorted again with 64.

    Raises:
        DataError: Fewer than three targets, more than 65,535, or all targets are equal.
    """

    def __init__(self, targets: Sequence[float]) -> None:
        self.count = len(targets)
        check_ranks(targets)
        if self.count > _MOST_PAIRS:
            raise DataError(f"{self.count:,} pairs are too many to rank at once.", hint="Use fewer pairs.")
        ranks = np.asarray(stats.rankdata(targets), dtype=np.float64)
        self._levels, places = np.unique(ranks, return_inverse=True)
        self._level_of = places.astype(np.int64)
        self._bits = (len(self._levels) - 1).bit_length()
        self._short_suffices = self.count**2 < 1 << 32 - self._bits  # else most rows are sorted twice
        self._spread = float(((ranks - ranks.mean()) ** 2).sum())
        self._places = np.arange(self.count) - (self.count - 1) / 2
        self._place_spread = float((self._places**2).sum())

    def of(self, cosines: Floats) -> Floats:
        """Return correlations (r,) of cosines (r, n); NaN for a constant row. Overwrites `cosines`."""
        # Sums of half integers are exact in any order.
        cosines += _ROUNDER
        steps = cosines.view(np.int64)
        products = np.empty(len(cosines))
        spreads = np.full(len(cosines), self._place_spread)
        again = np.arange(len(cosines))
        if self._short_suffices:
            keys: Keys = np.right_shift(steps, _STEP_BITS - 32 + self._bits).astype(np.uint32)
            ranks, shared = self._sorted(keys)
            products[:] = ranks @ self._places
            again = np.flatnonzero(shared)
        if len(again):
            keys = steps[again]
            ranks, shared = self._sorted(keys)
            products[again] = ranks @ self._places
            tied = np.flatnonzero(shared)
            if len(tied):
                places = stats.rankdata(keys[tied] >> self._bits, axis=1) - (self.count + 1) / 2
                products[again[tied]] = np.einsum("rn,rn->r", places, ranks[tied])
                spreads[again[tied]] = np.einsum("rn,rn->r", places, places)
        correlations: Floats = np.full(len(cosines), np.nan)
        np.divide(products, np.sqrt(spreads * self._spread), out=correlations, where=spreads > 0)
        return correlations

    def _sorted(self, keys: Keys) -> tuple[Floats, NDArray[np.bool_]]:
        """Sort `keys` in place; return the targets' ranks (r, n), and which rows have ties (r,)."""
        np.left_shift(keys, self._bits, out=keys)
        np.bitwise_or(keys, self._level_of.astype(keys.dtype), out=keys)
        keys.sort(axis=1)
        ranks: Floats = self._levels.take(np.bitwise_and(keys, (1 << self._bits) - 1), mode="clip")
        unsigned = keys.view(f"u{keys.itemsize}")  # equal upper bits leave a small difference of any sign
        nearest = np.bitwise_xor(unsigned[:, 1:], unsigned[:, :-1]).min(axis=1)
        return ranks, nearest < (1 << self._bits)


class PairGrams:
    """Quadratic forms a·a, b·b and a·b of n pairs over L' layers, float64, (3, L', L', n).

    Entry [f, l, m] is the contribution of layers l and m: their product for l = m, else the sum of both orders. For a
    set D of layers, its entries with l ≤ m are summed, and

        cos(mean of a over D, mean of b over D) = Σ a_l·b_m / √(Σ a_l·a_m · Σ b_l·b_m), sums over l, m ∈ D.
    """

    def __init__(self, forms: Floats) -> None:
        self.forms = forms
        self.num_layers, self.num_pairs = forms.shape[1], forms.shape[3]

    def select(self, pairs: Sequence[int]) -> "PairGrams":
        """Select pairs by index."""
        return PairGrams(np.ascontiguousarray(self.forms[..., list(pairs)]))

    def cosines(self, layers: Sequence[int]) -> Floats:
        """Return the cosines of the layer means, (n,)."""
        chosen = sorted(layers)
        sums = sum(self.forms[:, low, high] for place, low in enumerate(chosen) for high in chosen[place:])
        return cosines_of(np.array(sums))


def cosines_of(sums: Floats) -> Floats:
    """Return cosines (…) from summed quadratic forms (3, …)."""
    cosines: Floats = np.multiply(sums[0], sums[1])
    np.sqrt(cosines, out=cosines)
    np.divide(sums[2], cosines, out=cosines)
    return cosines


def row_cosines(a: Floats, b: Floats) -> Floats:
    """Return the cosine of each row, (n, d) each."""
    return cosines_of(np.stack([np.einsum("nd,nd->n", x, y) for x, y in ((a, a), (b, b), (a, b))]))


def pair_grams(states: Tensor, first: Sequence[int], second: Sequence[int], *, threads: int = 1) -> PairGrams:
    """Compute the quadratic forms of pairs at rows `first` and `second` of `states` (L', texts, d) on the CPU.

    Raises `ModelError` for a state that is not finite or has length zero.
    """
    layers, width, values = states.shape[0], states.shape[2], states.numpy()
    forms = np.empty((3, layers, layers, len(first)))

    def take(start: int) -> None:
        a, b = (list(side[start : start + _PAIRS_AT_ONCE]) for side in (first, second))
        part = np.empty((len(a), 2 * layers, width))
        part[:, :layers] = values[:, a].transpose(1, 0, 2)
        part[:, layers:] = values[:, b].transpose(1, 0, 2)
        with np.errstate(invalid="ignore"):  # reported below
            products = np.matmul(part, part.transpose(0, 2, 1)).transpose(1, 2, 0)
        place = slice(start, start + len(a))
        forms[0, :, :, place] = products[:layers, :layers]
        forms[1, :, :, place] = products[layers:, layers:]
        forms[2, :, :, place] = products[:layers, layers:]

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(take, range(0, len(first), _PAIRS_AT_ONCE)))
    diagonal = np.arange(layers)
    own = forms[:, diagonal, diagonal].copy()
    if broken := np.flatnonzero(~np.isfinite(own[:2]).all(axis=(0, 2))).tolist():
        raise not_finite(broken)
    if empty := np.flatnonzero(~(own[:2] > 0).all(axis=(0, 2))).tolist():
        problem = f"The states of layer {', '.join(map(str, empty))} have length zero for some texts."
        raise ModelError(problem, hint="Check the model: a hidden state of zeros has no cosine.")
    forms = forms + forms.transpose(0, 2, 1, 3)
    forms[:, diagonal, diagonal] = own
    return PairGrams(forms)


Ranked = tuple[float, int, int]
"""Score, −number of layers, −mask (bit l = layer l); larger is better."""
_NO_SUBSET: Ranked = (-np.inf, 0, 0)


def layers_in(mask: int) -> tuple[int, ...]:
    """Return a mask's layers, ascending."""
    return tuple(layer for layer in range(mask.bit_length()) if mask >> layer & 1)


class BestSubsets:
    """The best combinations, by size and by excluded layer; undefined scores are −∞."""

    def __init__(self, num_layers: int) -> None:
        self.by_size = [_NO_SUBSET] * num_layers  # index k − 1: best of k layers
        self.without = [_NO_SUBSET] * num_layers  # index l: best without layer l
        self.count = 0

    @property
    def best(self) -> Ranked:
        """Return the best combination. Raises `DataError` if all scores are undefined."""
        best = max(self.by_size)
        if best == _NO_SUBSET:
            raise DataError(
                "Every combination of layers gives all pairs the same similarity.",
                hint="Check the data and the model: texts or vectors may all be the same.",
            )
        return best

    def update(self, masks: Masks, scores: Floats) -> None:
        """Add combinations (r,) with their scores; combinations with NaN scores are only counted."""
        self.count += len(masks)
        sizes = np.bitwise_count(masks).astype(np.int64)
        order = np.lexsort((masks, sizes, -scores))[: len(masks) - int(np.isnan(scores).sum())]
        masks, scores, sizes = masks[order], scores[order], sizes[order]

        def take_best(best: list[Ranked], place: int, allowed: NDArray[np.bool_]) -> None:
            if allowed.any():
                first = int(np.argmax(allowed))
                best[place] = max(best[place], (float(scores[first]), -int(sizes[first]), -int(masks[first])))

        for size in np.unique(sizes):
            take_best(self.by_size, int(size) - 1, sizes == size)
        for layer in range(len(self.without)):
            take_best(self.without, layer, masks >> layer & 1 == 0)

    def merge(self, other: Self) -> None:
        """Add the combinations of `other`."""
        self.count += other.count
        self.by_size = list(map(max, self.by_size, other.by_size))
        self.without = list(map(max, self.without, other.without))


def count_subsets(num_layers: int, up_to: int) -> int:
    """Count the non-empty subsets of at most `up_to` layers."""
    return sum(comb(num_layers, size) for size in range(1, up_to + 1))


def largest_size(num_layers: int) -> int:
    """Return the largest size up to which there are at most `MOST_SUBSETS` subsets; 14 for 14 layers."""
    return max(size for size in range(1, num_layers + 1) if count_subsets(num_layers, size) <= MOST_SUBSETS)


# A subset: mask, sums (3, n), and the gain from adding each layer that may follow, (3, layers, n).
_Node = tuple[int, Floats, Floats]


def _root(grams: PairGrams) -> _Node:
    layers = np.arange(grams.num_layers)
    return 0, np.zeros((3, grams.num_pairs)), grams.forms[:, layers, layers]


def _joined(node: _Node, layer: int, forms: Floats, num_followers: int) -> _Node:
    """Return the subset with `layer` added; only layers below `num_followers` may be added later."""
    mask, sums, gains = node
    return mask | 1 << layer, sums + gains[:, layer], gains[:, :num_followers] + forms[:, :num_followers, layer]


def _walk(node: _Node, forms: Floats, *, down_to: int, up_to: int) -> Iterator[_Node]:
    """Yield subsets of at most `up_to` layers, with any choice of layers from `down_to` up; lower masks first."""
    mask, sums, gains = node
    layer = gains.shape[1] - 1
    if layer < down_to:
        yield node
        return
    yield from _walk((mask, sums, gains[:, :layer]), forms, down_to=down_to, up_to=up_to)
    if mask.bit_count() < up_to:
        yield from _walk(_joined(node, layer, forms, layer), forms, down_to=down_to, up_to=up_to)


def search_exact(
    grams: PairGrams, ranks: RankCorrelation, *, up_to: int, threads: int = 1, progress: Progress = silent
) -> BestSubsets:
    """Score every non-empty subset of at most `up_to` layers.

    A tree walk decides the higher layers one by one, and updates sums and gains. For each result, all subsets of the
    lowest layers are scored at once, by a matrix product with indicator vectors.
    """
    forms, num_pairs = grams.forms, grams.num_pairs
    # The lowest layers: as many as fit the cache and one BLAS thread.
    layers = min(grams.num_layers, 7, max(1, _BLOCK // num_pairs).bit_length() - 1)
    # Subsets of the lowest layers by rising size: indicator vectors after a leading 1, and gains.
    lowest = np.arange(1 << layers, dtype=np.int64)
    sizes = np.bitwise_count(lowest)
    lowest = lowest[np.argsort(sizes, kind="stable")]
    ends = [int((sizes <= size).sum()) for size in range(layers + 1)]  # number with at most k layers
    chosen = (lowest[:, None] >> np.arange(layers) & 1).astype(np.float64)
    among = np.zeros((3, len(lowest), num_pairs))
    for low, high in combinations(range(layers), 2):
        both = np.flatnonzero(chosen[:, low] * chosen[:, high])
        among[:, both] += forms[:, None, low, high]
    with_one = np.concatenate([np.ones((len(lowest), 1)), chosen], axis=1)

    chunk = max(layers, min(_CHUNK_LAYERS, grams.num_layers - 3))
    higher = range(chunk, grams.num_layers)
    tasks = [some for size in range(up_to + 1) for some in combinations(higher, size)]

    def run(task: tuple[int, ...]) -> BestSubsets:
        node = _root(grams)
        for layer in reversed(task):
            node = _joined(node, layer, forms, layer)
        node = (*node[:2], node[2][:, :chunk])
        parts, block = np.empty((3, 1 + layers, num_pairs)), np.empty((3, len(lowest), num_pairs))
        masks, scores = list[Masks](), list[Floats]()
        for mask, sums, gains in _walk(node, forms, down_to=layers, up_to=up_to):
            begin = 0 if mask else 1
            end = ends[min(layers, up_to - mask.bit_count())]
            parts[:, 0], parts[:, 1:] = sums, gains
            totals = np.matmul(with_one[begin:end], parts, out=block[:, begin:end])
            totals += among[:, begin:end]
            masks.append(lowest[begin:end] | mask)
            scores.append(ranks.of(cosines_of(totals)))
        best_subsets = BestSubsets(grams.num_layers)
        best_subsets.update(np.concatenate(masks), np.concatenate(scores))
        return best_subsets

    best_subsets = BestSubsets(grams.num_layers)
    with ThreadPoolExecutor(threads) as pool:
        for done, part in enumerate(pool.map(run, tasks), 1):
            best_subsets.merge(part)
            progress("Searching combinations", done, len(tasks))
    return best_subsets


def search_beam(
    grams: PairGrams, ranks: RankCorrelation, *, up_to: int, width: int, progress: Progress = silent
) -> BestSubsets:
    """Run a beam search that adds one layer at a time to the `width` best combinations."""
    best_subsets = BestSubsets(grams.num_layers)
    nodes = [_root(grams)]
    for size in range(1, up_to + 1):
        scored: dict[int, tuple[float, _Node, int]] = {}
        for node in nodes:
            mask, sums, gains = node
            free = [layer for layer in range(grams.num_layers) if not mask >> layer & 1]
            new = [layer for layer in free if mask | 1 << layer not in scored]
            if not new:
                continue
            scores = ranks.of(cosines_of(sums[:, None] + gains[:, new]))
            masks = np.array([mask | 1 << layer for layer in new], dtype=np.int64)
            best_subsets.update(masks, scores)
            for layer, mask, score in zip(new, masks.tolist(), scores.tolist(), strict=True):
                scored[mask] = (-np.inf if np.isnan(score) else score, node, layer)
        kept = sorted(scored, key=lambda mask: (-scored[mask][0], mask))[:width]
        nodes = [_joined(*scored[mask][1:], grams.forms, grams.num_layers) for mask in kept]
        progress("Searching combinations", size, up_to)
    return best_subsets


class PairStates:
    """Pairs of `states` (L', texts, d), if Gram matrices do not apply: for the maximum, or the mean through `head`."""

    def __init__(self, states: Tensor, first: Sequence[int], second: Sequence[int], head: Dense | None = None) -> None:
        prepared: list[Floats] = [state.double().numpy() for state in states]
        self.bias: Floats | None = None
        if head is not None:  # W · mean = mean of W · state
            weight, self.bias = (part.detach().double().cpu().numpy() for part in head.linear.parameters())
            prepared = [state @ weight.T for state in prepared]
        # States of both sides, (2, L', n, width).
        self.parts = np.stack([[part[list(side)] for part in prepared] for side in (first, second)])
        self.num_layers = len(prepared)

    def select(self, pairs: Sequence[int]) -> Self:
        """Select pairs by index."""
        some = copy.copy(self)
        some.parts = np.ascontiguousarray(self.parts[:, :, list(pairs)])
        return some

    def cosines(self, layers: Sequence[int]) -> Floats:
        """Return the pairs' cosines, (n,)."""
        return self._cosines(reduce(self._joined, [self.parts[:, layer] for layer in layers]), len(layers))

    def _joined(self, together: Floats, part: Floats) -> Floats:
        return np.maximum(together, part) if self.bias is None else together + part

    def _cosines(self, together: Floats, size: int) -> Floats:
        return row_cosines(*(together if self.bias is None else np.tanh(together / size + self.bias)))

    def all_cosines(self, up_to: int) -> Iterator[tuple[int, Floats]]:
        """Yield mask and cosines of each subset of at most `up_to` layers."""
        waiting: list[tuple[int, Floats | None, int]] = [(0, None, layer) for layer in range(self.num_layers)]
        while waiting:
            mask, before, layer = waiting.pop()
            mask, part = mask | 1 << layer, self.parts[:, layer]
            together = part if before is None else self._joined(before, part)
            yield mask, self._cosines(together, mask.bit_count())
            if mask.bit_count() < up_to:
                waiting += [(mask, together, lower) for lower in range(layer)]


def search_states(
    pairs: PairStates,
    parts: Sequence[tuple[Sequence[int], RankCorrelation]],
    *,
    up_to: int,
    progress: Progress = silent,
) -> list[BestSubsets]:
    """Score all subsets of at most `up_to` layers on several parts (indices, correlation) of the pairs."""
    best_subsets = [BestSubsets(pairs.num_layers) for _ in parts]
    subsets, done, total = pairs.all_cosines(up_to), 0, count_subsets(pairs.num_layers, up_to)
    while done < total:
        masks, rows = zip(*islice(subsets, _ROWS), strict=True)
        together, numbers = np.stack(rows), np.array(masks, dtype=np.int64)
        for best, (places, ranks) in zip(best_subsets, parts, strict=True):
            best.update(numbers, ranks.of(np.ascontiguousarray(together[:, places])))
        done += len(rows)
        progress("Searching combinations", done, total)
    return best_subsets
