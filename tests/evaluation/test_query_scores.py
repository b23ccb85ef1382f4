"""Scores of ranked documents against scikit-learn and by hand."""

import numpy as np
import pytest
from sklearn.metrics import ndcg_score

from truncate_kit.evaluation.retrieval import estimated, overlaps, score_queries


def test_ndcg_is_that_of_scikit_learn():
    drawn = np.random.default_rng(3)
    grades = drawn.integers(0, 4, size=(60, 40)) * (drawn.random((60, 40)) < 0.3)
    grades[:, 0] = 1
    scores = drawn.normal(size=(60, 40))
    found = np.argsort(-scores, axis=1)[:, :10]
    relevance = [{place: float(grade) for place, grade in enumerate(row) if grade} for row in grades]
    ours = score_queries(found, relevance)
    for row in range(60):  # its gain is linear, too
        expected = ndcg_score(grades[row : row + 1], scores[row : row + 1], k=10)
        assert ours["ndcg"][row] == pytest.approx(100 * expected, abs=1e-9)
        hits = [grades[row, place] > 0 for place in found[row]]
        assert ours["recall"][row] == pytest.approx(100 * sum(hits) / (grades[row] > 0).sum())
        assert ours["mrr"][row] == pytest.approx(100 / (hits.index(True) + 1) if any(hits) else 0)


def test_scores_by_hand():
    found = np.array([[4, 2, 9], [0, 1, -1], [7, 8, 9]])
    scores = score_queries(found, [{2: 1.0, 9: 3.0}, {0: 2.0}, {1: 1.0, 2: 1.0}])
    second, third = 1 / np.log2(3), 1 / np.log2(4)
    assert scores["ndcg"] == pytest.approx([100 * (second + 3 * third) / (3 + second), 100, 0])
    assert scores["mrr"] == pytest.approx([50, 100, 0])
    assert scores["recall"] == pytest.approx([100, 100, 0])


def test_overlap_counts_what_both_found():
    assert overlaps(np.array([[1, 2, 3], [4, 5, -1]]), np.array([[3, 2, 9], [5, 4, -1]])) == pytest.approx(
        [200 / 3, 100]
    )


def test_the_interval_is_that_of_the_mean():
    values = np.random.default_rng(1).normal(30, 10, size=400)
    mean, ends = estimated(values)
    assert mean == pytest.approx(values.mean())
    error = values.std() / np.sqrt(400)  # the normal approximation
    assert ends == pytest.approx((mean - 1.96 * error, mean + 1.96 * error), abs=0.1)
    assert estimated(values) == (mean, ends)
