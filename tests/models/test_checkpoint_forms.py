"""The forms in which checkpoints lie on the hub: heads and prefixes, old names, buffers, other formats and types."""

import json
import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModel, AutoModelForMaskedLM

from tests.support.families import TEXTS, TINY_CONFIGS, tiny_tokenizer
from truncate_kit.errors import ModelError
from truncate_kit.models import load_encoder

WEIGHTS = "model.safetensors"
POSITIONS = {"embeddings.position_ids": torch.arange(36)[None]}


@pytest.fixture
def folder(tiny_folder, tmp_path):
    return shutil.copytree(tiny_folder("bert"), tmp_path / "model")


def loads_as(folder, reference):
    with torch.no_grad():
        return np.abs(load_encoder(folder).encode(TEXTS) - load_encoder(reference).encode(TEXTS)).max()


def old_names(weights):
    """As checkpoints of the first BERT call the parts of a norm."""
    renamed = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
    return {
        next((name.replace(new, old) for new, old in renamed.items() if name.endswith(new)), name): value
        for name, value in weights.items()
    }


FORMS = {
    "a buffer of positions": lambda weights: weights | POSITIONS,
    "the model's prefix": lambda weights: {f"bert.{name}": value for name, value in weights.items()},
    "old names of norms": lambda weights: {f"bert.{name}": value for name, value in old_names(weights).items()},
    "double precision": lambda weights: {name: value.double() for name, value in weights.items()},
    "no pooler": lambda weights: {name: value for name, value in weights.items() if not name.startswith("pooler")},
}


@pytest.mark.parametrize("pickled", [False, True], ids=["safetensors", "bin"])
@pytest.mark.parametrize("form", FORMS)
def test_weights_under_other_names_are_the_same_model(folder, tiny_folder, form, pickled):
    weights = FORMS[form](load_file(folder / WEIGHTS))
    (folder / WEIGHTS).unlink()
    if pickled:
        torch.save(weights, folder / "pytorch_model.bin")
    else:
        save_file(weights, folder / WEIGHTS, metadata={"format": "pt"})
    assert loads_as(folder, tiny_folder("bert")) < 1e-6


@pytest.mark.parametrize("family", ["bert", "distilbert", "deberta-v2", "gpt2", "qwen2"])
@pytest.mark.parametrize("prefixed", [False, True])
def test_weights_that_go_on_behind_the_last_block_are_refused(tiny_folder, tmp_path, family, prefixed):
    """Else a damaged configuration would give other vectors without a word."""
    folder = shutil.copytree(tiny_folder(family), tmp_path / "model")
    if prefixed:
        prefix = AutoModel.from_pretrained(folder).base_model_prefix
        weights = {f"{prefix}.{name}": value for name, value in load_file(folder / WEIGHTS).items()}
        save_file(weights, folder / WEIGHTS, metadata={"format": "pt"})
        assert loads_as(folder, tiny_folder(family)) < 1e-6
    config = json.loads((folder / "config.json").read_text())
    depth = next(name for name in ("n_layers", "n_layer", "num_hidden_layers") if name in config)
    config |= {depth: config[depth] - 1} | (
        {"layer_types": config["layer_types"][:-1]} if "layer_types" in config else {}
    )
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match="describes 2 blocks, but the weights beside it go on: ") as refused:
        load_encoder(folder)
    assert "`truncate()`" in refused.value.hint


@pytest.mark.parametrize(
    ("family", "name"),
    [
        ("gpt2", "h.0.attn.bias"),
        ("gpt2", "h.1.attn.masked_bias"),
        ("llama", "layers.0.self_attn.rotary_emb.inv_freq"),
        ("bert", "encoder.layer.2.attention.self.position_ids"),
        ("bert", "encoder.layer.0.crossattention.self.query.weight"),
    ],
)
def test_what_a_block_does_not_need_is_passed_over(tiny_folder, tmp_path, family, name):
    folder = shutil.copytree(tiny_folder(family), tmp_path / "model")
    save_file(load_file(folder / WEIGHTS) | {name: torch.ones(3)}, folder / WEIGHTS, metadata={"format": "pt"})
    assert loads_as(folder, tiny_folder(family)) == 0


