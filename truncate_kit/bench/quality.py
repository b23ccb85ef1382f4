"""Score contestants on graded pairs by Spearman, or on queries by nDCG@10, and state how far two of them differ."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from truncate_kit.bench.bench_report import QualityDifference, ScoredPairs
from truncate_kit.bench.runners import Runner
from truncate_kit.core.statistics import LEVEL, RESAMPLES, Array
from truncate_kit.core.wording import counted
from truncate_kit.data.pairs import PairSet, TextPair, is_bundled, pairs_fingerprint
from truncate_kit.data.retrieval import SEARCH_METRICS, RetrievalSet
from truncate_kit.data.seen import numbers_of
from truncate_kit.evaluation.graded import evaluate, paired_difference
from truncate_kit.evaluation.searching import estimated
from truncate_kit.models.encoder import Encoder
from truncate_kit.training.examples import RetrievalEvaluator

# Of one contestant: its score in points, and the similarity of each pair or the score of each query.
Score = tuple[float, Array]


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
        """Score one contestant. Raises `DataError` where a correlation is not defined."""
        found = evaluate(runner, self._pairs)
        return found.spearman, np.array(found.cosines)

    def difference(self, backend: str, lean: Score, full: Score, *, seed: int) -> QualityDifference:
        """Compare lean with full by a paired bootstrap."""
        targets = [pair.target for pair in self._pairs]
        numbers = numbers_of((pair.first, pair.second) for pair in self._pairs)
        return quality_difference(backend, lean[1].tolist(), full[1].tolist(), targets, numbers=numbers, seed=seed)


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
    """Compare both models by `paired_difference`, in one backend."""
    scores, (low, high), drawn, num_pairs = paired_difference(
        lean, full, targets, numbers=numbers, resamples=resamples, level=level, seed=seed
    )
    return QualityDifference(
        backend=backend,
        lean=scores[0],
        full=scores[1],
        difference=scores[0] - scores[1],
        low=low,
        high=high,
        level=level,
        resamples=drawn,
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
        """Score one contestant; each side has the model's prompt for it."""
        own = RetrievalEvaluator(encoder, self._data, np.arange(len(self._data.queries)))
        vectors = runner.encode_ids(own.texts()).float().cpu()
        if bad := int((~vectors.isfinite().all(dim=1)).sum()):  # which a search would not notice
            raise ValueError(f"vectors that are not numbers for {bad:,} of {counted(len(vectors), 'text')}")
        single = own.scores(vectors, vectors)
        return float(single.mean()), single

    def difference(self, backend: str, lean: Score, full: Score, *, seed: int) -> QualityDifference:
        """Compare lean with full by a paired bootstrap over queries."""
        difference, (low, high) = estimated(lean[1] - full[1], seed=seed)
        return QualityDifference(
            backend=backend,
            lean=lean[0],
            full=full[0],
            difference=difference,
            low=low,
            high=high,
            level=LEVEL,
            resamples=RESAMPLES,
            seed=seed,
            num_pairs=len(lean[1]),
        )
