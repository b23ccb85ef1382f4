"""The tables of `benchmarks/pick` and `benchmarks/drop` repeat, and the package predicts by a fit to their cases."""

from statistics import fmean

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from benchmarks.common import read_rows
from benchmarks.drop import foresight
from benchmarks.pick import rules
from truncate_kit.analysis.result import LOG_ODDS, drop_probability


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
