"""export.json shows any change of its own values and of the bytes of graphs and weights."""

import json
import shutil
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest

from tests.support.records import INVARIANCE, QUANTIZED
from truncate_kit.core.errors import DeviceError, FileProblemError, ModelError
from truncate_kit.export import graph as tracing
from truncate_kit.export.exporting import export_onnx
from truncate_kit.export.record import (
    ExportReport,
    check_record,
    check_runnable,
    find_graph,
    graph_sentence,
    read_exports,
    record_with,
    suited_precision,
)
from truncate_kit.export.runtime import OnnxEncoder
from truncate_kit.models.loading import load_encoder
from truncate_kit.models.truncation import truncate


@pytest.fixture(scope="module")
def exported(tiny_folder, tmp_path_factory) -> tuple[Path, ExportReport]:
    """A model with a graph and its separate weights; tests change copies only."""
    folder = tmp_path_factory.mktemp("record") / "model"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tracing, "EMBED_LIMIT", 100)
        return folder, export_onnx(truncate(load_encoder(tiny_folder("bert")), 1), folder)


@pytest.fixture
def folder(exported, tmp_path) -> Path:
    return Path(shutil.copytree(exported[0], tmp_path / "model"))


def test_a_record_is_kept_as_written_and_a_change_of_it_is_seen(exported, tmp_path):
    whole = replace(exported[1], quantization=QUANTIZED, invariance=INVARIANCE, spearman=(80.1, 80.0))
    file, text = tmp_path / "export.json", record_with(tmp_path, whole)
    file.write_text(text)
    assert read_exports(tmp_path) == (whole,)
    values = json.loads(text)
    file.write_text(json.dumps(values, sort_keys=True))  # laid out anew, and the same
    assert read_exports(tmp_path) == (whole,)
    (report,) = values["graphs"]
    other = report | {"quantization": report["quantization"] | {"weight_bits": 6}}
    for damaged in (values | {"graphs": [other]}, values | {"graphs": []}, values | {"note": "mine"}, {}, []):
        file.write_text(json.dumps(damaged))
        with pytest.raises(ModelError, match=r"export\.json is damaged"):
            read_exports(tmp_path)
    file.write_text(json.dumps(values | {"format": 1}))
    with pytest.raises(FileProblemError, match="another version"):
        read_exports(tmp_path)


def test_weights_beside_the_graph_are_known_by_their_bytes(exported, folder):
    report = exported[1]
    weights = folder / next(name for name in report.graph_sha256 if name != report.file)
    assert weights.is_file()
    assert check_record(folder / "onnx/model.onnx") == report
    data = bytearray(weights.read_bytes())
    data[len(data) // 2] ^= 1
    weights.write_bytes(data)
    for damage in (lambda: None, weights.unlink):
        damage()
        with pytest.raises(ModelError, match=rf"{weights.name} has changed since model\.onnx was exported"):
            OnnxEncoder.load(folder)


def test_a_graph_is_not_used_for_another_model_than_its_own(exported, folder):
    """Changed, added and missing files of the model are refused; a graph without a model is not."""
    graph, other = folder / "onnx/model.onnx", folder / "model-00001-of-00001.safetensors"
    for name in ("model.safetensors", "1_Pooling/config.json"):
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content[:-2] + bytes([content[-2] ^ 1]) + content[-1:])
        with pytest.raises(ModelError, match=rf"{name} has changed since model\.onnx was exported"):
            check_record(graph)
        (folder / name).write_bytes(content)
    (folder / "openvino_model.bin").write_bytes(b"no loader of ours reads it")
    shutil.copy(folder / "model.safetensors", other)
    with pytest.raises(ModelError, match=f"{other.name} has changed since"):
        check_record(graph)
    other.unlink()
    listing = (folder / "modules.json").rename(folder / "modules")
    with pytest.raises(ModelError, match=r"modules\.json has changed since"):
        check_record(graph)
    listing.rename(folder / "modules.json")
    assert check_record(graph) == exported[1]
    for file in (folder / "model.safetensors", folder / "openvino_model.bin"):
        file.unlink()
    assert check_record(graph) == exported[1]


def test_a_graph_that_the_record_does_not_know(folder):
    """It is never chosen by default, and refused by name; without export.json all graphs are unknown."""
    graph = (folder / "onnx/model.onnx").rename(folder / "onnx/model_quantized.onnx")
    for _ in range(2):
        assert suited_precision(folder) is None
        with pytest.raises(ModelError, match=r"has no record of model_quantized\.onnx") as problem:
            OnnxEncoder.load(graph)
        assert problem.value.hint.endswith('`export_onnx(settings=ExportSettings(precision="int8"))`.')
        (folder / "export.json").unlink(missing_ok=True)


@pytest.mark.parametrize(
    ("held", "on_cpu", "on_cuda"),
    [
        (("fp32", "fp16", "int8"), "fp32", "fp16"),
        (("fp16", "int8"), "int8", "fp16"),
        (("fp32", "int8"), "fp32", "fp32"),
        (("int8",), "int8", None),
        (("fp16",), None, "fp16"),
        ((), None, None),
    ],
)
def test_the_graph_follows_the_device(held, on_cpu, on_cuda, exported, tmp_path):
    names = {"fp32": "onnx/model.onnx", "fp16": "onnx/model_fp16.onnx", "int8": "onnx/model_quantized.onnx"}
    (tmp_path / "onnx").mkdir()
    for precision in held:
        (tmp_path / names[precision]).write_bytes(b"")
        row = replace(exported[1], precision=precision, file=names[precision])
        (tmp_path / "export.json").write_text(record_with(tmp_path, row))
    for device, precision in (("cpu", on_cpu), ("cuda", on_cuda)):
        assert suited_precision(tmp_path, device) == precision
        if precision is not None:
            assert find_graph(tmp_path, device=device) == tmp_path / names[precision]
        else:
            with pytest.raises(ModelError, match="no exported graph"):
                find_graph(tmp_path, device=device)


def test_what_a_graph_is_made_for(exported, tmp_path):
    report, graph = exported[1], tmp_path / "onnx/model_quantized.onnx"
    for target, device in product(("cpu", "cuda"), repeat=2):
        one = replace(report, target=target)
        assert ("made for" in graph_sentence(graph, one, device)) == (target != device)
    graph.parent.mkdir()
    graph.write_bytes(b"")
    int8 = replace(report, precision="int8", file="onnx/model_quantized.onnx", graph_sha256={}, model_sha256={})
    (tmp_path / "export.json").write_text(record_with(tmp_path, int8))
    with pytest.raises(DeviceError, match="no int8 kernels on CUDA"):
        check_runnable(graph, "cuda")
