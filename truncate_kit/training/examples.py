"""Build a trial's examples (token ids with a loss) and evaluators from labelled pairs."""

import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from copy import copy
from functools import partial
from statistics import fmean
from typing import TYPE_CHECKING, Any, Self, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from truncate_kit.core.errors import DataError, UsageError, lasting
from truncate_kit.core.progress import Progress, announce
from truncate_kit.core.results import WEIGHT, Bounds, check_number
from truncate_kit.core.vectors import DRAWS, draw_counts, interval, rank_correlations, tied
from truncate_kit.data.pairs import PairSet, PairSplits, index_texts, splits_for
from truncate_kit.data.seen import numbers_of
from truncate_kit.evaluation.graded import MEASURES, correlate, measure_of, measure_of_lengths, pair_similarities
from truncate_kit.models.encoder import (
    DOCUMENT_PROMPTS,
    QUERY_PROMPTS,
    Encoder,
    length_batches,
    original_order,
    prompted_ids,
    side_prompt,
)
from truncate_kit.models.truncation import TIMED_TEXTS, seconds_per_block
from truncate_kit.training.loop import ALONE, Evaluator, Examples, FasterOnCPU, Group, Ids, Scores, faster_on_cpu
from truncate_kit.training.settings import LEARNING, find_objective

if TYPE_CHECKING:
    from truncate_kit.training.queries import RetrievalEvaluator

PairLoss = Callable[[Tensor, Tensor, Tensor], Tensor]
Sides = tuple[dict[str, Ids], dict[str, Ids]]
TEMPERATURE = 0.05
# Texts of similar length encoded at once: random batches of 64 are two thirds padding, which doubles the time of a
# step on the CPU (benchmarks/training).
ALIKE = 32


def encoded(encoder: Encoder, ids: Sequence[Ids]) -> Tensor:
    """Encode token ids to float32 vectors (n, d) with gradients; n may be 0."""
    if not ids:
        return torch.zeros((0, encoder.vector_width), device=encoder.device, requires_grad=True)
    if encoder.device.type == "cuda" or len(ids) <= ALIKE:
        return encoder(**encoder.pad(ids)).float()  # type: ignore[no-any-return]  # torch's __call__
    # Batch texts of similar length.
    batches = length_batches([len(row) for row in ids], ALIKE)
    vectors = torch.cat([encoder(**encoder.pad([ids[place] for place in batch])) for batch in batches])
    return vectors.float()[original_order(batches)]


class Pairs(Examples):
    """Training examples of text pairs, given as token ids, with one target each.

    `loss` maps vectors (b, d), (b, d) and targets (b,) on the CPU to 0-d. `head` is trained with the encoder.
    `separable`: True if the loss is a mean over pairs. If False, the CPU encodes a batch in length groups.
    """

    def __init__(
        self,
        first: list[Ids],
        second: list[Ids],
        targets: Sequence[float],
        loss: PairLoss,
        head: nn.Module | None = None,
        *,
        separable: bool = True,
    ) -> None:
        super().__init__(first, second)
        self._targets = torch.tensor(targets)
        self._loss, self.head, self.separable = loss, head, separable
        self._taught: tuple[Tensor, float] | None = None

    def learn_vectors(self, vectors: Tensor, weight: float) -> None:
        """Add `weight` × the mean 1 − cosine to the teacher's vectors (2n, d) of `texts()` to the loss."""
        self._taught = vectors, weight

    def loss(self, encoder: Encoder, batch: Sequence[int]) -> Tensor:
        """Return the loss (0-d) of the pairs at these indices."""
        ids = self.ids(batch)
        return self.loss_of(encoder(**encoder.pad(ids)) if self.separable else encoded(encoder, ids), batch)

    def loss_of(self, vectors: Tensor, batch: Sequence[int]) -> Tensor:
        """Return the loss from vectors (2b, d): first texts, then second texts."""
        first, second = vectors.float().chunk(2)
        loss = self._loss(first, second, self._targets[list(batch)])
        if self._taught is not None:
            teacher, weight = self._taught
            wanted = teacher[[*batch, *(place + len(self) for place in batch)]].to(vectors.device)
            loss = loss + weight * (1 - nn.functional.cosine_similarity(vectors.float(), wanted)).mean()
        return loss


