"""The plain way to score combinations: one subset after another, from states, by torch and scipy."""

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations

import torch
from scipy import stats
from torch import Tensor

from truncate_kit.methods.bert_lc.search import BestSubsets, Ranked, layers_in

Subset = tuple[int, ...]


def random_states(
    layers: int, pairs: int, width: int = 6, seed: int = 0
) -> tuple[Tensor, list[int], list[int], list[float]]:
    """States (L', 2n, d), places of first and second texts, targets on six levels."""
    generator = torch.Generator().manual_seed(seed)
    targets = torch.randint(0, 6, (pairs,), generator=generator).double()
    first = torch.randn(pairs, width, generator=generator)
    second = first * targets[:, None] / 5 + torch.randn(pairs, width, generator=generator)
    noise = torch.randn(layers, 2 * pairs, width, generator=generator)
    states = torch.cat([first, second]) + noise * torch.linspace(0.5, 2, layers)[:, None, None] + 0.3
    return states, list(range(pairs)), list(range(pairs, 2 * pairs)), targets.tolist()


def mean_over(states: Tensor) -> Tensor:
    return states.double().mean(dim=0)


def max_over(states: Tensor) -> Tensor:
    return states.double().amax(dim=0)


def plain_scores(
    states: Tensor,
    first: Sequence[int],
    second: Sequence[int],
    targets: Sequence[float],
    up_to: int,
    vectors: Callable[[Tensor], Tensor] = mean_over,
) -> dict[Subset, float]:
    """Spearman of every subset of at most `up_to` layers, by subset."""
    found = {}
    for size in range(1, up_to + 1):
        for layers in combinations(range(len(states)), size):
            together = vectors(states[list(layers)])
            cosines = torch.cosine_similarity(together[first], together[second])
            found[layers] = float(stats.spearmanr(cosines, targets).statistic)
    return found


def check_best_subsets(best_subsets: BestSubsets, scores: Mapping[Subset, float], num_layers: int, up_to: int) -> None:
    """The best subsets are the best of each size and without each layer."""
    assert best_subsets.count == len(scores)
    check_one(best_subsets.best, scores)
    for size, row in enumerate(best_subsets.by_size, start=1):
        check_one(row, {layers: score for layers, score in scores.items() if len(layers) == size <= up_to})
    for layer in range(num_layers):
        check_one(best_subsets.without[layer], {layers: s for layers, s in scores.items() if layer not in layers})


def check_one(subset: Ranked, scores: Mapping[Subset, float]) -> None:
    """Compare with the best of the scores; −∞ if there are none."""
    if not scores:
        assert subset == (-math.inf, 0, 0)
        return
    assert abs(subset[0] - max(scores.values())) < 1e-12
    assert abs(subset[0] - scores[layers_in(-subset[2])]) < 1e-12
