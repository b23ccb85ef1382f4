"""The search for the best combinations of layers."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import combinations
from math import comb
from typing import Any, Protocol, Self

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import stats
from torch import Tensor

from truncate_kit.data import PairSet, PlacedPairs, TextPair
from truncate_kit.errors import DataError, ModelError, not_finite
from truncate_kit.evaluation.graded import require_ranks
from truncate_kit.models import Encoder, pool
from truncate_kit.models.tail import Dense
from truncate_kit.progress import Progress, silent
from truncate_kit.representations import iter_states

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


_CHUNK = 32  # pairs at a time: their states in float64 stay in the cache


@dataclass(frozen=True, slots=True)
class PairGrams:
    """Quadratic forms of n pairs (a, b) over L' layers, float64, (3, L', L', n).

    Form 0 is a·a, form 1 b·b, form 2 a·b. Entry [f, l, m] holds what the layers l and m add to the form together:
    for l = m their own product, otherwise the sum of both orders. So the form of a set of layers is the sum of its
    entries with l ≤ m, and

        cos(mean of a over D, mean of b over D) = Σ a_l·b_m / √(Σ a_l·a_m · Σ b_l·b_m), sums over l, m ∈ D.
    """

    forms: Floats

    @property
    def num_layers(self) -> int:
        """L'."""
        return int(self.forms.shape[1])

    @property
    def num_pairs(self) -> int:
        """n."""
        return int(self.forms.shape[3])

    def select(self, pairs: Sequence[int]) -> "PairGrams":
        """The forms of some of the pairs, in the order given."""
        return PairGrams(np.ascontiguousarray(self.forms[..., list(pairs)]))

    def cosines(self, layers: Sequence[int]) -> Floats:
        """Cosine of the two layer means for each pair, (n,)."""
        chosen = sorted(layers)
        sums = sum(self.forms[:, low, high] for place, low in enumerate(chosen) for high in chosen[place:])
        return cosines_of(np.array(sums))


def cosines_of(sums: Floats) -> Floats:
    """Cosines from the three sums of the forms, (3, …) to (…)."""
    cosines: Floats = np.multiply(sums[0], sums[1])
    np.sqrt(cosines, out=cosines)
    np.divide(sums[2], cosines, out=cosines)
    return cosines


def row_cosines(a: Floats, b: Floats) -> Floats:
    """Cosine of each row of `a` with that of `b`, (n, d) each."""
    return cosines_of(np.stack([np.einsum("nd,nd->n", x, y) for x, y in ((a, a), (b, b), (a, b))]))


def pair_grams(states: Tensor, first: Sequence[int], second: Sequence[int], *, threads: int = 1) -> PairGrams:
    """The forms (float64) of the pairs at `first` and `second` in CPU `states` (L', texts, d). Raises `ModelError`."""
    layers, width, values = states.shape[0], states.shape[2], states.numpy()
    forms = np.empty((3, layers, layers, len(first)))

    def take(start: int) -> None:
        a, b = (list(side[start : start + _CHUNK]) for side in (first, second))
        part = np.empty((len(a), 2 * layers, width))
        part[:, :layers] = values[:, a].transpose(1, 0, 2)
        part[:, layers:] = values[:, b].transpose(1, 0, 2)
        with np.errstate(invalid="ignore"):  # states that are not numbers are named at the end
            products = np.matmul(part, part.transpose(0, 2, 1)).transpose(1, 2, 0)
        place = slice(start, start + len(a))
        forms[0, :, :, place] = products[:layers, :layers]
        forms[1, :, :, place] = products[layers:, layers:]
        forms[2, :, :, place] = products[:layers, layers:]

    with ThreadPoolExecutor(threads) as pool:
        for _ in pool.map(take, range(0, len(first), _CHUNK)):
            pass
    return PairGrams(_both_orders(forms))


