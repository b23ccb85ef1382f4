"""Every row on the page of lean models was measured."""

from collections import defaultdict
from decimal import ROUND_HALF_UP, Decimal
from pathlib import Path

import numpy as np
import pytest

from benchmarks.common import read_rows
from benchmarks.lean.texts import mixed, without
from truncate_kit.methods.distill.settings import MISSING, PER_POINT, expected_loss, more_texts, needed_agreement

LEAN = Path(__file__).resolve().parents[2] / "benchmarks/lean"
SCORES = ("stsb", "sts_mean", "trecqa", "trecqa_mixed", "cranfield", "cranfield_mixed")


def rounded(number, unit):
    return str(Decimal(number).quantize(Decimal(unit), ROUND_HALF_UP))


def measured(name):
    return [row | {"blocks": row.get("blocks", "").replace(" ", ", ")} for row in read_rows(LEAN / f"{name}.csv")]


def shown(heading):
    """Rows of the first table below a heading of the page, in plain cells."""
    text = (LEAN / "README.md").read_text(encoding="utf-8").split(f"\n## {heading}\n", 1)[1]
    table = text[text.index("\n|") + 1 :].partition("\n\n")[0].replace("**", "")
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]


def measured_blocks():
    for row in measured("rows"):
        if row["blocks"] and row["threads"] != "cuda" and not row["name"].startswith(("mini-", "mpnet")):
            speed = (rounded(row["agreement"], "0.1"), f"{rounded(row['speedup'], '0.1')} ×")
            yield [row["blocks"], *(row[name] for name in SCORES), *speed, rounded(row["learning_minutes"], "1")]


def gains_of_one_pass():
    """Mean and deviation of gains by number of blocks over every run of one pass, from numpy."""
    rows, runs = measured("rows"), defaultdict(list)
    full = next(row for row in rows if row["asked"] == "full")
    for row in rows:
        if row["epochs"] == "1" and int(row["texts"]) >= 118_000:
            runs[row["blocks"].count(",") + 1].append([float(row[name]) - float(full[name]) for name in SCORES])
    for blocks, gains in sorted(runs.items(), reverse=True):
        means = [f"{mean:+.1f}" for mean in np.mean(gains, axis=0)]
        if len(gains) > 1:
            errors = np.std(gains, axis=0, ddof=1)
            means = [f"{mean} ± {error:.1f}" for mean, error in zip(means, errors, strict=True)]
        yield [str(blocks), str(len(gains)), *(mean.replace("-", "−") for mean in means)]


def test_figures_quoted_of_three_and_two_blocks_are_means_of_all_their_runs():
    rows = list(gains_of_one_pass())
    assert shown("All runs of one pass") == rows
    three, two = (dict(zip(("runs", *SCORES), row[1:], strict=True)) for row in rows[2:4])
    lost = [row["cranfield"].lstrip("−") for row in (three, two)]
    quoted = {
        "README.md": [f"loses {' and '.join(lost)} of 40.0", f"{three['runs']} and {two['runs']} runs]"],
        "docs/guides/cpu.md": [f"gain {three['stsb'][1:]} points", f"lose {lost[0]} of 40.0", f"{three['runs']} runs]"],
        "docs/guides/index-kept.md": [
            f"| {three[f'{name}_mixed']} | {three[name]} |" for name in ("trecqa", "cranfield")
        ],
    }
    for page, sentences in quoted.items():
        text = " ".join((LEAN.parents[1] / page).read_text(encoding="utf-8").split())
        assert [sentence for sentence in sentences if sentence not in text] == []


def measured_models(start, whole):
    for row in measured("rows"):
        if row["name"].startswith(start):
            scores = [row["agreement"] or "–", *(row[name] for name in SCORES)]
            speed = f"{rounded(row['speedup'] or '1', '0.1')} ×"
            yield [row["name"].removeprefix("mini-"), row["blocks"] or whole, *scores, speed]


def measured_texts():
    seeds = defaultdict(list)
    for row in measured("rows"):
        if row["threads"] == "cuda" and row["blocks"] == "1, 3, 6" and row["name"] != "cuda-questions":
            seeds[f"{int(row['texts']):,}"].append(row)
    for texts, rows in seeds.items():
        yield [texts, *(", ".join(row[name] for row in rows) for name in ("agreement", *SCORES))]


