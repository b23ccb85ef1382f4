"""`benchmarks/gpu` on tiny CPU shapes: every part writes its file, goes on after a failure, and the figure is drawn."""

import json

import pytest
import torch

from benchmarks.gpu import figure
from benchmarks.gpu import run as gpu
from truncate_kit.bench.result import BenchReport
from truncate_kit.core.hardware import bf16_instructions

FEW = {
    "device": "cpu", "width": "32", "layers": "1", "models": "bert-base", "cuts": "6", "lengths": "8",
    "batch-sizes": "1,2", "texts": "8", "repeats": "1", "backends": "torch-fp32,st-fp32,onnx-fp32",
}  # fmt: skip


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Models and results of one small run of the three parts that take no set of their own."""
    work, out = tmp_path_factory.mktemp("work"), tmp_path_factory.mktemp("out") / "results.json"
    options = [f"--{name}={value}" for name, value in FEW.items()]
    gpu.main([f"--work={work}", f"--out={out}", "--no-memory", "--parts=shapes,steps,first", *options])
    return work, out, options


def test_each_part_has_its_raw_seconds(folders):
    work, out, _ = folders
    parts = json.loads(out.read_text())
    assert list(parts) == ["shapes", "steps", "first"]
    assert str(work) not in out.read_text()
    report = BenchReport.from_dict(parts["shapes"]["bert-base-1"])
    assert {row.backend for row in report.measured()} == {"torch-fp32", "st-fp32", "onnx-fp32"}
    steps = parts["steps"]["steps"]
    low = ["+ precision"] if bf16_instructions(torch.device("cpu")) else []
    assert [name.split(":")[0] for name in steps["seconds"]][2:-2] == [*low, "+ kernels", "+ batches by tokens"]
    first = parts["first"]["first"]
    assert [(row["texts"], row["few_shapes"], len(row["seconds"])) for row in first["rows"]] == [
        (texts, few, 2) for few in (False, True) for texts in ("all", "one by one")
    ]


def test_what_is_there_is_not_measured_again_and_what_fails_is_written_down(folders, monkeypatch, capsys):
    work, out, options = folders

    def jobs(options, models):
        yield from (("bad", lambda: 1 / 0), ("good", lambda: {"seconds": [1.0]}))

    monkeypatch.setitem(gpu.JOBS, "sets", jobs)
    before = json.loads(out.read_text())
    with pytest.raises(SystemExit, match="sets, bad: division by zero"):
        gpu.main([f"--work={work}", f"--out={out}", "--parts=shapes,sets", *options])
    assert "shapes, bert-base-1: is there." in capsys.readouterr().out
    found = json.loads(out.read_text())
    assert {part: found[part] for part in before} == before
    assert found["sets"] == {"bad": {"error": "ZeroDivisionError: division by zero"}, "good": {"seconds": [1.0]}}


def test_the_figure_keeps_torch_and_other_rivals_apart(folders, capsys):
    _, out, _ = folders
    figure.main([f"--results={out}"])
    printed = capsys.readouterr().out
    for rival in ("torch", "others", "full"):
        assert f"bert-base-1, batch 2, against {rival}: " in printed
    assert out.with_name("ratios.png").stat().st_size > 1000
