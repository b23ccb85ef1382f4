"""What examples of states, rather than texts, share: their place in the loop, their moments, their loss."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

_SMALLEST = 1e-12  # below it all differences are equal but for rounding, and there is nothing left to learn
_ROWS = 1024  # states read at a time


class WithoutTexts:
    """Something in which there are states only."""

    def texts(self) -> None:
        """There are no token ids."""


class StateExamples(WithoutTexts):
    """Examples of one size each, without a head beside what is trained."""

    head: nn.Module | None = None
    separable = False  # the variance of a batch is none of its parts

    def __len__(self) -> int:
        raise NotImplementedError

    def lengths(self) -> list[int]:
        """All the same."""
        return [1] * len(self)


def moments(values: NDArray[np.float32], rows: Sequence[int] | None = None) -> tuple[Tensor, Tensor]:
    """Mean and deviation over the texts (all, or `rows`) of states (n, L, d), each (L, d) float32."""
    chosen = np.arange(len(values)) if rows is None else np.asarray(rows)
    centre = values[chosen[0]].astype(np.float64)  # shifted, so that large means take no digits from deviations
    total, squares = np.zeros_like(centre), np.zeros_like(centre)
    for start in range(0, len(chosen), _ROWS):
        moved = values[chosen[start : start + _ROWS]] - centre
        total += moved.sum(axis=0)
        squares += (moved * moved).sum(axis=0)
    mean = total / len(chosen)
    deviation = np.sqrt(np.maximum(squares / len(chosen) - mean * mean, 0))
    return torch.from_numpy(centre + mean).float(), torch.from_numpy(deviation).float()


def log_variance(predicted: Tensor, target: Tensor) -> Tensor:
    """log Var(ŷ − y) over a batch (b,), population variance; 0-d. A shift common to all predictions costs nothing."""
    return (predicted - target).var(correction=0).clamp(min=_SMALLEST).log()


def squared_error(predicted: Tensor, target: Tensor) -> Tensor:
    """Mean of (ŷ − y)² over a batch (b,); 0-d."""
    return (predicted - target).square().mean()


LOSS_FUNCTIONS = {"mse": squared_error, "log-variance": log_variance}
"""By the names of `FrozenSettings.loss`."""


def take_states(values: NDArray[np.float32], places: Sequence[int], device: torch.device) -> Tensor:
    """Rows of states (n, L, d) as (L, b, d) on `device`."""
    rows = torch.from_numpy(np.ascontiguousarray(values[np.asarray(places, dtype=np.int64)]))
    return rows.transpose(0, 1).to(device)
