"""Poolers over layers in saved folders."""

from pathlib import Path

import torch
from sentence_transformers import SentenceTransformer
from torch import Tensor

from truncate_kit.models.encoder import Encoder
from truncate_kit.models.loading import load_encoder
from truncate_kit.models.pipeline import save_encoder
from truncate_kit.models.store import encoder_digest

TEXTS = ["the cat sat on the mat", "a dog", "the big red dog and not a small blue cat"]


def check_reloaded(encoder: Encoder, expected: Tensor, word: str, place: Path) -> Encoder:
    """Save, and compare with `expected` what this package and sentence-transformers without it compute."""

    def same(vectors: object) -> None:
        torch.testing.assert_close(torch.as_tensor(vectors), expected, atol=1e-5, rtol=1e-4)

    again = load_encoder(save_encoder(encoder, place / "m"))
    assert (again.pooling_name, encoder_digest(again)) == (word, encoder_digest(encoder))
    peer = SentenceTransformer(str(place / "m"), device="cpu", trust_remote_code=True)
    assert [type(module).__name__ for module in peer] == ["Transformer", type(encoder.pooler).__name__]
    assert not type(peer[1]).__module__.startswith("truncate_kit")  # the copy in the folder
    assert peer.get_embedding_dimension() == encoder.vector_width
    peer.save(str(place / "again"))  # what sentence-transformers saves again is the same model
    for model in (encoder, again, peer, load_encoder(place / "again")):
        same(model.encode(TEXTS))
    return again
