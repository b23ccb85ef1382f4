"""What the contestants are scored on: graded pairs by Spearman, or queries by nDCG@10 over all documents."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from truncate_kit.bench.bench_report import QualityDifference, ScoredPairs
from truncate_kit.bench.running import Runner
from truncate_kit.data import SEARCH_METRICS, PairSet, RetrievalSet, TextPair, is_bundled, pairs_fingerprint
from truncate_kit.evaluation.graded import correlate, evaluate
from truncate_kit.evaluation.scores import estimated
from truncate_kit.models import Encoder
from truncate_kit.pair_keys import numbers_of
from truncate_kit.statistics import LEVEL, RESAMPLES, Array, draw_counts, interval, rank_correlations
from truncate_kit.training.retrieval_evaluator import RetrievalEvaluator


class Score(NamedTuple):
    """Of one contestant, in points; single: the similarity of each pair, or the score of each query."""

    value: float
    single: Array


class QualityEvaluator(Protocol):
    """Scores contestants, and states how far two of them differ."""

    of: ScoredPairs

    def score(self, runner: Runner, encoder: Encoder) -> Score:
        """Of one contestant.

        Args:
            runner: The contestant.
            encoder: The model that it runs.
        """

    def difference(self, backend: str, lean: Score, full: Score, *, seed: int) -> QualityDifference:
        """Lean − full, with the interval of a paired bootstrap."""


class PairsEvaluator:
    """Spearman (× 100) of similarities with graded scores."""

    def __init__(self, pairs: PairSet | Sequence[TextPair]) -> None:
        self._pairs = tuple(pairs)
        named = pairs if isinstance(pairs, PairSet) else None
        self.of = ScoredPairs(
            name="" if named is None else named.name,
            fingerprint=pairs_fingerprint(pairs),
            num_pairs=len(self._pairs),
            bundled=named is not None and is_bundled(named),
        )

    def score(self, runner: Runner, encoder: Encoder) -> Score:
        """See `QualityEvaluator`. Raises `DataError` where a correlation is not defined."""
        found = evaluate(runner, self._pairs)
        return Score(found.spearman, np.array(found.cosines))

    def difference(self, backend: str, lean: Score, full: Score, *, seed: int) -> QualityDifference:
        """See `QualityEvaluator`."""
        targets = [pair.target for pair in self._pairs]
        numbers = numbers_of((pair.first, pair.second) for pair in self._pairs)
        cosines = lean.single.tolist(), full.single.tolist()
        return quality_difference(backend, *cosines, targets, numbers=numbers, seed=seed)


def quality_difference(
    backend: str,
    lean: Sequence[float],
    full: Sequence[float],
    targets: Sequence[float],
    *,
    numbers: NDArray[np.int64] | None = None,
    resamples: int = RESAMPLES,
    level: float = LEVEL,
    seed: int = 0,
) -> QualityDifference:
    """Spearman (× 100) of the similarities of both models against the same targets, and the interval of lean − full.

    Percentile interval of a paired bootstrap: pairs are drawn with replacement, the same for both models, and all rows
    of one pair together, for they say the same.

    Args:
        backend: In which both ran, for the result.
        lean: Similarities of the lean model.
        full: Similarities of the full model.
        targets: What both are compared with.
        numbers: Of each row its pair, as `numbers_of` gives them; None where none repeats another.
        resamples: Number of draws.
        level: Of the interval.
        seed: Of the draws.

    Raises:
        DataError: A correlation is not defined.
    """
    found = [correlate(cosines, targets) for cosines in (lean, full)]
    numbers = np.arange(len(targets)) if numbers is None else numbers
    num_pairs = int(numbers.max()) + 1
    counts = draw_counts(num_pairs, resamples, seed)[:, numbers]
    differences = 100 * np.subtract(*(rank_correlations(one.cosines, targets, counts) for one in found))
    defined = differences[np.isfinite(differences)]
    low, high = interval(defined, level)
    return QualityDifference(
        backend=backend,
        lean=found[0].spearman,
        full=found[1].spearman,
        difference=found[0].spearman - found[1].spearman,
        low=low,
        high=high,
        level=level,
        resamples=len(defined),
        seed=seed,
        num_pairs=num_pairs,
    )


class QueriesEvaluator:
    """nDCG@10 (× 100) of a retrieval set, or the metric that it chooses by; all documents are compared."""

    def __init__(self, data: RetrievalSet) -> None:
        self._data = data
        self.of = ScoredPairs(
            name=data.name,
            fingerprint=data.fingerprint(),
            num_pairs=len(data.queries),
            bundled=False,
            metric=SEARCH_METRICS[data.metric],
        )

    def score(self, runner: Runner, encoder: Encoder) -> Score:
        """See `QualityEvaluator`; each side has the model's prompt for it."""
        own = RetrievalEvaluator(encoder, self._data, np.arange(len(self._data.queries)))
        vectors = runner.encode_ids(own.texts()).float().cpu()
        single = own.scores(vectors, vectors)
        return Score(float(single.mean()), single)

    def difference(self, backend: str, lean: Score, full: Score, *, seed: int) -> QualityDifference:
        """See `QualityEvaluator`."""
        found = estimated(lean.single - full.single, seed=seed)
        return QualityDifference(
            backend=backend,
            lean=lean.value,
            full=full.value,
            difference=found.value,
            low=found.low,
            high=found.high,
            level=LEVEL,
            resamples=RESAMPLES,
            seed=seed,
            num_pairs=len(lean.single),
        )


def evaluator_of(data: PairSet | Sequence[TextPair] | RetrievalSet) -> QualityEvaluator:
    """Pairs or queries, as they come."""
    return QueriesEvaluator(data) if isinstance(data, RetrievalSet) else PairsEvaluator(data)
