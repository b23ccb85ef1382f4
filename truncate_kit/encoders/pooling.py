"""From token states to one state per text; padding never enters."""

from typing import Literal, get_args

import torch
from torch import Tensor, nn

from truncate_kit.errors import UsageError

PoolingMode = Literal["mean", "cls", "max", "last"]
POOLING_MODES: tuple[str, ...] = get_args(PoolingMode)


class ConcatPooling(nn.Module):
    """The CLS state and the mean state of the last layer, one after the other."""

    def forward(self, hidden: Tensor, mask: Tensor) -> Tensor:
        """Token states (b, t, d) under a mask (b, t) to (b, 2d)."""
        return torch.cat([pool(hidden, mask, "cls"), pool(hidden, mask, "mean")], dim=-1)


def check_pooling(mode: str) -> PoolingMode:
    """Return `mode` if it is one of `POOLING_MODES`; raises `UsageError` otherwise."""
    if mode not in POOLING_MODES:
        raise UsageError(f"There is no pooling {mode!r}.", hint=f"Use one of: {', '.join(POOLING_MODES)}.")
    return mode  # type: ignore[return-value]  # narrowed by the test above, which mypy cannot see


def pool(hidden: Tensor, mask: Tensor, mode: PoolingMode) -> Tensor:
    """Pool token states (b, t, d) under an attention mask (b, t) of 0 and 1 into (b, d).

    mean: over real tokens; cls: the first real token; max: elementwise over real tokens; last: the last real token.
    Padding may stand on either side.
    """
    if mode == "mean":
        weights = mask.unsqueeze(-1).to(hidden.dtype)
        return (hidden * weights).sum(dim=1) / weights.sum(dim=1).clamp(min=1e-9)
    if mode == "max":
        lowest = torch.finfo(hidden.dtype).min
        return hidden.masked_fill(mask.unsqueeze(-1) == 0, lowest).amax(dim=1)
    # Comparing running counts, not argmax over positions: exports to ONNX without a special case.
    real = mask.to(torch.long)
    place = real.argmax(dim=1) if mode == "cls" else (real.cumsum(dim=1) * real).argmax(dim=1)
    return hidden[torch.arange(hidden.shape[0], device=hidden.device), place]
