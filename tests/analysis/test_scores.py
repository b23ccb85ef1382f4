import math

import pytest
import torch

from truncate_kit.analysis.streaming import StateScores, TokenScores
from truncate_kit.core.errors import ModelError


@pytest.fixture(scope="module")
def states():
    generator = torch.Generator().manual_seed(0)
    return torch.randn(2, 50, 8, generator=generator) + torch.tensor([0.0, 2.0])[:, None, None]


def _scored(states, batch=50):
    scores = StateScores()
    for part in states.split(batch, 1):
        scores.update(part)
    return scores.result()


def test_effective_rank_is_rankme(states):
    found = _scored(states)
    for layer, value in enumerate(found["effective_rank"]):
        values = torch.linalg.svdvals(states[layer].double())
        shares = values / values.sum() + 1e-7  # RankMe, eq. 1 and 2, with its epsilon
        assert value == pytest.approx(float((-(shares * shares.log()).sum()).exp()), rel=1e-4)


def test_anisotropy_is_the_mean_cosine_of_distinct_pairs(states):
    for layer, value in enumerate(_scored(states)["anisotropy"]):
        cosines = torch.cosine_similarity(states[layer, :, None].double(), states[layer, None].double(), dim=-1)
        pairs = torch.triu_indices(50, 50, 1)
        assert value == pytest.approx(float(cosines[pairs[0], pairs[1]].mean()), abs=1e-9)


def test_turning_tokens_by_known_angles():
    """Block 1 turns every token by 60 degrees, block 2 doubles it: influence 1 − cos 60° and 0, distance 1/3 and 0."""
    angle = torch.tensor([[0.1, 0.7, 1.3], [2.0, 2.9, 0.0]], dtype=torch.float64)
    first = torch.stack([angle.cos(), angle.sin()], -1)
    second = torch.stack([(angle + math.pi / 3).cos(), (angle + math.pi / 3).sin()], -1)
    scores = TokenScores()
    scores.update([first, second, 2 * second], torch.tensor([[1, 1, 1], [1, 1, 0]]))
    found = scores.result()
    assert found["block_influence"] == pytest.approx((0.5, 0.0), abs=1e-6)
    assert found["angular_distance"] == pytest.approx((1 / 3, 0.0), abs=1e-4)
    assert scores.count == 5


def test_padding_and_batches_do_not_enter_token_scores():
    generator = torch.Generator().manual_seed(0)
    layers = [torch.randn(4, 5, 6, generator=generator) for _ in range(3)]
    mask = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0], [0, 0, 1, 1, 1], [1, 0, 0, 0, 0]])
    whole = TokenScores()
    whole.update(layers, mask)
    wild = TokenScores()
    for row in range(4):
        wild.update([layer[[row]].masked_fill(mask[[row], :, None] == 0, torch.nan) for layer in layers], mask[[row]])
    assert wild.result()["block_influence"] == pytest.approx(whole.result()["block_influence"])
    assert wild.result()["angular_distance"] == pytest.approx(whole.result()["angular_distance"])
    by_hand = [
        float(torch.cosine_similarity(layers[0][i, t], layers[1][i, t], dim=0)) for i, t in mask.nonzero().tolist()
    ]
    assert whole.result()["block_influence"][0] == pytest.approx(1 - sum(by_hand) / len(by_hand), abs=1e-6)


def test_states_and_tokens_that_are_no_numbers(states):
    with pytest.raises(ModelError, match="layer 1"):
        _scored(states.clone().index_fill_(0, torch.tensor([1]), torch.nan))
    scores = TokenScores()
    scores.update([torch.full((1, 2, 3), torch.nan)] * 2, torch.ones(1, 2))
    with pytest.raises(ModelError, match="NaN or infinity"):
        scores.result()
