"""What is trained on: pairs with scores or classes, or texts with a teacher's vectors; as token ids, with a loss."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from truncate_kit.data.types import PairSet, TextPair
from truncate_kit.evaluation.searching import MEASURES
from truncate_kit.models.encoder import Batch, Encoder, length_batches, original_order
from truncate_kit.training.distributed import ALONE, Group
from truncate_kit.training.kernels import FasterOnCPU, faster_on_cpu

Ids = list[int]
PairLoss = Callable[[Tensor, Tensor, Tensor], Tensor]


class Examples(Protocol):
    """Examples that the loop draws batches from."""

    head: nn.Module | None  # what is trained beside the encoder and not part of the sentence vector
    separable: bool  # whether the loss of a batch is the mean over its examples, so that parts of it may be computed

    def __len__(self) -> int:
        """Count the examples."""

    def lengths(self) -> list[int]:
        """Return the tokens of the longest text of each example."""

    def texts(self) -> Sequence[Ids] | None:
        """Return the token ids of all texts; None where any id of the vocabulary may be asked for, or none."""

    def loss(self, encoder: Encoder, batch: Sequence[int]) -> Tensor:
        """Return the objective (0-d) on the examples at the given places."""


def cosine_mse(first: Tensor, second: Tensor, target: Tensor) -> Tensor:
    """Return the mean squared error between cos(u, v) and the target in [0, 1]; first, second (b, d), target (b,)."""
    return nn.functional.mse_loss(nn.functional.cosine_similarity(first, second), target)


def cosine_entropy(first: Tensor, second: Tensor, target: Tensor) -> Tensor:
    """Return the binary cross entropy, cos(u, v) being the logit; first, second (b, d), target (b,) of 0 and 1."""
    logits = nn.functional.cosine_similarity(first, second)
    return nn.functional.binary_cross_entropy_with_logits(logits, target)


class PairClassifier(nn.Module):
    """Class logits (b, k) from (u, v, |u − v|), one linear layer (Reimers and Gurevych 2019, section 3)."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.linear = nn.Linear(3 * width, classes)

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        """Return the logits (b, k) of vectors (b, d) of both sides."""
        logits: Tensor = self.linear(torch.cat([first, second, (first - second).abs()], dim=-1))
        return logits

    def loss(self, first: Tensor, second: Tensor, target: Tensor) -> Tensor:
        """Return the cross entropy of the logits. target: (b,), the places of the classes."""
        return nn.functional.cross_entropy(self(first, second).float(), target.long())


class Pairs:
    """Pairs of texts; both sentences of a batch go through one forward pass.

    None as `loss` is for a class that has an `objective` of its own.

    Args:
        loss: Of vectors (b, d), (b, d) and targets (b,), 0-d.
        head: What it trains beside the encoder.
    """

    separable = True

    def __init__(
        self,
        first: list[Ids],
        second: list[Ids],
        targets: Sequence[float],
        loss: PairLoss | None,
        head: nn.Module | None = None,
    ) -> None:
        self._first, self._second = first, second
        self._targets = torch.tensor(targets, dtype=torch.float32)
        self._loss, self.head = loss, head
        self._taught: tuple[Tensor, float] | None = None

    def learn_vectors(self, vectors: Tensor, weight: float) -> None:
        """Add `weight` × the mean 1 − cosine to a teacher's vectors (2n, d): of first texts, then of second ones."""
        self._taught = vectors, weight

    def __len__(self) -> int:
        return len(self._first)

    def lengths(self) -> list[int]:
        """Return the tokens of the longer text of each pair."""
        return [max(len(one), len(other)) for one, other in zip(self._first, self._second, strict=True)]

    def texts(self) -> list[Ids]:
        """Return first texts, then second texts."""
        return [*self._first, *self._second]

    def inputs(self, encoder: Encoder, batch: Sequence[int]) -> Batch:
        """Pad the first texts of the pairs at the given places, then their second texts, as one padded batch."""
        return encoder.pad([self._first[place] for place in batch] + [self._second[place] for place in batch])

    def loss(self, encoder: Encoder, batch: Sequence[int]) -> Tensor:
        """Return the loss of the pairs at the given places."""
        return self.loss_of(encoder(**self.inputs(encoder, batch)), batch)

    def loss_of(self, vectors: Tensor, batch: Sequence[int]) -> Tensor:
        """Return the same from vectors (2b, d) in the order of `inputs`."""
        loss = self.objective(vectors[: len(batch)].float(), vectors[len(batch) :].float(), batch)
        if self._taught is not None:
            teacher, weight = self._taught
            wanted = teacher[[*batch, *(place + len(self) for place in batch)]].to(vectors.device)
            loss = loss + weight * (1 - nn.functional.cosine_similarity(vectors.float(), wanted)).mean()
        return loss

    def objective(self, first: Tensor, second: Tensor, batch: Sequence[int]) -> Tensor:
        """Return the loss without a teacher (0-d) of vectors (b, d) of both sides of the pairs at the given places."""
        assert self._loss is not None
        return self._loss(first, second, self._targets[list(batch)].to(first.device))


