"""Contract 9: a subset of blocks is as exact as a truncation, for every family, or it is refused."""

import copy

import pytest
import torch
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer
from transformers import AutoModel

from tests.support.families import ATTENTION_CASES, TEXTS, TINY_CONFIGS, make_tiny
from truncate_kit.core.errors import LayerNotHeldError, LayerOutOfRangeError, ModelError
from truncate_kit.models.layer_pooling import LayerPooling
from truncate_kit.models.loading import load_encoder
from truncate_kit.models.pipeline import Normalize, save_encoder
from truncate_kit.models.store import encoder_digest
from truncate_kit.models.truncation import BlockRunner, keep, kept_config, layers_held, truncate

BLOCK_LISTS = ("layer", "layers", "h", "albert_layer_groups")
FIRST_NEEDED = {"modernbert"}


def by_hand(encoder, batch, blocks):
    """Return the whole model's token states, with all other blocks replaced by the identity."""
    backbone = encoder.backbone
    if 1 not in blocks and getattr(getattr(backbone, "encoder", None), "conv", None) is not None:
        backbone = copy.deepcopy(backbone)
        backbone.encoder.conv = None  # runs behind block 1
    (items,) = (module for name, module in backbone.named_modules() if name.rpartition(".")[2] in BLOCK_LISTS)
    calls = 0

    def hook(module, args, kwargs, output):
        nonlocal calls
        calls += 1
        if calls in blocks:
            return output
        given = args[0] if args else kwargs["hidden_states"]
        return given if isinstance(output, torch.Tensor) else (given, *output[1:])

    handles = [item.register_forward_hook(hook, with_kwargs=True) for item in items]
    extra = {}
    if encoder.family.decoder:
        extra = {"position_ids": (batch["attention_mask"].cumsum(1) - 1).clamp(min=0), "use_cache": False}
    try:
        states = backbone(**batch, **extra).last_hidden_state
    finally:
        for handle in handles:
            handle.remove()
    assert calls == encoder.depth
    return states


@pytest.mark.parametrize(("name", "attention"), ATTENTION_CASES)
@torch.no_grad()
def test_kept_blocks_compute_what_they_compute_in_the_whole_model(name, attention, tiny_folder):
    full = load_encoder(tiny_folder(name), attention=attention)
    batch = full.tokenize(TEXTS)
    assert batch["attention_mask"].min() == 0  # padded
    everything, runner = by_hand(full, batch, (1, 2, 3)), BlockRunner(full, batch)
    assert torch.equal(everything, full.token_states(**batch))
    assert encoder_digest(keep(full, (1, 2, 3))) == encoder_digest(full)
    for blocks in ((1, 3),) if name in FIRST_NEEDED else ((1, 3), (2, 3), (3,)):
        expected = by_hand(full, batch, blocks)
        assert not torch.allclose(expected, everything)
        kept, states = keep(full, blocks), runner.embedded
        assert kept.depth == len(blocks)
        assert torch.equal(kept.token_states(**batch), expected)
        for block in blocks:  # one by one
            states = runner.run(block, states)
        assert torch.equal(runner.vectors(states), kept(**batch))
    assert torch.equal(full.token_states(**batch), everything)


@pytest.mark.parametrize("name", TINY_CONFIGS)
@torch.no_grad()
def test_a_saved_subset_is_an_ordinary_checkpoint(name, tiny_folder, tmp_path):
    full = load_encoder(tiny_folder(name))
    batch = full.tokenize(TEXTS)
    blocks = (1, 3) if name in FIRST_NEEDED else (2, 3)
    kept = keep(full, blocks)
    states = kept.token_states(**batch)
    folder = save_encoder(kept, tmp_path / "lean")
    again = load_encoder(folder)
    assert torch.equal(again.token_states(**batch), states)
    assert encoder_digest(again) == encoder_digest(kept)
    same = encoder_digest(kept) == encoder_digest(truncate(full, 2))
    assert same == (name == "albert")  # its blocks share all weights
    weights = load_file(folder / "model.safetensors")
    used = (weight.numel() for name, weight in weights.items() if not name.startswith("pooler."))
    assert sum(used) == kept.num_parameters
    model, report = AutoModel.from_pretrained(folder, output_loading_info=True)
    assert not report["unexpected_keys"] | report["missing_keys"]
    torch.testing.assert_close(model(**batch).last_hidden_state[1, :2], states[1, :2], atol=1e-5, rtol=1e-4)
    theirs = SentenceTransformer(str(folder), device="cpu")(dict(batch))["sentence_embedding"]
    torch.testing.assert_close(theirs, kept.vectors(TEXTS), atol=1e-5, rtol=1e-4)


