"""From token states to one state per text; padding never enters."""

from typing import get_args

import torch
from torch import Tensor, nn

from truncate_kit.errors import known_name
from truncate_kit.models.layer_attention import LayerAttentionPooling
from truncate_kit.models.layer_pooling import LayerPooling, PoolingMode, pool

__all__ = ["POOLING_MODES", "ConcatPooling", "PoolingMode", "check_pooling", "pool", "pooled_width"]

POOLING_MODES: tuple[PoolingMode, ...] = get_args(PoolingMode)


class ConcatPooling(nn.Module):
    """The CLS state and the mean state of the last layer, one after the other."""

    word = "concat"
    state_pooling: PoolingMode = "cls"

    def forward(self, hidden: Tensor, mask: Tensor) -> Tensor:
        """Token states (b, t, d) under a mask (b, t) to (b, 2d)."""
        return torch.cat([pool(hidden, mask, "cls"), pool(hidden, mask, "mean")], dim=-1)


def pooled_width(pooler: nn.Module | None, width: int) -> int:
    """Size of the vectors that a pooler, None for a plain pooling, makes of states of this width."""
    doubled = isinstance(pooler, ConcatPooling)
    if isinstance(pooler, LayerPooling):
        doubled = pooler.last_first
    elif isinstance(pooler, LayerAttentionPooling):
        doubled = pooler.last_cls and pooler.dense is None
    return 2 * width if doubled else width


def check_pooling(mode: str) -> PoolingMode:
    """Return `mode` if it is one of `POOLING_MODES`; raises `UsageError` otherwise."""
    return known_name("pooling", mode, POOLING_MODES)