def cosine_mse(first: Tensor, second: Tensor, target: Tensor) -> Tensor:
    """Return the mean squared error between cos(u, v) and targets (b,) in [0, 1]."""
    return nn.functional.mse_loss(nn.functional.cosine_similarity(first, second), target.to(first.device))


def cosine_entropy(first: Tensor, second: Tensor, target: Tensor) -> Tensor:
    """Return the binary cross entropy with cos(u, v) as logit; targets are 0 or 1, (b,)."""
    logits = nn.functional.cosine_similarity(first, second)
    return nn.functional.binary_cross_entropy_with_logits(logits, target.to(first.device))


def pair_logits(classifier: nn.Module, first: Tensor, second: Tensor) -> Tensor:
    """Return class logits (b, k), linear in (u, v, |u − v|) (Reimers and Gurevych 2019, section 3)."""
    logits: Tensor = classifier(torch.cat([first, second, (first - second).abs()], dim=-1))
    return logits.float()


def graded_pairs(
    encoder: Encoder, first: list[Ids], second: list[Ids], pairs: PairSet, seed: int, loss: PairLoss = cosine_mse
) -> Pairs:
    """Build examples from graded pairs, with targets in 0 … 1."""
    return Pairs(first, second, pairs.scores01(), loss)


labelled_pairs = partial(graded_pairs, loss=cosine_entropy)  # scores are 0 or 1


def classified_pairs(encoder: Encoder, first: list[Ids], second: list[Ids], pairs: PairSet, seed: int) -> Pairs:
    """Build examples from pairs with classes; `seed` initialises the classifier."""
    torch.manual_seed(seed)
    classifier = nn.Linear(3 * encoder.vector_width, len(pairs.classes)).to(encoder.device)

    def loss(first: Tensor, second: Tensor, target: Tensor) -> Tensor:
        return nn.functional.cross_entropy(pair_logits(classifier, first, second), target.long().to(first.device))

    return Pairs(first, second, pairs.scores(), loss, classifier)


def queries_with_documents(
    encoder: Encoder, queries: list[Ids], documents: list[Ids], pairs: PairSet, seed: int
) -> Pairs:
    """Build examples with in-batch negatives (equation 6), excluding other answers to the query.

    Uses the model's similarity measure; the temperature applies only to cosine.
    """
    answers, measure = {(pair.first, pair.second) for pair in pairs}, measure_of_lengths(encoder)
    temperature = TEMPERATURE if measure == "cosine" else 1.0

    def loss(first: Tensor, second: Tensor, places: Tensor) -> Tensor:
        rows = [pairs.pairs[place] for place in places.tolist()]
        # True if the document of another row also answers.
        answered = torch.tensor([[(row.first, other.second) in answers for other in rows] for row in rows])
        others = (answered & ~torch.eye(len(rows), dtype=torch.bool)).to(first.device)
        return contrastive_loss(first, second, None, temperature, others=others, measure=measure)

    return Pairs(queries, documents, range(len(pairs)), loss, separable=False)


def contrastive_loss(
    anchors: Tensor,
    positives: Tensor,
    negatives: Tensor | None,
    temperature: float,
    own_weight: float = 0.0,
    others: Tensor | None = None,
    measure: str = "cosine",
) -> Tensor:
    """Return the contrastive loss with in-batch negatives, 0-d.

    Mean over i of −log(exp(cos(a_i, p_i)/τ) / Σ_j (exp(cos(a_i, p_j)/τ) + exp(cos(a_i, n_j)/τ + w·[i = j]))).
    Equation 8 of the layer-wise attention pooling paper; without negatives, equation 6 (7 if positives are the anchors
    under another dropout mask).

    Args:
        anchors: a, (b, d).
        positives: p, (b, d).
        negatives: n, (b, d), optional.
        temperature: τ.
        own_weight: w; 0 in the paper, 1 in the authors' code.
        others: (b, b), True if p_j is another positive of a_i, excluded from the sum.
        measure: Key of `MEASURES`, used for cos.
    """
    against = positives if negatives is None else torch.cat([positives, negatives])
    logits = MEASURES[measure](anchors, against) / temperature
    if others is not None:
        logits[:, : len(anchors)] = logits[:, : len(anchors)].masked_fill(others, -torch.inf)
    if negatives is not None and own_weight:
        own = torch.eye(len(anchors), device=logits.device)
        logits = logits + own_weight * torch.cat([torch.zeros_like(own), own], dim=1)
    return nn.functional.cross_entropy(logits, torch.arange(len(anchors), device=logits.device))


