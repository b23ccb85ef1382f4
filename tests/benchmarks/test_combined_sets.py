"""BERT-LC's protocol over a folder of sets, and its published tables."""

import pytest
import torch
from scipy import stats

from benchmarks.combine import sets
from benchmarks.records import Records
from tests.support.files import graded_file
from tests.support.pairs import sentence_pairs
from truncate_kit.data.suites import find_sts
from truncate_kit.methods.bert_lc.combine import divide
from truncate_kit.methods.bert_lc.settings import LAST, CombinationReport
from truncate_kit.models.loading import load_encoder


@pytest.fixture
def folder(tmp_path):
    pairs = sentence_pairs(40).pairs
    for name, some in (("sts12/one", pairs[:20]), ("sts12/two", pairs[20:]), ("sts13/test", pairs[:24])):
        graded_file(tmp_path / f"{name}.csv", some)
    return tmp_path


def test_all_sets_in_one_go_and_their_mean(tiny_folder, folder, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sets, "HERE", tmp_path)
    asked = ["--data", str(folder), "--model", f"tiny={tiny_folder('bert')}", "--published", "BERT-B-uncased"]
    sets.main(asked)
    out = capsys.readouterr().out
    assert "holds 2 of the paper's 7 sets (STS12, STS13)" in out
    reports = [CombinationReport.from_dict(report) for report in Records(tmp_path / "sets.jsonl").values()]
    assert [(report.data, report.num_pairs) for report in reports] == [("STS12", 40), ("STS13", 24)]
    # Both subsets of STS12 are divided together; the last layer, by the encoder's own vectors.
    encoder, one = load_encoder(tiny_folder("bert")), find_sts(folder)[0]
    first, second = (encoder.vectors([getattr(pair, side) for pair in one.pairs]) for side in ("first", "second"))
    cosines = torch.cosine_similarity(first, second)
    tests = [divide(one, seed, 20)[1][0] for seed in range(5)]
    numbers, targets = [round(float(value), 6) for value in cosines], [pair.target for pair in one.pairs]
    scores = [100 * stats.spearmanr([numbers[p] for p in test], [targets[p] for p in test])[0] for test in tests]
    last = reports[0].baseline(LAST, "test")
    assert last == pytest.approx((sum(scores) / 5, stats.tstd(scores)), abs=1e-4)
    rows = {line.split(" | ")[0].strip("| "): line.split(" | ") for line in out.splitlines() if line.startswith("| ")}
    best = [[split.best[2] for split in report.splits] for report in reports]
    mean = [(one + two) / 2 for one, two in zip(*best, strict=True)]
    assert rows["mean of 2"][2] == f"{sum(mean) / 5:.2f} ± {stats.tstd(mean):.2f}"
    assert "50.89" in rows["STS12"]  # the paper's
    sets.main(asked)
    assert "done" not in capsys.readouterr().out
