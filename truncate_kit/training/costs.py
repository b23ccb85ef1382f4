"""Count operations and estimate durations."""

import time
from collections.abc import Sequence

import torch

from truncate_kit.core.errors import lasting
from truncate_kit.core.progress import Progress, announce
from truncate_kit.models.encoder import Encoder
from truncate_kit.training.loop import Ids
from truncate_kit.training.settings import LEARNING

TIMED_TEXTS = 128


def operations(encoder: Encoder, blocks: int, length: float) -> float:
    """Return the floating-point operations of `blocks` blocks and all else, for a text of `length` tokens.

    Two for each weight and token, 4 · width for each pair of tokens, 16 · width for each token elsewhere.
    """
    backbone, inside = encoder.backbone, encoder.backbone.get_submodule(encoder.family.blocks)
    tables = {id(part.weight) for part in backbone.modules() if isinstance(part, torch.nn.Embedding)}
    within = {id(weight) for weight in inside.parameters()}
    others = [*backbone.parameters(), *encoder.tail.parameters()]
    rest = sum(one.numel() for one in others if one.ndim == 2 and id(one) not in tables | within)
    each = sum(one.numel() for one in inside.parameters() if one.ndim == 2) / max(1, len(list(inside.children())))
    pairs = 4 * length * encoder.width
    return length * (blocks * (2 * each + pairs) + 2 * rest + 16 * encoder.width)


def seconds_per_block(encoder: Encoder, ids: Sequence[Ids]) -> float:
    """Measure the mean time of a block for a text."""
    encoder.encode_ids(ids)  # warms up
    begin = time.perf_counter()
    encoder.encode_ids(ids)
    return (time.perf_counter() - begin) / len(ids) / encoder.depth


def announce_training(progress: Progress, encoder: Encoder, texts: Sequence[str], blocks: float) -> None:
    """Announce how long all trials take at most, on texts like these; blocks: trained runs of a block for a text."""
    if hasattr(progress, "say"):
        seconds = LEARNING * blocks * seconds_per_block(encoder, encoder.token_ids(texts[:TIMED_TEXTS]))
        announce(progress, f"In all at most about {lasting(seconds)} of training, less what is stored.")
