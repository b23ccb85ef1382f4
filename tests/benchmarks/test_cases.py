"""`benchmarks/pick`: cases are those of the committed trials, rules are scored without the case's own model."""

import dataclasses
from statistics import fmean

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from benchmarks.common import read_rows, write_rows
from benchmarks.drop import foresight
from benchmarks.pick import rules
from benchmarks.pick import rules as cases
from truncate_kit.analysis.drop import LOG_ODDS, drop_probability


@pytest.fixture(scope="module")
def table() -> list[cases.Case]:
    return cases.read_cases()


def one_case(model: str, dev: list[float], test: list[float], std: float = 0.0) -> cases.Case:
    layers = [
        cases.Layer(layer=place, dev=one, test=other, test_std=std)
        for place, (one, other) in enumerate(zip(dev, test, strict=True))
    ]
    return cases._case((model, "bundled", "any", "Spearman", "500", "1500", "1e-4", "3", "4", "measured"), layers)


def test_a_fall_is_more_than_seeds_make():
    def falls(std: float) -> bool:
        return one_case("any", [0.0] * 3, [50.0, 60.0, 57.0], std).falls

    # Two standard errors of the difference: 2 × √(2 s² / 4 seeds) = 1.41 s.
    assert [falls(2.0), falls(2.2)] == [True, False]
    assert not one_case("any", [0.0] * 3, [50.0, 60.0, 58.1]).falls


def test_a_case_has_no_part_in_what_it_is_scored_with():
    # The others gain ten points by a bonus of more than 3 points, it loses 40 by any such bonus.
    others = [one_case(name, [60.0, 57.0], [50.0, 60.0]) for name in ("a", "b")]
    mine = one_case("c", [60.0, 57.0], [60.0, 20.0])
    bonus = next(rule for rule in rules.RULES if rule.name.startswith("dev + t points at"))
    assert rules.picks(bonus, [*others, mine]) == [0, 0, 1]  # it loses 40 points by what the others ask for
    assert rules.picks(bonus, [others[0], mine, dataclasses.replace(mine, model="d")]) == [0, 0, 0]


def test_standard_errors_are_those_of_the_case_or_of_other_models():
    case = one_case("a", [60.0, 59.0, 58.0], [0.0] * 3)
    known = dataclasses.replace(
        case, layers=tuple(dataclasses.replace(row, gap_se=0.8) for row in case.layers), model="b"
    )
    gaps = rules.gaps_without("a", [case, known])
    assert gaps(known) == {0: 0.8, 1: 0.8, 2: 0.8}
    # Of a correlation of 0.6 over 1,500 pairs, by (1 − ρ²) √((1 + ρ²/2) / (n − 3)): 1.797 points.
    assert rules.correlation_error(60.0, 1500) == pytest.approx(1.797, abs=1e-3)
    assert gaps(case)[1] == pytest.approx(0.8, rel=0.05)
    assert rules.gaps_without("b", [case, known])(case)[0] == pytest.approx(1.797, abs=1e-3)


def test_neighbours_count_as_often_as_there_are_some():
    case = one_case("a", [60.0, 66.0, 50.0, 64.0, 65.0], [0.0] * 5)
    assert rules.with_neighbours(case, (0.0,), dict) == 1
    # With a weight of one half: 62, 60.5, 57.5, 60.75, 64.67.
    assert rules.with_neighbours(case, (0.5,), dict) == 4


def test_a_seed_has_no_part_in_the_choice_that_it_scores(tmp_path):
    test = {0: (10.0, 9.0, 0.0), 1: (0.0, 4.0, 12.0)}  # of two layers by seed; five more have 0
    rows = [
        {"model": "a", "task": "b", "train_pairs": "1", "rate": "1", "layer": str(layer), "seed": str(seed)}
        | {"dev": str(layer), "test": str(test[layer][seed] if layer in test else 0.0)}
        for layer in range(7)
        for seed in range(3)
    ]
    write_rows(tmp_path / "all.csv", [*rows, *({**row, "task": "no third seed"} for row in rows if row["seed"] != "2")])
    # Without seed 0 the best on test is layer 1 (8 against 4.5), without 1 layer 1, without 2 layer 0; dev takes 6.
    assert rules.lost_by_seeds("test", tmp_path / "all.csv") == [pytest.approx((10 + 5 + 12) / 3)]
    assert rules.lost_by_seeds("dev", tmp_path / "all.csv") == [pytest.approx((10 + 9 + 12) / 3)]
    write_rows(tmp_path / "part.csv", [row for row in rows if row["layer"] != "6"])
    assert rules.lost_by_seeds("test", tmp_path / "part.csv") == []


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
    assert float(brier["the confidence as it is"]["brier"]) == pytest.approx(fmean(squares), abs=6e-4)
    assert float(brier["never falls"]["brier"]) == pytest.approx(fmean(int(row["falls"]) for row in rows), abs=6e-4)


def test_the_probability_of_the_package_is_fitted_on_the_cases():
    """And by an independent fit: a logistic regression of scikit-learn's with the same penalty on the slopes."""
    kind = [one for one in foresight.foreseen() if one.case.similarity and one.signs]
    signs = np.array([one.signs[1:] for one in kind]) / (5.0, 1.0)
    truth = [one.case.falls for one in kind]
    fit = LogisticRegression(C=1 / (0.1 * len(kind)), tol=1e-8).fit(signs, truth)
    assert pytest.approx((fit.intercept_[0], *fit.coef_[0] / (5.0, 1.0)), abs=2e-3) == LOG_ODDS
    for one, chance in zip(kind, fit.predict_proba(signs)[:, 1], strict=True):
        lost, halved = one.signs[1:]
        spearman, rank = (0.0,) * 4 + (-lost,), (1.0,) * 4 + (0.5**halved,)
        assert drop_probability(spearman, rank) == pytest.approx(chance, abs=2e-3)


def test_a_forecast_is_held_against_the_rate_of_its_own_cases():
    def one(model: str, last: float) -> foresight.Foreseen:
        return foresight.Foreseen(case=one_case(model, [0.0] * 3, [50.0, 60.0, last]), said=False, sure=0.5)

    cases_ = [one("a", 50.0), one("a", 50.0), one("b", 60.0), one("b", 50.0)]
    row = foresight.score(cases_, "one half", np.full(4, 0.5))
    assert (row["cases"], row["falls"], row["brier"], row["known_rate"]) == (4, 3, "0.250", "0.188")  # 3/4 · 1/4
    # a: 1/4 − 1/16; b: 1/4 − (9/16 + 1/16) / 2
    assert row["against_it"] == "+0.062"
    assert (row["low"], row["high"]) == ("-0.062", "+0.188")


def test_what_was_said_alike_counts_in_other_models_only():
    def one(model: str, test: list[float], *, said: bool) -> foresight.Foreseen:
        return foresight.Foreseen(case=one_case(model, [0.0] * 3, test), said=said, sure=0.7)

    fell, stayed = [50.0, 60.0, 50.0], [50.0, 55.0, 60.0]
    cases_ = [one("a", fell, said=True), one("b", fell, said=True), one("b", stayed, said=False)]
    found = foresight.forecasts(cases_)
    assert found["share of falls where the same was said"] == pytest.approx([2 / 3, 2 / 3, 1 / 2])
    assert found["base rate of the other models"] == pytest.approx([1 / 2, 1.0, 1.0])
    assert found["the confidence as it is"] == pytest.approx([0.7, 0.7, 0.3])
