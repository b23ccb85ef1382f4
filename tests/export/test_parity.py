"""The exported graph in plain ONNX Runtime against transformers' own hidden states and pooling written out here."""

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from transformers import AutoModel

from tests.support.families import PLAIN_POOLING, TINY_CONFIGS, plain_batch_states
from truncate_kit.export.exporting import export_onnx
from truncate_kit.models.loading import load_encoder
from truncate_kit.models.pipeline import Dense, Normalize
from truncate_kit.models.truncation import truncate

# Each family once; layers, poolings and what follows them are spread over the families. Those that other tests export
# as well are as there, so that they share a trace. Where the second block is not like the first, or little costs, there
# are two: windows and norms that begin with it, weights of its own or of the first, attention that is fused.
CASES = [
    ("bert", 2, "mean", ()),
    ("electra", 2, "mean", ()),
    ("electra-generator", 0, "mean", ()),
    ("roberta", 2, "mean", ()),
    ("xlm-roberta", 1, "last", ("normalize",)),
    ("camembert", 1, "cls", ()),
    ("distilbert", 3, "max", ("normalize",)),
    ("mpnet", 1, "mean", ()),
    ("albert", 2, "mean", ()),
    ("albert-grouped", 2, "mean", ()),
    ("deberta", 1, "mean", ()),
    ("deberta-v2", 1, "mean", ()),
    ("deberta-v3", 1, "mean", ()),
    ("deberta-v2-convolution", 1, "max", ()),
    ("modernbert", 2, "mean", ()),
    ("gpt2", 2, "mean", ()),
    ("qwen2", 2, "mean", ()),
    ("llama", 1, "mean", ()),
    ("qwen3", 1, "last", ("normalize",)),
    ("mistral", 1, "max", ("dense",)),
    ("embeddinggemma", 2, "mean", ()),
    ("nomic-bert", 1, "mean", ("dense", "normalize")),
    ("gte", 1, "cls", ("normalize",)),
]
FUSED = {"bert", "electra", "roberta", "xlm-roberta", "camembert", "distilbert", "mpnet", "albert"}
LENGTHS = (11, 4, 1, 8)


def test_every_family_is_exported_and_every_pooling():
    assert {case[0] for case in CASES} == set(TINY_CONFIGS)
    assert {case[2] for case in CASES} == {"mean", "cls", "max", "last"}


def make_tail(names, width):
    torch.manual_seed(1)
    return [Normalize() if name == "normalize" else Dense(width, 5, bias=True, activation="Tanh") for name in names]


def expected_vectors(rows, pooling, tail):
    """Pooling and tail in NumPy, row by row."""
    vectors = np.stack([PLAIN_POOLING[pooling](row).numpy() for row in rows])
    for module in tail:
        if isinstance(module, Normalize):
            vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
        else:
            weight, bias = (value.detach().numpy() for value in module.linear.parameters())
            vectors = np.tanh(vectors @ weight.T + bias)
    return vectors


@pytest.mark.parametrize(("name", "layer", "pooling", "tail"), CASES, ids=[case[0] for case in CASES])
def test_graph_gives_the_pooled_hidden_state_of_its_layer(name, layer, pooling, tail, tiny_folder, tmp_path):
    encoder = truncate(load_encoder(tiny_folder(name), pooling=pooling), layer)
    encoder.tail.extend(make_tail(tail, encoder.width))
    report = export_onnx(encoder, tmp_path / "out")

    nodes = onnx.load(tmp_path / "out" / "onnx/model.onnx").graph.node
    attentions = [node for node in nodes if node.op_type == "Attention"]
    fused = TINY_CONFIGS[name].model_type in FUSED
    assert len(attentions) == (layer if fused else 0)
    assert report.fused_attention == len(attentions)
    from_zero = fused and not encoder.family.position_offset  # other positions depend on the mask
    assert report.fused_nodes.get("EmbedLayerNormalization", 0) == from_zero

    session = onnxruntime.InferenceSession(tmp_path / "out" / "onnx/model.onnx", providers=["CPUExecutionProvider"])
    inputs = {value.name: value.type for value in session.get_inputs()}
    assert inputs == dict.fromkeys(("input_ids", "attention_mask"), "tensor(int64)")
    ids = np.random.default_rng(0).integers(5, 20, (len(LENGTHS), max(LENGTHS)))
    mask = (np.arange(max(LENGTHS)) < np.array(LENGTHS)[:, None]).astype(np.int64)
    ids = np.where(mask == 1, ids, 0)
    full = AutoModel.from_pretrained(tiny_folder(name)).eval()
    for rows in (slice(None), slice(1, 2)):  # a batch of four, and one text alone
        feeds = {"input_ids": ids[rows], "attention_mask": mask[rows]}
        found, tokens = session.run(["sentence_embedding", "last_hidden_state"], feeds)
        with torch.no_grad():
            batch = {name: torch.from_numpy(values) for name, values in feeds.items()}
            whole = plain_batch_states(full, **batch)[layer]
        states = [state[: int(real.sum())] for state, real in zip(whole, mask[rows], strict=True)]
        expected = expected_vectors(states, pooling, encoder.tail)
        assert found.dtype == tokens.dtype == np.float32
        for token, state in zip(tokens, states, strict=True):
            np.testing.assert_allclose(token[: len(state)], state, atol=2e-6 * state.abs().max(), rtol=1e-4)
        np.testing.assert_allclose(found, expected, atol=2e-6 * np.abs(expected).max(), rtol=1e-4)

    assert report.normalized == (tail[-1:] == ("normalize",))
    shapes = {f"batch {batch}, length {length}" for batch in (1, 2, 17) for length in (2, 16, 36)}
    others = {"one token 36 times", "one token alone", "padding", "token states"}
    assert set(report.checks) == shapes | others
    assert report.layers == layer
