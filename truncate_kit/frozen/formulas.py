"""The loss of frozen heads, and sums over states that do not fit into memory."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_SMALLEST = 1e-12  # below it all differences are equal but for rounding, and there is nothing left to learn
_ROWS = 1024  # states read at a time


def log_variance(predicted: Tensor, target: Tensor) -> Tensor:
    """log Var(ŷ − y) over a batch (b,), population variance; 0-d. A shift common to all predictions costs nothing."""
    return (predicted - target).var(correction=0).clamp(min=_SMALLEST).log()


def moments(values: NDArray[np.float32], rows: Sequence[int] | None = None) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation over the texts of states (n, L, d), each (L, d) float32; in one pass, in float64.

    rows: of the texts that count, None for all.
    """
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
