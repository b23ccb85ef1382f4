"""How good an encoder is after an epoch: scores on held-out pairs, or closeness to a teacher."""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from copy import copy
from statistics import fmean
from typing import Protocol, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from truncate_kit.core.errors import DataError
from truncate_kit.core.statistics import DRAWS, Counts, draw_counts, interval, rank_correlations, tied
from truncate_kit.data.retrieval import FEWEST_QUERIES, SEARCH_METRICS, RetrievalSet
from truncate_kit.data.types import PairSet, PlacedPairs
from truncate_kit.evaluation.graded import correlate, pair_similarities
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
from truncate_kit.models.encoder import Encoder
from truncate_kit.training.examples import Ids


class Evaluator(Protocol):
    """A held-out set in token ids. Higher is better, in points."""

    def texts(self) -> Sequence[Ids] | None:
        """Return the token ids of all texts; None as in `Examples`."""

    def score(self, encoder: Encoder) -> tuple[float, float | None]:
        """Return the main score and, where there is one, Pearson correlation; both × 100."""


class VectorEvaluator(ABC):
    """A held-out set that is scored from the vectors of its texts alone: an `Evaluator`."""

    _ids: list[Ids]

    def texts(self) -> list[Ids]:
        """Return the token ids of all texts."""
        return self._ids

    def score(self, encoder: Encoder) -> tuple[float, float | None]:
        """Do as in `Evaluator`."""
        return self.score_of(encoder.encode_ids(self._ids))

    @abstractmethod
    def score_of(self, vectors: Tensor) -> tuple[float, float | None]:
        """Score vectors (n, d) of `texts()`."""

    def interval_of(self, vectors: Tensor) -> tuple[float, float] | None:
        """Return the ends of the 95 % interval of that score, by a bootstrap over labels; None without."""
        return None

    @abstractmethod
    def fewer(self, encoder: Encoder, number: int, tokens: int) -> Self:
        """Take the same of about that number of texts, drawn at random but always alike, each cut to `tokens`.

        It is for what scores thousands of encoders.

        Args:
            encoder: The full model: its tokenizer counts, and it is what others are compared with where there is no
                label.
            number: Of texts, about.
            tokens: To which each text is cut.
        """


