"""A combination is a model: saved, reloaded without this package, exported, and the mean over just its layers."""

import json

import pytest
import torch
from safetensors.torch import save_file
from sentence_transformers import SentenceTransformer

from tests.support.families import TINY_CONFIGS, plain_states
from tests.support.heads import with_heads
from truncate_kit.core.errors import ModelError
from truncate_kit.export.exporting import export_onnx
from truncate_kit.export.runtime import OnnxEncoder
from truncate_kit.methods.bert_lc.combine import combined_encoder, norm_settings
from truncate_kit.models.families import FAMILIES
from truncate_kit.models.loading import load_encoder
from truncate_kit.models.pipeline import save_encoder
from truncate_kit.models.truncation import truncate

TEXTS = ["the cat sat on the mat", "a dog", "the big red dog and not a small blue cat"]
WITHOUT_NORM = [name for name, config in TINY_CONFIGS.items() if FAMILIES[config.model_type].final_norm is None]


def plain(folder, layers, pooled="mean"):
    """Mean over layers of pooled states, by transformers alone."""
    means = [torch.stack([plain_states(folder, text)[layer] for layer in layers]).mean(dim=0) for text in TEXTS]
    return torch.stack([states.mean(dim=0) if pooled == "mean" else states[0] for states in means])


@pytest.mark.parametrize(("name", "layers"), [("bert", (1, 2, 3)), *((name, (0, 2)) for name in WITHOUT_NORM)])
def test_reloaded_by_sentence_transformers_it_is_the_mean_over_those_layers(tiny_folder, name, layers, tmp_path):
    lean = combined_encoder(load_encoder(tiny_folder(name)), layers)
    expected = plain(tiny_folder(name), layers)
    save_encoder(lean, tmp_path / "m")
    peer = SentenceTransformer(str(tmp_path / "m"), device="cpu")
    assert [type(module).__name__ for module in peer] == ["Transformer", "WeightedLayerPooling", "Pooling"]
    torch.testing.assert_close(torch.as_tensor(peer.encode(TEXTS)), expected, atol=1e-5, rtol=1e-4)
    assert not torch.allclose(plain(tiny_folder(name), layers[-1:]), expected, atol=1e-2)  # not the last one alone
    again = load_encoder(tmp_path / "m")
    assert again.combination == lean.combination == layers
    assert again.depth == peer[0].auto_model.config.num_hidden_layers == layers[-1]
    torch.testing.assert_close(again.vectors(TEXTS), expected, atol=1e-5, rtol=1e-4)


def test_exported_with_the_combination_inside_the_graph(tiny_folder, tmp_path):
    lean = combined_encoder(load_encoder(tiny_folder("bert")), (1, 2))
    assert export_onnx(lean, tmp_path / "m").fused_attention == 2
    found = OnnxEncoder.load(tmp_path / "m").vectors(TEXTS)
    torch.testing.assert_close(found, plain(tiny_folder("bert"), (1, 2)), atol=1e-4, rtol=1e-4)


def test_a_single_layer_is_an_ordinary_truncated_model(tiny_folder):
    encoder = load_encoder(tiny_folder("gpt2"))
    lean = combined_encoder(encoder, (2,))
    assert lean.combination is None
    assert not lean.backbone.config.output_hidden_states
    torch.testing.assert_close(lean.vectors(TEXTS), truncate(encoder, 2).vectors(TEXTS), atol=0, rtol=0)


@pytest.mark.parametrize("layers", [(1, 3), (3,)])
def test_of_a_frozen_model_the_states_are_combined_and_its_heads_left_out(tiny_folder, layers):
    found = combined_encoder(with_heads(tiny_folder("bert"), pooling="mean"), layers).vectors(TEXTS)
    torch.testing.assert_close(found, plain(tiny_folder("bert"), layers), atol=1e-6, rtol=1e-5)


def test_what_no_ordinary_folder_can_hold(tiny_folder):
    with pytest.raises(ModelError, match="ends in a norm"):
        load_encoder(tiny_folder("gpt2")).combine_layers((1, 2))
    with pytest.raises(ModelError, match="ends in a GroupNorm"):
        norm_settings(torch.nn.GroupNorm(1, 16))
    with pytest.raises(ModelError, match="Layer 4 does not exist"):
        combined_encoder(load_encoder(tiny_folder("bert")), (1, 4), over="max")


def test_a_folder_that_would_fall_back_to_the_last_layer_is_refused(tiny_folder, tmp_path):
    folder = save_encoder(combined_encoder(load_encoder(tiny_folder("bert")), (0, 2)), tmp_path / "m")
    weights = folder / "1_WeightedLayerPooling/model.safetensors"
    save_file({"layer_weights": torch.tensor([0.5, 0.0, 1.0])}, weights)
    with pytest.raises(ModelError, match="gives layers different weights"):
        load_encoder(folder)
    save_file({"layer_weights": torch.tensor([1.0, 0.0, 1.0])}, weights)
    config = json.loads((folder / "config.json").read_text())
    assert config.pop("output_hidden_states") is True
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match="does not provide the layers"):
        load_encoder(folder)
