"""Each search scores subsets as the plain way does, and ranks as scipy does."""

from math import comb

import numpy as np
import pytest
import torch
from scipy import stats

from tests.support.layer_subsets import check_best_subsets, max_over, mean_over, plain_scores, random_states
from truncate_kit.core.errors import DataError, ModelError
from truncate_kit.methods.bert_lc.search import (
    STEP,
    BestSubsets,
    PairStates,
    RankCorrelation,
    count_subsets,
    largest_size,
    layers_in,
    pair_grams,
    search_beam,
    search_exact,
    search_states,
)
from truncate_kit.models.pipeline import Dense


@pytest.mark.parametrize(
    ("layers", "pairs", "up_to"),
    [(1, 24, 1), (3, 24, 3), (6, 24, 2), (9, 24, 9), (9, 24, 4), (19, 9, 3)],  # three layers above the tasks of 19
)
def test_every_subset_is_scored_as_the_plain_way_does(layers, pairs, up_to):
    states, first, second, targets = random_states(layers, pairs, seed=layers)
    scores, grams = plain_scores(states, first, second, targets, up_to), pair_grams(states, first, second)
    for threads in (1, 2):
        found = search_exact(grams, RankCorrelation(targets), up_to=up_to, threads=threads)
        check_best_subsets(found, scores, layers, up_to)


def test_sizes_are_capped_where_every_subset_is_too_much():
    assert [count_subsets(13, 13), count_subsets(25, 4)] == [8191, 25 + 300 + 2300 + comb(25, 4)]
    assert [largest_size(layers) for layers in (1, 13, 14, 15, 25, 49)] == [1, 13, 14, 7, 4, 2]


def test_equal_scores_go_to_fewer_then_lower_layers():
    best_subsets = BestSubsets(4)
    best_subsets.update(np.array([0b1100, 0b0011, 0b1000, 0b0111]), np.array([0.5, 0.5, 0.5, 0.5]))
    assert best_subsets.best == (0.5, -1, -0b1000)
    assert best_subsets.by_size[1] == best_subsets.without[3] == (0.5, -2, -0b0011)
    best_subsets.update(np.array([0b0001, 0b0010]), np.array([np.nan, 0.4]))
    assert best_subsets.best == (0.5, -1, -0b1000)
    assert best_subsets.count == 6


def test_states_that_cannot_be_compared():
    states, first, second, _ = random_states(3, 6)
    states[1, 2] = 0
    with pytest.raises(ModelError, match="layer 1 have length zero"):
        pair_grams(states, first, second)
    states[2, 0, 0] = float("nan")
    with pytest.raises(ModelError, match="layer 2"):
        pair_grams(states, first, second)


def test_a_beam_as_wide_as_a_size_is_exact():
    states, first, second, targets = random_states(7, 30)
    wide = search_beam(pair_grams(states, first, second), RankCorrelation(targets), up_to=5, width=35)
    check_best_subsets(wide, plain_scores(states, first, second, targets, 5), 7, 5)


def test_a_narrow_beam_looks_at_less_and_finds_no_more():
    states, first, second, targets = random_states(8, 30, seed=2)
    grams, ranks = pair_grams(states, first, second), RankCorrelation(targets)
    exact, scores = search_exact(grams, ranks, up_to=8), plain_scores(states, first, second, targets, 8)
    for width in (1, 3):
        beam = search_beam(grams, ranks, up_to=8, width=width)
        assert beam.count <= 8 + 7 * 8 * width
        for best, row in zip(exact.by_size, beam.by_size, strict=True):
            assert row[0] == pytest.approx(scores[layers_in(-row[2])], abs=1e-12)
            assert row[0] <= best[0] + 1e-12


@pytest.mark.parametrize("up_to", [5, 2])
def test_maximum_and_head_on_two_parts_of_the_pairs(up_to):
    states, first, second, targets = random_states(5, 40)
    generator = torch.Generator().manual_seed(1)
    head = Dense(6, 4, bias=True, activation="Tanh").double()
    weight, bias = torch.randn(4, 6, generator=generator).double(), torch.randn(4, generator=generator).double()
    head.linear.load_state_dict({"weight": weight, "bias": bias})
    parts = [list(range(25)), list(range(15, 40))[::-1]]

    def through_head(chosen):
        return torch.tanh(mean_over(chosen) @ weight.T + bias)

    for pooler, vectors in ((None, max_over), (head, through_head)):
        pairs = PairStates(states, first, second, pooler)
        ranks = [RankCorrelation([targets[place] for place in part]) for part in parts]
        found = search_states(pairs, list(zip(parts, ranks, strict=True)), up_to=up_to)
        for best_subsets, part in zip(found, parts, strict=True):
            ours = ([side[place] for place in part] for side in (first, second, targets))
            check_best_subsets(best_subsets, plain_scores(states, *ours, up_to, vectors), 5, up_to)
        together = vectors(states[[1, 4]])
        expected = torch.cosine_similarity(together[first], together[second])
        torch.testing.assert_close(torch.tensor(pairs.cosines((1, 4))), expected)


def expected(rows, targets):
    return np.array([stats.spearmanr(row, targets).statistic for row in rows])


# 1,000 to 3,000 pairs: the packed rank takes 11, 12 and 13 bits, and the sign of the key moves through them.
@pytest.mark.parametrize("count", [3, 40, 350, 1000, 1100, 2500])
@pytest.mark.parametrize("levels", [6, 10**6])
def test_equals_scipy_on_both_signs_and_tied_targets(count, levels):
    generator = np.random.default_rng(count)
    targets = generator.integers(0, levels, count).astype(float)
    targets[:2] = 0, 1
    rows = generator.uniform(-1, 1, (5, count))
    np.testing.assert_allclose(RankCorrelation(targets).of(rows.copy()), expected(rows, targets), atol=1e-12)


def test_tied_cosines_share_their_mean_rank():
    generator = np.random.default_rng(0)
    targets = generator.integers(0, 6, 350).astype(float)
    tied = generator.integers(-4, 5, (20, 350)) / 4
    rows = generator.uniform(0, 1, (6, 350))
    rows[1::2] = 0.5 + 1e-6 * rows[1::2]  # closer than 32 bits tell, between rows that they do
    rows[5, 10:20] = rows[5, 0]  # and ties beside them
    rows = np.concatenate([tied, rows])
    np.testing.assert_allclose(RankCorrelation(targets).of(rows.copy()), expected(rows, targets), atol=1e-12)


def test_rounding_of_identical_pairs_is_a_tie_and_a_real_difference_is_not():
    targets = [5.0, 4.0, 3.0, 2.0, 1.0]
    noisy = np.array([[1.0, 1 - 2e-16, 1 + 2e-16, 0.5, 0.1]])
    assert RankCorrelation(targets).of(noisy) == pytest.approx(expected([[1, 1, 1, 0.5, 0.1]], targets))
    apart = np.array([[0.5, 0.5 - 2 * STEP, 0.5 - 4 * STEP, 0.2, 0.1]])
    assert RankCorrelation(targets).of(apart)[0] == pytest.approx(1)


def test_one_value_only_has_no_correlation():
    found = RankCorrelation([1.0, 2.0, 3.0]).of(np.array([[0.5, 0.5, 0.5], [0.1, 0.2, 0.3]]))
    assert np.isnan(found[0])
    assert found[1] == 1


@pytest.mark.parametrize("targets", [[1.0, 2.0], [1.0, 1.0, 1.0], list(range(70_000))])
def test_targets_without_a_correlation(targets):
    with pytest.raises(DataError):
        RankCorrelation(targets)
