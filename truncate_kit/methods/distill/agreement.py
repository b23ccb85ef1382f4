"""How close a lean model is to the full one on held-out texts, pairs and queries."""

import numpy as np
import torch
from torch import Tensor

from truncate_kit.bench.quality import quality_difference
from truncate_kit.data import SEARCH_METRICS, PairSplits, RetrievalSet
from truncate_kit.errors import too_few_texts
from truncate_kit.evaluation.graded import evaluate, spearman
from truncate_kit.evaluation.searching import estimated
from truncate_kit.methods.distill.result import NEAR, Agreement, HeldOutScores
from truncate_kit.models import Encoder
from truncate_kit.seen import numbers_of
from truncate_kit.statistics import TEXT_RESAMPLES, draw_counts, interval, rank_correlations, tied
from truncate_kit.training.evaluators import RetrievalEvaluator, VectorEvaluator, halves
from truncate_kit.training.examples import Ids


class AgreementEvaluator(VectorEvaluator):
    """Scores an encoder by its agreement with given vectors, which needs no labels."""

    def __init__(self, ids: list[Ids], vectors: Tensor) -> None:
        """Draw the pairs.

        Args:
            ids: Token ids of n held-out texts.
            vectors: What the full model gives them, (n, d).

        Raises:
            DataError: Fewer than 2 · `NEAR` + 1 texts.
        """
        if len(ids) <= 2 * NEAR:
            raise too_few_texts(len(ids), needed=2 * NEAR + 1)
        self._ids = ids
        unit = torch.nn.functional.normalize(vectors.float(), dim=1)
        self._near = _nearest(unit)
        generator = torch.Generator().manual_seed(0)
        steps = torch.randint(1, len(ids), (len(ids), NEAR), generator=generator)  # never a text with itself
        others = (torch.arange(len(ids))[:, None] + steps) % len(ids)
        self._partners = torch.cat([self._near, others], dim=1)
        self._expected = self._cosines(unit)

    def score_of(self, vectors: Tensor) -> tuple[float, float | None]:
        """The correlation of `Agreement`; no Pearson."""
        with torch.autocast("cpu", enabled=False):  # scores are compared to the hundredth, also where bf16 trains
            found = self._cosines(torch.nn.functional.normalize(vectors.float(), dim=1))
        # 0 where all cosines are the same, as they are for a model that gives every text one vector.
        return spearman(found.flatten().tolist(), self._expected.flatten().tolist()) or 0.0, None

    def fewer(self, encoder: Encoder, number: int, tokens: int) -> "AgreementEvaluator":
        """See `VectorEvaluator`; the first texts, for they were drawn at random, with vectors of what is left."""
        ids = [encoder.reader.shortened(row, tokens) for row in self._ids[: max(number, 2 * NEAR + 1)]]
        return AgreementEvaluator(ids, encoder.encode_ids(ids))

    def agreement(self, encoder: Encoder) -> Agreement:
        """With interval and neighbours."""
        return self.agreement_of(encoder.encode_ids(self._ids))

    def agreement_of(self, vectors: Tensor) -> Agreement:
        """The same from vectors (n, d) of `texts()`."""
        unit = torch.nn.functional.normalize(vectors.float(), dim=1)
        found, expected = tied(self._cosines(unit).flatten().tolist()), self._expected.flatten().tolist()
        # Texts are drawn, and a pair comes as often as both of its texts: an odd text spoils its own pairs and those of
        # the texts that it is a partner of.
        drawn = draw_counts(len(unit), TEXT_RESAMPLES)
        counts = drawn[:, :, None] * drawn[:, self._partners.numpy()]
        scores = 100 * rank_correlations(found, expected, counts.reshape(TEXT_RESAMPLES, -1))
        scores = scores[np.isfinite(scores)]
        low, high = interval(scores) if len(scores) else (0.0, 0.0)
        same = self._common(unit)
        near = counts[:, :, :NEAR]
        overlap_low, overlap_high = interval(100 * (near * same.numpy()).sum((1, 2)) / near.sum((1, 2)))
        return Agreement(
            correlation=spearman(found, expected) or 0.0,
            low=low,
            high=high,
            overlap=100 * float(same.float().mean()),
            num_texts=len(unit),
            overlap_low=overlap_low,
            overlap_high=overlap_high,
        )

    def _common(self, unit: Tensor) -> Tensor:
        """Whether each of `_near` is among the nearest texts by other vectors as well, (n, NEAR)."""
        return (_nearest(unit)[:, None, :] == self._near[:, :, None]).any(2)

    def _cosines(self, unit: Tensor) -> Tensor:
        """Of each text with its partners, (n, 2 · NEAR)."""
        return torch.einsum("nd,npd->np", unit, unit[self._partners])


def _nearest(unit: Tensor) -> Tensor:
    """Places (n, NEAR) of the texts nearest to each, by vectors (n, d) of length 1."""
    found = []
    for start in range(0, len(unit), 1024):  # never all n² cosines at once
        cosines = unit[start : start + 1024] @ unit.T
        cosines[torch.arange(len(cosines)), torch.arange(start, start + len(cosines))] = -2.0
        found.append(cosines.topk(NEAR, dim=1).indices)
    return torch.cat(found)


def held_out_scores(
    full: Encoder, lean: Encoder, data: PairSplits | RetrievalSet | None, queries: RetrievalEvaluator | None
) -> HeldOutScores | None:
    """Of the test pairs, or of the half of the queries that is reported; None where there are neither.

    Args:
        full: The full model.
        lean: The lean one, which may have fewer word pieces.
        data: What was given to choose and report by.
        queries: That half, where `data` is a retrieval set.
    """
    if isinstance(data, RetrievalSet) and queries is not None:
        same = lean.backbone.config.vocab_size == full.backbone.config.vocab_size
        ids = queries.texts()
        own = ids if same else halves(lean, data)[1].texts()
        ours, theirs = lean.encode_ids(own), full.encode_ids(ids)
        lean_scores, full_scores, mixed = (
            queries.scores(*sides) for sides in ((ours, ours), (theirs, theirs), (ours, theirs))
        )
        found = estimated(lean_scores - full_scores)
        return HeldOutScores(
            data=data.name,
            metric=SEARCH_METRICS[data.metric],
            lean=float(lean_scores.mean()),
            full=float(full_scores.mean()),
            mixed=float(mixed.mean()),
            difference=found.value,
            low=found.low,
            high=found.high,
            num_compared=len(lean_scores),
            queries_fingerprint=data.queries_fingerprint(),
        )
    if not isinstance(data, PairSplits) or data.test is None:
        return None
    cosines = [evaluate(model, data.test.pairs).cosines for model in (lean, full)]
    numbers = numbers_of((pair.first, pair.second) for pair in data.test.pairs)
    paired = quality_difference("torch", cosines[0], cosines[1], data.test.scores(), numbers=numbers)
    return HeldOutScores(
        data=data.test.name,
        metric="Spearman × 100",
        lean=paired.lean,
        full=paired.full,
        mixed=None,
        difference=paired.difference,
        low=paired.low,
        high=paired.high,
        num_compared=paired.num_pairs,
    )
