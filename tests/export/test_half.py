"""float16 graphs: what stays in float32, what does not fit, and the mask's forms; all on the CPU provider."""

import copy

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import TensorProto

from truncate_kit.core.errors import ModelError
from truncate_kit.export.exporting import export_onnx
from truncate_kit.export.graph import build_graph, save_graph, set_mask
from truncate_kit.export.record import ExportSettings
from truncate_kit.export.runtime import OnnxEncoder
from truncate_kit.models.loading import load_encoder
from truncate_kit.models.pipeline import Normalize
from truncate_kit.models.truncation import truncate

# One of each kind of computation: fused attention, relative positions as a bias, groups of blocks, both disentangled
# attentions, layers that attend otherwise, and decoders with biases, with rotary positions, and with scaled states.
# Each with as many blocks as in test_parity.py, which shares its trace.
KINDS = {
    "bert": 2,
    "mpnet": 1,
    "albert-grouped": 2,
    "deberta": 1,
    "deberta-v3": 1,
    "modernbert": 2,
    "gpt2": 2,
    "llama": 1,
    "embeddinggemma": 2,
}


@pytest.mark.parametrize(("name", "layer"), KINDS.items())
def test_float16_stays_close_and_says_what_is_wide(name, layer, tiny_folder, tmp_path):
    encoder = truncate(load_encoder(tiny_folder(name)), layer)
    report = export_onnx(encoder, tmp_path / "out", ExportSettings(precision="fp16", target="cuda"))
    graph = onnx.load(tmp_path / "out/onnx/model_fp16.onnx").graph
    assert [value.type.tensor_type.elem_type for value in graph.output] == [TensorProto.FLOAT] * 2
    matrices = [item for item in graph.initializer if len(item.dims) == 2 and item.dims[0] > 1]
    assert {item.data_type for item in matrices} & {1, 10} == {TensorProto.FLOAT16}
    assert 1e-5 < max(report.checks.values()) < 2e-2
    assert ("Softmax" in report.float32_islands) == name.startswith("deberta")
    assert report.float32_islands["ReduceSum"] >= 1  # the mean over tokens
    assert report.mask == ("lengths" if encoder.family.fused_attention else "unfused")
    assert 0 < report.largest_half < 65504


@pytest.mark.parametrize(
    ("name", "layer", "pooling"),
    [("gte", 1, "cls"), ("xlm-roberta", 1, "last"), ("mistral", 1, "max")],
)
def test_every_pooling_is_exported_and_what_follows_it_is_wide(name, layer, pooling, tiny_folder, tmp_path):
    encoder = truncate(load_encoder(tiny_folder(name), pooling=pooling), layer)
    encoder.tail.append(Normalize())
    report = export_onnx(encoder, tmp_path / "out", ExportSettings(precision="fp16", target="cuda"))
    assert report.float32_islands["Div"] == 1  # the vector by its length
    assert "ReduceSum" not in report.float32_islands
    texts = ["a cat sat on the mat", "the dog"]
    found = OnnxEncoder.load(tmp_path / "out", precision="fp16").encode(texts)
    np.testing.assert_allclose(found, encoder.encode(texts), atol=5e-3)
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, atol=1e-6)  # 5e-4 where a length is taken in float16


def test_a_value_beyond_float16_is_found_in_float32(tiny_folder, tmp_path):
    """The CPU provider keeps such values in float32 between nodes, so running the float16 graph would not show it."""
    encoder = copy.deepcopy(truncate(load_encoder(tiny_folder("bert")), 1))
    with torch.no_grad():
        encoder.backbone.encoder.layer[0].intermediate.dense.bias[0] = 2e5
    with pytest.raises(ModelError, match=r"a value of 2.*e\+05 at .* is too large for float16"):
        export_onnx(encoder, tmp_path / "out", ExportSettings(precision="fp16", target="cuda"))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("form", "sides"), [("tokens", "left right"), ("lengths", "right")])
def test_every_form_of_the_mask_gives_the_same_vectors(form, sides, tiny_folder, tmp_path):
    encoder, graph = truncate(load_encoder(tiny_folder("bert")), 2), tmp_path / "model.onnx"
    traced = build_graph(encoder)
    assert set_mask(traced, form) == form
    save_graph(traced, graph)
    session = onnxruntime.InferenceSession(graph, providers=["CPUExecutionProvider"])
    ids = np.random.default_rng(0).integers(5, 20, (4, 9))
    mask = (np.arange(9) < np.array([9, 4, 1, 6])[:, None]).astype(np.int64)
    for side in sides.split():
        feeds = {"input_ids": ids, "attention_mask": mask if side == "right" else mask[:, ::-1].copy()}
        with torch.inference_mode():
            expected = encoder(**{name: torch.from_numpy(values) for name, values in feeds.items()}).numpy()
        np.testing.assert_allclose(session.run(None, feeds)[0], expected, atol=1e-5 * np.abs(expected).max())


def test_cuda_and_cpu_graphs_in_fp32_give_the_same(tiny_folder, tmp_path):
    encoder = truncate(load_encoder(tiny_folder("electra")), 2)
    report = export_onnx(encoder, tmp_path / "out", ExportSettings(target="cuda"))
    assert report.fused_nodes["SkipLayerNormalization"] == 4
    assert (report.precision, report.target, report.mask) == ("fp32", "cuda", "lengths")
    assert max(report.checks.values()) < 1e-5
