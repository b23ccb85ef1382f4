"""What is trained on: pairs with scores or classes, or texts with a teacher's vectors; as token ids, with a loss."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from truncate_kit.data import PairSet
from truncate_kit.models import Batch, Encoder

Ids = list[int]
PairLoss = Callable[[Tensor, Tensor, Tensor], Tensor]


class Examples(Protocol):
    """Examples that the loop draws batches from."""

    head: nn.Module | None  # what is trained beside the encoder and not part of the sentence vector
    separable: bool  # whether the loss of a batch is the mean over its examples, so that parts of it may be computed

    def __len__(self) -> int:
        """Number of examples."""

    def lengths(self) -> list[int]:
        """Tokens of the longest text of each example."""

    def texts(self) -> Sequence[Ids] | None:
        """The token ids of all texts; None where any id of the vocabulary may be asked for, or none."""

    def loss(self, encoder: Encoder, batch: Sequence[int]) -> Tensor:
        """The objective (0-d) on the examples at the given places."""


def cosine_mse(first: Tensor, second: Tensor, target: Tensor) -> Tensor:
    """Mean squared error between cos(u, v) and the target in [0, 1]; first, second (b, d), target (b,)."""
    return nn.functional.mse_loss(nn.functional.cosine_similarity(first, second), target)


def cosine_entropy(first: Tensor, second: Tensor, target: Tensor) -> Tensor:
    """Binary cross entropy with cos(u, v) as the logit and 0 or 1 as target; first, second (b, d), target (b,)."""
    logits = nn.functional.cosine_similarity(first, second)
    return nn.functional.binary_cross_entropy_with_logits(logits, target)


class PairClassifier(nn.Module):
    """Class logits (b, k) from (u, v, |u − v|), one linear layer (Reimers and Gurevych 2019, section 3)."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.linear = nn.Linear(3 * width, classes)

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        """The logits.

        Args:
            first: (b, d).
            second: (b, d).
        """
        logits: Tensor = self.linear(torch.cat([first, second, (first - second).abs()], dim=-1))
        return logits

    def loss(self, first: Tensor, second: Tensor, target: Tensor) -> Tensor:
        """Cross entropy of the logits.

        Args:
            first: (b, d).
            second: (b, d).
            target: (b,), the places of the classes.
        """
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
        """Tokens of the longer text of each pair."""
        return [max(len(one), len(other)) for one, other in zip(self._first, self._second, strict=True)]

    def texts(self) -> list[Ids]:
        """First texts, then second texts."""
        return [*self._first, *self._second]

    def inputs(self, encoder: Encoder, batch: Sequence[int]) -> Batch:
        """The first texts of the pairs at the given places, then their second texts, as one padded batch."""
        return encoder.pad([self._first[place] for place in batch] + [self._second[place] for place in batch])

    def loss(self, encoder: Encoder, batch: Sequence[int]) -> Tensor:
        """The loss of the pairs at the given places."""
        return self.loss_of(encoder(**self.inputs(encoder, batch)), batch)

    def loss_of(self, vectors: Tensor, batch: Sequence[int]) -> Tensor:
        """The same from vectors (2b, d) in the order of `inputs`."""
        loss = self.objective(vectors[: len(batch)].float(), vectors[len(batch) :].float(), batch)
        if self._taught is not None:
            teacher, weight = self._taught
            wanted = teacher[[*batch, *(place + len(self) for place in batch)]].to(vectors.device)
            loss = loss + weight * (1 - nn.functional.cosine_similarity(vectors.float(), wanted)).mean()
        return loss

    def objective(self, first: Tensor, second: Tensor, batch: Sequence[int]) -> Tensor:
        """The loss without a teacher (0-d) of vectors (b, d) of both sides of the pairs at the given places."""
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
        """Tokens of each text."""
        return [len(text) for text in self._ids]

    def texts(self) -> list[Ids] | None:
        """The token ids."""
        return self._ids
