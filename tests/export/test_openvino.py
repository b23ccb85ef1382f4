"""In OpenVINO the exported encoder gives what the encoder gives, in each precision, or is refused."""

import pickle
import shutil
import sys
from pathlib import Path

import pytest
import torch

from truncate_kit.bench.result import BenchSettings
from truncate_kit.bench.run import bench
from truncate_kit.core.errors import DeviceError, MissingExtraError, ModelError, UsageError
from truncate_kit.core.hardware import INSTRUCTIONS, bf16_instructions
from truncate_kit.data.pairs import load_pairs
from truncate_kit.evaluation.graded import evaluate
from truncate_kit.export.exporting import export_graph, export_onnx
from truncate_kit.export.record import ExportSettings, read_exports
from truncate_kit.export.runtime import load_text_encoder
from truncate_kit.models.loading import load_encoder
from truncate_kit.models.truncation import truncate

FILE = "openvino/openvino_model.xml"
TEXTS = ["a", "the cat sat on the mat and the dog ran under a tree", "", "THE Cat", "a", "not a " * 100]
BF16 = pytest.mark.skipif(bf16_instructions(torch.device("cpu")) is None, reason="the processor has no bf16")


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """A cut miniature, pairs, and the folder of its graphs in fp32 and int8."""
    encoder, pairs = truncate(load_encoder("mini-bert"), 2), load_pairs("bundled").split("dev")
    folder = tmp_path_factory.mktemp("openvino") / "model"
    for precision in ("fp32", "int8"):
        settings = ExportSettings(runtime="openvino", precision=precision, budget=1)
        export_onnx(encoder, folder, settings, pairs=pairs, search_pairs=pairs)
    return encoder, pairs, folder


@pytest.mark.parametrize("family", ["mpnet"])
def test_each_kind_of_position_and_mask(family, tiny_folder, tmp_path):
    report = export_graph(load_encoder(tiny_folder(family)), tmp_path / "graph", ExportSettings(runtime="openvino"))
    assert max(report.checks.values()) < 1e-4
    assert report.file == FILE


@pytest.mark.parametrize("threads", [1, 2])
def test_vectors_are_those_of_torch(exported, threads):
    encoder, pairs, folder = exported
    exact, rounded = (
        load_text_encoder(folder, runtime="openvino", precision=name, threads=threads) for name in ("fp32", "int8")
    )
    sent = pickle.loads(pickle.dumps(exact))  # as its files
    for graph, texts in ((exact, TEXTS), (exact, TEXTS * 40 + pairs.texts()), (sent, TEXTS)):
        torch.testing.assert_close(graph.vectors(texts), encoder.vectors(texts), atol=1e-5, rtol=1e-4)
    assert torch.cosine_similarity(rounded.vectors(TEXTS), encoder.vectors(TEXTS)).min() > 0.98
    report = rounded.report
    lost = evaluate(encoder, pairs.pairs).spearman - evaluate(rounded, pairs.pairs).spearman
    assert report.quantization.drop == pytest.approx(lost, abs=0.01)
    assert report.file_bytes < 0.5 * exact.report.file_bytes
    assert rounded.digest() != exact.digest()
    by_file = load_text_encoder(folder / FILE)
    assert torch.equal(by_file.encode_ids([[2, 5, 3]]), exact.encode_ids([[2, 5, 3]]))


@BF16
def test_bf16_runs_the_same_file(exported, tmp_path):
    encoder, pairs, folder = exported
    folder = shutil.copytree(folder, tmp_path / "model")
    export_onnx(encoder, folder, ExportSettings(runtime="openvino", precision="bf16"), pairs=pairs)
    assert [(row.precision, row.file) for row in read_exports(folder)][::2] == [("fp32", FILE), ("bf16", FILE)]
    exact, half = (load_text_encoder(folder, runtime="openvino", precision=name) for name in ("fp32", "bf16"))
    assert 1e-5 < (half.vectors(TEXTS) - exact.vectors(TEXTS)).abs().max() < 2e-2 * exact.vectors(TEXTS).abs().max()
    assert load_text_encoder(folder, precision="bf16").precision == "bf16"


def test_bench_runs_it_beside_the_others(exported, tmp_path):
    _, pairs, folder = exported
    backends = ["torch-fp32", "openvino-fp32", "openvino-bf16", "openvino-int8"]
    settings = BenchSettings(backends=backends, lengths=[8], repeats=1, batch_sizes=[1])
    report = bench(folder, settings=settings, pairs=pairs, texts=pairs.texts()[:20], graphs=tmp_path)
    scores = {row.backend: row.score for row in report.measured()}
    assert scores["openvino-fp32"] == pytest.approx(scores["torch-fp32"], abs=0.01)
    expected = evaluate(load_text_encoder(folder, runtime="openvino", precision="int8"), pairs.pairs).spearman
    assert scores["openvino-int8"] == pytest.approx(expected, abs=0.01)
    assert all(row.peak_bytes and row.file_bytes for row in report.measured())
    if "openvino-bf16" in scores:
        assert [row.precision for row in read_exports(Path(report.exported["lean"]).parents[1])] == ["bf16"]


def test_what_cannot_run_is_refused(exported, tmp_path, monkeypatch):
    encoder, _, folder = exported
    folder = shutil.copytree(folder, tmp_path / "model")
    for values, message in (({"precision": "fp16"}, "fp16"), ({"target": "cuda"}, "OpenVINO runs on the CPU")):
        with pytest.raises(UsageError, match=message):
            ExportSettings(runtime="openvino", **values)
    monkeypatch.setenv(INSTRUCTIONS, "avx2")
    with pytest.raises(DeviceError, match="no bf16 instructions"):
        export_onnx(encoder, folder, ExportSettings(runtime="openvino", precision="bf16"))
    with pytest.raises(DeviceError, match="8-bit weights"):
        load_text_encoder(folder, runtime="openvino", precision="int8")
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "openvino", None)
        with pytest.raises(MissingExtraError) as problem:
            load_text_encoder(folder, runtime="openvino")
        assert "truncate-kit[openvino]" in problem.value.hint
    weights = (folder / FILE).with_suffix(".bin")
    data = bytearray(weights.read_bytes())
    data[len(data) // 2] ^= 1
    for damage in (lambda: weights.write_bytes(data), weights.unlink):
        damage()
        with pytest.raises(ModelError, match=r"openvino_model\.bin has changed since"):
            load_text_encoder(folder, runtime="openvino")
