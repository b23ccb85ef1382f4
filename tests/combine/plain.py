"""The plain way to score combinations: one subset after another, from states, by torch and scipy."""

from itertools import combinations

import torch
from scipy import stats


def random_states(layers, pairs, width=6, seed=0):
    """States (L', 2n, d), places of first and second texts, targets on six levels."""
    generator = torch.Generator().manual_seed(seed)
    targets = torch.randint(0, 6, (pairs,), generator=generator).double()
    first = torch.randn(pairs, width, generator=generator)
    second = first * targets[:, None] / 5 + torch.randn(pairs, width, generator=generator)
    noise = torch.randn(layers, 2 * pairs, width, generator=generator)
    states = torch.cat([first, second]) + noise * torch.linspace(0.5, 2, layers)[:, None, None] + 0.3
    return states, list(range(pairs)), list(range(pairs, 2 * pairs)), targets.tolist()


def mean_over(states):
    return states.double().mean(dim=0)


def max_over(states):
    return states.double().amax(dim=0)


def plain_scores(states, first, second, targets, up_to, vectors=mean_over):
    """Spearman of every subset of at most `up_to` layers, by subset."""
    found = {}
    for size in range(1, up_to + 1):
        for layers in combinations(range(len(states)), size):
            together = vectors(states[list(layers)])
            cosines = torch.cosine_similarity(together[first], together[second])
            found[layers] = float(stats.spearmanr(cosines, targets).statistic)
    return found


def check_leaders(leaders, scores, num_layers, up_to):
    """The leaders are the best of each size and without each layer."""
    assert leaders.count == len(scores)
    assert leaders.best.score == max(scores.values()) or abs(leaders.best.score - max(scores.values())) < 1e-12
    for size in range(1, num_layers + 1):
        row = leaders.by_size[size - 1]
        if size > up_to:
            assert row is None
            continue
        assert len(row.layers) == size
        check_one(row, {layers: score for layers, score in scores.items() if len(layers) == size})
    for layer in range(num_layers):
        if num_layers == 1:
            assert leaders.without[layer] is None
            continue
        check_one(leaders.without[layer], {layers: s for layers, s in scores.items() if layer not in layers})


def check_one(leader, scores):
    assert abs(leader.score - max(scores.values())) < 1e-12
    assert abs(leader.score - scores[leader.layers]) < 1e-12
