"""Peak memory of processes of their own."""

import gc
import weakref

import torch

from truncate_kit.bench.memory import measure_here, peak_memory
from truncate_kit.bench.result import BACKENDS
from truncate_kit.bench.runners import PeerRunner
from truncate_kit.export.graph import build_graph, save_graph
from truncate_kit.models.loading import load_encoder
from truncate_kit.models.truncation import truncate

_MEBI = 2**20


def _request(model, graph, backend):
    values = {"model": str(model), "graph": graph and str(graph), "backend": backend, "device": "cpu"}
    return values | {"threads": 1, "batch_size": 2, "length": 8}


def test_the_weights_are_in_the_peak_and_onnx_needs_no_torch(tiny_folder, tmp_path):
    """A graph of one narrow block over embeddings of some MiB, and a tiny model in torch."""

    def peak_of_graph(mebibytes):
        encoder, words = truncate(load_encoder(tiny_folder("bert")), 1), mebibytes * _MEBI // (4 * 16)
        encoder.backbone.set_input_embeddings(torch.nn.Embedding(words, 16))
        encoder.backbone.config.vocab_size = words
        save_graph(build_graph(encoder), tmp_path / "model.onnx")
        return peak_memory(_request(tmp_path, tmp_path / "model.onnx", "onnx-fp32"))

    small = peak_of_graph(1)
    assert peak_of_graph(33) - small > 24 * _MEBI
    assert measure_here(_request(tiny_folder("bert"), None, "torch-fp32")) - small > 100 * _MEBI


def test_a_rivals_call_does_not_hold_our_own_model(tiny_folder):
    folder = tiny_folder("bert")
    encoder = load_encoder(folder)
    runner = PeerRunner(BACKENDS["st-fp32"], encoder, lambda: folder, device=torch.device("cpu"))
    call, held = runner.prepare([[2, 5, 3]]), weakref.ref(encoder)
    del runner, encoder
    gc.collect()
    assert held() is None  # else its weights would count in the rival's peak
    assert call().shape == (1, 16)


def test_what_goes_wrong_in_the_process_comes_back_as_a_sentence(tmp_path):
    problem = peak_memory(_request(tmp_path, tmp_path / "model.onnx", "onnx-fp32"))
    assert isinstance(problem, str)
    assert "model.onnx" in problem