@pytest.mark.parametrize("prefixed", [False, True])
@pytest.mark.parametrize(
    ("family", "name"),
    [
        ("bert", "encoder.layer.1.attention.self.distance_embedding.weight"),
        ("roberta", "encoder.layer.0.adapter.down.weight"),
        ("albert", "encoder.albert_layer_groups.0.albert_layers.0.gate.weight"),
        ("qwen3", "layers.2.mlp.up_proj.weight_scale"),
    ],
)
def test_a_weight_of_a_block_that_its_class_does_not_compute_is_refused(tiny_folder, tmp_path, family, name, prefixed):
    """Else the vectors would be those of another model without a word."""
    folder = shutil.copytree(tiny_folder(family), tmp_path / "model")
    prefix = f"{AutoModel.from_pretrained(folder).base_model_prefix}." if prefixed else ""
    weights = {f"{prefix}{key}": value for key, value in load_file(folder / WEIGHTS).items()}
    save_file(weights | {f"{prefix}{name}": torch.ones(79, 8)}, folder / WEIGHTS, metadata={"format": "pt"})
    with pytest.raises(ModelError, match="would compute without it") as refused:
        load_encoder(folder)
    assert f"{prefix}{name}" in str(refused.value)


@pytest.mark.parametrize(
    ("family", "kind", "computed"),
    [
        ("bert", "absolute", True),
        ("modernbert", "absolute", True),  # as ModernBERT-base itself says
        ("gte", "rope", True),
        ("bert", "relative_key", False),
        ("albert", "relative_key_query", False),
        ("bert", "alibi", False),
        ("roberta", ["absolute"], False),
    ],
)
def test_positions_that_a_class_does_not_compute_are_refused(tiny_folder, tmp_path, family, kind, computed):
    folder = shutil.copytree(tiny_folder(family), tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"position_embedding_type": kind}))
    if computed:
        assert loads_as(folder, tiny_folder(family)) == 0
    else:
        with pytest.raises(ModelError, match="position_embedding_type"):
            load_encoder(folder)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_read_as_float32(folder, tiny_folder, dtype):
    weights = {name: value.to(dtype) for name, value in load_file(folder / WEIGHTS).items()}
    save_file(weights, folder / WEIGHTS, metadata={"format": "pt"})
    encoder = load_encoder(folder)
    assert {value.dtype for value in encoder.backbone.parameters()} == {torch.float32}
    assert torch.equal(
        encoder.backbone.get_input_embeddings().weight, weights["embeddings.word_embeddings.weight"].float()
    )


def test_shards_and_what_else_lies_in_a_folder(folder, tiny_folder):
    weights = load_file(folder / WEIGHTS)
    (folder / WEIGHTS).unlink()
    parts = {f"model-0000{part + 1}-of-00002.safetensors": list(weights)[part::2] for part in range(2)}
    for name, names in parts.items():
        save_file({key: weights[key] for key in names}, folder / name, metadata={"format": "pt"})
    places = {key: name for name, names in parts.items() for key in names}
    index = {"metadata": {"total_size": 1}, "weight_map": places}
    (folder / f"{WEIGHTS}.index.json").write_text(json.dumps(index))
    for name in ("tf_model.h5", "rust_model.ot", "flax_model.msgpack", "colbert_linear.pt", ".gitattributes"):
        (folder / name).write_bytes(b"not for us")
    (folder / "onnx").mkdir()
    (folder / "onnx" / "model.onnx").write_bytes(b"nor this")
    assert loads_as(folder, tiny_folder("bert")) < 1e-6


@pytest.mark.parametrize(
    "name", ["bert", "roberta", "distilbert", "mpnet", "albert", "deberta", "deberta-v2", "modernbert"]
)
def test_a_model_with_its_pretraining_head(name, tmp_path):
    torch.manual_seed(0)
    whole = AutoModelForMaskedLM.from_config(TINY_CONFIGS[name]).eval()
    whole.save_pretrained(tmp_path)
    tiny_tokenizer().save_pretrained(tmp_path)
    encoder = load_encoder(tmp_path, pooling="mean")
    batch = encoder.tokenize(TEXTS)
    with torch.no_grad():
        states = whole.base_model(**batch).last_hidden_state
        plain = AutoModel.from_pretrained(tmp_path).eval()(**batch).last_hidden_state
    weights = batch["attention_mask"].unsqueeze(-1)
    for found in (states, plain):
        wanted = (found * weights).sum(1) / weights.sum(1)
        np.testing.assert_allclose(encoder.encode(TEXTS), wanted.numpy(), atol=1e-5)
