"""A retrieval set that evaluates training: one half of its queries chooses, the other reports."""

from collections.abc import Mapping
from copy import copy

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from truncate_kit.data import SEARCH_METRICS, RetrievalSet
from truncate_kit.data.retrieval import FEWEST_QUERIES
from truncate_kit.errors import DataError
from truncate_kit.evaluation.searching import (
    DOCUMENT_PROMPTS,
    QUERY_PROMPTS,
    SearchVectors,
    estimated,
    measure_of,
    prompted_ids,
    score_queries,
    search,
    side_prompt,
)
from truncate_kit.models import Encoder
from truncate_kit.training.evaluators import VectorEvaluator

TOP = 10


class RetrievalEvaluator(VectorEvaluator):
    """The metric of a set, nDCG@10 mostly, over some of its queries; `texts()` are these, then the documents.

    Args:
        queries: Places of those that count.
    """

    def __init__(self, encoder: Encoder, data: RetrievalSet, queries: NDArray[np.int64]) -> None:
        self._metric, self._measure, own = data.metric, measure_of(encoder), data.own_documents
        self._own = [own[place] for place in queries]
        self._relevance: list[Mapping[int, float]] = [data.relevance[place] for place in queries]
        asked = [data.queries[place] for place in queries]
        self._ids = prompted_ids(encoder, asked, side_prompt(encoder, QUERY_PROMPTS))
        self._ids += prompted_ids(encoder, data.documents, side_prompt(encoder, DOCUMENT_PROMPTS))

    def score_of(self, vectors: Tensor) -> tuple[float, float | None]:
        """Mean over the queries, in points; no Pearson."""
        return float(self.scores(vectors, vectors).mean()), None

    def interval_of(self, vectors: Tensor) -> tuple[float, float]:
        """See `VectorEvaluator`."""
        found = estimated(self.scores(vectors, vectors))
        return found.low, found.high

    def fewer(self, encoder: Encoder, number: int, tokens: int) -> "RetrievalEvaluator":
        """See `VectorEvaluator`; queries come with all of their answers, up to half of the texts."""
        count, used, answers = len(self._relevance), 0, dict[int, None]()
        while used < count and used + len(answers) < number // 2:
            answers |= dict.fromkeys(self._relevance[used])
            used += 1
        others = np.random.default_rng(0).permutation(len(self._ids) - count).tolist()
        rest = [place for place in others if place not in answers][: max(0, number - used - len(answers))]
        documents = sorted([*answers, *rest])
        at = {place: index for index, place in enumerate(documents)}
        found = copy(self)
        found._own = [None if own is None else at.get(own) for own in self._own[:used]]
        found._relevance = [{at[place]: grade for place, grade in row.items()} for row in self._relevance[:used]]
        ids = [*self._ids[:used], *(self._ids[count + place] for place in documents)]
        found._ids = [encoder.reader.shortened(row, tokens) for row in ids]
        return found

    def scores(self, queries: Tensor, documents: Tensor) -> NDArray[np.float64]:
        """Of each query, in points, (queries,); both sides are vectors of `texts()`, each from a model of its own."""
        count = len(self._relevance)
        sides = SearchVectors(queries=queries[:count], documents=documents[count:], measure=self._measure)
        with torch.autocast("cpu", enabled=False):  # as of agreement
            found = search(sides, top=TOP, own=self._own)
        return score_queries(found, self._relevance).by(self._metric)


def scored_as(data: object, encoder: Encoder) -> str:
    """What marks scores of a retrieval set in keys of runs, where earlier ones were others; else empty.

    They were by cosine alone, with the model's default prompt for a side that has none.
    """
    if not isinstance(data, RetrievalSet):
        return ""
    default = (encoder.settings.get("prompts") or {}).get(encoder.settings.get("default_prompt_name"))
    without = any(side_prompt(encoder, names) == "" for names in (QUERY_PROMPTS, DOCUMENT_PROMPTS))
    measure = measure_of(encoder)
    if measure in ("euclidean", "manhattan"):  # which had the mark of the dot product
        return f" by prompts and {measure} of the model"
    same = measure == "cosine" and not (default and without)
    return "" if same else " by prompts and measure of the model"


def metric_of(data: RetrievalSet) -> str:
    """What half of the queries choose by, in words."""
    return f"{SEARCH_METRICS[data.metric]} of half the queries"


def check_queries(data: RetrievalSet) -> None:
    """Raise `DataError` for a handful of queries, of which no half can choose."""
    if (number := len(set(data.queries))) < 2 * FEWEST_QUERIES:
        raise DataError(
            f"{data.name} has {number} judged queries: too few to choose by one half and report the other.",
            hint=f"Give at least {2 * FEWEST_QUERIES}, or choose by something else.",
        )


def halves(encoder: Encoder, data: RetrievalSet) -> tuple[RetrievalEvaluator, RetrievalEvaluator]:
    """Evaluators on two halves of the queries, drawn at random. Raises `DataError` for a handful of queries."""
    check_queries(data)
    choosing, reporting = halved(data)
    return RetrievalEvaluator(encoder, data, choosing), RetrievalEvaluator(encoder, data, reporting)


def choosing_queries(data: RetrievalSet) -> tuple[str, ...]:
    """The queries of the first of these halves, by which something is chosen."""
    return tuple(data.queries[place] for place in halved(data)[0].tolist())


def halved(data: RetrievalSet) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Places of the queries in a random order, cut in the middle; those of one text are all on its side."""
    distinct = list(dict.fromkeys(data.queries))
    order = torch.randperm(len(distinct), generator=torch.Generator().manual_seed(0)).tolist()
    places: dict[str, list[int]] = {query: [] for query in distinct}
    for place, query in enumerate(data.queries):
        places[query].append(place)
    middle = len(order) // 2
    sides = ([place for one in half for place in places[distinct[one]]] for half in (order[:middle], order[middle:]))
    first, second = (np.array(side, np.int64) for side in sides)
    return first, second
