"""Select on one half of the judged queries, and report on the other half."""

from collections.abc import Sequence
from copy import copy
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from truncate_kit.core.errors import DataError, counted
from truncate_kit.core.results import SEARCH_METRICS
from truncate_kit.core.vectors import DRAWS, draw_counts
from truncate_kit.data.pairs import PairSet, PairSplits, TextPair
from truncate_kit.data.retrieval import FEWEST_QUERIES, RetrievalSet, find_qrels, read_retrieval, with_queries
from truncate_kit.evaluation.graded import measure_of
from truncate_kit.evaluation.retrieval import estimated, score_queries, search
from truncate_kit.models.encoder import DOCUMENT_PROMPTS, QUERY_PROMPTS, Encoder, prompted_ids, side_prompt
from truncate_kit.training.loop import Evaluator, Scores

TOP = 10  # documents scored per query


class RetrievalEvaluator(Evaluator):
    """Evaluator by a set's metric on some of its queries; `texts()` are these queries, then all documents."""

    def __init__(self, encoder: Encoder, data: RetrievalSet, queries: NDArray[np.int64]) -> None:
        self.metric = f"{SEARCH_METRICS[data.metric]} of half the queries"
        self._metric, self._measure, own = data.metric, measure_of(encoder), data.own_documents
        self._own = [own[place] for place in queries]
        self._relevance: list[Any] = [data.relevance[place] for place in queries]
        asked = [data.queries[place] for place in queries]
        self._ids = prompted_ids(encoder, asked, side_prompt(encoder, QUERY_PROMPTS))
        self._ids += prompted_ids(encoder, data.documents, side_prompt(encoder, DOCUMENT_PROMPTS))

    def score_of(self, vectors: Tensor) -> Scores:
        """Return the mean metric over the queries, × 100."""
        return float(self.scores(vectors, vectors).mean()), None

    def resampled(self, vectors: Tensor) -> tuple[float, ...]:
        """Return the means of `DRAWS` bootstrap resamples of the queries."""
        scores = self.scores(vectors, vectors)
        return tuple((draw_counts(len(scores), DRAWS) @ scores / len(scores)).round(3).tolist())

    def interval_of(self, vectors: Tensor) -> tuple[float, float]:
        """Return the mean's bootstrap 95 % interval."""
        return estimated(self.scores(vectors, vectors))[1]

    def fewer(self, encoder: Encoder, number: int, tokens: int) -> Self:
        """Return an evaluator on a sample: half queries and their answers, half other documents."""
        count, used, answers = len(self._relevance), 0, dict[int, None]()
        while used < count and used + len(answers) < number // 2:
            answers |= dict.fromkeys(self._relevance[used])
            used += 1
        others = np.random.default_rng(0).permutation(len(self._ids) - count).tolist()
        rest = [place for place in others if place not in answers][: max(0, number - used - len(answers))]
        documents = sorted([*answers, *rest])
        index = {place: position for position, place in enumerate(documents)}
        sample = copy(self)
        sample._own = [None if own is None else index.get(own) for own in self._own[:used]]
        sample._relevance = [{index[place]: grade for place, grade in row.items()} for row in self._relevance[:used]]
        ids = [*self._ids[:used], *(self._ids[count + place] for place in documents)]
        sample._ids = [encoder.reader.shortened(row, tokens) for row in ids]
        return sample

    def scores(self, queries: Tensor, documents: Tensor) -> NDArray[np.float64]:
        """Return the metric × 100 of each query; both arguments are vectors of `texts()`."""
        count = len(self._relevance)
        with torch.autocast("cpu", enabled=False):  # scores are compared to two decimals
            ranked = search(queries[:count], documents[count:], self._measure, top=TOP, own=self._own)
        return score_queries(ranked, self._relevance)[self._metric]


def check_queries(data: RetrievalSet) -> None:
    """Raise `DataError` if judged queries are too few for two halves."""
    if (number := len(set(data.queries))) < 2 * FEWEST_QUERIES:
        raise DataError(
            f"{data.name} has {number} judged queries: too few to select on one half and report on the other.",
            hint=f"Give at least {2 * FEWEST_QUERIES} judged queries, or select on other data.",
        )


