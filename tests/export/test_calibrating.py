"""How inputs of int8 products are rounded: zero points and divisors, by their definitions and by what they save."""

import copy

import numpy as np
import onnxruntime
import pytest
import torch

from tests.support.families import WORDS
from truncate_kit.export.graph import build_graph, save_graph
from truncate_kit.export.int8 import best_zero, calibrate, divisor_of, quantize, quantized_inputs
from truncate_kit.models.encoder import padded
from truncate_kit.models.loading import load_encoder
from truncate_kit.models.truncation import truncate

TEXTS = [" ".join(WORDS[(5 * i + j) % len(WORDS)] for j in range(2 + i % 6)) for i in range(24)]


@pytest.fixture(scope="module")
def bert(tiny_folder):
    return truncate(load_encoder(tiny_folder("bert")), 2)


def feeds(encoder):
    return [padded([row], 0) for row in encoder.reader.token_ids(TEXTS)]


def test_zero_is_where_the_mean_squared_step_is_least():
    high, low = np.array([4.0, 6.0], "f"), np.array([0.17, 0.16], "f")
    found = best_zero(high, low)
    wanted = min(
        range(1, 255),
        key=lambda zero: sum(max(up / (255 - zero), down / zero) ** 2 for up, down in zip(high, low, strict=True)),
    )
    assert found == wanted < 16
    assert best_zero(low, high) == 255 - found
    assert best_zero(high, high) in (127, 128)


def test_a_divisor_makes_a_channel_and_its_row_of_weights_alike():
    """With α = 0.5 both become sqrt(max |x| · max |w|), and their product stays."""
    generator = np.random.default_rng(0)
    states = generator.normal(size=(50, 6)).astype("f") * np.array([1, 1, 30, 1, 0, 1], "f")
    weights = generator.normal(size=(6, 8)).astype("f")
    weights[5] = 0
    channels = np.abs(states).max(axis=0)
    divisor = divisor_of(channels, weights)
    divided, multiplied = states / divisor, weights * divisor[:, None]
    np.testing.assert_allclose(divided @ multiplied, states @ weights, rtol=1e-4, atol=1e-4)
    used = [0, 1, 2, 3]
    np.testing.assert_allclose(np.abs(divided).max(axis=0)[used], np.abs(multiplied).max(axis=1)[used], rtol=1e-5)
    assert divisor[4] == divisor[5] == 1  # nothing there to even out


def test_weights_that_layers_share_stay_shared(tiny_folder):
    """A divisor belongs to one value: weights that read two cannot follow both."""
    encoder = truncate(load_encoder(tiny_folder("albert")), 2)
    graph = build_graph(encoder)
    tied = [name for name, weights in quantized_inputs(graph).items() if weights is None]
    assert tied
    found = calibrate(graph, feeds(encoder))
    assert all(found[name][1] is None for name in tied)
    names = [name for name in quantize(graph, roundings=found).graph.initializers if name.endswith("_int8")]
    plain = [name for name in quantize(graph).graph.initializers if name.endswith("_int8")]
    assert sorted(names) == sorted(plain)


def test_outlying_channels_cost_less_with_divisors(bert, tmp_path):
    """Channels that a layer norm makes forty times as large as the others, as trained encoders have them."""
    encoder = copy.deepcopy(bert)
    with torch.no_grad():
        for block in encoder.backbone.encoder.layer:
            block.attention.output.LayerNorm.weight[:2] *= 40
            block.intermediate.dense.weight[:, :2] /= 40
    graph = build_graph(encoder)
    found = calibrate(graph, feeds(encoder))
    assert any(divisor is not None for _, divisor in found.values())
    exact = encoder.vectors(TEXTS).numpy()

    def error(roundings):
        save_graph(quantize(graph, roundings=roundings), tmp_path / "model.onnx")
        session = onnxruntime.InferenceSession(tmp_path / "model.onnx", providers=["CPUExecutionProvider"])
        vectors = np.concatenate([session.run(None, batch)[0] for batch in feeds(encoder)])
        return np.square(vectors - exact).sum()

    assert error(found) < error({name: (zero, None) for name, (zero, _) in found.items()}) / 2