@torch.no_grad()
def test_what_a_block_depends_on_moves_with_it(tiny_folder):
    full = load_encoder(tiny_folder("modernbert"))
    full.backbone.config.layer_types = ["full_attention", "sliding_attention", "full_attention"]
    assert kept_config(full.backbone.config, (1, 3)).layer_types == ["full_attention", "full_attention"]
    qwen = load_encoder(tiny_folder("qwen2")).backbone.config
    assert (qwen.layer_types, qwen.max_window_layers) == (["full_attention", *["sliding_attention"] * 2], 1)
    cut = kept_config(qwen, (2, 3))
    assert (cut.layer_types, cut.max_window_layers) == (["sliding_attention"] * 2, 0)
    assert kept_config(qwen, (1, 3)).max_window_layers == 1


@torch.no_grad()
def test_gpt2_that_scales_by_place_keeps_the_first_blocks_only(tmp_path, monkeypatch):
    config = copy.deepcopy(TINY_CONFIGS["gpt2"])
    config.scale_attn_by_inverse_layer_idx = True
    monkeypatch.setitem(TINY_CONFIGS, "gpt2", config)
    full = load_encoder(make_tiny("gpt2", tmp_path / "gpt2"))
    batch = full.tokenize(TEXTS)
    assert torch.equal(keep(full, (1, 2)).token_states(**batch), by_hand(full, batch, (1, 2)))
    with pytest.raises(LayerNotHeldError):
        keep(full, (1, 3))


@torch.no_grad()
def test_albert_keeps_what_its_groups_can_hold(tmp_path, monkeypatch):
    config = copy.deepcopy(TINY_CONFIGS["albert-grouped"])
    config.num_hidden_layers, config.num_hidden_groups = 6, 2  # blocks 1 to 3 share weights, and 4 to 6
    monkeypatch.setitem(TINY_CONFIGS, "albert-grouped", config)
    full = load_encoder(make_tiny("albert-grouped", tmp_path / "albert"))
    batch = full.tokenize(TEXTS)
    for blocks in ((1, 2, 4), (2, 5), (5, 6), (1, 3, 4, 6)):
        kept = keep(full, blocks)
        assert torch.equal(kept.token_states(**batch), by_hand(full, batch, blocks))
        assert len(kept.backbone.encoder.albert_layer_groups) == len({block > 3 for block in blocks})
    for blocks in ((1, 4, 5), (1, 2, 3, 4), (3, 4, 5, 6)):
        with pytest.raises(LayerNotHeldError, match="shares weights within groups of blocks"):
            keep(full, blocks)
    assert layers_held(full.backbone.config) == (0, 1, 2, 3, 5, 6)


@pytest.mark.parametrize(
    ("name", "blocks", "error"),
    [
        *[("bert", (0, 1), LayerOutOfRangeError), ("bert", (1, 4), LayerOutOfRangeError), ("bert", (3, 1), ModelError)],
        *[("deberta-v3", (), LayerNotHeldError), ("modernbert", (2, 3), LayerNotHeldError)],
    ],
)
def test_what_is_no_subset_or_cannot_be_stored_is_refused(name, blocks, error, tiny_folder):
    with pytest.raises(error):
        keep(load_encoder(tiny_folder(name)), blocks)


def test_the_pipeline_is_kept_and_what_needs_all_layers_is_not(tiny_folder):
    full = load_encoder(tiny_folder("bert"), pooling="cls", max_length=9)
    full.tail.append(Normalize())
    full.settings = {"prompts": {"query": "a dog and "}, "default_prompt_name": "query"}
    kept = keep(full, (1, 3))
    assert (kept.pooling, kept.max_length, kept.settings, len(kept.tail)) == ("cls", 9, full.settings, 1)
    full.pool_with(LayerPooling(16, layers=(1, 3)))
    assert keep(full, (1, 2, 3)).pooler is not None
    kept = keep(full, (1, 3))
    assert (kept.pooler, kept.backbone.config.output_hidden_states) == (None, False)


def test_weights_are_shared_only_where_asked(tiny_folder):
    full = load_encoder(tiny_folder("bert"))
    third = full.backbone.encoder.layer[2].attention.self.query.weight
    for copied in (True, False):
        kept = keep(full, (1, 3), copy_weights=copied).backbone.encoder.layer[1].attention.self.query.weight
        assert torch.equal(kept, third)
        assert (kept.data_ptr() == third.data_ptr()) != copied
