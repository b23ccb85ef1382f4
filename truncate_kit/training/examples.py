"""What is trained on: graded pairs, or texts with a teacher's vectors; as token ids, with a loss per batch."""

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from truncate_kit.encoders import Encoder

Ids = list[int]


class Examples(Protocol):
    """Examples that the loop draws batches from."""

    def __len__(self) -> int:
        """Number of examples."""

    def lengths(self) -> list[int]:
        """Tokens of the longest text of each example."""

    def texts(self) -> Sequence[Ids]:
        """All token ids."""

    def renumber(self, ids: Callable[[Ids], Ids]) -> None:
        """Replace the ids of every text."""

    def loss(self, encoder: Encoder, batch: Sequence[int]) -> Tensor:
        """The objective (0-d) on the examples at the given places."""


def cosine_mse(first: Tensor, second: Tensor, target: Tensor) -> Tensor:
    """Mean squared error between cos(u, v) and the target in [0, 1]; first, second (b, d), target (b,)."""
    return torch.nn.functional.mse_loss(torch.nn.functional.cosine_similarity(first, second), target)


def cosine_distance(student: Tensor, teacher: Tensor) -> Tensor:
    """Mean of 1 − cos(student, teacher); (b, d) each. Half the squared distance of the normalised vectors."""
    return (1 - torch.nn.functional.cosine_similarity(student, teacher)).mean()


class GradedPairs:
    """Pairs of texts with targets in [0, 1]; both sentences of a batch go through one forward pass."""

    def __init__(self, first: list[Ids], second: list[Ids], targets: Sequence[float]) -> None:
        self._first, self._second = first, second
        self._targets = torch.tensor(targets, dtype=torch.float32)

    def __len__(self) -> int:
        return len(self._first)

    def lengths(self) -> list[int]:
        """Tokens of the longer text of each pair."""
        return [max(len(one), len(other)) for one, other in zip(self._first, self._second, strict=True)]

    def texts(self) -> list[Ids]:
        """First texts, then second texts."""
        return [*self._first, *self._second]

    def renumber(self, ids: Callable[[Ids], Ids]) -> None:
        """Replace the ids of every text."""
        self._first, self._second = [ids(text) for text in self._first], [ids(text) for text in self._second]

    def loss(self, encoder: Encoder, batch: Sequence[int]) -> Tensor:
        """`cosine_mse` of the pairs at the given places."""
        inputs = encoder.pad([self._first[place] for place in batch] + [self._second[place] for place in batch])
        vectors = encoder(**inputs).float()
        target = self._targets[list(batch)].to(vectors.device)
        return cosine_mse(vectors[: len(batch)], vectors[len(batch) :], target)


class TaughtTexts:
    """Texts with the vectors that a teacher gives them, (n, d)."""

    def __init__(self, ids: list[Ids], vectors: Tensor) -> None:
        self._ids, self._vectors = ids, vectors

    def __len__(self) -> int:
        return len(self._ids)

    def lengths(self) -> list[int]:
        """Tokens of each text."""
        return [len(text) for text in self._ids]

    def texts(self) -> list[Ids]:
        """The token ids."""
        return self._ids

    def renumber(self, ids: Callable[[Ids], Ids]) -> None:
        """Replace the ids of every text."""
        self._ids = [ids(text) for text in self._ids]

    def loss(self, encoder: Encoder, batch: Sequence[int]) -> Tensor:
        """`cosine_distance` of the texts at the given places."""
        vectors = encoder(**encoder.pad([self._ids[place] for place in batch])).float()
        return cosine_distance(vectors, self._vectors[list(batch)].to(vectors.device))
