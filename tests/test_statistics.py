"""Rank correlations, draws and intervals against plain Python, numpy and scipy; and the fast ranking against them."""

import random
import statistics

import numpy as np
import pytest
from scipy import stats

from truncate_kit.core.vectors import (
    FEWEST_DIFFERING,
    changed_queries,
    draw_counts,
    draws,
    interval,
    rank_correlations,
    sign_test,
    tied,
    too_few,
)
from truncate_kit.methods.bert_lc.search import RankCorrelation


def _ranks(values):
    """Mean ranks from 1, by counting."""
    return [
        sum(other < value for other in values) + (sum(other == value for other in values) + 1) / 2 for value in values
    ]


def _values(count, seed=3):
    """Targets with ties, and two rows of values, of which the second has ties, too."""
    generator = random.Random(seed)
    targets = [generator.randint(0, 5) for _ in range(count)]
    rows = [[target / 5 + generator.gauss(0, 0.3) for target in targets] for _ in range(2)]
    return targets, rows[0], [round(value, 1) for value in rows[1]]


def test_each_resample_has_the_correlation_of_the_pairs_it_drew():
    targets, *rows = _values(25)
    counts = draw_counts(25, 40, seed=1)
    assert counts.shape == (40, 25)
    assert (counts.sum(axis=1) == 25).all()
    for values in rows:
        for row, value in zip(counts, rank_correlations(values, targets, counts), strict=True):
            drawn = [place for place, times in enumerate(row) for _ in range(times)]
            ranks = [_ranks([side[place] for place in drawn]) for side in (values, targets)]
            assert value == pytest.approx(statistics.correlation(*ranks), abs=1e-12)


@pytest.mark.parametrize("count", [3, 40, 2500])
def test_without_counts_it_is_that_of_scipy_and_of_the_fast_ranking(count):
    targets, *rows = _values(count)
    rows.append([1 - (place % 3) * 2e-16 if place % 2 else value / 9 for place, value in enumerate(rows[0])])
    for values in rows:
        values = tied(np.clip(values, -1, 1).tolist())
        found = rank_correlations(values, targets)
        assert found == pytest.approx([stats.spearmanr(values, targets).statistic], abs=1e-12)
        assert RankCorrelation(targets).of(np.array([values])) == pytest.approx(found, abs=1e-12)


def test_one_value_only_has_no_correlation():
    assert np.isnan(rank_correlations([0.5, 0.5, 0.5], [1, 2, 3])).all()
    found = rank_correlations([0.1, 0.2, 0.3], [1, 2, 3], np.array([[3, 0, 0], [1, 1, 1], [0, 2, 1]]))
    np.testing.assert_array_equal(found, [np.nan, 1, 1])


def test_draws_are_those_of_one_call_and_the_same_for_a_seed():
    whole = np.random.default_rng(7).integers(0, 61, (30, 61))  # an odd number of 32-bit halves of random numbers
    np.testing.assert_array_equal(np.stack(list(draws(61, 30, 7))), whole)
    np.testing.assert_array_equal(draw_counts(61, 30, 7), [np.bincount(row, minlength=61) for row in whole])


def test_the_interval_is_that_of_percentiles():
    values = np.random.default_rng(0).normal(size=501)
    cuts = statistics.quantiles(values, n=40, method="inclusive")
    assert interval(values) == pytest.approx((cuts[0], cuts[-1]))
    cuts = statistics.quantiles(values, n=20, method="inclusive")
    assert interval(values.tolist(), 0.9) == pytest.approx((cuts[0], cuts[-1]))


@pytest.mark.parametrize(("higher", "lower"), [(0, 0), (1, 4), (5, 5), (0, 6), (19, 0), (3, 12), (400, 450)])
def test_the_sign_test_is_exact(higher, lower):
    wanted = stats.binomtest(higher, higher + lower).pvalue if higher + lower else 1.0
    assert sign_test(higher, lower) == sign_test(lower, higher) == pytest.approx(wanted)


def test_few_queries_that_differ_are_counted_instead_of_an_interval():
    differences = np.array([0.0, 1e-12, -3.0, 5.0, *[-1.0] * 8, *[0.0] * 100])
    changed = changed_queries(differences)
    assert changed == (1, 9)
    said = "10 of 112 queries differ, 1 of them higher: worse (exact sign test, p = 0.021)"
    assert too_few(len(differences), "query", "queries", changed) == said
    assert "3 of 30 queries differ, 3 of them higher: no difference shown" in too_few(30, "query", "queries", (3, 0))
    assert too_few(30, "query", "queries", (10, FEWEST_DIFFERING - 10)) is None
    assert too_few(19, "pair", "pairs") == "19 pairs are too few to tell which model is better"


@pytest.mark.parametrize(("queries", "share"), [(50, 0.05), (100, 0.05), (50, 0.5), (225, 0.1), (30, 1.0)])
def test_what_is_shown_of_search_covers_the_truth(queries, share):
    """With 5 % of 50 queries changed, a bootstrap interval covers 70 %; with 20 that differ, 93 %."""
    random = np.random.default_rng(0)
    gains = 100 / np.log2(np.arange(2, 13))

    def drawn(size):
        one, other = gains[random.integers(0, 11, (2, size))]
        return np.where(random.random(size) < share, one - other, 0.0)  # the mean is 0

    covered = list[bool]()
    for _ in range(200):
        differences = drawn(queries)
        changed = changed_queries(differences)
        if too_few(queries, "query", "queries", changed):
            covered.append(sign_test(*changed) > 0.05)
        else:
            low, high = interval(differences[random.integers(0, queries, (500, queries))].mean(axis=1))
            covered.append(low <= 0 <= high)
    assert np.mean(covered) >= 0.91
