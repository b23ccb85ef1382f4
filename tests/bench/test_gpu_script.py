"""`benchmarks/gpu` on tiny CPU shapes: every part writes its file, goes on after a failure, and the figure is drawn."""

import json
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import onnxruntime
import pytest
import torch

from truncate_kit.bench import BenchReport
from truncate_kit.encoders import load_encoder, truncate
from truncate_kit.export import save_graph

GPU = Path(__file__).resolve().parents[2] / "benchmarks/gpu"
NAMES = ("bench_cuda", "mask_forms", "figure")
FEW = {
    "device": "cpu", "width": "32", "layers": "2", "models": "bert-base", "cuts": "6", "lengths": "8",
    "batch-sizes": "1,2", "texts": "8", "repeats": "1", "backends": "torch-fp32,st-fp32,onnx-fp32",
}  # fmt: skip


@pytest.fixture(scope="module")
def scripts():
    sys.path.insert(0, str(GPU))
    try:
        yield {name: __import__(name) for name in NAMES}
    finally:
        sys.path.remove(str(GPU))
        for name in NAMES:
            sys.modules.pop(name, None)


def run(script: ModuleType, *options: str) -> None:
    before, sys.argv = sys.argv, [str(script.__file__), *options]
    try:
        script.main()
    finally:
        sys.argv = before


@pytest.fixture(scope="module")
def folders(scripts, tmp_path_factory):
    """Models and results of one small run of the three parts that take no set of their own."""
    work, out = tmp_path_factory.mktemp("work"), tmp_path_factory.mktemp("out")
    options = [f"--{name}={value}" for name, value in FEW.items()]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scripts["bench_cuda"], "FORMS", ("tokens", "multihead_lengths_starts", "packed"))
        patch.setattr(scripts["bench_cuda"], "MASK_SHAPES", ((1, 8), (2, 8)))
        run(
            scripts["bench_cuda"],
            f"--work={work}",
            f"--out={out}",
            "--no-memory",
            "--parts=shapes,steps,masks",
            *options,
        )
    return work, out, options


def test_each_part_is_one_file_with_raw_seconds(folders):
    _, out, _ = folders
    assert sorted(path.name for path in out.iterdir()) == ["masks.json", "shapes.json", "steps.json"]
    report = BenchReport.from_dict(json.loads((out / "shapes.json").read_text())["bert-base-1"])
    assert {row.backend for row in report.measured()} == {"torch-fp32", "st-fp32", "onnx-fp32"}
    steps = json.loads((out / "steps.json").read_text())["steps"]
    assert [name.split(":")[0] for name in steps["seconds"]][3:5] == ["+ kernels", "+ batches by tokens"]
    masks = json.loads((out / "masks.json").read_text())["masks"]
    assert {(row["mask"], row["batch_size"], row["padded"]) for row in masks["rows"]} >= {
        ("tokens", 1, False),
        ("tokens", 2, True),
    }
    assert "packed" in masks["absent"]  # it has no kernel on the CPU


def test_what_is_there_is_not_measured_again_and_what_fails_is_written_down(scripts, folders, monkeypatch, capsys):
    work, out, options = folders
    script = scripts["bench_cuda"]

    def jobs(options, models):
        yield from (("bad", lambda: 1 / 0), ("good", lambda: {"seconds": [1.0]}))

    monkeypatch.setitem(script.JOBS, "sets", jobs)
    before = (out / "shapes.json").read_bytes()
    with pytest.raises(SystemExit, match="sets, bad: division by zero"):
        run(script, f"--work={work}", f"--out={out}", "--parts=shapes,sets", *options)
    assert (out / "shapes.json").read_bytes() == before
    assert "shapes, bert-base-1: is there." in capsys.readouterr().out
    found = json.loads((out / "sets.json").read_text())
    assert found == {"bad": {"error": "ZeroDivisionError: division by zero"}, "good": {"seconds": [1.0]}}
    monkeypatch.setitem(script.JOBS, "sets", lambda options, models: iter([("bad", lambda: {"seconds": [2.0]})]))
    run(script, f"--work={work}", f"--out={out}", "--parts=sets", "--stop-after=0", *options)
    assert "sets, bad: left to the next run." in capsys.readouterr().out
    run(script, f"--work={work}", f"--out={out}", "--parts=sets", *options)
    assert json.loads((out / "sets.json").read_text())["bad"] == {"seconds": [2.0]}
    (out / "sets.json").unlink()


def test_quick_gives_way_to_what_is_named(scripts, monkeypatch):
    script = scripts["bench_cuda"]
    monkeypatch.setattr(sys, "argv", ["bench_cuda.py", "--work=x", "--quick", "--repeats=3"])
    options = script.arguments()
    assert (options.repeats, options.memory, options.models) == (3, False, script.QUICK["models"])
    assert set(options.backends) <= set(script.BACKENDS)


def test_a_model_whose_graph_cannot_be_made_is_there_without_it(scripts, tmp_path, monkeypatch, capsys):
    script = scripts["bench_cuda"]

    def refused(*_, **__):
        raise script.TruncateKitError("too old.", hint="Upgrade it.")

    monkeypatch.setattr(script, "export_onnx", refused)
    folder = script.Models(tmp_path, script.shapes(32, 2), "cpu").folder("bert-base", 1)
    assert load_encoder(folder).depth == 1
    assert "bert-base-1 has no fp32 graph: too old. Upgrade it." in capsys.readouterr().out


def test_the_figure_keeps_torch_and_other_rivals_apart(scripts, folders, capsys):
    _, out, _ = folders
    run(scripts["figure"], f"--results={out}")
    told = capsys.readouterr().out
    for rival in ("torch", "others", "full"):
        assert f"bert-base-1, batch 2, against {rival}: " in told
    assert (out / "ratios.png").stat().st_size > 1000
    (out / "ratios.png").unlink()


def test_no_results_are_told_in_a_sentence(scripts, tmp_path):
    with pytest.raises(SystemExit, match=r"shapes\.json: measure first"):
        run(scripts["figure"], f"--results={tmp_path}")
    (tmp_path / "shapes.json").write_text(json.dumps({"bert-base-6": {"error": "no memory"}}))
    with pytest.raises(SystemExit, match="nothing to draw"):
        run(scripts["figure"], f"--results={tmp_path}")


@pytest.mark.parametrize("form", ["multihead_lengths", "multihead_lengths_starts"])
def test_products_outside_the_attention_give_the_same_vectors(form, scripts, tiny_folder, tmp_path):
    encoder = truncate(load_encoder(tiny_folder("bert")), 2)
    save_graph(scripts["mask_forms"].masked(encoder, form, "cpu"), tmp_path / "model.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx", providers=["CPUExecutionProvider"])
    ids = np.random.default_rng(0).integers(5, 20, (4, 9))
    mask = (np.arange(9) < np.array([9, 4, 1, 6])[:, None]).astype(np.int64)
    found = session.run(["sentence_embedding"], {"input_ids": ids, "attention_mask": mask})[0]
    with torch.inference_mode():
        expected = encoder(torch.from_numpy(ids), torch.from_numpy(mask)).numpy()
    np.testing.assert_allclose(found, expected, atol=1e-5 * np.abs(expected).max())
