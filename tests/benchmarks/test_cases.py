"""Rules of `benchmarks/pick` are scored without the case's own model, and its committed tables repeat."""

import dataclasses
from statistics import fmean

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from benchmarks.common import read_rows
from benchmarks.drop import foresight
from benchmarks.pick import rules
from benchmarks.pick import rules as cases
from truncate_kit.analysis.result import LOG_ODDS, drop_probability


def one_case(model: str, dev: list[float], test: list[float]) -> cases.Case:
    scores = enumerate(zip(dev, test, strict=True))
    layers = tuple(cases.Layer(layer=place, dev=one, test=other, test_std=0.0) for place, (one, other) in scores)
    same = {"weights": "bundled", "task": "any", "metric": "Spearman", "train_pairs": 500, "dev_pairs": 1500}
    return cases.Case(model=model, **same, rate=1e-4, epochs=3, seeds=4, source="measured", layers=layers)


def test_a_case_has_no_part_in_what_it_is_scored_with():
    # The others gain ten points by a bonus of more than 3 points, it loses 40 by any such bonus.
    others = [one_case(name, [60.0, 57.0], [50.0, 60.0]) for name in ("a", "b")]
    mine = one_case("c", [60.0, 57.0], [60.0, 20.0])
    bonus = next(rule for rule in rules.RULES if rule.name.startswith("dev + t points at"))
    assert rules.picks(bonus, [*others, mine]) == [0, 0, 1]  # it loses 40 points by what the others ask for
    assert rules.picks(bonus, [others[0], mine, dataclasses.replace(mine, model="d")]) == [0, 0, 0]


def test_standard_errors_are_those_of_the_case_or_of_other_models():
    case = one_case("a", [60.0, 59.0, 58.0], [0.0] * 3)
    layers = tuple(dataclasses.replace(row, gap_se=0.8) for row in case.layers)
    known = dataclasses.replace(case, layers=layers, model="b")
    gaps = rules.gaps_without("a", [case, known])
    assert gaps(known) == {0: 0.8, 1: 0.8, 2: 0.8}
    # Of a correlation of 0.6 over 1,500 pairs, by (1 − ρ²) √((1 + ρ²/2) / (n − 3)): 1.797 points.
    assert rules.correlation_error(60.0, 1500) == pytest.approx(1.797, abs=1e-3)
    assert gaps(case)[1] == pytest.approx(0.8, rel=0.05)
    assert rules.gaps_without("b", [case, known])(case)[0] == pytest.approx(1.797, abs=1e-3)


def test_committed_tables_are_those_of_the_cases(tmp_path, capsys):
    rules.main(["--out", str(tmp_path)])
    page = (rules.HERE / "README.md").read_text(encoding="utf-8")
    assert all(table in page for table in capsys.readouterr().out.split("\n\n"))
    for name in ("rules.csv", "picks.csv"):
        assert read_rows(tmp_path / name) == read_rows(rules.HERE / name)


def test_forecasts_are_scored_without_the_model(tmp_path, capsys):
    foresight.main(["--out", str(tmp_path)])
    table = capsys.readouterr().out.partition("LOG_ODDS")[0]
    assert table in (foresight.HERE / "README.md").read_text(encoding="utf-8")
    for name in ("foresight.csv", "foresight-brier.csv"):
        assert read_rows(tmp_path / name) == read_rows(foresight.HERE / name)
    rows = [row for row in read_rows(tmp_path / "foresight.csv") if row["kind"] == "similarity"]
    brier = {row["forecast"]: row for row in read_rows(tmp_path / "foresight-brier.csv") if row["of"] == "similarity"}
    said = [float(row["confidence"]) if row["said"] == "falls" else 1 - float(row["confidence"]) for row in rows]
    squares = [(chance - int(row["falls"])) ** 2 for chance, row in zip(said, rows, strict=True)]
    assert float(brier["the confidence unchanged"]["brier"]) == pytest.approx(fmean(squares), abs=6e-4)
    assert float(brier["never drops"]["brier"]) == pytest.approx(fmean(int(row["falls"]) for row in rows), abs=6e-4)


def test_the_probability_of_the_package_is_fitted_on_the_cases():
    """And by an independent fit: a logistic regression of scikit-learn's with the same penalty on the slopes.

    Beside them 15 published models without a drop and 6 discriminators with one; each of 25 models counts once.
    """
    kind = [one for one in foresight.foreseen() if one.case.similarity and one.signs]
    signs, models = np.array([one.signs[1:] for one in kind]) / (5.0, 1.0), np.array([one.case.run for one in kind])
    mean = {model: signs[models == model].mean(0) for model in models}
    usual = (mean["mini-bert"] + mean["mini-electra-generator"]) / 2
    every = np.vstack([signs, *[usual] * 15, *[mean["mini-electra-discriminator"]] * 6])
    truth = [*(one.case.falls for one in kind), *[False] * 15, *[True] * 6]
    counts = [*(1 / (models == model).sum() for model in models), *[1.0] * 21]
    fit = LogisticRegression(C=1 / (0.1 * 25), tol=1e-8).fit(every, truth, sample_weight=counts)
    assert pytest.approx((fit.intercept_[0], *fit.coef_[0] / (5.0, 1.0)), abs=2e-3) == LOG_ODDS
    for one, chance in zip(kind, fit.predict_proba(signs)[:, 1], strict=True):
        lost, halved = one.signs[1:]
        spearman, rank = (0.0,) * 4 + (-lost,), (1.0,) * 4 + (0.5**halved,)
        assert drop_probability(spearman, rank) == pytest.approx(chance, abs=2e-3)
