"""int8 graphs: how weights are rounded, which layers stay in float, and what batches and padding change."""

import copy
import pickle
import platform

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import numpy_helper
from scipy import stats

from tests.support.families import TINY_CONFIGS, WORDS
from truncate_kit.core.errors import DeviceError, ModelError, UsageError
from truncate_kit.core.hardware import INSTRUCTIONS, multiplies_narrow
from truncate_kit.core.vectors import VectorFormat
from truncate_kit.data.pairs import PairSet, TextPair
from truncate_kit.export.exporting import check_graph, export_onnx, odd_inputs
from truncate_kit.export.graph import build_graph, fold_constants, save_graph, store_half, to_half
from truncate_kit.export.int8 import quantizable
from truncate_kit.export.record import ExportSettings, check_runnable, read_exports
from truncate_kit.export.runtime import EncodingWork, OnnxEncoder
from truncate_kit.models.loading import load_encoder, random_encoder
from truncate_kit.models.truncation import truncate

TEXTS = [" ".join(WORDS[(3 * i + j * (i % 5 + 1)) % len(WORDS)] for j in range(2 + i % 7)) for i in range(48)]


def int8(encoder, out, budget, **pairs):
    """Export an int8 graph that may lose `budget` points."""
    return export_onnx(encoder, out, ExportSettings(precision="int8", budget=budget), **pairs)


def graded(encoder, name="tiny/dev", texts=TEXTS):
    """Pairs graded by the encoder itself, so that its own Spearman is 100."""
    vectors = torch.nn.functional.normalize(encoder.vectors(texts), dim=1)
    places = [(i, (i + step) % len(texts)) for step in (1, 2, 5) for i in range(len(texts))]
    pairs = tuple(TextPair(texts[i], texts[j], float(vectors[i] @ vectors[j])) for i, j in places)
    return PairSet(name=name, pairs=pairs, scale=(-1.0, 1.0))


def spearman(folder, pairs):
    """Return Spearman × 100 of the int8 graph in plain ONNX Runtime, each text alone."""
    session = onnxruntime.InferenceSession(folder / "onnx/model_quantized.onnx", providers=["CPUExecutionProvider"])
    reader = load_encoder(folder).reader

    def vector(text):
        ids = np.array(reader.token_ids([text]))
        found = session.run(None, {"input_ids": ids, "attention_mask": np.ones_like(ids)})[0][0]
        return found / np.linalg.norm(found)

    cosines = [vector(pair.first) @ vector(pair.second) for pair in pairs]
    return 100 * stats.spearmanr(cosines, [pair.target for pair in pairs]).statistic


@pytest.fixture(scope="module")
def bert(tiny_folder):
    return truncate(load_encoder(tiny_folder("bert")), 2)


@pytest.fixture(scope="module")
def exported(bert, tmp_path_factory):
    folder = tmp_path_factory.mktemp("int8") / "model"
    dev, test = graded(bert), graded(bert, "tiny/test", TEXTS[:20])
    return folder, int8(bert, folder, 20, pairs=test, search_pairs=dev)


@pytest.mark.parametrize(("flags", "bits"), [("avx2", 7), ("avx2 avx512_vnni", 8)])
def test_bits_of_weights_follow_the_processor(flags, bits, bert, tmp_path, monkeypatch):
    monkeypatch.setenv(INSTRUCTIONS, flags)
    """Each weight is in the graph once, rounded to its bits; rows of the word embeddings always have 8."""
    found = int8(bert, tmp_path / "out", 20, search_pairs=graded(bert)).quantization
    if platform.machine().lower() not in ("x86_64", "amd64", "i686"):  # other processors add in 32 bits anyhow
        bits = 8
    assert found.weight_bits == bits
    assert found.instructions == ("avx512_vnni" if "vnni" in flags else None)
    graph = onnx.load(tmp_path / "out/onnx/model_quantized.onnx").graph
    tensors = {item.name: numpy_helper.to_array(item) for item in graph.initializer}
    integers = {name: value for name, value in tensors.items() if value.dtype == np.int8 and name.endswith("_int8")}
    assert len(integers) == 2 * 6 + 1
    block = bert.backbone.encoder.layer[0]
    expected = [  # values and the product after them are balanced against each other
        *(getattr(block.attention.self, part).weight.T for part in ("query", "key")),
        block.intermediate.dense.weight.T,
        block.output.dense.weight.T,
        bert.backbone.embeddings.word_embeddings.weight,
    ]
    for place, weight in enumerate(expected):
        words, weight = place == len(expected) - 1, weight.detach().numpy()
        limit = 127 if words or bits == 8 else 63
        alike = {name: value for name, value in integers.items() if value.shape == weight.shape}
        assert {np.abs(value).max() for value in alike.values()} <= {63, 127}
        restored = [value * tensors[name.replace("_int8", "_scale")] for name, value in alike.items()]
        step = np.abs(weight).max(axis=int(words), keepdims=True) / limit  # of each row of embeddings, of each column
        assert sum((np.abs(values - weight) <= step / 2 + 1e-7).all() for values in restored) == 1


