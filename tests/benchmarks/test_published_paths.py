"""Every row has its published figure, and FREEZE's path runs on a tiny decoder."""

import json

from benchmarks.frozen import path
from benchmarks.records import published
from tests.support.pairs import write_splits
from truncate_kit.methods.frozen.settings import FrozenSettings


def test_the_path_at_gpt2_mediums_width_is_the_published_one():
    steps = path.path_of(1024, FrozenSettings())
    assert list(steps) == [row["step"] for row in published("freeze")] == list(path.WORDS)
    assert {settings.score for settings in steps.values()} == {"sigmoid"}
    widths = {step: set(settings.code_widths(24, 1024)) for step, settings in steps.items()}
    assert [widths[step] for step in ("narrow", "wide", "deep")] == [{256}, {256, 512}, {256, 512}]
    assert [(step, settings.depth) for step, settings in steps.items() if settings.depth > 1] == [("deep", 2)]


def test_the_path_runs_and_is_taken_up_where_it_was(tiny_folder, tmp_path, monkeypatch, capsys, drawn):
    monkeypatch.setattr(path, "HERE", tmp_path)
    texts = write_splits(tmp_path, 20) / "raw.txt"
    asked = ["--data", str(tmp_path), "--texts", str(texts), "--model", f"tiny={tiny_folder('gpt2')}"]
    asked += ["--seeds", "1", "--epochs", "1", "--pretraining-epochs", "1", "--max-length", "32"]
    path.main(asked)
    out = capsys.readouterr().out
    for figure in ("39.20 / 42.06", "71.63 / 69.72", "75.36 / 73.21", "76.86 / 75.03"):
        assert figure in out
    assert "256" not in out  # the widths of another model
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
