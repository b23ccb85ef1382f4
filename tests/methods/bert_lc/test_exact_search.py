"""The exact search scores every subset, and as the plain way does."""

from math import comb

import numpy as np
import pytest
import torch

from tests.support.layer_subsets import check_best_subsets, plain_scores, random_states
from truncate_kit.errors import ModelError
from truncate_kit.methods.bert_lc.search import (
    BestSubsets,
    RankCorrelation,
    ScoredSubset,
    count_subsets,
    pair_grams,
    search_exact,
)


def test_cosines_follow_from_the_grams():
    states, first, second, _ = random_states(5, 70)  # more than the 32 pairs that are multiplied at a time
    second[:40] = second[10:50]  # texts that stand in several pairs
    grams = pair_grams(states, first, second)
    for layers in ([0], [4, 1], [0, 1, 2, 3, 4]):
        mean = states[layers].double().mean(dim=0)
        expected = torch.cosine_similarity(mean[first], mean[second])
        np.testing.assert_allclose(grams.cosines(layers), expected, atol=1e-14)
    np.testing.assert_array_equal(grams.select([5, 2]).cosines([1, 3]), grams.cosines([1, 3])[[5, 2]])


@pytest.mark.parametrize(("layers", "up_to"), [(1, 1), (3, 3), (6, 6), (6, 2), (9, 9), (9, 4)])
@pytest.mark.parametrize("threads", [1, 2])
def test_every_subset_is_scored_as_the_plain_way_does(layers, up_to, threads):
    states, first, second, targets = random_states(layers, 24, seed=layers)
    found = search_exact(pair_grams(states, first, second), RankCorrelation(targets), up_to=up_to, threads=threads)
    check_best_subsets(found, plain_scores(states, first, second, targets, up_to), layers, up_to)


def test_several_tasks_of_blocks_under_a_tree():
    states, first, second, targets = random_states(19, 9)  # three layers above the tasks, nine in the tree
    grams, up_to = pair_grams(states, first, second), 3
    found = search_exact(grams, RankCorrelation(targets), up_to=up_to, threads=2)
    check_best_subsets(found, plain_scores(states, first, second, targets, up_to), 19, up_to)


def test_all_131071_subsets_of_17_layers():
    states, first, second, targets = random_states(17, 8, seed=3)
    targets = np.arange(8.0)[np.argsort(np.argsort(targets, kind="stable"), kind="stable")]
    found = search_exact(pair_grams(states, first, second), RankCorrelation(targets), up_to=17)
    # All of them at once: indicator vectors times states, then ranks by two argsorts (no two values are alike).
    masks = np.arange(1, 2**17)
    chosen = torch.tensor(masks[:, None] >> np.arange(17) & 1, dtype=torch.float64)
    together = torch.einsum("sl,lnd->snd", chosen, states.double())
    cosines = torch.cosine_similarity(together[:, first], together[:, second], dim=2)
    ranks = cosines.argsort(dim=1).argsort(dim=1).double()
    scores = 1 - 6 * ((ranks - torch.tensor(targets)) ** 2).sum(dim=1) / (8 * 63)
    assert found.count == 2**17 - 1
    assert found.best.score == pytest.approx(float(scores.max()), abs=1e-12)
    sizes = np.bitwise_count(masks)
    for size in range(1, 18):
        at_best = masks[(scores.numpy() > found.by_size[size - 1].score - 1e-9) & (sizes == size)]
        assert found.by_size[size - 1].mask == at_best.min()  # few values are possible for eight pairs: many ties
    for layer in range(17):
        assert found.without[layer].score == pytest.approx(float(scores[masks >> layer & 1 == 0].max()), abs=1e-12)


def test_counts():
    assert count_subsets(13, 13) == 8191
    assert count_subsets(25, 25) == 2**25 - 1
    assert count_subsets(25, 4) == 25 + 300 + 2300 + comb(25, 4)


def test_equal_scores_go_to_fewer_then_lower_layers():
    best_subsets = BestSubsets(4)
    best_subsets.update(np.array([0b1100, 0b0011, 0b1000, 0b0111]), np.array([0.5, 0.5, 0.5, 0.5]))
    assert best_subsets.best == ScoredSubset(0b1000, 0.5)
    assert best_subsets.by_size[1] == ScoredSubset(0b0011, 0.5)
    assert best_subsets.without[3] == ScoredSubset(0b0011, 0.5)
    best_subsets.update(np.array([0b0001, 0b0010]), np.array([np.nan, 0.4]))
    assert best_subsets.best == ScoredSubset(0b1000, 0.5)
    assert best_subsets.count == 6


def test_states_that_cannot_be_compared():
    states, first, second, _ = random_states(3, 6)
    states[1, 2] = 0
    with pytest.raises(ModelError, match="layer 1 have length zero"):
        pair_grams(states, first, second)
    states[2, 0, 0] = float("nan")
    with pytest.raises(ModelError, match="layer 2"):
        pair_grams(states, first, second)
