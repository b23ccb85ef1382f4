"""Peak memory of processes of their own."""

import gc
import json
import weakref
from dataclasses import asdict

import pytest
import torch
from transformers import BertConfig

from tests.support.processes import Program
from truncate_kit.bench.backends import BACKENDS
from truncate_kit.bench.bench_report import PeakMemory
from truncate_kit.bench.memory import MemoryRequest, peak_memory
from truncate_kit.bench.peer_runner import PeerRunner
from truncate_kit.export.graph_files import GRAPH_FILE, save_graph
from truncate_kit.export.tracing import build_graph
from truncate_kit.models import load_encoder, random_encoder

_MEBI = 2**20


@pytest.fixture(scope="module")
def wide(tmp_path_factory):
    """A folder with configuration and graph of one narrow block over 37 MiB of embeddings."""
    folder = tmp_path_factory.mktemp("wide")
    config = BertConfig(
        vocab_size=37 * _MEBI // (4 * 16),
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
    )
    config.to_json_file(folder / "config.json")
    save_graph(build_graph(random_encoder(config)), folder / GRAPH_FILE)
    return folder


def _request(folder, runtime, **changes):
    values = {
        "model": str(folder / "config.json"),
        "runtime": runtime,
        "backend": f"{runtime}-fp32",
        "graph": str(folder / GRAPH_FILE),
        "device": "cpu",
        "threads": 1,
        "batch_size": 2,
        "length": 8,
    }
    return MemoryRequest(**{**values, **changes})


def test_the_weights_are_in_the_peak_and_onnx_needs_no_torch(wide):
    torch_peak, onnx_peak = peak_memory(_request(wide, "torch")), peak_memory(_request(wide, "onnx"))
    for peak in (torch_peak, onnx_peak):
        assert peak.kind == "resident"
        assert peak.peak_bytes - peak.baseline_bytes > 32 * _MEBI
        assert (peak.batch_size, peak.length) == (2, 8)
    assert onnx_peak.baseline_bytes < torch_peak.baseline_bytes - 100 * _MEBI


_MEASURED = """
import json, sys
from truncate_kit.bench.memory_worker import answer
print(json.dumps(answer(json.loads(sys.argv[1]))))
"""


def test_rivals_are_measured_too(tiny_folder):
    """That a process of its own starts, and what it holds, the test above shows: this one is forked."""
    folder = str(tiny_folder("bert"))
    request = _request(tiny_folder("bert"), "sentence-transformers", model=folder, backend="st-fp32")
    printed, said = Program(_MEASURED, json.dumps(asdict(request))).communicate()
    assert printed, said
    peak = PeakMemory.from_dict(json.loads(printed))
    assert (peak.kind, peak.batch_size, peak.length) == ("resident", 2, 8)
    assert peak.peak_bytes > peak.baseline_bytes > 100 * _MEBI


def test_a_rivals_call_does_not_hold_our_own_model(tiny_folder):
    folder = tiny_folder("bert")
    encoder = load_encoder(folder)
    runner = PeerRunner(BACKENDS["st-fp32"], encoder, lambda: folder, device=torch.device("cpu"))
    call, held = runner.prepare([[2, 5, 3]]), weakref.ref(encoder)
    del runner, encoder
    gc.collect()
    assert held() is None  # whose weights would be counted beside its own
    assert call().shape == (1, 16)


def test_what_goes_wrong_in_the_process_comes_back_as_a_sentence(wide):
    problem = peak_memory(_request(wide, "onnx", graph=str(wide / "missing.onnx")))
    assert isinstance(problem, str)
    assert "missing.onnx" in problem
