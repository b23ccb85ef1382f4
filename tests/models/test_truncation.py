"""Contract 1: truncation is exact, for every family and every layer that can be held."""

import pytest
import torch
from safetensors.torch import load_file

from tests.support.families import ATTENTION_CASES, TEXTS, TINY_CONFIGS, plain_batch_states
from truncate_kit.core.errors import LayerNotHeldError, LayerOutOfRangeError
from truncate_kit.models.families import FAMILIES
from truncate_kit.models.loading import load_encoder
from truncate_kit.models.pipeline import save_encoder
from truncate_kit.models.truncation import layers_held, parameters_kept, truncate


def test_every_family_has_a_tiny_model():
    assert {config.model_type for config in TINY_CONFIGS.values()} == set(FAMILIES)


@pytest.mark.parametrize(("name", "attention"), ATTENTION_CASES)
@torch.no_grad()
def test_truncated_output_equals_full_hidden_state_also_after_reload(name, attention, tiny_folder, tmp_path):
    full = load_encoder(tiny_folder(name), attention=attention)
    assert full.backbone.config._attn_implementation == attention
    batch = full.tokenize(TEXTS)
    assert batch["attention_mask"].min() == 0  # padded
    positions = {"position_ids": (batch["attention_mask"].cumsum(1) - 1).clamp(min=0)} if full.family.decoder else {}
    states, wanted = full.hidden_states(batch), plain_batch_states(full.backbone, **batch, **positions)
    assert len(states) == len(wanted) == full.depth + 1
    for layer in layers_held(full.backbone.config):
        expected = wanted[layer]
        assert torch.equal(states[layer], expected)
        cut = truncate(full, layer)
        assert torch.equal(cut.token_states(**batch), expected)
        save_encoder(cut, tmp_path / str(layer))
        weights = load_file(tmp_path / str(layer) / "model.safetensors")
        used = sum(weight.numel() for name, weight in weights.items() if not name.startswith("pooler."))
        assert used == parameters_kept(full.backbone.config)[layer]
        again = load_encoder(tmp_path / str(layer), attention=attention)
        assert again.depth == layer
        assert torch.equal(again.token_states(**batch), expected)
        assert torch.equal(again.vectors(TEXTS), cut.vectors(TEXTS))


@pytest.mark.parametrize("name", ["deberta-v2", "deberta-v3", "deberta-v2-convolution", "modernbert"])
def test_layers_that_no_class_can_hold_are_refused(name, tiny_folder):
    encoder = load_encoder(tiny_folder(name))
    assert layers_held(encoder.backbone.config) == (1, 2, 3)
    for layer, error in ((0, LayerNotHeldError), (-1, LayerOutOfRangeError), (4, LayerOutOfRangeError)):
        with pytest.raises(error):
            truncate(encoder, layer)


@pytest.mark.parametrize("name", ["gpt2", "qwen2", "llama"])
@torch.no_grad()
def test_left_padding_does_not_shift_decoder_positions(name, tiny_folder):
    encoder = load_encoder(tiny_folder(name), pooling="last")
    right = encoder.tokenize(TEXTS)
    left = {key: torch.zeros_like(value) for key, value in right.items()}
    for row, length in enumerate(right["attention_mask"].sum(1).tolist()):
        for key in left:
            left[key][row, -length:] = right[key][row, :length]
    torch.testing.assert_close(encoder(**left), encoder(**right), atol=1e-5, rtol=1e-5)
