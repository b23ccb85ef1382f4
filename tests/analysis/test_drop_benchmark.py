"""`benchmarks/drop`: which sweeps it scores, what it calls a fall, and that its tables say what its cases say."""

from statistics import fmean

import pytest

from benchmarks.common import read_rows
from benchmarks.drop import run as drop
from benchmarks.tmft import cases

SAME_CASES = "stsb-en-minilm-part"  # all-MiniLM-L6-v2 on English pairs, which has another sweep


@pytest.fixture(scope="module")
def rows() -> list[dict[str, str]]:
    return table("truncations")


def table(name: str) -> list[dict[str, str]]:
    return read_rows(drop.HERE / f"{name}.csv")


def test_every_sweep_of_tmft_is_scored():
    swept = {row["sweep"] for row in read_rows(cases.HERE / "layers.csv")}
    assert {sweep.table for sweep in drop.FULL_SWEEPS} == swept - {SAME_CASES}
    for sweep in drop.FULL_SWEEPS:
        scores, spreads = drop.full_scores(sweep)
        assert sorted(scores) == sorted(spreads) == list(range(len(scores)))


def test_whole_models_fall_where_the_sweeps_say_so():
    for sweep in drop.FULL_SWEEPS:
        layers = [
            {"test": str(test), "test_std": str(spread)}
            for test, spread in zip(*(of.values() for of in drop.full_scores(sweep)), strict=True)
        ]
        *cut, whole = drop.cases(sweep.name, sweep.model, sweep.pairs, *drop.full_scores(sweep))
        assert whole.whole
        assert not any(case.whole for case in cut)
        assert whole.falls == cases.falls(layers), sweep.name


def test_a_fall_has_to_be_more_than_seeds_make():
    def last(spread: float):
        return drop.cases("mini-bert", "mini-bert", "any", {0: 50.0, 1: 60.0, 2: 57.0}, {0: 0.0, 1: spread, 2: spread})[
            -1
        ]

    assert [(last(spread).falls, last(spread).undecided) for spread in (0.1, 0.5, 1.6)] == [
        (True, False),
        (True, True),
        (False, True),
    ]


@pytest.mark.parametrize("mode", ["with reference", "alone", "with reference, texts", "alone, texts"])
def test_tables_are_those_of_the_cases(rows, mode):
    mine = [row for row in rows if row[f"{mode}: says"]]
    found = {row["of"]: row for row in table("sets") if row["mode"] == mode}
    for name, chosen in {
        "all": mine,
        "without MRPC": [row for row in mine if row["pairs"] != "MRPC"],
        "decided": [row for row in mine if row["undecided"] == "0"],
        "SICK": [row for row in mine if row["pairs"] == "SICK"],
        "run: mini-electra-discriminator": [row for row in mine if row["run"] == "mini-electra-discriminator"],
    }.items():
        said = [row[f"{mode}: says"] == "1" for row in chosen]
        sure = [float(row[f"{mode}: confidence"]) for row in chosen]
        fell = [row["falls"] == "1" for row in chosen]
        brier = fmean(((of if says else 1 - of) - falls) ** 2 for says, of, falls in zip(said, sure, fell, strict=True))
        assert (int(found[name]["cases"]), int(found[name]["falls"])) == (len(chosen), sum(fell))
        assert int(found[name]["found"]) == sum(a and b for a, b in zip(said, fell, strict=True))
        assert int(found[name]["false_alarms"]) == sum(a and not b for a, b in zip(said, fell, strict=True))
        assert float(found[name]["confidence as it is"]) == pytest.approx(brier, abs=6e-4)
        assert float(found[name]["never"]) == pytest.approx(fmean(fell), abs=6e-4)
