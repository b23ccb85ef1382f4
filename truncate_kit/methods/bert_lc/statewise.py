"""Combinations without a Gram form: the largest value over layers, and the mean through a trained head."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, Self

import numpy as np
from torch import Tensor

from truncate_kit.methods.bert_lc.best_subsets import BestSubsets
from truncate_kit.methods.bert_lc.exact import count_subsets
from truncate_kit.methods.bert_lc.grams import Floats, row_cosines
from truncate_kit.methods.bert_lc.ranking import RankCorrelation
from truncate_kit.progress import Progress, silent

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
