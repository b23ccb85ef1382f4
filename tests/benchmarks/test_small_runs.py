"""FREEZE's heads after relations, on a tiny model."""

from benchmarks.frozen import run as frozen
from benchmarks.records import Records
from tests.support.pairs import make_pairs, write_splits
from truncate_kit.models.loading import load_encoder
from truncate_kit.models.pipeline import save_encoder
from truncate_kit.models.truncation import truncate

LABELS = ("entailment", "contradiction", "neutral")


def test_heads_learn_relations_first(tiny_folder, tmp_path, monkeypatch, capsys, drawn):
    monkeypatch.setattr(frozen, "HERE", tmp_path)
    monkeypatch.setattr(frozen, "REPORTS", Records(tmp_path / "reports.jsonl"))
    nli, data = tmp_path / "nli.csv", write_splits(tmp_path / "pairs", 20)
    rows = [f"{pair.first},{pair.second},{LABELS[place % 3]}" for place, pair in enumerate(make_pairs(18, seed=5))]
    nli.write_text("\n".join(["sentence1,sentence2,label", *rows]))
    save_encoder(truncate(load_encoder(tiny_folder("gpt2")), 1), tmp_path / "cut")  # a trace of one block
    asked = ["--data", str(data), "--texts", str(data / "raw.txt"), "--model", f"tiny={tmp_path / 'cut'}"]
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
