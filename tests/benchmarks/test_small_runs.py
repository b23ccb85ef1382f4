"""FREEZE's heads after relations, and BERT-LC on one set, as the papers' pages name them, on tiny models."""

import pytest

from benchmarks.frozen import run as frozen
from benchmarks.records import Records
from tests.support.pairs import make_pairs
from truncate_kit.models.loading import load_encoder
from truncate_kit.models.pipeline import save_encoder
from truncate_kit.models.truncation import truncate

LABELS = ("entailment", "contradiction", "neutral")


@pytest.fixture
def data(tmp_path):
    folder = tmp_path / "pairs"
    folder.mkdir()
    for seed, split in enumerate(("train", "dev", "test")):
        lines = [f"{pair.first},{pair.second},{pair.target:.3f}" for pair in make_pairs(20, seed=seed)]
        (folder / f"{split}.csv").write_text("\n".join(["sentence1,sentence2,score", *lines]))
    return folder


def test_heads_learn_relations_first(tiny_folder, data, tmp_path, monkeypatch, capsys, drawn):
    monkeypatch.setattr(frozen, "HERE", tmp_path)
    monkeypatch.setattr(frozen, "REPORTS", Records(tmp_path / "reports.jsonl"))
    nli, texts = tmp_path / "nli.csv", tmp_path / "raw.txt"
    rows = [f"{pair.first},{pair.second},{LABELS[place % 3]}" for place, pair in enumerate(make_pairs(18, seed=5))]
    nli.write_text("\n".join(["sentence1,sentence2,label", *rows]))
    texts.write_text("\n".join(f"{pair.first} and {pair.second}" for pair in make_pairs(40, seed=9)))
    save_encoder(truncate(load_encoder(tiny_folder("gpt2")), 1), tmp_path / "cut")  # a trace of one block
    asked = ["--data", str(data), "--texts", str(texts), "--model", f"tiny={tmp_path / 'cut'}"]
    asked += ["--score", "sigmoid", "--seeds", "1", "--epochs", "1", "--pretraining-epochs", "1", "--max-length", "32"]
    frozen.main(asked)
    frozen.main([*asked, "--nli", str(nli)])
    out = capsys.readouterr().out
    found = dict(Records(tmp_path / "reports.jsonl").items())
    assert list(found) == ["tiny_last_sigmoid", "tiny_last_sigmoid_nli"]
    without, first = ([trial["test"] for trial in report["trials"]] for report in found.values())
    assert without != first
    assert "last, sigmoid, NLI" in out
    assert f"{found['tiny_last_sigmoid_nli']['trials'][-1]['test_pearson']:.2f}" in out
