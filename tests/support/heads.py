"""Random heads, and encoders that have them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import torch

from truncate_kit.models.encoder import Encoder, LayerHeads
from truncate_kit.models.loading import load_encoder
from truncate_kit.models.truncation import truncate

CODES = (3, 3, 5)  # two runs of like width


def make_heads(
    width: int = 16,
    codes: Sequence[int] = CODES,
    kind: Literal["exp", "sigmoid"] = "exp",
    hidden: int = 7,
    seed: int = 0,
) -> LayerHeads:
    generator = torch.Generator().manual_seed(seed)
    heads = LayerHeads(width, len(codes), codes, kind=kind, hidden=hidden, generator=generator)
    assert heads.networks is not None
    # No deviation near 0, which saturates codes: cosines would tie.
    mean, deviation = (draw(len(codes), width, generator=generator) for draw in (torch.randn, torch.rand))
    heads.networks.fit(mean, deviation + 0.2)
    heads.scale.copy_(torch.rand(len(codes), generator=generator) + 0.2)
    return heads.eval()


def with_heads(folder: Path, layer: int = 3, pooling: str = "last", **options: Any) -> Encoder:
    encoder = truncate(load_encoder(folder, pooling=pooling), layer)
    encoder.heads = make_heads(codes=CODES[:layer], **options)
    return encoder
