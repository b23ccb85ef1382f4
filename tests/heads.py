"""Random heads, and encoders that have them."""

import torch

from truncate_kit.encoders import LayerHeads, load_encoder, truncate
from truncate_kit.encoders.layer_heads import BlockNetworks, PairScore

CODES = (3, 3, 5)  # two runs of like width


def make_heads(width=16, codes=CODES, kind="exp", hidden=7, seed=0):
    generator = torch.Generator().manual_seed(seed)
    networks = BlockNetworks(width, codes, generator)
    networks.fit(
        torch.randn(len(codes), width, generator=generator), torch.rand(len(codes), width, generator=generator)
    )
    heads = LayerHeads(width, len(codes), networks, PairScore(len(codes), hidden, kind, generator))
    heads.score.scale.copy_(torch.rand(len(codes), generator=generator) + 0.2)
    return heads.eval()


def with_heads(folder, layer=3, pooling="last", **options):
    encoder = truncate(load_encoder(folder, pooling=pooling), layer)
    encoder.heads = make_heads(codes=CODES[:layer], **options)
    return encoder