@dataclass(frozen=True, slots=True)
class TrainPairs:
    """What the examples of one trial are built from."""

    encoder: Encoder  # the one that is trained
    first: list[Ids]  # token ids of the first text of each pair
    second: list[Ids]  # token ids of the second ones
    pairs: PairSet  # the same pairs with their targets
    seed: int  # of the trial; a head is drawn from it


class SingleTexts:
    """Texts one by one; what is asked of each is up to the subclasses."""

    separable = False  # a mean over tokens is none over texts
    head: nn.Module | None = None

    def __init__(self, ids: list[Ids]) -> None:
        self._ids = ids

    def __len__(self) -> int:
        return len(self._ids)

    def lengths(self) -> list[int]:
        """Return the tokens of each text."""
        return [len(text) for text in self._ids]

    def texts(self) -> list[Ids] | None:
        """Return the token ids."""
        return self._ids


TEMPERATURE = 0.05
ALIKE = 32
"""Texts that a CPU encodes at a time. A batch is drawn at random; padded to its longest text, 64 rows of SICK and STS
Benchmark are padding for two thirds, and a step takes twice as long (benchmarks/training).
"""


def contrastive_loss(
    anchors: Tensor,
    positives: Tensor,
    negatives: Tensor | None,
    temperature: float,
    own_weight: float = 0.0,
    others: Tensor | None = None,
    measure: str = "cosine",
) -> Tensor:
    """Average over i −log(exp(cos(a_i, p_i)/τ) / Σ_j (exp(cos(a_i, p_j)/τ) + exp(cos(a_i, n_j)/τ + w·[i = j]))).

    Without negatives their sum is left out: equation 6, and with positives that are the anchors under another dropout
    mask equation 7; with them equation 8.

    Args:
        anchors: a, (b, d).
        positives: p, (b, d).
        negatives: n, (b, d); None without.
        temperature: τ.
        own_weight: w, of an anchor's own negative; 0 is the equation as printed, the authors' code has 1.
        others: (b, b), True where p_j is a positive of a_i as well, though not its own, and so left out of the sum;
            None where there are none.
        measure: Of `MEASURES`, in the place of cos.

    Returns:
        0-d, at least 0.
    """
    against = positives if negatives is None else torch.cat([positives, negatives])
    logits = MEASURES[measure](anchors, against) / temperature
    if others is not None:
        logits[:, : len(anchors)] = logits[:, : len(anchors)].masked_fill(others, -torch.inf)
    if negatives is not None and own_weight:
        own = torch.eye(len(anchors), device=logits.device)
        logits = logits + own_weight * torch.cat([torch.zeros_like(own), own], dim=1)
    return nn.functional.cross_entropy(logits, torch.arange(len(anchors), device=logits.device))