def test_report_states_score_layers_and_invariance(exported, bert, monkeypatch):
    folder, report = exported
    assert read_exports(folder) == (report,)
    found = report.quantization
    assert (found.layers, found.in_float, found.searched_on) == (13, {}, "tiny/dev")
    assert found.drop == found.drop_all_int8 <= found.budget
    assert found.weight_bits == (7 if multiplies_narrow() else 8)
    assert report.fused_nodes["Attention"] == 2 == report.fused_attention
    assert report.mask == "tokens"
    assert report.scored_on == "tiny/test"
    assert report.spearman[0] == pytest.approx(100)
    dev = graded(bert)
    # Other fusions in a plain session move last digits, and so a byte here and there.
    assert report.invariance["spearman_alone"] == pytest.approx(spearman(folder, dev), abs=0.01)
    assert 100 - found.drop == pytest.approx(report.invariance["spearman_batched"], abs=0.5)
    assert check_runnable(folder / "onnx/model_quantized.onnx", "cpu") == report
    if found.weight_bits == 8:
        sent = pickle.dumps(EncodingWork(OnnxEncoder.load(folder / "onnx/model_quantized.onnx"), VectorFormat()))
        monkeypatch.setenv(INSTRUCTIONS, "avx2")
        with pytest.raises(DeviceError, match="8-bit weights"):  # whose products overflow there
            check_runnable(folder / "onnx/model_quantized.onnx", "cpu")
        with pytest.raises(DeviceError, match="8-bit weights"):  # the same in a worker on such a machine
            pickle.loads(sent).move("cpu")


def test_invariance_is_that_of_plain_onnxruntime(exported):
    """The text with the largest change by padding, sought here one by one."""
    folder, report = exported
    session = onnxruntime.InferenceSession(folder / "onnx/model_quantized.onnx", providers=["CPUExecutionProvider"])
    ids = load_encoder(folder).reader.token_ids(TEXTS)
    longest = max(map(len, ids))
    changes = []
    for row in ids:
        vectors = []
        for length in (len(row), longest):
            feeds = {"input_ids": np.zeros((1, length), np.int64), "attention_mask": np.zeros((1, length), np.int64)}
            feeds["input_ids"][0, : len(row)], feeds["attention_mask"][0, : len(row)] = row, 1
            vector = session.run(None, feeds)[0][0].astype(np.float64)
            vectors.append(vector / np.linalg.norm(vector))
        changes.append(np.abs(vectors[0] - vectors[1]).max())
    assert report.invariance["padding_difference"] == pytest.approx(max(changes), abs=1e-6)
    assert report.invariance["padding_difference"] < 1e-5  # each token has a range of its own
    assert report.invariance["batch_difference"] < 1e-5
    assert report.checks["padding"] < 1e-5 < report.checks["batch 1, length 2"]


def test_the_layer_that_int8_hurts_stays_in_float(bert, tmp_path):
    """One neuron is always at 10,000 and unused: only the rounding of its neighbours suffers."""
    hurt = copy.deepcopy(bert)
    block = hurt.backbone.encoder.layer[1]
    with torch.no_grad():
        block.intermediate.dense.weight[3] = 0
        block.intermediate.dense.bias[3] = 1e4
        block.output.dense.weight[:, 3] = 0
    dev = graded(hurt)
    found = int8(hurt, tmp_path / "out", 1, search_pairs=dev).quantization
    assert list(found.in_float) == ["encoder.layer.1.output.dense"]
    assert found.in_float["encoder.layer.1.output.dense"] > 0.01
    assert found.drop_all_int8 > 5 > 1 >= found.drop
    assert 100 - spearman(tmp_path / "out", dev) <= 1


