"""Peak memory of processes of their own."""

import gc
import weakref

import pytest
import torch
from transformers import BertConfig

from truncate_kit.bench.memory import peak_memory
from truncate_kit.bench.result import BACKENDS
from truncate_kit.bench.runners import PeerRunner
from truncate_kit.export.graph import GRAPH_FILE, build_graph, save_graph
from truncate_kit.models.loading import load_encoder, random_encoder

_MEBI = 2**20


@pytest.fixture(scope="module")
def wide(tmp_path_factory):
    """A function that makes a folder with configuration and graph of one narrow block over embeddings of some MiB."""

    def make(mebibytes):
        folder = tmp_path_factory.mktemp("wide")
        words = mebibytes * _MEBI // (4 * 16)
        sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
        config = BertConfig(vocab_size=words, **sizes)
        config.to_json_file(folder / "config.json")
        save_graph(build_graph(random_encoder(config)), folder / GRAPH_FILE)
        return folder

    return make


def _request(folder, backend, **changes):
    values = {"model": str(folder / "config.json"), "graph": str(folder / GRAPH_FILE)}
    return values | {"backend": backend, "device": "cpu", "threads": 1, "batch_size": 2, "length": 8} | changes


def test_the_weights_are_in_the_peak_and_onnx_needs_no_torch(wide):
    small, large = wide(1), wide(65)
    found = {
        (folder, backend): peak_memory(_request(folder, backend))
        for folder, backend in ((small, "torch-fp32"), (small, "onnx-fp32"), (large, "onnx-fp32"))
    }
    assert found[large, "onnx-fp32"] - found[small, "onnx-fp32"] > 48 * _MEBI
    assert found[small, "torch-fp32"] - found[small, "onnx-fp32"] > 100 * _MEBI


def test_a_rivals_call_does_not_hold_our_own_model(tiny_folder):
    folder = tiny_folder("bert")
    encoder = load_encoder(folder)
    runner = PeerRunner(BACKENDS["st-fp32"], encoder, lambda: folder, device=torch.device("cpu"))
    call, held = runner.prepare([[2, 5, 3]]), weakref.ref(encoder)
    del runner, encoder
    gc.collect()
    assert held() is None  # whose weights would be counted beside its own
    assert call().shape == (1, 16)


def test_what_goes_wrong_in_the_process_comes_back_as_a_sentence(tmp_path):
    problem = peak_memory(_request(tmp_path, "onnx-fp32"))
    assert isinstance(problem, str)
    assert "model.onnx" in problem