class HeldOutPairs(VectorEvaluator):
    """Pairs in token ids; each distinct text is encoded once."""

    def __init__(self, encoder: Encoder, pairs: PairSet) -> None:
        self._places = PlacedPairs.of(pairs.pairs)
        self._ids = encoder.token_ids(self._places.texts)
        self._targets = pairs.scores()

    def fewer(self, encoder: Encoder, number: int, tokens: int) -> Self:
        """Do as in `VectorEvaluator`; at most half as many pairs as texts."""
        drawn = np.random.default_rng(0).permutation(len(self._targets))[: max(2, number // 2)].tolist()
        sides = [[side[place] for place in drawn] for side in (self._places.first, self._places.second)]
        kept = list(dict.fromkeys(place for row in zip(*sides, strict=True) for place in row))
        at = {place: index for index, place in enumerate(kept)}
        found = copy(self)
        found._places = PlacedPairs(
            [self._places.texts[place] for place in kept], *([at[place] for place in side] for side in sides)
        )
        found._ids = [encoder.reader.shortened(self._ids[place], tokens) for place in kept]
        found._targets = [self._targets[place] for place in drawn]
        return found

    def cosines(self, vectors: Tensor) -> list[float]:
        """Return the cosine of each pair, from vectors (n, d) of `texts()`."""
        return pair_similarities(vectors, self._places)

    def resampled(self, vectors: Tensor) -> tuple[float, ...]:
        """Score `DRAWS` resamples of the pairs (a bootstrap), the same ones for every encoder, in points."""
        counts = draw_counts(len(self._targets), DRAWS)
        return tuple(round(score, 3) for score in self.score_each(self.outcomes(vectors), counts))

    def interval_of(self, vectors: Tensor) -> tuple[float, float]:
        """Do as in `VectorEvaluator`."""
        return interval(self.resampled(vectors))

    def outcomes(self, vectors: Tensor) -> list[float]:
        """Return what is scored of each pair: its cosine, unless a subclass says otherwise."""
        return self.cosines(vectors)

    def score_of(self, vectors: Tensor) -> tuple[float, float | None]:
        """Do as in `VectorEvaluator`."""
        return self.score_outcomes(self.outcomes(vectors), self._targets)

    @abstractmethod
    def score_outcomes(self, outcomes: list[float], targets: list[float]) -> tuple[float, float | None]:
        """Score what `outcomes` gives."""

    def score_each(self, outcomes: list[float], counts: Counts) -> list[float]:
        """Return the main score of each resample.

        Args:
            outcomes: One of each pair.
            counts: How often each pair is in it, (resamples, pairs).
        """
        said, true = np.array(outcomes), np.array(self._targets)
        return [self.score_outcomes(said.repeat(row).tolist(), true.repeat(row).tolist())[0] for row in counts]


class PairEvaluator(HeldOutPairs):
    """Spearman and Pearson correlation on graded pairs."""

    def score_outcomes(self, outcomes: list[float], targets: list[float]) -> tuple[float, float | None]:
        """Return Spearman and Pearson, × 100; 0 and None where all pairs are equally alike, which ranks nothing."""
        if len({*tied(outcomes)}) == 1 and math.isfinite(outcomes[0]):
            return 0.0, None
        evaluation = correlate(outcomes, targets)
        return evaluation.spearman, evaluation.pearson

    def score_each(self, outcomes: list[float], counts: Counts) -> list[float]:
        """Return Spearman × 100, of all resamples at once; 0 where one has one value only."""
        found = rank_correlations(tied(outcomes), self._targets, counts)
        return [100 * score for score in np.nan_to_num(found).tolist()]


class ParaphraseEvaluator(HeldOutPairs):
    """F1 (× 100) of calling a pair a paraphrase where its cosine reaches a threshold.

    Args:
        dev: On whose pairs the threshold is chosen, for each encoder anew; None chooses on these very pairs.
    """

    def __init__(self, encoder: Encoder, pairs: PairSet, dev: "ParaphraseEvaluator | None" = None) -> None:
        super().__init__(encoder, pairs)
        self._dev = dev

    def score(self, encoder: Encoder) -> tuple[float, float | None]:
        """Return F1 × 100; no Pearson."""
        if self._dev is None:
            return super().score(encoder)
        cosines, on_dev = (held.cosines(encoder.encode_ids(held.texts())) for held in (self, self._dev))
        return _paraphrase_f1(cosines, self._targets, best_threshold(on_dev, self._dev._targets)), None

    def score_outcomes(self, outcomes: list[float], targets: list[float]) -> tuple[float, float | None]:
        """Return F1 × 100 with the threshold that is best on these very pairs; no Pearson."""
        return _paraphrase_f1(outcomes, targets, best_threshold(outcomes, targets)), None


class ClassEvaluator(HeldOutPairs):
    """Macro F1 (× 100) of a classifier that is trained with the encoder."""

    def __init__(self, encoder: Encoder, pairs: PairSet, classifier: nn.Module) -> None:
        super().__init__(encoder, pairs)
        self._classifier, self._num_classes = classifier, len(pairs.classes)

    def outcomes(self, vectors: Tensor) -> list[float]:
        """Return the class that is predicted for each pair."""
        with torch.inference_mode():
            vectors = vectors.float().to(next(self._classifier.parameters()).device)
            first, second = vectors[self._places.first], vectors[self._places.second]
            predicted: list[float] = self._classifier(first, second).argmax(dim=-1).tolist()
        return predicted

    def score_outcomes(self, outcomes: list[float], targets: list[float]) -> tuple[float, float | None]:
        """Average over the classes F1 × 100, as many as the set has; no Pearson."""
        return 100 * fmean(f1(outcomes, targets, float(place)) for place in range(self._num_classes)), None


def _paraphrase_f1(cosines: list[float], targets: list[float], threshold: float) -> float:
    return 100 * f1([float(cosine >= threshold) for cosine in cosines], targets, 1.0)


def f1(predicted: Sequence[float], true: Sequence[float], positive: float) -> float:
    """Return 2 · hits / (predicted positives + true positives of the data), from 0 to 1; 0 where there is neither."""
    hits = sum(one == other == positive for one, other in zip(predicted, true, strict=True))
    positives = sum(one == positive for one in predicted) + sum(one == positive for one in true)
    return 2 * hits / positives if positives else 0.0


def best_threshold(scores: Sequence[float], targets: Sequence[float]) -> float:
    """Find the threshold on `scores` with the highest F1 for 1: midway between two scores, the highest of equals."""
    value, order = torch.tensor(scores, dtype=torch.float64).sort(descending=True)
    hits = torch.tensor(targets, dtype=torch.float64)[order].cumsum(0)
    predicted = torch.arange(1, len(value) + 1, dtype=torch.float64)
    quality = 2 * hits / (predicted + hits[-1])
    below = torch.cat([value[1:], value[-1:] - 1.0])
    quality[value == below] = -1.0  # equal scores are on one side
    best = int(quality.argmax())
    return float((value[best] + below[best]) / 2)


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
        """Average over the queries, in points; no Pearson."""
        return float(self.scores(vectors, vectors).mean()), None

    def interval_of(self, vectors: Tensor) -> tuple[float, float]:
        """Do as in `VectorEvaluator`."""
        found = estimated(self.scores(vectors, vectors))
        return found.low, found.high

    def fewer(self, encoder: Encoder, number: int, tokens: int) -> "RetrievalEvaluator":
        """Do as in `VectorEvaluator`; queries come with all of their answers, up to half of the texts."""
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
        """Score each query, in points, (queries,); both sides are vectors of `texts()`, each of a model of its own."""
        count = len(self._relevance)
        sides = SearchVectors(queries=queries[:count], documents=documents[count:], measure=self._measure)
        with torch.autocast("cpu", enabled=False):  # as of agreement
            found = search(sides, top=TOP, own=self._own)
        return score_queries(found, self._relevance)[self._metric]


def scored_as(data: object, encoder: Encoder) -> str:
    """Return what a key of runs needs beside the encoder's digest, which does not say how vectors are compared."""
    return f" by {measure_of(encoder)}" if isinstance(data, RetrievalSet) else ""


def metric_of(data: RetrievalSet) -> str:
    """Say what half of the queries choose by, in words."""
    return f"{SEARCH_METRICS[data.metric]} of half the queries"


def check_queries(data: RetrievalSet) -> None:
    """Raise `DataError` for a handful of queries, of which no half can choose."""
    if (number := len(set(data.queries))) < 2 * FEWEST_QUERIES:
        raise DataError(
            f"{data.name} has {number} judged queries: too few to choose by one half and report the other.",
            hint=f"Give at least {2 * FEWEST_QUERIES}, or choose by something else.",
        )


def halves(encoder: Encoder, data: RetrievalSet) -> tuple[RetrievalEvaluator, RetrievalEvaluator]:
    """Make evaluators on two halves of the queries, drawn at random. Raises `DataError` for a handful of queries."""
    check_queries(data)
    choosing, reporting = halved(data)
    return RetrievalEvaluator(encoder, data, choosing), RetrievalEvaluator(encoder, data, reporting)


def choosing_queries(data: RetrievalSet) -> tuple[str, ...]:
    """Return the queries of the first of these halves, by which something is chosen."""
    return tuple(data.queries[place] for place in halved(data)[0].tolist())


def halved(data: RetrievalSet) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return places of the queries in a random order, cut in the middle; those of one text are all on its side."""
    distinct = list(dict.fromkeys(data.queries))
    order = torch.randperm(len(distinct), generator=torch.Generator().manual_seed(0)).tolist()
    places: dict[str, list[int]] = {query: [] for query in distinct}
    for place, query in enumerate(data.queries):
        places[query].append(place)
    middle = len(order) // 2
    sides = ([place for one in half for place in places[distinct[one]]] for half in (order[:middle], order[middle:]))
    first, second = (np.array(side, np.int64) for side in sides)
    return first, second
