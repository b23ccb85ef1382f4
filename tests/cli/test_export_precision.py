"""`--precision` and `--target` through the command line."""

import json
import shutil
from pathlib import Path

import pytest

from tests.support.commands import refused, run, run_json, scored
from tests.support.files import model_graded_file
from truncate_kit.data.pairs import complete_splits, load_pairs
from truncate_kit.models.loading import load_encoder
from truncate_kit.models.store import encoder_digest


@pytest.fixture
def out(exported_folder, tmp_path) -> Path:
    """A workspace with a lean model and its fp32 graph."""
    return Path(shutil.copytree(exported_folder, tmp_path / "out/lean")).parent


def options(out: Path, data: Path) -> tuple[object, ...]:
    return "--data", data, "--scale", "-1,1", "--workspace", out


def test_int8_beside_fp32_from_one_file_of_pairs(out, tmp_path, capsys):
    data = model_graded_file(tmp_path, out / "lean")
    exact = (out / "lean/onnx/model.onnx").read_bytes()
    report = run_json(capsys, "export", "--onnx", "--precision", "int8", "--budget", 30, *options(out, data))
    divided = complete_splits(load_pairs(data, scale=(-1, 1)))
    assert report["quantization"]["searched_on"] == divided.dev.name
    assert report["quantization"]["num_pairs"] == len(divided.dev)
    assert (report["scored_on"], report["num_pairs"]) == (divided.test.name, len(divided.test))
    assert (report["precision"], report["target"], report["file"]) == ("int8", "cpu", "onnx/model_quantized.onnx")
    assert (out / "lean/onnx/model.onnx").read_bytes() == exact
    record = json.loads((out / "lean/export.json").read_text())
    assert [graph["file"] for graph in record["graphs"]] == ["onnx/model.onnx", "onnx/model_quantized.onnx"]

    scores = [
        scored(run(capsys, "evaluate", *which, *options(out, data), "--json"))["Spearman"]
        for which in (["--graph", "int8"], [out / f"lean/{report['file']}"], ["--runtime", "onnx"], ["--graph", "fp32"])
    ]
    assert scores[0] == scores[1] != scores[2] == scores[3]
    assert "--precision fp16" in refused(capsys, "evaluate", "--graph", "fp16", *options(out, data))

    (tmp_path / "texts.txt").write_text("a cat\nthe dog\n")
    for graph, file in (("int8", "model_quantized.onnx"), (None, "model.onnx")):
        chosen = ("--graph", graph) if graph else ()
        arguments = ("texts.txt", "--model", out / "lean", "--out", tmp_path / f"{graph}.npy", *chosen)
        assert run_json(capsys, "encode", *arguments)["graph"] == file
    assert (tmp_path / "int8.npy").read_bytes() != (tmp_path / "None.npy").read_bytes()

    bench = ("bench", "--quick", "--lengths", 4, "--repeats", 1, "--threads", 1, *options(out, data))
    rows = run_json(capsys, *bench)["contestants"]
    assert {row["backend"] for row in rows if row["absent"] is None} >= {"onnx-fp32", "onnx-int8"}
    sizes = {row["backend"]: row["file_bytes"] for row in rows}
    assert sizes["onnx-int8"] == (out / "lean/onnx/model_quantized.onnx").stat().st_size
    assert "onnx-fp16" not in sizes


def test_int8_without_pairs_to_choose_on(out, tmp_path, capsys):
    data = tmp_path / "splits"
    data.mkdir()
    model_graded_file(data, out / "lean").rename(data / "test.csv")
    command = ("--onnx", "--precision", "int8", *options(out, data))
    assert "has only test" in refused(capsys, "export", *command)
    assert not (out / "lean/onnx/model_quantized.onnx").exists()
    before = encoder_digest(load_encoder(out / "lean"))
    assert "has only test" in refused(capsys, "export", "mini-bert", "--layer", 1, *command)
    assert encoder_digest(load_encoder(out / "lean")) == before  # no cut took its place