def _both_orders(forms: Floats) -> Floats:
    """Add [m, l] to [l, m] off the diagonal; refuse states that are not numbers, and those without a direction."""
    diagonal = np.arange(forms.shape[1])
    own = forms[:, diagonal, diagonal].copy()
    broken = [int(layer) for layer in diagonal if not np.isfinite(own[:2, layer]).all()]
    if broken:
        raise not_finite(broken)
    empty = [int(layer) for layer in diagonal if not (own[:2, layer] > 0).all()]
    if empty:
        raise ModelError(
            f"The states of layer {', '.join(map(str, empty))} have length zero for some texts.",
            hint="Check the model: a state of zeros has no cosine.",
        )
    doubled: Floats = forms + forms.transpose(0, 2, 1, 3)
    doubled[:, diagonal, diagonal] = own
    return doubled


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


MOST_SUBSETS = 2**14 - 1
"""Every subset of 14 layers; of more layers all subsets up to the largest size that keeps to this number."""
_ROWS = 128  # rows of cosines ranked at a time
Part = tuple[Sequence[int], RankCorrelation]  # places of pairs, and the correlation with their targets


class Rule(Protocol):
    """How the states of several layers become one vector; grows by one layer at a time."""

    def prepared(self, state: Floats) -> Floats:
        """What is kept of the states (n, d) of one layer."""

    def joined(self, together: Floats | None, part: Floats) -> Floats:
        """`together` with one more layer; None is no layer yet."""

    def vectors(self, together: Floats, size: int) -> Floats:
        """Vectors (n, out) of a combination of `size` layers."""


class Maximum:
    """The largest value of each dimension over the layers."""

    def prepared(self, state: Floats) -> Floats:
        """The states themselves."""
        return state

    def joined(self, together: Floats | None, part: Floats) -> Floats:
        """Elementwise maximum."""
        return part if together is None else np.maximum(together, part)

    def vectors(self, together: Floats, size: int) -> Floats:
        """The maximum."""
        return together


@dataclass(frozen=True, slots=True)
class Head:
    """tanh(W · mean + b), a model's trained pooler over the mean of the layers."""

    weight: Floats  # (out, d)
    bias: Floats  # (out,)

    def prepared(self, state: Floats) -> Floats:
        """The states through the weights: W · mean = mean of W · state, so each layer is projected once."""
        projected: Floats = state @ self.weight.T
        return projected

    def joined(self, together: Floats | None, part: Floats) -> Floats:
        """The sum."""
        return part if together is None else together + part

    def vectors(self, together: Floats, size: int) -> Floats:
        """The mean, the bias, tanh."""
        return np.tanh(together / size + self.bias)


class StatePairs:
    """The states of pairs under one rule, ready for combining: parts, (2, L', n, width) float64."""

    def __init__(self, rule: Rule, parts: Floats) -> None:
        self.rule = rule
        self.parts = parts

    @classmethod
    def of(cls, states: Tensor, first: Sequence[int], second: Sequence[int], rule: Rule) -> Self:
        """From states (L', texts, d) and the places of each pair's texts."""
        prepared = [rule.prepared(state.double().numpy()) for state in states]
        return cls(rule, np.stack([[part[list(side)] for part in prepared] for side in (first, second)]))

    @property
    def num_layers(self) -> int:
        """L'."""
        return int(self.parts.shape[1])

    def select(self, pairs: Sequence[int]) -> Self:
        """Some of the pairs, in the order given."""
        return type(self)(self.rule, np.ascontiguousarray(self.parts[:, :, list(pairs)]))

    def cosines(self, layers: Sequence[int]) -> Floats:
        """Cosine of the combination of these layers for each pair, (n,)."""
        together = self.rule.joined(None, self.parts[:, layers[0]])
        for layer in layers[1:]:
            together = self.rule.joined(together, self.parts[:, layer])
        return self._cosines(together, len(layers))

    def _cosines(self, together: Floats, size: int) -> Floats:
        return row_cosines(*self.rule.vectors(together, size))

    def all_cosines(self, up_to: int) -> Iterator[tuple[int, Floats]]:
        """Mask and cosines of every non-empty subset of at most `up_to` layers, each made from one a layer smaller."""
        none: Floats | None = None
        waiting = [(0, none, layer) for layer in range(self.num_layers)]
        while waiting:
            mask, before, layer = waiting.pop()
            mask |= 1 << layer
            together = self.rule.joined(before, self.parts[:, layer])
            yield mask, self._cosines(together, mask.bit_count())
            if mask.bit_count() < up_to:
                waiting += [(mask, together, lower) for lower in range(layer)]