class ContrastiveTexts(Examples):
    """Rows of texts for the contrastive objectives.

    Args:
        columns: Token ids of anchors, positives, optional negatives; dropout makes vectors of equal texts differ.
        temperature: τ of `contrastive_loss`.
        own_weight: w of `contrastive_loss`.
        chunk: Texts encoded at a time, by default all.
        group: Processes that share every batch.
    """

    def __init__(
        self,
        columns: Sequence[list[Ids]],
        *,
        temperature: float = TEMPERATURE,
        own_weight: float = 0.0,
        chunk: int | None = None,
        group: Group = ALONE,
    ) -> None:
        super().__init__(*columns)
        self._temperature, self._own_weight, self._chunk, self._group = temperature, own_weight, chunk, group

    def loss(self, encoder: Encoder, batch: Sequence[int]) -> Tensor:
        """Return `contrastive_loss` of these rows.

        Chunks are encoded again in the backward pass with the same random numbers (Gao et al. 2021, arXiv:2101.06983).
        """
        ids = self.ids(self._group.share(batch))
        if self._chunk is None or len(ids) <= self._chunk:
            return self._loss_of(encoded(encoder, ids), len(batch))
        faster = faster_on_cpu()  # changes dropout, so the second pass needs it, too
        again = partial(
            checkpoint,
            encoded,
            encoder,
            use_reentrant=False,
            context_fn=lambda: (nullcontext(), FasterOnCPU() if faster else nullcontext()),
        )
        chunks = [ids[start : start + self._chunk] for start in range(0, len(ids), self._chunk)]
        return self._loss_of(torch.cat([again(chunk) for chunk in chunks]), len(batch))

    def _loss_of(self, vectors: Tensor, total: int) -> Tensor:
        own = len(vectors) // len(self._columns)
        columns = self._group.gather(vectors.view(len(self._columns), own, vectors.shape[-1]), total)
        negatives = columns[2] if len(columns) > 2 else None
        return contrastive_loss(columns[0], columns[1], negatives, self._temperature, self._own_weight)


def builder(kind: str | Callable[..., Any]) -> Callable[..., Any]:
    """Return the builder `kind`, by name from this module."""
    return cast("Callable[..., Any]", globals()[kind] if isinstance(kind, str) else kind)


