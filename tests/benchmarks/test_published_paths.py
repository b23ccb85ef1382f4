"""The published figures are there for every row, and FREEZE's path runs on a tiny decoder, a row for each step."""

import json

import pytest

from benchmarks.frozen import path
from benchmarks.records import published
from tests.support.pairs import make_pairs
from truncate_kit.methods.contrast.settings import TABLE_2
from truncate_kit.methods.frozen.settings import FrozenSettings
from truncate_kit.models import load_encoder


def test_table_2_has_a_published_figure_for_every_named_pooling():
    rows = [row for row in published("layer_attention") if row["table"] == "2"]
    assert [(row["name"], row["pooling"]) for row in rows] == [(name, row.paper) for name, row in TABLE_2.items()]
    printed = [84.34, 84.84, 84.76, 84.93, 85.11, 85.45, 85.72, 86.57, 86.76]
    assert [float(row["value"]) for row in rows] == printed


def test_the_path_at_gpt2_mediums_width_is_the_published_one():
    steps = path.path_of(1024, FrozenSettings())
    assert list(steps) == [row["step"] for row in published("freeze")] == list(path.WORDS)
    assert {settings.score for settings in steps.values()} == {"sigmoid"}
    widths = {step: set(settings.code_widths(24, 1024)) for step, settings in steps.items()}
    assert [widths[step] for step in ("narrow", "wide", "deep")] == [{256}, {256, 512}, {256, 512}]
    assert [step for step, settings in steps.items() if settings.loss == "log-variance"] == [
        "log-variance",
        "deep",
        "cosine-log-variance",
        "siamese-log-variance",
        "narrow-log-variance",
    ]
    assert [(step, settings.depth) for step, settings in steps.items() if settings.depth > 1] == [("deep", 2)]


def test_the_path_runs_and_is_taken_up_where_it_was(tiny_folder, tmp_path, monkeypatch, capsys, drawn):
    monkeypatch.setattr(path, "HERE", tmp_path)
    for seed, split in enumerate(("train", "dev", "test")):
        lines = [f"{pair.first},{pair.second},{pair.target:.3f}" for pair in make_pairs(20, seed=seed)]
        (tmp_path / f"{split}.csv").write_text("sentence1,sentence2,score\n" + "\n".join(lines) + "\n")
    texts = tmp_path / "raw.txt"
    texts.write_text("\n".join(f"{pair.first} and {pair.second}" for pair in make_pairs(40, seed=9)))
    asked = ["--data", str(tmp_path), "--texts", str(texts), "--model", f"tiny={tiny_folder('gpt2')}"]
    asked += ["--seeds", "1", "--epochs", "1", "--pretraining-epochs", "1", "--max-length", "32"]
    path.main(asked)
    out = capsys.readouterr().out
    for figure in ("39.20 / 42.06", "71.63 / 69.72", "75.36 / 73.21", "76.86 / 75.03"):
        assert figure in out
    assert "256" not in out  # the widths of another model
    assert "| codes of a half in the upper half of the blocks, MSE |" in out
    assert "| called indistinguishable from the step before |" in out
    lines = (tmp_path / "path.jsonl").read_text().splitlines()
    found = {json.loads(line)["name"]: json.loads(line)["content"] for line in lines}
    assert list(found) == [f"tiny_{step}" for step in path.path_of(16, FrozenSettings())]
    score = found["tiny_wide"]["trials"][-1]["test_pearson"]
    assert f"{score:.2f}" in out
    assert found["tiny_narrow"]["reconstruction"]["code_widths"] == [4, 4, 4]
    for figure in ("correlation", "reconstruction"):
        assert (tmp_path / f"figures/tiny-path-{figure}.png").stat().st_size > 5_000
    path.main(asked)
    assert "done" not in capsys.readouterr().out
    assert (tmp_path / "path.jsonl").read_text().splitlines() == lines


def test_pairs_that_the_report_names_are_scored_by_their_lines(tiny_folder, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(path, "HERE", tmp_path)
    made = {split: make_pairs(number, seed=number) for split, number in (("train", 20), ("dev", 21), ("test", 640))}
    for split, pairs in made.items():
        lines = [f"{pair.first},{pair.second},{pair.target:.3f}" for pair in pairs]
        (tmp_path / f"{split}.csv").write_text("sentence1,sentence2,score\n" + "\n".join(lines) + "\n")
    texts = tmp_path / "raw.txt"
    texts.write_text("\n".join(f"{pair.first} and {pair.second}" for pair in make_pairs(40, seed=9)))
    asked = ["--data", str(tmp_path), "--texts", str(texts), "--model", f"tiny={tiny_folder('gpt2')}", "--errors"]
    path.main([*asked, "--seeds", "2", "--epochs", "1", "--pretraining-epochs", "1", "--max-length", "32"])
    rows = [
        line.strip("| ").split(" | ") for line in capsys.readouterr().out.splitlines() if line[:3] in ("| 5", "| 6")
    ]
    assert [(row[0], row[2]) for row in rows] == [("589", "25.72"), ("625", "47.35")]
    trained = load_encoder(tmp_path / "work/tiny-errors/frozen")
    for row in rows:
        # As a text editor counts: the first line names columns.
        first, second, score = (tmp_path / "test.csv").read_text().splitlines()[int(row[0]) - 1].split(",")
        own = trained.similarities(*(trained.vectors([text]) for text in (first, second)))
        assert float(row[3]) == pytest.approx(100 * float(own), abs=0.05)
        span = max(pair.target for pair in made["test"])
        assert float(row[1]) == pytest.approx(100 * float(score) / span, abs=1)
    assert not (tmp_path / "path.jsonl").exists()