def largest_size(num_layers: int) -> int:
    """Most layers per combination: all of up to 14 layers, beyond that as many as `MOST_SUBSETS` allows."""
    return max(size for size in range(1, num_layers + 1) if count_subsets(num_layers, size) <= MOST_SUBSETS)


def search_states(
    pairs: StatePairs, parts: Sequence[Part], *, up_to: int, progress: Progress = silent
) -> list[BestSubsets]:
    """Score every subset of at most `up_to` layers on several parts of the pairs; the cosines are computed once."""
    best_subsets = [BestSubsets(pairs.num_layers) for _ in parts]
    total, done = count_subsets(pairs.num_layers, up_to), 0
    masks: list[int] = []
    rows: list[Floats] = []
    for mask, cosines in pairs.all_cosines(up_to):
        masks.append(mask)
        rows.append(cosines)
        if len(rows) == _ROWS or done + len(rows) == total:
            done += len(rows)
            together, numbers = np.stack(rows), np.array(masks, dtype=np.int64)
            for found, (places, ranks) in zip(best_subsets, parts, strict=True):
                found.update(numbers, ranks.of(np.ascontiguousarray(together[:, places])))
            masks, rows = [], []
            progress("Searching combinations", done, total)
    return best_subsets


_WINDOW = 2_048  # pairs whose states are held at a time


class Scorer(Protocol):
    """Pairs whose combinations have cosines."""

    def cosines(self, layers: Sequence[int]) -> Floats:
        """Cosine of the combination of these layers for each pair, (n,)."""


def read_grams(
    encoder: Encoder, pairs: PairSet, pooler: Dense | None = None, progress: Progress = silent
) -> tuple[PairGrams, Floats]:
    """The Gram matrices of all pairs, and `_first_cosines`; window by window."""
    forms, cls = [], []
    for start in range(0, len(pairs), _WINDOW):
        window = pairs.pairs[start : start + _WINDOW]
        states, firsts, first, second = _states(encoder, window, progress)
        forms.append(pair_grams(states, first, second, threads=torch.get_num_threads()).forms)
        cls.append(_first_cosines(firsts, first, second, pooler))
    return PairGrams(np.concatenate(forms, axis=3)), np.concatenate(cls, axis=1)


def read_state_pairs(
    encoder: Encoder, pairs: PairSet, rule: Rule, pooler: Dense | None = None, progress: Progress = silent
) -> tuple[StatePairs, Floats]:
    """The states of all pairs under a rule, in memory, and `_first_cosines`."""
    states, firsts, first, second = _states(encoder, pairs.pairs, progress)
    return StatePairs.of(states, first, second, rule), _first_cosines(firsts, first, second, pooler)


def _states(
    encoder: Encoder, pairs: Sequence[TextPair], progress: Progress
) -> tuple[Tensor, Tensor, list[int], list[int]]:
    """States (L', texts, d) of the distinct texts, CLS states (texts, d) of the last layer, places of both sides."""
    texts, first, second = PlacedPairs.of(pairs)
    states = torch.empty(encoder.depth + 1, len(texts), encoder.width, dtype=torch.float32)
    cls = torch.empty(len(texts), encoder.width, dtype=torch.float32)
    for batch in iter_states(encoder, texts, progress=progress):
        states[:, batch.places] = batch.states
        cls[batch.places] = pool(batch.hidden_states[-1], batch.attention_mask, "cls").float().cpu()
    return states, cls, first, second


def _first_cosines(cls: Tensor, first: list[int], second: list[int], pooler: Dense | None) -> Floats:
    """Cosines of n pairs by the last layer's CLS states (texts, d), and by these through the pooler, (1 or 2, n)."""
    every = [cls]
    if pooler is not None:
        with torch.no_grad():
            every.append(pooler.cpu()(cls))
    return np.stack([row_cosines(rows[first].double().numpy(), rows[second].double().numpy()) for rows in every])
