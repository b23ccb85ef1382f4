"""`truncate-kit encode`, and `evaluate` with stored vectors."""

import io
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from tests.support.commands import fails, run, run_both, run_json, scored
from tests.support.files import write_table
from truncate_kit.models.loading import load_encoder

PAIRS = [(f"{'the cat ' * (n % 5 + 1)}{n}", f"a {'red dog ' * (n % 3)}{n % 4}", n % 6) for n in range(40)]


@pytest.fixture
def workspace(exported_folder, tmp_path) -> Path:
    """A folder in which finetune and export have left a lean model with its graph."""
    shutil.copytree(exported_folder, tmp_path / "exported/lean")
    (tmp_path / "texts.txt").write_text("a cat\nthe dog\na small red tree\n")
    return tmp_path


def test_a_file_of_texts_becomes_vectors(workspace, capsys):
    assert "3 × 16 float32" in run(capsys, "encode", "texts.txt")
    expected = load_encoder("exported/lean").vectors(["a cat", "the dog", "a small red tree"])
    assert np.allclose(np.load("vectors.npy"), expected, atol=1e-4)
    assert "3 of these in an earlier run" in run(capsys, "encode", "texts.txt")


@pytest.mark.parametrize("runtime", ["torch", "onnx"])
def test_texts_that_are_cut_are_counted(workspace, capsys, runtime):
    limit = load_encoder("exported/lean").max_length
    texts = ["a " * (limit - 2), "a " * (limit - 1), "a cat", "dog " * 200]  # two tokens stand around a text
    (workspace / "texts.txt").write_text("\n".join(texts) + "\n")
    command = ("encode", "texts.txt", "--runtime", runtime)
    assert f"Truncated: 2 of 4 texts were longer than the limit of {limit} tokens." in run_both(capsys, *command)[1]
    assert "Truncated:" not in run_both(capsys, *command)[1]  # nothing is encoded again
    assert run_json(capsys, *command, "--out", "v.npy")["num_cut"] == 2


def test_json_and_options(workspace, capsys):
    (workspace / "table.csv").write_text("id,body\n1,a cat\n2,the dog\n")
    arguments = ("encode", "table.csv", "--column", "body", "--out", "v.npy", "--runtime", "torch")
    result = run_json(capsys, *arguments, "--precision", "int8", "--dimensions", "4", "--normalize")
    assert (result["shape"], result["dtype"], result["resumed_at"]) == ([2, 4], "int8", 0)
    assert np.load("v.npy").shape == (2, 4)


def test_what_is_wrong_with_standard_input_names_no_file(workspace, capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"a cat\n\nthe dog\n"), encoding="utf-8"))
    problem = fails(capsys, "encode", "-")
    assert "Error: Standard input, line 2: the line is empty." in problem
    assert ".txt" not in problem
    monkeypatch.setattr("sys.stdin", None)  # closed by whoever starts the command
    fails(capsys, "encode", "-")


def test_evaluate_scores_vectors_as_they_would_be_stored(workspace, capsys):
    write_table(workspace / "pairs.csv", ("sentence1", "sentence2", "score"), PAIRS)
    arguments = ("evaluate", "--data", "pairs.csv", "--scale", "0,5")
    stored = ((), ("--vectors", "int8"), ("--vectors", "binary", "--dimensions", "9"))
    found = [scored(run(capsys, *arguments, *options, "--json")) for options in stored]
    assert [score["bytes per vector"] for score in found] == [64, 16, 2]
    assert [score["dimensions"] for score in found] == [16, 16, 9]
    whole, int8, binary = (score["Pearson"] for score in found)
    assert int8 == pytest.approx(whole, abs=1)
    assert binary != pytest.approx(whole, abs=0.01)
    assert "bytes per vector" in " ".join(run(capsys, *arguments, "--vectors", "int8").split())


def test_lines_come_from_standard_input(workspace, capsys, monkeypatch):
    lines = (workspace / "texts.txt").read_bytes()
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(lines), encoding="utf-8"))
    out, err = run_both(capsys, "encode", "-", "--out", "piped.npy", "--json", "--quiet")
    assert (json.loads(out)["source"], err) == ("-", "")
    run(capsys, "encode", "texts.txt", "--out", "read.npy")
    assert np.array_equal(np.load("piped.npy"), np.load("read.npy"))