class PairEvaluator(Evaluator):
    """Evaluator by Spearman and Pearson correlation with the scores of graded pairs."""

    ranks = True  # rank correlation, so all resamples are scored at once

    def __init__(self, encoder: Encoder, pairs: PairSet, *_: object) -> None:
        self._pairs, self._targets = pairs.pairs, pairs.scores()
        texts, self._places = index_texts(pairs.pairs)
        self._ids = encoder.token_ids(texts)

    def fewer(self, encoder: Encoder, number: int, tokens: int) -> Self:
        """Return an evaluator on a fixed random sample."""
        drawn = np.random.default_rng(0).permutation(len(self._targets))[: max(2, number // 2)].tolist()
        sample, ids = copy(self), dict(zip(index_texts(self._pairs)[0], self._ids, strict=True))
        sample._pairs = tuple(self._pairs[place] for place in drawn)
        texts, sample._places = index_texts(sample._pairs)
        sample._ids = [encoder.reader.shortened(ids[text], tokens) for text in texts]
        sample._targets = [self._targets[place] for place in drawn]
        return sample

    def resampled(self, vectors: Tensor) -> tuple[float, ...]:
        """Score `DRAWS` resamples, the same for every encoder."""
        numbers = numbers_of((pair.first, pair.second) for pair in self._pairs)  # rows of one pair are drawn together
        counts, scored = draw_counts(int(numbers.max()) + 1, DRAWS)[:, numbers], self.outcomes(vectors)
        if self.ranks:
            scores = (100 * np.nan_to_num(rank_correlations(tied(scored), self._targets, counts))).tolist()
        else:
            drawn = ((np.repeat(scored, row).tolist(), np.repeat(self._targets, row).tolist()) for row in counts)
            scores = [self.score_outcomes(*sample)[0] for sample in drawn]
        return tuple(round(score, 3) for score in scores)

    def interval_of(self, vectors: Tensor) -> tuple[float, float]:
        """Return the score's bootstrap 95 % interval."""
        return interval(self.resampled(vectors))

    def outcomes(self, vectors: Tensor) -> list[float]:
        """Return each pair's value to score, by default its cosine."""
        return pair_similarities(vectors, self._places)

    def score_of(self, vectors: Tensor) -> Scores:
        """Score vectors (n, d) of `texts()`."""
        return self.score_outcomes(self.outcomes(vectors), self._targets)

    def score_outcomes(self, outcomes: list[float], targets: list[float]) -> Scores:
        """Return Spearman and Pearson, × 100; 0 and None for constant outcomes."""
        if len({*tied(outcomes)}) == 1 and math.isfinite(outcomes[0]):
            return 0.0, None
        evaluation = correlate(outcomes, targets)
        return evaluation.spearman, evaluation.pearson


class ParaphraseEvaluator(PairEvaluator):
    """Evaluator by F1 (× 100) of paraphrases, at the encoder's best threshold on dev, by default on these pairs."""

    ranks = False

    def __init__(self, encoder: Encoder, pairs: PairSet, _: object = None, dev: Self | None = None) -> None:
        super().__init__(encoder, pairs)
        self._dev = dev

    def score(self, encoder: Encoder) -> Scores:
        """Return F1 × 100."""
        if self._dev is None:
            return super().score(encoder)
        cosines, on_dev = (held.outcomes(encoder.encode_ids(held.texts())) for held in (self, self._dev))
        return self.score_outcomes(cosines, self._targets, best_threshold(on_dev, self._dev._targets))

    def score_outcomes(self, outcomes: list[float], targets: list[float], threshold: float | None = None) -> Scores:
        """Return F1 × 100 at a threshold, by default the best on these pairs."""
        least = best_threshold(outcomes, targets) if threshold is None else threshold
        return 100 * f1([float(cosine >= least) for cosine in outcomes], targets, 1.0), None


class ClassEvaluator(PairEvaluator):
    """Evaluator by macro F1 (× 100) of the trained classifier."""

    ranks = False

    def __init__(self, encoder: Encoder, pairs: PairSet, examples: Examples, *_: object) -> None:
        super().__init__(encoder, pairs)
        assert examples.head is not None
        self._classifier, self._num_classes = examples.head, len(pairs.classes)

    def outcomes(self, vectors: Tensor) -> list[float]:
        """Return the predicted classes."""
        with torch.inference_mode():
            vectors = vectors.float().to(next(self._classifier.parameters()).device)
            logits = pair_logits(self._classifier, *(vectors[side] for side in self._places))
        predicted: list[float] = logits.argmax(dim=-1).tolist()
        return predicted

    def score_outcomes(self, outcomes: list[float], targets: list[float]) -> Scores:
        """Return macro F1 × 100."""
        return 100 * fmean(f1(outcomes, targets, float(place)) for place in range(self._num_classes)), None


def f1(predicted: Sequence[float], true: Sequence[float], positive: float) -> float:
    """Return F1 = 2 · hits / (predicted + actual positives), or 0 without positives."""
    hits = sum(one == other == positive for one, other in zip(predicted, true, strict=True))
    positives = sum(one == positive for one in predicted) + sum(one == positive for one in true)
    return 2 * hits / positives if positives else 0.0


def best_threshold(scores: Sequence[float], targets: Sequence[float]) -> float:
    """Return the threshold with the highest F1 for target 1, midway between two scores; of ties, the highest."""
    value, order = torch.tensor(scores, dtype=torch.float64).sort(descending=True)
    hits = torch.tensor(targets, dtype=torch.float64)[order].cumsum(0)
    predicted = torch.arange(1, len(value) + 1, dtype=torch.float64)
    quality = 2 * hits / (predicted + hits[-1])
    below = torch.cat([value[1:], value[-1:] - 1.0])
    quality[value == below] = -1.0  # no threshold between equal scores
    best = int(quality.argmax())
    return float((value[best] + below[best]) / 2)


class LabelledTask:
    """Training task of TMFT on labelled pairs.

    Args:
        full: The full model, for its tokenizer.
        data: Train, dev and test splits.
        objective: A row of `OBJECTIVES`.
        teacher: Model to distil from, in addition to the labels.
        teacher_weight: Weight of the mean 1 − cosine to the teacher's vectors.
        queries: Evaluators on queries (`halves`) to replace dev and test.

    Raises:
        UsageError: The objective is unknown, or the teacher has another width.
        DataError: A split is missing or has unsuitable targets.
    """

    def __init__(
        self,
        full: Encoder,
        data: PairSplits,
        objective: str = "cosine",
        teacher: Encoder | None = None,
        teacher_weight: float = 1.0,
        queries: "tuple[RetrievalEvaluator, RetrievalEvaluator] | None" = None,
    ) -> None:
        row = find_objective(objective, "tmft")
        if len(splits_for(data, seed=0).items()) < 3:
            hint = "Give a folder with train, dev and test files; complete_splits draws missing splits from train."
            raise DataError(f"{data.name} lacks a train, dev or test split.", hint=hint)
        row.check_targets(data, scored=queries is None)
        self.metric, self._queries = row.metric if queries is None else queries[0].metric, queries
        self._full, self.data, self._row, judged = full, data, row, row.data == "judged"
        self._first, self._second = _sides(data, full, judged=judged)
        self.num_examples = len(self._splits(0)[0])
        self._taught: list[dict[str, Tensor]] | None = None
        if teacher is not None:
            allowed = Bounds(0, WEIGHT.most, whole=False, above=True)
            self._weight = check_number("teacher_weight", teacher_weight, allowed)
            if teacher.vector_width != full.vector_width:
                raise UsageError(
                    f"The teacher's vectors have {teacher.vector_width} dimensions, the student's {full.vector_width}.",
                    hint="Use a `teacher` of the same width, such as the full model after its own fine-tuning.",
                )
            self._taught = [
                dict(zip(side, teacher.encode_ids(list(side.values())), strict=True))
                for side in _sides(data, teacher, judged=judged)
            ]

    def trial(self, encoder: Encoder, seed: int) -> tuple[Pairs, Evaluator, Evaluator]:
        """Return train examples, and dev and test evaluators sharing one classifier."""
        train, dev, test = self._splits(seed)
        first, second = [self._first[pair.first] for pair in train], [self._second[pair.second] for pair in train]
        examples: Pairs = builder(self._row.examples)(encoder, first, second, train, seed)
        if self._taught is not None:
            firsts, seconds = self._taught
            wanted = [firsts[pair.first] for pair in train] + [seconds[pair.second] for pair in train]
            examples.learn_vectors(torch.stack(wanted), self._weight)
        if self._queries is not None:
            return examples, *self._queries
        evaluator = builder(self._row.evaluator)
        on_dev = evaluator(self._full, dev, examples, None)
        return examples, on_dev, evaluator(self._full, test, examples, on_dev)

    def test_texts(self, seed: int) -> list[str]:
        """Return the distinct texts of this seed's test split."""
        return self._splits(seed)[2].texts()

    def _splits(self, seed: int) -> tuple[PairSet, PairSet, PairSet]:
        train, dev, test = (pairs for _, pairs in splits_for(self.data, seed).items())
        return train, dev, test


def _sides(data: PairSplits, encoder: Encoder, *, judged: bool) -> Sides:
    if not judged:
        both = dict(zip(texts := data.texts(), encoder.token_ids(texts), strict=True))
        return both, both
    pairs = [pair for _, split in data.items() for pair in split]
    queries, documents = ({getattr(pair, side): None for pair in pairs} for side in ("first", "second"))
    asked = prompted_ids(encoder, list(queries), side_prompt(encoder, QUERY_PROMPTS))
    searched = prompted_ids(encoder, list(documents), side_prompt(encoder, DOCUMENT_PROMPTS))
    return dict(zip(queries, asked, strict=True)), dict(zip(documents, searched, strict=True))


def scored_as(data: object, encoder: Encoder) -> str:
    """Return " by MEASURE" for queries, else "": encoder digests omit the measure."""
    return "" if data is None or isinstance(data, PairSplits) else f" by {measure_of(encoder)}"


def announce_training(progress: Progress, encoder: Encoder, texts: Sequence[str], blocks: float) -> None:
    """Announce how long all trials take at most, on texts like these; blocks: trained runs of a block for a text."""
    if hasattr(progress, "say"):
        seconds = LEARNING * blocks * seconds_per_block(encoder, encoder.token_ids(texts[:TIMED_TEXTS]))
        announce(progress, f"In all at most about {lasting(seconds)} of training, less what is stored.")
