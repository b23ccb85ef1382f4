"""Figures on the papers' pages are those of the committed records."""

from pathlib import Path

import numpy as np
import pytest
from scipy.stats import t as student_t

from benchmarks.combine.sets import HERE as COMBINATIONS
from benchmarks.combine.sets import mean_cell
from benchmarks.common import read_rows
from benchmarks.drop import foresight
from benchmarks.layer_attention.run import REPORTS as POOLINGS
from benchmarks.layer_attention.run import Cell
from benchmarks.miniatures import priors
from benchmarks.records import Records, published
from truncate_kit.methods.bert_lc.settings import CLS, LAST, LAST_FOUR, RANDOM, CombinationReport
from truncate_kit.training.settings import TABLE_2

ROOT = Path(__file__).resolve().parents[2]
WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")
REST = {"SST5": ".3f", "MR": ".3f", "SST2": ".2f", "SUBJ": ".2f"}  # sets without a significant gain
WORDS += ("thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen")


def rows_of(page: str, start: str) -> list[list[str]]:
    """Cells of the table rows of a page that begin so."""
    text = (ROOT / "docs/papers" / f"{page}.md").read_text(encoding="utf-8")
    return [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith(f"| {start}")]


def test_the_row_of_falls_counts_the_cases():
    (row,) = rows_of("tmft", "4.4: a drop of CKA")
    found = [one for one in foresight.foreseen() if one.case.similarity]
    missed = [one for one in found if one.case.falls and not one.said]
    falls = sum(one.case.falls for one in found)
    assert f"of {falls} drops on similarity {WORDS[len(missed)]} were not predicted:" in row[2]
    generator = [one for one in missed if one.case.model == "mini-electra-generator" and one.signs]
    assert f"{WORDS[len(generator)]} of the generator, whose CKA" in row[2]
    said = [one for one in found if one.said]
    assert all(one.case.falls and one.case.model == "mini-electra-discriminator" for one in said)
    assert f"A drop that was predicted came in all {WORDS[len(said)]} cases" in row[-1]
    lost = [[one.signs[foresight.CKA] for one in cases] for cases in (generator, said)]
    (low, high), (least, most) = ((min(values), max(values)) for values in lost)
    assert f"loses {low:.2f} to {high:.2f} at its end (the discriminator {least:.2f} to {most:.2f})" in row[2]


def test_the_mean_of_the_joined_sets_is_that_of_their_records():
    """Of the five sets joining changes STS Benchmark alone; the others are kept as MTEB counts them."""
    kept = dict(Records(COMBINATIONS / "sets.jsonl").items())
    names = ["STS12", "STS14", "STS15", "joined_STSB", "SICK-R"]
    reports = [CombinationReport.from_dict(kept[f"mini-bert_mean_mean_{name}"]) for name in names]
    last, best = mean_cell(reports, LAST), mean_cell(reports, None)
    (row,) = rows_of("bert-lc", "Table 2:")
    assert f"last {last} → {best}," in row[2]
    assert "--joined" in row[1]
    cls, four, random = (mean_cell(reports, name).partition(" ")[0] for name in (CLS, LAST_FOUR, RANDOM))
    (row,) = rows_of("bert-lc", "Table 3:")
    assert f"CLS of the last layer {cls}, last four {four}, random {random}" in row[2]
    means = [np.mean([split.best[2] for split in report.splits]) for report in reports]
    gains = [mean - report.baseline(LAST, "test")[0] for mean, report in zip(means, reports, strict=True)]
    (row,) = rows_of("bert-lc", "Abstract, B.3:")
    assert f"at most {max(gains):.2f} points (STS12), {np.mean(gains):.2f} in the mean" in row[2]
    lost = [[[split.best[2] - other[2] for other in split.without] for split in one.splits] for one in reports]
    without = np.mean(lost, axis=1)
    counts = (without > 0.005).sum(axis=0)
    (row,) = rows_of("bert-lc", "E.2:")
    assert f"layers 1 and 5 on {WORDS[counts[1]]} and {WORDS[counts[5]]} of them" in row[2]
    assert f"at most {without.max():.2f} points, layer 1 on STS12" in row[2]


@pytest.mark.parametrize("row", TABLE_2)
def test_table_2_of_layer_attention_is_on_its_page(row):
    paper = {line["name"]: line["value"] for line in published("layer_attention") if line["table"] == "2"}
    cells = [Cell.from_dict(value) for value in Records(POOLINGS).values()]
    (shown,) = rows_of("layer-attention", f"{row} |")
    expected = [row, paper[row]]
    for model in ("mini-bert, twelve epochs", "all-MiniLM-L6-v2, six epochs"):
        tests = [cell.run.test for cell in cells if (cell.row, cell.run.model) == (row, model)]
        expected.append(f"{np.mean(tests):.2f} ± {np.std(tests, ddof=1):.2f}")
    assert shown == expected


def test_the_gains_of_combined_layers_are_as_significant_as_said():
    """The resampled t-test of Nadeau and Bengio over ten divisions 85:15, from mean gains and their deviations."""
    text = (ROOT / "benchmarks/suites/README.md").read_text(encoding="utf-8")
    whole = {row["set"]: row for row in read_rows(ROOT / "benchmarks/suites/transfer.csv")}  # the last one has all rows
    assert len(whole) == 7
    chances = {}
    for name, row in whole.items():
        assert f"| {name} | {int(row['train_rows']):,} | {row['last_layer']} |" in text
        error = float(row["gain_deviation"]) * np.sqrt(1 / 10 + 15 / 85)
        chances[name] = 2 * student_t.sf(abs(float(row["gain"])) / error, 9)
    sure = [name for name, chance in chances.items() if chance < 0.01]
    said = ", ".join(f"{name} {chances[name]:.4f}" for name in sure)
    others = [f"{chances[name]:{form}} on {name}" for name, form in REST.items()]
    assert f"p is below 0.01 on {WORDS[len(sure)]} sets ({said}), " + ", ".join(others[:-1]) in " ".join(text.split())
    assert f" and {others[-1]}." in text
    (row,) = rows_of("bert-lc", "4.3: the gains are significant")
    assert f"p < 0.01 on {WORDS[len(sure)]} sets of seven ({', '.join(sure)}), " in row[2]
    assert ", ".join(others) in row[2]


def test_the_figures_of_priors_are_those_of_their_study(tmp_path):
    found = priors.curves()
    assert {len(found[model + prior]) for model in priors.MODELS for prior in priors.PRIORS} == {9}
    text = (ROOT / "benchmarks/miniatures/README.md").read_text(encoding="utf-8")
    for cells in priors.chosen(found):
        assert f"| {' | '.join(cells)} |" in text
    ((words,), (texts,)) = rows_of("tmft", "Figure 2b"), rows_of("tmft", "Figure 2c")
    for model, title in priors.MODELS.items():
        plain, first, raw = (priors.best(found[model + prior]) for prior in priors.PRIORS)
        assert f"{title} {first['test']} (without {plain['test']})" in words[2]
        assert f"{title} {raw['test']}" in texts[2]
    priors.main(["--out", str(tmp_path)])
    assert (tmp_path / "priors.png").stat().st_size > 0
