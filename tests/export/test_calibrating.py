"""How inputs of int8 products are rounded: zero points and divisors, by their definitions and by what they save."""

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest
import torch
from onnx import numpy_helper, parser

from tests.support.families import WORDS
from truncate_kit.export.graph import build_graph, save_graph
from truncate_kit.export.int8 import Rounding, best_zero, calibrate, divisor_of, quantize, quantized_inputs, rounding_of
from truncate_kit.models.encoder import padded
from truncate_kit.models.loading import load_encoder
from truncate_kit.models.truncation import truncate

TEXTS = [" ".join(WORDS[(5 * i + j) % len(WORDS)] for j in range(2 + i % 6)) for i in range(24)]


def feeds(encoder):
    return [padded([row], 0) for row in encoder.reader.token_ids(TEXTS)]


def test_zero_is_where_the_mean_squared_step_is_least():
    high, low = np.array([4.0, 6.0], "f"), np.array([0.17, 0.16], "f")
    found = best_zero(high, low)
    steps = [sum(max(up / (255 - z), down / z) ** 2 for up, down in zip(high, low, strict=True)) for z in range(1, 255)]
    wanted = 1 + int(np.argmin(steps))
    assert found == wanted < 16
    assert (best_zero(low, high), best_zero(high, high)) == (255 - found, 127)


def test_a_divisor_makes_a_channel_and_its_row_of_weights_alike():
    """With α = 0.75 they become the 4th root of (max |x| · max |w|) and its cube, and their product stays."""
    generator = np.random.default_rng(0)
    states = generator.normal(size=(50, 6)).astype("f") * np.array([1, 1, 30, 1, 0, 1], "f")
    weights = generator.normal(size=(6, 8)).astype("f")
    weights[5] = 0
    channels = np.abs(states).max(axis=0)
    divisor = divisor_of(channels, weights)
    divided, multiplied = states / divisor, weights * divisor[:, None]
    np.testing.assert_allclose(divided @ multiplied, states @ weights, rtol=1e-4, atol=1e-4)
    used = [0, 1, 2, 3]
    np.testing.assert_allclose(np.abs(divided).max(axis=0)[used] ** 3, np.abs(multiplied).max(axis=1)[used], rtol=1e-5)
    assert divisor[4] == divisor[5] == 1  # nothing there to even out


def test_weights_that_layers_share_stay_shared(tiny_folder):
    """A divisor belongs to one value: weights that read two cannot follow both."""
    encoder = truncate(load_encoder(tiny_folder("albert")), 2)
    graph = build_graph(encoder)
    tied = [name for name, weights in quantized_inputs(graph).items() if weights is None]
    assert tied
    found = calibrate(graph, feeds(encoder))
    assert all(found[name].divisor is None for name in tied)
    made, plain = quantize(graph, roundings=found), quantize(graph)
    names = [{name for name in model.graph.initializers if name.endswith("_int8")} for model in (made, plain)]
    assert names[0] == names[1]


def outputs(graph, roundings, batches, file):
    """Run the quantized graph."""
    save_graph(quantize(graph, roundings=roundings), file)
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    return np.concatenate([session.run(None, batch)[0] for batch in batches])


def test_outlying_channels_cost_less_with_divisors(tiny_folder, tmp_path):
    """Channels that a layer norm makes forty times as large as the others, as trained encoders have them."""
    encoder = truncate(load_encoder(tiny_folder("bert")), 2)
    with torch.no_grad():
        for block in encoder.backbone.encoder.layer:
            block.attention.output.LayerNorm.weight[:2] *= 40
            block.intermediate.dense.weight[:, :2] /= 40
    graph = build_graph(encoder)
    found = calibrate(graph, feeds(encoder))
    assert any(how.divisor is not None for how in found.values())
    plain = {name: Rounding(zero=how.zero) for name, how in found.items()}
    errors = [
        outputs(graph, how, feeds(encoder), tmp_path / "x.onnx") - encoder.vectors(TEXTS).numpy()
        for how in (found, plain)
    ]
    assert np.square(errors[0]).sum() < np.square(errors[1]).sum() / 2


def test_one_step_suits_all_tokens_but_for_a_few_channels_in_float(tmp_path):
    """Keep one channel, a hundred times as large as the other 63, in float; the others then get finer steps."""
    generator = np.random.default_rng(0)
    states = generator.normal(size=(500, 64)).astype("f") + np.float32(0.3)
    weights = generator.normal(size=(64, 8)).astype("f")
    plain = rounding_of(states, weights)
    assert plain.step == pytest.approx((states.max() - states.min()) / 255)
    assert plain.outliers is None
    states[:, 5] *= 100
    found = rounding_of(states, weights)
    assert 5 in found.outliers
    head = '<ir_version: 10, opset_import: ["": 23]> g (float[n, 64] x) => (float[n, 8] z)'
    model = parser.parse_model(head + "{ y = MatMul(x, w) z = Add(y, b) }")
    arrays = {"w": weights, "b": np.ones(8, "f")}
    model.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in arrays.items())
    rounded = outputs(ir.from_proto(model), {"x": found}, [{"x": states}], tmp_path / "model.onnx")
    errors = rounded - (states.astype(np.float64) @ weights + 1)
    assert np.abs(errors).max() < 0.5  # by one step for all channels it is above 5
    assert np.abs(errors.mean(axis=0)).max() < 1e-3  # the bias makes up for the mean error