def ablations(*, means):
    """Rows of each variant in bfloat16, seeds beside each other; `means` of the retrieval scores instead."""
    seeds = defaultdict(list)
    for row in sorted(measured("ablations"), key=lambda row: row["seed"]):
        if row["precision"] == "bf16" and row["asked"] in ("8000", "13000"):
            seeds[row["variant"], row["asked"], row["batch"]].append(row)
    for rows in seeds.values():
        cells = [", ".join(row[name] for row in rows) for name in ("agreement", *SCORES)]
        if means:
            sums = [sum(Decimal(row[name]) for row in rows) for name in SCORES[2:]]
            cells[3:] = [rounded(total / len(rows), "0.01") for total in sums]
            cells.append(str(min(float(row["minutes"]) for row in rows)))
        yield cells


@pytest.mark.parametrize(
    ("heading", "count", "expected", "skipped"),
    [
        ("Blocks", 9, measured_blocks(), (1,)),
        ("How many texts", 4, measured_texts(), (1,)),
        ("The miniatures", 5, measured_models("mini-", "all 8"), ()),
        ("all-mpnet-base-v2", 7, measured_models("mpnet", "all 12"), ()),
        ("What learning depends on", 5, ablations(means=True), (0,)),
        ("The documents that are searched", 3, ablations(means=False), (0, 1)),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_shown_rows_were_measured(heading, count, expected, skipped):
    rows, expected = shown(heading), list(expected)
    assert len(rows) == count
    for row in rows:
        cells = [cell for place, cell in enumerate(row) if place not in skipped]
        assert cells in expected or "all 6" in row or "the full model" in row, row


def test_the_tables_of_recipes_and_graphs_are_those_of_their_rows():
    recipes = [[row["blocks"], f"{int(row['texts']):,}", row["minutes"]] for row in measured("recipes")]
    scores = [[row[name] for name in SCORES] for row in measured("recipes")]
    expected = [start + rest for start, rest in zip(recipes, scores, strict=True)]
    assert sorted(row[1:] for row in shown("Beside sentence-transformers' recipes")) == sorted(expected)
    graphs = [[row["stsb"], f"{int(row['texts_per_second']):,}"] for row in measured("served")]
    assert sorted(row[1:3] for row in shown("Graphs")) == sorted(graphs)


def test_expected_losses_are_those_of_the_tables():
    missing = {row["blocks"].count(",") + 1: 100 - float(row["fixed_1000"]) for row in measured("agreement")}
    runs, models = defaultdict(list), []
    for row in (*measured("rows"), *measured("ablations")):
        if row["agreement"] and not row.get("name", "").startswith(("mini", "mpnet")):
            far = 1.6 * (100 - float(row["agreement"]))
            lost = (82.03 - float(row["stsb"]) + 4 * (77.73 - float(row["sts_mean"]))) / 5
            models.append((far, lost))
            if row.get("epochs") == "1" and int(row["texts"]) >= 118_000:
                runs[row["blocks"].count(",") + 1].append(far)
    for blocks in (2, 3, 4):
        assert MISSING[blocks] == pytest.approx((missing[blocks], np.mean(runs[blocks])), abs=0.1)
    passed = [lost for far, lost in models if far <= 100 - needed_agreement(1)]
    text = " ".join((LEAN / "README.md").read_text(encoding="utf-8").split())
    assert f"the {len(models)} lean models" in text
    assert f"{sum(lost <= 1 for lost in passed)} of the {len(passed)} models" in text
    assert expected_loss(1 / 2, 4000) == pytest.approx((missing[3] - 5) / PER_POINT, abs=0.05)
    assert more_texts(6, 4, 3000, 1) == more_texts(12, 7, 3000, 1).replace("6 blocks", "3 blocks")
    texts = int(more_texts(6, 4, 3000, 1).split()[1].replace(",", ""))
    assert expected_loss(1 / 2, texts) == pytest.approx(1, abs=0.05)
    assert more_texts(6, 4, texts, 1) is more_texts(6, 1, 3000, 1) is None


def test_no_text_holds_one_of_an_evaluation_set():
    # A short text is looked for as a whole line alone.
    held = ["a dog  runs through the high grass", "He: a dog runs through the high grass! So it was.", "two cats"]
    free = ["Two cats sleep.", "A dog runs through the grass."]
    banned = ["A dog runs through the high grass.", "Two cats."]
    assert without([*held, *free], banned) == free
    for lines, found in ((free, False), ([*held, *free], True)):
        joined = list(mixed(lines * 200, 50, passages=0.0, joined=1.0))
        assert any("through the high grass" in text for text in joined) == found


def test_agreement_with_a_fixed_neighbourhood_does_not_depend_on_how_many_texts_there_are():
    columns = ["all_1000", *(f"fixed_{number}" for number in (42, 250, 1000))]
    rows = [row for row in measured("agreement") if row["checkpoint"] == "2"]
    expected = [[row["blocks"], row["stsb"], *(row[name] for name in columns)] for row in rows]
    assert shown("From agreement to similarity") == expected
