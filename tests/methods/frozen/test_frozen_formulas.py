"""The loss, the moments and the autoencoders of frozen heads against plain computations."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from truncate_kit.methods.frozen.heads import (
    HELD_OUT,
    BlockAutoencoders,
    StatePairs,
    log_variance,
    moments,
    new_heads,
    pretrain,
)
from truncate_kit.methods.frozen.settings import FrozenSettings
from truncate_kit.models.encoder import BlockNetworks
from truncate_kit.training.settings import rate_at


def test_the_loss_is_the_logarithm_of_the_variance_and_does_not_see_a_shift():
    drawn = np.random.default_rng(0)
    predicted, target = drawn.random(20), drawn.random(20)
    found = log_variance(torch.tensor(predicted), torch.tensor(target))
    assert float(found) == pytest.approx(math.log(np.var(predicted - target)))
    assert float(log_variance(torch.tensor(predicted + 3), torch.tensor(target))) == pytest.approx(float(found))
    assert torch.isfinite(log_variance(torch.full((5,), 0.5), torch.full((5,), 0.25)))


def test_moments():
    values = np.random.default_rng(0).normal(1000, 0.01, (2500, 2, 3)).astype(np.float32)  # far from 0: digits at stake
    mean, deviation = moments(values)
    np.testing.assert_allclose(mean, values.astype(np.float64).mean(axis=0), rtol=1e-6)
    np.testing.assert_allclose(deviation, values.astype(np.float64).std(axis=0), rtol=1e-5)


@pytest.mark.parametrize("step", ["cosine", "siamese"])
def test_distances_and_states_are_in_units_of_the_training_pairs(step):
    drawn = np.random.default_rng(3)
    values = (drawn.normal(size=(9, 2, 6)) * 3 + 1).astype(np.float32)
    pairs = StatePairs(values, (0, 1, 2, 3), (4, 5, 6, 4), (0, 0.5, 1, 1))  # texts 7 and 8 are in none
    heads = new_heads(pairs, (2, 3) if step == "siamese" else (), FrozenSettings(), seed=0)
    states = torch.from_numpy(values.transpose(1, 0, 2).copy())
    codes = [values[:, block] for block in range(2)]
    if step == "siamese":
        seen = values[:7].astype(np.float64)
        np.testing.assert_allclose(heads.networks.mean[:, 0].numpy(), seen.mean(axis=0), rtol=1e-5)
        np.testing.assert_allclose(heads.networks.scale[:, 0].numpy(), seen.std(axis=0), rtol=1e-5)
        codes = [run[0].detach().numpy() for run in heads.networks(states)]  # of both blocks: their widths differ
    far = [[distance(code[a], code[b]) for code in codes] for a, b in zip(pairs.first, pairs.second, strict=True)]
    np.testing.assert_allclose(heads.scale.numpy(), np.mean(far, axis=0), rtol=1e-4)


def distance(one, other):
    return 1 - float(one @ other / np.linalg.norm(one) / np.linalg.norm(other))


@pytest.mark.parametrize("loss", ["mse", "log-variance"])
def test_pairs_are_trained_with_the_loss_that_was_asked_for(loss):
    generator = np.random.default_rng(2)
    pairs = StatePairs(
        generator.normal(size=(8, 2, 6)).astype(np.float32), (0, 1, 2, 3), (4, 5, 6, 7), (0, 0.5, 1, 1), loss
    )
    heads = new_heads(pairs, (2, 3), FrozenSettings(score="sigmoid"), seed=0)
    predicted = np.array(pairs.evaluation(heads).cosines)
    error = predicted - np.array(pairs.targets)
    expected = {"mse": (error**2).mean(), "log-variance": math.log(error.var())}[loss]
    found = pairs.loss(heads, range(4))
    assert float(found.detach()) == pytest.approx(expected, rel=1e-4)


def test_code_widths_are_a_quarter_and_a_half_as_those_of_gpt2_medium():
    settings = FrozenSettings()
    assert settings.code_widths(24, 1024) == (256,) * 12 + (512,) * 12  # gpt2-medium, as printed
    assert settings.code_widths(12, 768) == (192,) * 6 + (384,) * 6
    assert settings.code_widths(5, 128) == (32, 32, 64, 64, 64)
    assert settings.code_widths(2, 3) == (1, 1)
    assert FrozenSettings(codes=(7, 9)).code_widths(3, 16) == (7, 9, 9)
    assert FrozenSettings(codes=(256, 256)).code_widths(24, 1024) == (256,) * 24


def alone(model, number, block):
    """The weights of one block of batched autoencoders; number: of its run, block: within that run."""
    (code, count), width = model.networks.runs[number], model.width
    single = nn.Sequential(nn.Linear(width, code), nn.Tanh(), nn.Linear(code, width))
    there, _, back = single
    there.weight.data = model.networks.layers[0].weights[number].data[block].T.clone()
    there.bias.data = model.networks.layers[0].biases[number].data.view(count, code)[block].clone()
    back.weight.data = model.backs[number].data[block].T.clone()
    back.bias.data = model.shifts[number].data.view(count, width)[block].clone()
    return single


def test_batched_autoencoders_train_as_each_would_alone():
    """Three epochs by a loop of its own over single autoencoders give the same weights and losses."""
    codes, width, seed = (2, 2, 4), 6, 3
    settings = FrozenSettings(pretraining_epochs=3, batch_size=16, learning_rate=1e-2)
    values = np.random.default_rng(0).normal(size=(100, 3, width)).astype(np.float32)
    values[:, :, 3:] = values[:, :, :3] * 2 + 5  # there is something to compress
    trained, found = pretrain(values, codes, settings, seed=seed, device=torch.device("cpu"))

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
        ours = alone(trained, number, block)
        for one, other in zip(ours.parameters(), single.parameters(), strict=True):
            torch.testing.assert_close(one, other, atol=2e-4, rtol=1e-3)
        with torch.no_grad():
            expected = float((single(states[held, place]) - states[held, place]).square().mean())
            scale = torch.tensor(values[:, place].std(axis=0))  # back to the states' own units, as figure 2 has them
            own = float(((single(states[held, place]) - states[held, place]) * scale).square().mean())
        assert found.losses[place] == pytest.approx(expected, rel=1e-3)
        assert found.own_losses[place] == pytest.approx(own, rel=1e-3)


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_deeper_autoencoders_are_mirrored_tanh_layers(depth):
    """Encoder d → code → code …, decoder code → code … → d, each layer with tanh but the last, by plain products."""
    widths = (2, 2, 4)
    model = BlockAutoencoders(BlockNetworks(6, widths, depth=depth))
    states = torch.randn(3, 5, 6)
    places = ((0, 0), (0, 1), (1, 0))  # run, and block within it
    rows = []
    for block, (run, place) in enumerate(places):
        code = states[block]
        for layer in (*model.networks.layers, *model.deeper):
            biases = layer.biases[run].view(len(layer.weights[run]), -1)  # a run's biases are one flat parameter
            code = torch.tanh(code @ layer.weights[run][place] + biases[place])
        rows.append(code @ model.backs[run][place] + model.shifts[run].view(-1, 6)[place])
    assert len(model.deeper) == len(model.networks.layers) - 1 == depth - 1
    torch.testing.assert_close(model(states), torch.stack(rows), atol=1e-5, rtol=1e-4)


def test_heads_start_from_the_lowest_blocks_of_deep_autoencoders():
    settings = FrozenSettings(depth=2)
    model = BlockAutoencoders(BlockNetworks(6, (2, 2, 4), depth=2))
    pairs = StatePairs(np.random.default_rng(0).normal(size=(4, 2, 6)).astype(np.float32), (0, 1), (2, 3), (0.0, 1.0))
    heads = new_heads(pairs, (2, 2), settings, seed=0, autoencoders=model)
    states = torch.randn(2, 5, 6)
    whole = model.networks(torch.cat([states, torch.zeros(1, 5, 6)]))[0]
    torch.testing.assert_close(heads.networks(states)[0], whole)
