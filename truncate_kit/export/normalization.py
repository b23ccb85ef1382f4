"""Whether a graph ends in vectors of length 1."""

import copy

from torch import nn

from truncate_kit.models import Encoder
from truncate_kit.models.pipeline import Normalize


def with_normalization(encoder: Encoder, normalize: bool | None) -> Encoder:
    """The encoder as it goes into the graph, sharing its weights.

    Args:
        encoder: Whose weights are shared.
        normalize: True ends it in unit vectors, False leaves a final Normalize module out, None keeps what it has.
    """
    tail = list(encoder.tail)
    if normalize and not ends_normalized(encoder):
        tail.append(Normalize())
    while normalize is False and tail and isinstance(tail[-1], Normalize):
        tail.pop()
    changed = copy.copy(encoder)
    changed._modules = {**encoder._modules, "tail": nn.ModuleList(tail)}
    return changed


def ends_normalized(encoder: Encoder) -> bool:
    """Whether the last thing the encoder does is to scale vectors to length 1."""
    return bool(len(encoder.tail)) and isinstance(encoder.tail[-1], Normalize)
