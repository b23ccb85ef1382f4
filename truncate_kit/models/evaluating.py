"""Running a model to measure it: without dropout, in batches of like length."""

import contextlib
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from truncate_kit.settings import BATCH, check_number, check_whole


@contextlib.contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Switch dropout off inside the block and restore the former mode after it."""
    if not any(part.training for part in module.modules()):  # as mostly; to switch every part twice takes longer
        yield
        return
    training = module.training
    module.eval()
    try:
        yield
    finally:
        module.train(training)


def length_batches(lengths: Sequence[int], batch_size: int) -> list[list[int]]:
    """Places of the texts in batches of like length, longest first (a lack of memory shows at once).

    Raises `UsageError` for a size that none can have.
    """
    check_number("batch_size", check_whole("batch_size", batch_size), BATCH)
    order = sorted(range(len(lengths)), key=lambda place: -lengths[place])
    return [order[start : start + batch_size] for start in range(0, len(order), batch_size)]


def original_order(batches: Sequence[Sequence[int]]) -> Tensor:
    """What puts the rows of all batches, one batch after another, in the order of the texts, (n,)."""
    return torch.tensor([place for batch in batches for place in batch]).argsort()
