"""Scores of ranked documents for each query, and means with intervals over the queries."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from truncate_kit.data.retrieval import SearchMetric
from truncate_kit.results import Result
from truncate_kit.statistics import RESAMPLES, draws, interval

Found = NDArray[np.int64]
"""Places of the documents found, best first, −1 where there are no more: (queries, top)."""
Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate(Result):
    """A mean over the queries, in points, and the ends of its 95 % interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryScores:
    """Scores of each query in points (× 100), (queries,), over the documents found for it.

    ndcg: with the grade as the gain, discounted by log₂(rank + 1), over the best order there is: the measure `ndcg_cut`
    of trec_eval, which BEIR reports (Järvelin and Kekäläinen 2002; the form with 2^grade − 1 is another one).
    mrr: 1 / rank of the first document that answers, 0 where none was found. recall: share of the documents that
    answer.
    """

    ndcg: Array
    mrr: Array
    recall: Array

    def by(self, metric: SearchMetric) -> Array:
        """The scores by one of `SEARCH_METRICS`."""
        scores: Array = getattr(self, metric)
        return scores


def score_queries(found: Found, relevance: Sequence[Mapping[int, float]]) -> QueryScores:
    """The scores at the depth of `found`.

    Args:
        found: At whose depth scores are.
        relevance: Grades above 0 by place, none empty, as in `RetrievalSet`.
    """
    top = found.shape[1]
    discounts = 1 / np.log2(np.arange(2, top + 2))
    gains = np.array(
        [[grades.get(place, 0.0) for place in row] for row, grades in zip(found.tolist(), relevance, strict=True)]
    )
    best = np.zeros_like(gains)
    for row, grades in zip(best, relevance, strict=True):
        ideal = sorted(grades.values(), reverse=True)[:top]
        row[: len(ideal)] = ideal
    hits = gains > 0
    first = np.where(hits.any(axis=1), 1 / (hits.argmax(axis=1) + 1), 0.0)
    return QueryScores(
        ndcg=100 * (gains @ discounts) / (best @ discounts),
        mrr=100 * first,
        recall=100 * hits.sum(axis=1) / np.array([len(grades) for grades in relevance]),
    )


def overlaps(found: Found, others: Found) -> Array:
    """Share of the documents found for each query that are also among the others found for it, in points."""
    pairs = zip(found.tolist(), others.tolist(), strict=True)
    shared = [(len({*row} & {*other} - {-1}), len({*other} - {-1})) for row, other in pairs]
    return np.array([100 * both / max(1, wanted) for both, wanted in shared])


def estimated(values: Array, *, seed: int = 0) -> Estimate:
    """The mean over the queries, with the percentile interval of a bootstrap: queries are drawn with replacement.

    Of differences between two models on the same queries this is the paired bootstrap.
    """
    low, high = interval([values[drawn].mean() for drawn in draws(len(values), RESAMPLES, seed)])
    return Estimate(value=float(values.mean()), low=low, high=high)