def test_the_test_pairs_have_no_say(bert, exported, tmp_path):
    other = graded(bert, "other/test", TEXTS[20:])
    report = int8(bert, tmp_path / "out", 20, pairs=other, search_pairs=graded(bert))
    assert report.graph_sha256 == exported[1].graph_sha256
    assert report.quantization == exported[1].quantization
    assert report.spearman != exported[1].spearman


def test_a_budget_that_nothing_meets_is_an_error(bert, tmp_path):
    with pytest.raises(ModelError, match="no layer can be in int8 without losing more than 0 points"):
        int8(bert, tmp_path / "out", 0, search_pairs=graded(bert))
    with pytest.raises(UsageError, match="int8 needs graded pairs"):
        int8(bert, tmp_path / "out", 1, pairs=graded(bert))
    assert not (tmp_path / "out").exists()


def test_weights_that_two_products_read_are_rounded_and_products_of_constants_are_none(tmp_path):
    # As wide as real ones in what counts: the tracer turns and computes small constants by itself.
    config = copy.deepcopy(TINY_CONFIGS["deberta-v3"])
    config.hidden_size, config.num_hidden_layers = 128, 1
    encoder = random_encoder(config, name="deberta-v3")
    assert config.share_att_key  # one projection of keys and positions
    graph = build_graph(encoder)
    assert not [node for node in graph.graph if node.op_type == "Transpose" and node.inputs[0].is_initializer()]
    assert len(quantizable(graph)) == 1 + 6 + 2  # word embeddings, the block, and its table by two of these weights
    computed = fold_constants(graph)
    assert len(quantizable(graph)) == 1 + 6
    save_graph(graph, tmp_path / "model.onnx")
    check_graph(tmp_path / "model.onnx", encoder)
    half = to_half(graph, encoder.family, odd_inputs(encoder))[0]
    products = [node for node in half.graph if node.op_type == "MatMul" and node.inputs[1].is_initializer()]
    assert [node.inputs[1].const_value.numpy().dtype for node in products] == [np.float16] * 6
    store_half(half, computed)  # the scores stay in float32, their table is stored in half
    large = [value for value in half.graph.initializers.values() if value.const_value.size > 1024]
    assert "FLOAT" not in {str(value.dtype) for value in large}
    save_graph(half, tmp_path / "half.onnx")
    check_graph(tmp_path / "half.onnx", encoder, precision="fp16")


@pytest.mark.parametrize(("name", "layer"), [("albert", 2), ("gpt2", 2), ("deberta-v2", 1), ("modernbert", 2)])
def test_other_families_in_int8(name, layer, tiny_folder, tmp_path):
    encoder = truncate(load_encoder(tiny_folder(name)), layer)
    report = int8(encoder, tmp_path / "out", 60, search_pairs=graded(encoder))
    nodes = onnx.load(tmp_path / "out/onnx/model_quantized.onnx").graph
    constants = {item.name for item in nodes.initializer}
    kept = report.quantization.in_float
    float_products = [node for node in nodes.node if node.op_type in ("MatMul", "Gemm") and node.input[1] in constants]
    assert len(float_products) <= len(kept)
    assert report.quantization.layers - len(kept) >= 5
    found = torch.nn.functional.normalize(OnnxEncoder.load(tmp_path / "out").vectors(TEXTS), dim=1)
    expected = torch.nn.functional.normalize(encoder.vectors(TEXTS), dim=1)
    assert torch.median((found * expected).sum(dim=1)) > 0.9
    assert (report.fused_attention > 0) == encoder.family.fused_attention


def test_a_model_without_a_block_keeps_its_embeddings_in_int8_or_is_refused(tiny_folder, tmp_path):
    """Only weights are rounded, no values."""
    encoder = truncate(load_encoder(tiny_folder("distilbert")), 0)
    assert int8(encoder, tmp_path / "out", 0.3, search_pairs=graded(encoder)).quantization.layers == 1
