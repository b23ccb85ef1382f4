"""What every runner of a model is, and what runners share."""

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from truncate_kit.errors import TruncateKitError
from truncate_kit.models import length_batches, original_order

Ids = Sequence[Sequence[int]]
ENCODE_BATCH = {"cpu": 32, "cuda": 512}  # texts; a GPU wants more to be filled


class AbsentError(TruncateKitError):
    """A runtime that cannot be measured here; the bench writes the reason into its row and goes on."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason, hint="Leave it out of `backends`.")


class Runner(Protocol):
    """One model in one runtime."""

    detail: str

    def prepare(self, ids: Ids) -> Callable[[], object]:
        """A call that runs one batch of ids and waits for the device; its inputs are ready where they are needed."""

    def encode_ids(self, ids: Ids) -> Tensor:
        """Vectors (n, d) of texts that are already ids, sorted by length and cut into batches."""

    def encode(self, texts: Sequence[str]) -> Tensor:
        """Vectors (n, d), tokeniser included."""

    def similarities(self, first: Tensor, second: Tensor) -> Tensor:
        """How alike the texts of each row are, (n,), from their vectors (n, d), by the model's own measure."""


def random_ids(lengths: Sequence[int], vocabulary: int) -> list[list[int]]:
    """Ids of texts of the given lengths, drawn evenly from the vocabulary but its first tenth (special tokens)."""
    generator = np.random.default_rng(0)
    low = min(vocabulary // 10, 1000)
    return [generator.integers(low, vocabulary, size=length).tolist() for length in lengths]


def encode_in_chunks(ids: Ids, size: int, encode: Callable[[Ids], Tensor]) -> Tensor:
    """Vectors (n, d) in the order of `ids`, by calls of `encode` with at most `size` texts of like length each."""
    chunks = length_batches([len(row) for row in ids], size)
    vectors = torch.cat([encode([ids[place] for place in chunk]) for chunk in chunks])
    return vectors[original_order(chunks)]


def first_calls(calls: Sequence[Callable[[], object]]) -> None:
    """Run each call twice: whatever compiles or tunes itself has done so afterwards."""
    for call in calls:
        call()
        call()
