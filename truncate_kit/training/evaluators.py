"""How good an encoder is after an epoch: scores on held-out pairs, or closeness to a teacher."""

from collections.abc import Sequence
from statistics import fmean
from typing import Protocol

import torch
from torch import Tensor, nn

from truncate_kit.data import PairSet, PlacedPairs
from truncate_kit.encoders import Encoder
from truncate_kit.evaluation import correlate, pair_similarities
from truncate_kit.training.examples import Ids


class Evaluator(Protocol):
    """A held-out set in token ids. Higher is better, in points."""

    def texts(self) -> Sequence[Ids] | None:
        """The token ids of all texts; None as in `Examples`."""

    def score(self, encoder: Encoder) -> tuple[float, float | None]:
        """Main score and, where there is one, Pearson correlation; both × 100."""


class VectorEvaluator(Evaluator, Protocol):
    """A held-out set that is scored from the vectors of its texts alone."""

    def texts(self) -> list[Ids]:
        """The token ids of all texts."""

    def score_of(self, vectors: Tensor) -> tuple[float, float | None]:
        """What `score` gives, from vectors (n, d) of `texts()`."""


class HeldOutPairs:
    """Pairs in token ids; each distinct text is encoded once."""

    def __init__(self, encoder: Encoder, pairs: PairSet) -> None:
        self._places = PlacedPairs.of(pairs.pairs)
        self._ids = encoder.token_ids(self._places.texts)
        self._targets = pairs.scores()

    def texts(self) -> list[Ids]:
        """The token ids of the distinct texts."""
        return self._ids

    def score(self, encoder: Encoder) -> tuple[float, float | None]:
        """Main score and Pearson correlation, see the subclasses."""
        return self.score_of(encoder.encode_ids(self._ids))

    def score_of(self, vectors: Tensor) -> tuple[float, float | None]:
        """The same from vectors (n, d) of `texts()`."""
        raise NotImplementedError

    def cosines(self, vectors: Tensor) -> list[float]:
        """Cosine of each pair, from vectors (n, d) of `texts()`."""
        return pair_similarities(vectors, self._places)


class PairEvaluator(HeldOutPairs):
    """Spearman and Pearson correlation on graded pairs."""

    def score_of(self, vectors: Tensor) -> tuple[float, float | None]:
        """Spearman and Pearson, × 100."""
        evaluation = correlate(self.cosines(vectors), self._targets)
        return evaluation.spearman, evaluation.pearson


class ParaphraseEvaluator(HeldOutPairs):
    """F1 (× 100) of calling a pair a paraphrase where its cosine reaches a threshold."""

    def __init__(self, encoder: Encoder, pairs: PairSet, dev: "ParaphraseEvaluator | None" = None) -> None:
        """dev: on whose pairs the threshold is chosen, for each encoder anew; None chooses on these very pairs."""
        super().__init__(encoder, pairs)
        self._dev = dev

    def threshold(self, encoder: Encoder) -> float:
        """The cosine from which on a pair is called a paraphrase, where F1 on these pairs is highest."""
        return best_threshold(self.cosines(encoder.encode_ids(self._ids)), self._targets)

    def score(self, encoder: Encoder) -> tuple[float, float | None]:
        """F1 × 100; no Pearson."""
        threshold = None if self._dev is None else self._dev.threshold(encoder)
        return self._f1(self.cosines(encoder.encode_ids(self._ids)), threshold), None

    def score_of(self, vectors: Tensor) -> tuple[float, float | None]:
        """F1 × 100 with the threshold that is best on these very pairs; no Pearson."""
        return self._f1(self.cosines(vectors), None), None

    def _f1(self, cosines: list[float], threshold: float | None) -> float:
        if threshold is None:
            threshold = best_threshold(cosines, self._targets)
        return 100 * f1([float(cosine >= threshold) for cosine in cosines], self._targets, 1.0)


class ClassEvaluator(HeldOutPairs):
    """Macro F1 (× 100) of a classifier that is trained with the encoder."""

    def __init__(self, encoder: Encoder, pairs: PairSet, classifier: nn.Module) -> None:
        super().__init__(encoder, pairs)
        self._classifier, self._num_classes = classifier, len(pairs.classes)

    def score_of(self, vectors: Tensor) -> tuple[float, float | None]:
        """Mean over the classes of F1 × 100, as many as the set has; no Pearson."""
        with torch.inference_mode():
            vectors = vectors.float().to(next(self._classifier.parameters()).device)
            first, second = vectors[self._places.first], vectors[self._places.second]
            predicted: list[float] = self._classifier(first, second).argmax(dim=-1).tolist()
        return 100 * fmean(f1(predicted, self._targets, float(place)) for place in range(self._num_classes)), None


def f1(predicted: Sequence[float], true: Sequence[float], positive: float) -> float:
    """2 · hits / (predicted positives + true positives of the data), from 0 to 1; 0 where there is neither."""
    hits = sum(one == other == positive for one, other in zip(predicted, true, strict=True))
    positives = sum(one == positive for one in predicted) + sum(one == positive for one in true)
    return 2 * hits / positives if positives else 0.0


def best_threshold(scores: Sequence[float], targets: Sequence[float]) -> float:
    """The threshold on `scores` with the highest F1 for target 1: midway between two scores, the highest of equals."""
    value, order = torch.tensor(scores, dtype=torch.float64).sort(descending=True)
    hits = torch.tensor(targets, dtype=torch.float64)[order].cumsum(0)
    predicted = torch.arange(1, len(value) + 1, dtype=torch.float64)
    quality = 2 * hits / (predicted + hits[-1])
    below = torch.cat([value[1:], value[-1:] - 1.0])
    quality[value == below] = -1.0  # equal scores are on one side
    best = int(quality.argmax())
    return float((value[best] + below[best]) / 2)
