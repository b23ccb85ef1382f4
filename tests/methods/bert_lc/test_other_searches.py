"""Beam search beside the exact one; maximum over layers and pooler head beside the plain way."""

import pytest
import torch

from tests.support.layer_subsets import check_best_subsets, max_over, mean_over, plain_scores, random_states
from truncate_kit.methods.bert_lc.search import (
    RankCorrelation,
    StatePairs,
    largest_size,
    pair_grams,
    search_beam,
    search_exact,
    search_states,
)
from truncate_kit.models.pipeline import Dense


def test_a_beam_as_wide_as_a_size_is_exact():
    states, first, second, targets = random_states(7, 30)
    grams, ranks = pair_grams(states, first, second), RankCorrelation(targets)
    wide = search_beam(grams, ranks, up_to=5, width=35)
    check_best_subsets(wide, plain_scores(states, first, second, targets, 5), 7, 5)


@pytest.mark.parametrize("width", [1, 3])
def test_a_narrow_beam_looks_at_less_and_finds_no_more(width):
    states, first, second, targets = random_states(9, 30, seed=2)
    grams, ranks = pair_grams(states, first, second), RankCorrelation(targets)
    exact, beam = search_exact(grams, ranks, up_to=9), search_beam(grams, ranks, up_to=9, width=width)
    assert beam.count <= 9 + 8 * 9 * width
    scores = plain_scores(states, first, second, targets, 9)
    for size, row in enumerate(beam.by_size):
        assert row.score == pytest.approx(scores[row.layers], abs=1e-12)
        assert row.score <= exact.by_size[size].score + 1e-12


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
        pairs = StatePairs.of(states, first, second, pooler)
        ranks = [RankCorrelation([targets[place] for place in part]) for part in parts]
        found = search_states(pairs, list(zip(parts, ranks, strict=True)), up_to=up_to)
        for best_subsets, part in zip(found, parts, strict=True):
            sides = [first[place] for place in part], [second[place] for place in part]
            check_best_subsets(
                best_subsets, plain_scores(states, *sides, [targets[p] for p in part], up_to, vectors), 5, up_to
            )
        together = vectors(states[[1, 4]])
        expected = torch.cosine_similarity(together[first], together[second])
        torch.testing.assert_close(torch.tensor(pairs.cosines((1, 4))), expected)


def test_sizes_are_capped_where_every_subset_is_too_much():
    assert [largest_size(layers) for layers in (1, 13, 14, 15, 25, 49)] == [1, 13, 14, 7, 4, 2]
