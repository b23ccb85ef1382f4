"""`truncate-kit encode`, and `evaluate` with stored vectors."""

import io
import json
from pathlib import Path

import numpy as np
import pytest

from tests.support.commands import ended as run
from tests.support.commands import scored
from truncate_kit.export.exporting import export_onnx
from truncate_kit.models.loading import load_encoder
from truncate_kit.models.pipeline import save_encoder
from truncate_kit.models.truncation import truncate

PAIRS = "sentence1,sentence2,score\n" + "".join(
    f"{'the cat ' * (n % 5 + 1)}{n},a {'red dog ' * (n % 3)}{n % 4},{n % 6}\n" for n in range(40)
)


@pytest.fixture
def workspace(tiny_folder, tmp_path, monkeypatch) -> Path:
    """A folder in which finetune and export have left a lean model with its graph."""
    monkeypatch.chdir(tmp_path)
    lean = tmp_path / "exported/lean"
    encoder = truncate(load_encoder(tiny_folder("bert")), 1)
    save_encoder(encoder, lean)
    export_onnx(encoder, lean)
    (tmp_path / "texts.txt").write_text("a cat\nthe dog\na small red tree\n")
    return tmp_path


def test_a_file_of_texts_becomes_vectors(workspace, capsys):
    code, out, err = run(capsys, "encode", "texts.txt")
    assert code == 0, err
    assert "3 texts" in out
    assert "3 × 16 float32" in out
    expected = load_encoder("exported/lean").vectors(["a cat", "the dog", "a small red tree"])
    assert np.allclose(np.load("vectors.npy"), expected, atol=1e-4)
    code, out, err = run(capsys, "encode", "texts.txt")
    assert (code, "3 of these in an earlier run" in out) == (0, True)


@pytest.mark.parametrize("runtime", ["torch", "onnx"])
def test_texts_that_are_cut_are_counted(workspace, capsys, runtime):
    limit = load_encoder("exported/lean").max_length
    texts = ["a " * (limit - 2), "a " * (limit - 1), "a cat", "dog " * 200]  # two tokens stand around a text
    (workspace / "texts.txt").write_text("\n".join(texts) + "\n")
    code, _, err = run(capsys, "encode", "texts.txt", "--runtime", runtime)
    assert code == 0, err
    assert f"Truncated: 2 of 4 texts were longer than the limit of {limit} tokens." in err
    assert "Cut:" not in run(capsys, "encode", "texts.txt", "--runtime", runtime)[2]  # nothing is encoded again
    _, out, _ = run(capsys, "encode", "texts.txt", "--runtime", runtime, "--out", "v.npy", "--json")
    assert json.loads(out)["num_cut"] == 2


def test_json_and_options(workspace, capsys):
    (workspace / "table.csv").write_text("id,body\n1,a cat\n2,the dog\n")
    arguments = ("encode", "table.csv", "--column", "body", "--out", "v.npy", "--runtime", "torch", "--json")
    code, out, err = run(capsys, *arguments, "--precision", "int8", "--dimensions", "4", "--normalize")
    assert (code, err) == (0, "")
    result = json.loads(out)
    assert (result["shape"], result["dtype"], result["resumed_at"]) == ([2, 4], "int8", 0)
    assert np.load("v.npy").shape == (2, 4)


def test_what_is_wrong_with_standard_input_names_no_file(workspace, capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"a cat\n\nthe dog\n"), encoding="utf-8"))
    code, _, err = run(capsys, "encode", "-")
    assert code == 1
    assert "Error: Standard input, line 2: the line is empty." in err
    assert ".txt" not in err
    monkeypatch.setattr("sys.stdin", None)  # closed by whoever starts the command
    assert run(capsys, "encode", "-")[0] == 1


def test_evaluate_scores_vectors_as_they_would_be_stored(workspace, capsys):
    (workspace / "pairs.csv").write_text(PAIRS)
    arguments = ("evaluate", "--data", "pairs.csv", "--scale", "0,5", "--json")
    found = {
        name: scored(run(capsys, *arguments, *options)[1])
        for name, options in {
            "whole": (),
            "int8": ("--vectors", "int8"),
            "binary": ("--vectors", "binary", "--dimensions", "9"),
        }.items()
    }
    assert [score["bytes per vector"] for score in found.values()] == [64, 16, 2]
    assert [score["dimensions"] for score in found.values()] == [16, 16, 9]
    assert found["int8"]["Pearson"] == pytest.approx(found["whole"]["Pearson"], abs=1)
    assert found["binary"]["Pearson"] != pytest.approx(found["whole"]["Pearson"], abs=0.01)
    code, _, err = run(capsys, *arguments, "--vectors", "float8")
    assert (code, "'float8'" in err) == (1, True)
    assert "bytes per vector" in " ".join(run(capsys, *arguments[:-1], "--vectors", "int8")[1].split())


def test_lines_come_from_standard_input(workspace, capsys, monkeypatch):
    lines = (workspace / "texts.txt").read_bytes()
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(lines), encoding="utf-8"))
    code, out, err = run(capsys, "encode", "-", "--out", "piped.npy", "--json", "--quiet")
    assert (code, err) == (0, "")
    assert json.loads(out)["source"] == "-"
    assert run(capsys, "encode", "texts.txt", "--out", "read.npy")[0] == 0
    assert np.array_equal(np.load("piped.npy"), np.load("read.npy"))
