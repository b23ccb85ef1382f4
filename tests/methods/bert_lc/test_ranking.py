"""Spearman by one sort of packed integers, against scipy."""

import numpy as np
import pytest
from scipy import stats

from truncate_kit.errors import DataError
from truncate_kit.methods.bert_lc.search import STEP, RankCorrelation


def expected(rows, targets):
    return np.array([stats.spearmanr(row, targets).statistic for row in rows])


# 1,000 to 3,000 pairs: the packed rank takes 11, 12 and 13 bits, and the sign of the key moves through them.
@pytest.mark.parametrize("count", [3, 40, 350, 1000, 1100, 2500])
@pytest.mark.parametrize("levels", [6, 10**6])
def test_equals_scipy_on_both_signs_and_tied_targets(count, levels):
    generator = np.random.default_rng(count)
    targets = generator.integers(0, levels, count).astype(float)
    targets[:2] = 0, 1
    rows = generator.uniform(-1, 1, (5, count))
    np.testing.assert_allclose(RankCorrelation(targets).of(rows.copy()), expected(rows, targets), atol=1e-12)


def test_tied_cosines_share_their_mean_rank():
    generator = np.random.default_rng(0)
    targets = generator.integers(0, 6, 60).astype(float)
    rows = generator.integers(-4, 5, (20, 60)) / 4
    rows[3] = generator.uniform(-1, 1, 60)  # one row without ties among them
    np.testing.assert_allclose(RankCorrelation(targets).of(rows.copy()), expected(rows, targets), atol=1e-12)


def test_cosines_that_only_64_bits_tell_apart():
    generator = np.random.default_rng(0)
    targets = generator.integers(0, 6, 350).astype(float)
    rows = generator.uniform(0, 1, (6, 350))
    rows[1::2] = 0.5 + 1e-6 * rows[1::2]  # closer than 32 bits tell, between rows that they do
    rows[5, 10:20] = rows[5, 0]  # and ties beside them
    np.testing.assert_allclose(RankCorrelation(targets).of(rows.copy()), expected(rows, targets), atol=1e-12)


def test_rounding_of_identical_pairs_is_a_tie_and_a_real_difference_is_not():
    targets = [5.0, 4.0, 3.0, 2.0, 1.0]
    noisy = np.array([[1.0, 1 - 2e-16, 1 + 2e-16, 0.5, 0.1]])
    assert RankCorrelation(targets).of(noisy)[0] == pytest.approx(
        stats.spearmanr([1, 1, 1, 0.5, 0.1], targets).statistic
    )
    apart = np.array([[0.5, 0.5 - 2 * STEP, 0.5 - 4 * STEP, 0.2, 0.1]])
    assert RankCorrelation(targets).of(apart)[0] == pytest.approx(1)


def test_one_value_only_has_no_correlation():
    found = RankCorrelation([1.0, 2.0, 3.0]).of(np.array([[0.5, 0.5, 0.5], [0.1, 0.2, 0.3]]))
    assert np.isnan(found[0])
    assert found[1] == 1


@pytest.mark.parametrize("targets", [[1.0, 2.0], [1.0, 1.0, 1.0], list(range(70_000))])
def test_targets_without_a_correlation(targets):
    with pytest.raises(DataError):
        RankCorrelation(targets)
