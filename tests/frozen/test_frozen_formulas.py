"""The loss, the moments and the autoencoders of frozen heads against plain computations."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from truncate_kit.encoders.layer_heads import BlockNetworks
from truncate_kit.errors import UsageError
from truncate_kit.frozen.autoencoders import HELD_OUT, BlockAutoencoders, pretrain
from truncate_kit.frozen.examples import log_variance, moments
from truncate_kit.frozen.settings import FrozenSettings
from truncate_kit.training.configuration import rate_at


def test_the_loss_is_the_logarithm_of_the_variance_and_does_not_see_a_shift():
    drawn = np.random.default_rng(0)
    predicted, target = drawn.random(20), drawn.random(20)
    found = log_variance(torch.tensor(predicted), torch.tensor(target))
    assert float(found) == pytest.approx(math.log(np.var(predicted - target)))
    assert float(log_variance(torch.tensor(predicted + 3), torch.tensor(target))) == pytest.approx(float(found))


@pytest.mark.parametrize("count", [1, 5])
def test_equal_differences_give_a_finite_loss_and_no_gradient(count):
    predicted = torch.full((count,), 0.5, requires_grad=True)
    loss = log_variance(predicted, torch.full((count,), 0.25))
    loss.backward()
    assert torch.isfinite(loss)
    assert predicted.grad.eq(0).all()


@pytest.mark.parametrize("rows", [None, [5, 9, 11, 2000]])
def test_moments(rows):
    values = np.random.default_rng(0).normal(1000, 0.01, (2500, 2, 3)).astype(np.float32)  # far from 0: digits at stake
    mean, deviation = moments(values, rows)
    chosen = values.astype(np.float64)[slice(None) if rows is None else rows]
    np.testing.assert_allclose(mean, chosen.mean(axis=0), rtol=1e-6)
    np.testing.assert_allclose(deviation, chosen.std(axis=0), rtol=1e-5)


def test_code_widths_are_the_papers_at_its_width_and_narrower_below():
    settings = FrozenSettings()
    assert settings.code_widths(12, 768) == (256,) * 6 + (512,) * 6
    assert settings.code_widths(5, 1024) == (256, 256, 512, 512, 512)
    assert settings.code_widths(2, 384) == (128, 256)
    assert FrozenSettings(codes=(7, 9)).code_widths(3, 16) == (7, 9, 9)


@pytest.mark.parametrize(
    "given",
    [
        {"steps": ("cosine", "mlp")},
        {"steps": ()},
        {"score": "cos"},
        {"seeds": ()},
        {"hidden": 0},
        {"epochs": 0},
        {"precision": "fp16"},
    ],
)
def test_settings_that_make_no_sense_are_refused(given):
    with pytest.raises(UsageError):
        FrozenSettings(**given)


def test_batches_are_random_and_no_block_holds_back_another():
    settings = FrozenSettings().training(7)
    assert (settings.buckets, settings.max_gradient_norm, settings.epochs) == (False, math.inf, 7)


class Alone(nn.Module):
    """One autoencoder, as anyone would write it."""

    def __init__(self, width, code):
        super().__init__()
        self.there, self.back = nn.Linear(width, code), nn.Linear(code, width)

    def forward(self, states):
        return self.back(torch.tanh(self.there(states)))


def alone(model, number, block):
    """The weights of one block of batched autoencoders; number: of its run, block: within that run."""
    (code, count), width = model.networks.runs[number], model.width
    single = Alone(width, code)
    single.there.weight.data = model.networks.weights[number].data[block].T.clone()
    single.there.bias.data = model.networks.biases[number].data.view(count, code)[block].clone()
    single.back.weight.data = model.backs[number].data[block].T.clone()
    single.back.bias.data = model.shifts[number].data.view(count, width)[block].clone()
    return single


def test_batched_autoencoders_train_as_each_would_alone():
    """Three epochs by a loop of its own over single autoencoders give the same weights and losses."""
    codes, width, seed = (2, 2, 4), 6, 3
    settings = FrozenSettings(pretraining_epochs=3, batch_size=16, learning_rate=1e-2)
    values = np.random.default_rng(0).normal(size=(100, 3, width)).astype(np.float32)
    values[:, :, 3:] = values[:, :, :3] * 2 + 5  # there is something to compress
    trained, losses = pretrain(values, codes, settings, seed=seed, device=torch.device("cpu"))

    generator = torch.Generator().manual_seed(seed)
    start = BlockAutoencoders(BlockNetworks(width, codes, generator), generator)
    order = torch.randperm(100, generator=generator).tolist()
    held, kept = sorted(order[:10]), sorted(order[10:])
    assert HELD_OUT == 0.1
    states = torch.tensor((values - values.mean(axis=0)) / values.std(axis=0))
    steps = -(-len(kept) // 16)
    for number, block, place in ((0, 0, 0), (0, 1, 1), (1, 0, 2)):
        single = alone(start, number, block)
        weights = [weight for weight in single.parameters() if weight.ndim > 1]
        biases = [weight for weight in single.parameters() if weight.ndim == 1]
        optimiser = torch.optim.AdamW(
            [{"params": weights, "weight_decay": 0.01}, {"params": biases, "weight_decay": 0.0}]
        )
        for epoch in range(3):
            shuffled = torch.randperm(90, generator=torch.Generator().manual_seed(seed * 1009 + epoch)).tolist()
            for step in range(steps):
                batch = [kept[index] for index in shuffled[step * 16 : step * 16 + 16]]
                for group in optimiser.param_groups:
                    group["lr"] = 1e-2 * rate_at(epoch * steps + step, 3 * steps, 0.1)
                optimiser.zero_grad()
                nn.functional.mse_loss(single(states[batch, place]), states[batch, place]).backward()
                optimiser.step()
        found = alone(trained, number, block)
        for one, other in zip(found.parameters(), single.parameters(), strict=True):
            torch.testing.assert_close(one, other, atol=2e-4, rtol=1e-3)
        with torch.no_grad():
            expected = float((single(states[held, place]) - states[held, place]).square().mean())
        assert losses[place] == pytest.approx(expected, rel=1e-3)


def test_codes_of_full_width_lose_less_than_narrow_ones():
    values = np.random.default_rng(0).normal(size=(400, 2, 8)).astype(np.float32)
    settings = FrozenSettings(pretraining_epochs=20, learning_rate=1e-2)
    _, (narrow, wide) = pretrain(values, (2, 8), settings, seed=0, device=torch.device("cpu"))
    assert wide < 0.5 < narrow < 1.0