class ContrastiveTexts:
    """Rows of texts as token ids, for the contrastive objectives."""

    head: nn.Module | None = None
    separable = False  # each row is held against all others of its batch

    def __init__(
        self,
        columns: Sequence[list[Ids]],  # anchors, positives, maybe negatives; anchors twice differ by dropout alone
        *,
        temperature: float = TEMPERATURE,
        own_weight: float = 0.0,  # of an anchor's own negative, see `contrastive_loss`
        chunk: int | None = None,  # texts encoded at a time, so that memory does not grow with the batch; None: all
        group: Group = ALONE,  # processes that share every batch; the loss is that of the whole batch
    ) -> None:
        self._columns = [list(column) for column in columns]
        self._temperature, self._own_weight, self._chunk, self._group = temperature, own_weight, chunk, group

    def __len__(self) -> int:
        return len(self._columns[0])

    def lengths(self) -> list[int]:
        """Return the tokens of the longest text of each row."""
        return [max(map(len, row)) for row in zip(*self._columns, strict=True)]

    def texts(self) -> list[Ids]:
        """Return column after column."""
        return [ids for column in self._columns for ids in column]

    def loss(self, encoder: Encoder, batch: Sequence[int]) -> Tensor:
        """Return `contrastive_loss` of the rows at the given places.

        In chunks, vectors are computed without keeping what their gradients need, and chunk after chunk once more, with
        the same random numbers, in the backward pass (Gao et al. 2021, arXiv:2101.06983).
        """
        ids = [column[place] for column in self._columns for place in self._group.share(batch)]
        if self._chunk is None or len(ids) <= self._chunk:
            return self._loss_of(encoded(encoder, ids), len(batch))
        faster = faster_on_cpu()  # whose dropout draws other units than torch's

        def contexts() -> tuple[AbstractContextManager[object], AbstractContextManager[object]]:
            return nullcontext(), FasterOnCPU() if faster else nullcontext()

        chunks = [ids[start : start + self._chunk] for start in range(0, len(ids), self._chunk)]
        again = partial(checkpoint, encoded, encoder, use_reentrant=False, context_fn=contexts)
        return self._loss_of(torch.cat([again(chunk) for chunk in chunks]), len(batch))

    def _loss_of(self, vectors: Tensor, total: int) -> Tensor:
        """Return the loss of the whole batch of `total` rows, from the vectors of this process, column after column."""
        own = len(vectors) // len(self._columns)
        columns = self._group.gather(vectors.view(len(self._columns), own, vectors.shape[-1]), total)
        negatives = columns[2] if len(columns) > 2 else None
        return contrastive_loss(columns[0], columns[1], negatives, self._temperature, self._own_weight)


class QueriesWithDocuments(Pairs):
    """Queries, each with a document that answers it, against the other documents of a batch, by equation 6.

    Those that answer the query as well are no negatives of it. Where the model compares vectors by more than their
    directions, so does the loss, and without a temperature: these measures have no bounds that it would widen.

    Args:
        queries: Token ids of the two texts of each of `pairs`.
        documents: Token ids of the two texts of each of `pairs`.
        pairs: The texts themselves.
        measure: Of `MEASURES`.
    """

    separable = False  # each query is held against all documents of its batch

    def __init__(self, queries: list[Ids], documents: list[Ids], pairs: Sequence[TextPair], measure: str) -> None:
        super().__init__(queries, documents, [pair.target for pair in pairs], None)
        answers: dict[str, set[str]] = {}
        for pair in pairs:
            answers.setdefault(pair.first, set()).add(pair.second)
        self._pairs, self._answers, self._measure = tuple(pairs), answers, measure

    def loss(self, encoder: Encoder, batch: Sequence[int]) -> Tensor:
        """Do as in `Pairs`; queries are far shorter than documents, so texts of like length are encoded together."""
        columns = (self._first, self._second)
        return self.loss_of(encoded(encoder, [column[place] for column in columns for place in batch]), batch)

    def objective(self, first: Tensor, second: Tensor, batch: Sequence[int]) -> Tensor:
        """Do as in `Pairs`."""
        others = self._others(batch).to(first.device)
        temperature = TEMPERATURE if self._measure == "cosine" else 1.0
        return contrastive_loss(first, second, None, temperature, others=others, measure=self._measure)

    def _others(self, batch: Sequence[int]) -> Tensor:
        """Say, (b, b), whether the document of another row answers the query of a row, too."""
        rows = [self._pairs[place] for place in batch]
        answers = [[other.second in self._answers[row.first] for other in rows] for row in rows]
        return torch.tensor(answers) & ~torch.eye(len(rows), dtype=torch.bool)


def encoded(encoder: Encoder, ids: Sequence[Ids]) -> Tensor:
    """Return vectors (n, d) in float32; none, with a gradient of nothing, where a batch has no row for this process."""
    if not ids:
        return torch.zeros((0, encoder.vector_width), device=encoder.device, requires_grad=True)
    if encoder.device.type == "cpu" and len(ids) > ALIKE:
        return _encoded_alike(encoder, ids)
    vectors: Tensor = encoder(**encoder.pad(ids))
    return vectors.float()


def _encoded_alike(encoder: Encoder, ids: Sequence[Ids]) -> Tensor:
    """Do as `encoded`: a vector depends on no other text, so texts of like length go through the model together."""
    batches = length_batches([len(row) for row in ids], ALIKE)
    vectors = torch.cat([encoder(**encoder.pad([ids[place] for place in batch])) for batch in batches])
    return vectors.float()[original_order(batches)]
