"""Maximum and mean over layers against a plain loop: saved, reloaded without this package, truncated, exported."""

import json

import pytest
import torch
from sentence_transformers import SentenceTransformer
from transformers import AutoModel

from tests.support.families import PLAIN_POOLING, plain_states
from tests.support.heads import with_heads
from tests.support.layer_poolers import TEXTS, check_reloaded
from truncate_kit.core.errors import ModelError, UsageError
from truncate_kit.export.exporting import export_onnx
from truncate_kit.export.runtime import OnnxEncoder
from truncate_kit.methods.bert_lc.combine import combined_encoder
from truncate_kit.models.layer_pooling import LayerAttentionPooling, LayerPooling
from truncate_kit.models.loading import find_pooler_head, load_encoder
from truncate_kit.models.pipeline import save_encoder
from truncate_kit.models.truncation import truncate

CASES = [
    ("bert", (1, 2, 3), "max", "mean"),
    ("bert", (0, 3), "mean", "max"),
    ("roberta", (0, 1), "max", "cls"),
    ("modernbert", (1, 3), "max", "cls"),
    ("gpt2", (0, 1, 3), "mean", "last"),
    ("llama", (1, 3), "max", "last"),
]


def plain(folder, layers, over, tokens):
    """The tokens, then the layers."""
    rows = []
    for hidden in (plain_states(folder, text) for text in TEXTS):
        pooled = [PLAIN_POOLING[tokens](hidden[layer]) for layer in layers]
        found = pooled[0]
        for state in pooled[1:]:
            found = torch.maximum(found, state) if over == "max" else found + state
        rows.append(found if over == "max" else found / len(pooled))
    return torch.stack(rows)


def combined(folder, layers, over, tokens):
    return combined_encoder(load_encoder(folder, pooling=tokens), layers, over=over)


@pytest.mark.parametrize(("name", "layers", "over", "tokens"), CASES)
def test_reloaded_here_and_by_sentence_transformers_without_this_package(
    tiny_folder, name, layers, over, tokens, tmp_path
):
    expected = plain(tiny_folder(name), layers, over, tokens)
    lean = combined(tiny_folder(name), layers, over, tokens)
    again = check_reloaded(lean, expected, f"layer-{over}", tmp_path)
    assert (again.pooling, again.depth) == (tokens, layers[-1])


def test_the_last_layer_before_the_mean_over_layers(tiny_folder, tmp_path):
    encoder = truncate(load_encoder(tiny_folder("bert")), 1)
    encoder.pool_with(LayerPooling(16, layers=(0, 1), over="mean", last=True))
    parts = [plain(tiny_folder("bert"), layers, "mean", "mean") for layers in ((1,), (0, 1))]
    expected = torch.cat(parts, dim=1)
    torch.testing.assert_close(encoder.vectors(TEXTS), expected, atol=1e-5, rtol=0)
    save_encoder(encoder, tmp_path / "m")
    again = load_encoder(tmp_path / "m")
    assert again.pooling_name == "last-layer-mean"
    export_onnx(again, tmp_path / "m")
    torch.testing.assert_close(OnnxEncoder.load(tmp_path / "m").vectors(TEXTS), expected, atol=1e-4, rtol=1e-4)


def test_truncating_below_drops_it_and_keeps_how_tokens_are_pooled(tiny_folder):
    lean = combined(tiny_folder("bert"), (0, 3), "max", "cls")
    whole, lower = truncate(lean, 3), truncate(lean, 2)
    torch.testing.assert_close(whole.vectors(TEXTS), lean.vectors(TEXTS), atol=0, rtol=0)
    assert whole.pooler is not lean.pooler
    assert (lower.pooler, lower.combination, lower.pooling_name) == (None, None, "cls")
    assert not lower.backbone.config.output_hidden_states
    expected = plain(tiny_folder("bert"), (2,), "mean", "cls")
    torch.testing.assert_close(lower.vectors(TEXTS), expected, atol=1e-5, rtol=1e-4)


def test_through_the_trained_head(tiny_folder, tmp_path):
    encoder = load_encoder(tiny_folder("bert"), pooling="max")
    head = find_pooler_head(tiny_folder("bert"))
    folder = save_encoder(combined_encoder(encoder, (0, 2), head=head), tmp_path / "m")
    with torch.no_grad():
        dense = AutoModel.from_pretrained(tiny_folder("bert")).pooler.dense
        expected = torch.tanh(dense(plain(tiny_folder("bert"), (0, 2), "mean", "max")))
    peer = SentenceTransformer(str(folder), device="cpu", trust_remote_code=True)
    torch.testing.assert_close(torch.as_tensor(peer.encode(TEXTS)), expected, atol=1e-5, rtol=0)
    torch.testing.assert_close(load_encoder(folder).vectors(TEXTS), expected, atol=1e-5, rtol=0)


def test_the_code_in_the_folder_is_not_run_here(tiny_folder, tmp_path):
    folder = save_encoder(combined(tiny_folder("bert"), (1, 2), "max", "mean"), tmp_path / "m")
    assert json.loads((folder / "modules.json").read_text())[1]["type"] == "layer_pooling.LayerPooling"
    (folder / "layer_pooling.py").write_text("raise SystemExit('run')")
    assert load_encoder(folder).pooling_name == "layer-max"


def attention(folder):
    encoder = load_encoder(folder)
    encoder.pool_with(LayerAttentionPooling(16))
    return encoder


@pytest.mark.parametrize("made", [lambda folder: combined(folder, (0, 3), "max", "mean"), attention, with_heads])
def test_what_does_not_fit_or_cannot_be_replaced(tiny_folder, tmp_path, made):
    folder = save_encoder(made(tiny_folder("bert")), tmp_path / "m")
    with pytest.raises(UsageError, match="cannot replace"):
        load_encoder(folder, pooling="max")
    config = next(folder.glob("*_Layer*")) / "config.json"
    for damaged in (config.read_text().replace("16", "8"), '{"more": 1}'):
        config.write_text(damaged)
        with pytest.raises(ModelError):
            load_encoder(folder)