def halves(encoder: Encoder, data: RetrievalSet) -> tuple[RetrievalEvaluator, RetrievalEvaluator]:
    """Return evaluators on random halves of the queries, for selection and for reporting. Raises `DataError`."""
    check_queries(data)
    choosing, reporting = halved(data)
    return RetrievalEvaluator(encoder, data, choosing), RetrievalEvaluator(encoder, data, reporting)


def choosing_queries(data: RetrievalSet) -> tuple[str, ...]:
    """Return the queries for selection."""
    return tuple(data.queries[place] for place in halved(data)[0].tolist())


def halved(data: RetrievalSet) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Split the query indices into random halves, for selection and for reporting; equal queries stay together."""
    distinct = list(dict.fromkeys(data.queries))
    order = torch.randperm(len(distinct), generator=torch.Generator().manual_seed(0)).tolist()
    rank = {distinct[place]: position for position, place in enumerate(order)}
    ranks = np.array([rank[query] for query in data.queries], np.int64)
    places, chosen = ranks.argsort(kind="stable"), int((ranks < len(order) // 2).sum())
    return places[:chosen], places[chosen:]


def read_judged(path: str | Path, *, metric: str = "ndcg") -> tuple[PairSplits, RetrievalSet]:
    """Read training pairs of queries and answers, and held-out queries for selection and reporting.

    With qrels/train.tsv, train on its queries, and select and report on halves of dev, else test. Otherwise split the
    queries of one file: half for training, a quarter each for selection and report. No query has two uses.

    Args:
        path: A folder in BEIR's layout.
        metric: Selection metric: ndcg, mrr or recall.

    Returns:
        Pairs of train, dev (selection) and test (reporting), and all held-out queries for
            `finetune(retrieval=…)` with the objective `search`.

    Raises:
        DataError: The folder is unusable or has too few judged queries.
        UsageError: The metric is unknown.
    """
    asked = read_retrieval(path, metric=metric, chooses=True)
    whole, taught, source, needed = asked.name, asked, "", 4 * FEWEST_QUERIES
    if "train" in find_qrels(Path(path)) and not whole.endswith("/train"):
        taught, source, needed = read_retrieval(path, split="train"), f", both from {whole}", FEWEST_QUERIES
        kept = [place for place, query in enumerate(taught.queries) if query not in asked.asked]
        if len(kept) < len(taught.queries):
            taught = with_queries(taught, kept, "(without held-out queries)")
    name = taught.name
    if (number := len(set(taught.queries))) < needed:
        raise DataError(
            f"{name} has {number} judged queries: too few to train on.",
            hint=f"Give at least {needed}, or give graded pairs as `data` and this folder as `retrieval`.",
        )
    if taught is asked:  # one half trains, the other is held out
        teaching, others = (places.tolist() for places in halved(asked))
        taught, asked = with_queries(asked, teaching, "(training half)"), with_queries(asked, others)
    check_queries(asked)
    kinds = ("(selection)", "(reporting)")
    choosing, reporting = (
        with_queries(asked, places.tolist(), kind) for kind, places in zip(kinds, halved(asked), strict=True)
    )
    sets = {"train": taught, "dev": choosing, "test": reporting}
    train, dev, test = (_pairs(queries, split) for split, queries in sets.items())
    numbers = [len(set(queries.queries)) for queries in sets.values()]
    note = (
        f"{name}: {numbers[0]:,} queries with {counted(len(train), 'answer')} for training, "
        f"{numbers[1]:,} for selection and {numbers[2]:,} for reporting{source}."
    )
    splits = PairSplits(name=taught.name, train=train, dev=dev, test=test, notes=(note,))
    return splits.without_texts(asked.asked), asked  # a held-out query may also be a document


def _pairs(data: RetrievalSet, split: str) -> PairSet:
    judged: Sequence[TextPair] = [
        TextPair(query, data.documents[place], float(grade))
        for query, grades in zip(data.queries, data.relevance, strict=True)
        for place, grade in grades.items()
        if data.documents[place]
    ]
    highest = max((pair.target for pair in judged), default=1.0)
    return PairSet(name=f"{data.name}/{split}", pairs=tuple(judged), scale=(0.0, max(1.0, highest)))
