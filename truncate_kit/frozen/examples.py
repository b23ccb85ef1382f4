"""What the training loop asks of examples and evaluators and states do not have: token ids, lengths."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn


class WithoutTexts:
    """Something in which there are states only."""

    def texts(self) -> None:
        """There are no token ids."""


class StateExamples(WithoutTexts):
    """Examples of one size each, without a head beside what is trained."""

    head: nn.Module | None = None

    def __len__(self) -> int:
        raise NotImplementedError

    def lengths(self) -> list[int]:
        """All the same."""
        return [1] * len(self)


def take_states(values: NDArray[np.float32], places: Sequence[int], device: torch.device) -> Tensor:
    """Rows of states (n, L, d) as (L, b, d) on `device`."""
    rows = torch.from_numpy(np.ascontiguousarray(values[np.asarray(places, dtype=np.int64)]))
    return rows.transpose(0, 1).to(device)
