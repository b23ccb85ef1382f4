"""Pooling against loops over tokens; padding on either side never enters."""

import shutil

import pytest
import torch
from sentence_transformers import SentenceTransformer

from tests.support.families import PLAIN_POOLING, TEXTS
from tests.support.files import edit_json
from truncate_kit.models.encoder import POOLING_MODES
from truncate_kit.models.layer_pooling import pool
from truncate_kit.models.loading import load_encoder


@pytest.mark.parametrize("mode", POOLING_MODES)
@pytest.mark.parametrize("side", ["right", "left"])
def test_against_a_loop_over_real_tokens(mode, side):
    torch.manual_seed(0)
    hidden = torch.randn(4, 6, 5)
    mask = torch.tensor([[1] * length + [0] * (6 - length) for length in (6, 3, 1, 4)])
    if side == "left":
        mask = mask.flip(1)
    hidden[mask == 0] = 1e6  # would show at once
    for row, pooled in enumerate(pool(hidden, mask, mode)):
        torch.testing.assert_close(pooled, PLAIN_POOLING[mode](hidden[row][mask[row] == 1]))


@pytest.mark.parametrize("name", ["bert", "deberta-v3", "gpt2"])
def test_a_text_without_tokens_is_zeros_alone_as_among_others(name, tiny_folder):
    encoder = load_encoder(tiny_folder(name))  # some tokenizers of decoders make no token of an empty text
    assert torch.equal(encoder.encode_ids([[]]), torch.zeros(1, encoder.vector_width))
    assert torch.equal(encoder.encode_ids([[5, 6, 7], []])[1], torch.zeros(encoder.vector_width))


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        ({"architectures": ["Qwen3ForCausalLM"]}, "last"),
        ({"architectures": ["Qwen3ForCausalLM"], "is_causal": False}, "mean"),
        ({"architectures": ["Qwen3Model"]}, "mean"),
        ({"architectures": None}, "mean"),
    ],
)
def test_a_folder_that_states_no_pooling_is_pooled_as_by_sentence_transformers(changes, wanted, tiny_folder, tmp_path):
    folder = shutil.copytree(tiny_folder("qwen3"), tmp_path / "model")
    edit_json(folder / "config.json", **changes)
    encoder = load_encoder(folder)
    assert encoder.pooling == wanted
    theirs = torch.as_tensor(SentenceTransformer(str(folder), device="cpu").encode(TEXTS))
    torch.testing.assert_close(encoder.vectors(TEXTS), theirs, rtol=1e-4, atol=1e-5)
