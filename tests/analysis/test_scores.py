"""Label-free scores: their definitions on made states and tokens."""

import math

import pytest
import torch

from truncate_kit.analysis.profile import LabelFreeScores
from truncate_kit.core.errors import ModelError

TOKENS, MASK = [torch.ones(1, 2, 3)] * 2, torch.ones(1, 2)


@pytest.fixture(scope="module")
def states():
    generator = torch.Generator().manual_seed(0)
    return torch.randn(2, 50, 8, generator=generator) + torch.tensor([0.0, 2.0])[:, None, None]


def test_effective_rank_is_rankme_and_anisotropy_the_mean_cosine_of_distinct_pairs(states):
    scores = LabelFreeScores()
    for part in states.split(20, 1):
        scores.update(part, TOKENS, MASK)
    found = scores.result()
    for layer in range(2):
        values = torch.linalg.svdvals(states[layer].double())
        shares = values / values.sum() + 1e-7  # RankMe, eq. 1 and 2, with its epsilon
        assert found["effective_rank"][layer] == pytest.approx(float((-(shares * shares.log()).sum()).exp()), rel=1e-4)
        cosines = torch.cosine_similarity(states[layer, :, None].double(), states[layer, None].double(), dim=-1)
        pairs = torch.triu_indices(50, 50, 1)
        assert found["anisotropy"][layer] == pytest.approx(float(cosines[pairs[0], pairs[1]].mean()), abs=1e-9)


def test_turning_tokens_by_known_angles():
    """Block 1 turns every token by 60 degrees, block 2 doubles it: influence 1 − cos 60° and 0, distance 1/3 and 0."""
    angle = torch.tensor([[0.1, 0.7, 1.3], [2.0, 2.9, 0.0]], dtype=torch.float64)
    first = torch.stack([angle.cos(), angle.sin()], -1)
    second = torch.stack([(angle + math.pi / 3).cos(), (angle + math.pi / 3).sin()], -1)
    scores = LabelFreeScores()
    scores.update(torch.rand(3, 2, 4), [first, second, 2 * second], torch.tensor([[1, 1, 1], [1, 1, 0]]))
    found = scores.result()
    assert found["block_influence"] == pytest.approx((0.5, 0.0), abs=1e-6)
    assert found["angular_distance"] == pytest.approx((1 / 3, 0.0), abs=1e-4)
    assert scores.tokens == 5


def test_padding_and_batches_do_not_enter_token_scores():
    layers = list(torch.randn(3, 4, 5, 6, generator=torch.Generator().manual_seed(0)))
    mask = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0], [0, 0, 1, 1, 1], [1, 0, 0, 0, 0]])
    whole, wild = LabelFreeScores(), LabelFreeScores()
    whole.update(torch.rand(3, 4, 2), layers, mask)
    for row in range(4):
        padded = [layer[[row]].masked_fill(mask[[row], :, None] == 0, torch.nan) for layer in layers]
        wild.update(torch.rand(3, 1, 2), padded, mask[[row]])
    for name in ("block_influence", "angular_distance"):
        assert wild.result()[name] == pytest.approx(whole.result()[name])
    cosines = torch.cosine_similarity(layers[0], layers[1], dim=-1)[mask.bool()]
    assert whole.result()["block_influence"][0] == pytest.approx(1 - float(cosines.mean()), abs=1e-6)


def test_states_and_tokens_that_are_no_numbers(states):
    scores = LabelFreeScores()
    scores.update(states.clone().index_fill_(0, torch.tensor([1]), torch.nan), TOKENS, MASK)
    with pytest.raises(ModelError, match="layer 1"):
        scores.result()
    scores = LabelFreeScores()
    scores.update(states, [torch.full((1, 2, 3), torch.nan)] * 2, MASK)
    with pytest.raises(ModelError, match="NaN or infinity"):
        scores.result()
