"""Masked words: what is hidden, the loss against transformers' own, the head, and what an adaptation leaves."""

import dataclasses
import json

import numpy as np
import pytest
import torch
from transformers import AutoModelForMaskedLM

from tests.support.adapting import TEXTS
from tests.support.training import without_dropout
from truncate_kit.core.errors import DataError, ModelError
from truncate_kit.methods.priors import (
    IGNORED,
    MaskedTexts,
    adapt,
    adapted,
    hidden_words,
    load_masked_head,
    mask_tokens,
    masked_loss,
)
from truncate_kit.methods.study.plan import StudyModel
from truncate_kit.methods.study.running import load_model
from truncate_kit.models.loading import load_encoder
from truncate_kit.models.store import encoder_digest
from truncate_kit.models.truncation import truncate
from truncate_kit.training.settings import AdaptationSettings

SHORT = AdaptationSettings(epochs=2, batch_size=64, learning_rate=3e-3)
FAMILIES = ["bert", "electra", "deberta", "roberta", "distilbert", "mpnet", "albert", "modernbert"]


def test_the_shares_of_what_is_hidden_are_those_of_bert():
    ids = torch.full((4000, 20), 7)
    maskable = torch.ones_like(ids, dtype=torch.bool)
    maskable[:, 0] = False
    hidden, labels = mask_tokens(ids, maskable, 3, 1000, torch.Generator().manual_seed(0), 0.15)
    chosen = labels != IGNORED
    assert not chosen[:, 0].any()
    assert chosen.any(dim=1).all()  # no text is wasted
    # A row of 19 goes without a choice with a chance of 0.85 ** 19 = 0.046, and then gets one.
    assert float(chosen[:, 1:].float().mean()) == pytest.approx(0.15 + 0.85**19 / 19, abs=0.004)
    assert (labels[chosen] == 7).all()
    assert (hidden[~chosen] == 7).all()
    assert float((hidden[chosen] == 3).float().mean()) == pytest.approx(0.8, abs=0.015)
    assert float((hidden[chosen] == 7).float().mean()) == pytest.approx(0.1, abs=0.012)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_loss_equals_the_whole_model_of_transformers(tiny_folder, tmp_path, family):
    torch.manual_seed(1)
    encoder = without_dropout(load_encoder(tiny_folder(family))).eval()
    whole = AutoModelForMaskedLM.from_config(encoder.backbone.config).eval()
    getattr(whole, whole.base_model_prefix).load_state_dict(encoder.backbone.state_dict(), strict=False)
    whole.save_pretrained(tmp_path)
    encoder.tokenizer.save_pretrained(tmp_path)
    encoder = load_encoder(tmp_path, pooling="mean").eval()
    head = load_masked_head(encoder).eval()
    assert head.pretrained
    batch = encoder.tokenize([*TEXTS[:5], "cat"])
    labels = torch.where(torch.rand(batch["input_ids"].shape) < 0.4, batch["input_ids"], IGNORED)
    labels[batch["attention_mask"] == 0] = IGNORED
    expected = AutoModelForMaskedLM.from_pretrained(tmp_path).eval()(**batch, labels=labels).loss
    torch.testing.assert_close(masked_loss(encoder, head, batch, hidden_words(labels)), expected)


def test_debertas_own_head_is_reused(tiny_folder, tmp_path):
    encoder = load_encoder(tiny_folder("deberta-v2"))
    config = encoder.backbone.config
    config.legacy = False
    torch.manual_seed(2)
    whole = AutoModelForMaskedLM.from_config(config).eval()
    config.legacy = True
    weights = whole.state_dict()
    assert any(name.startswith("lm_predictions.") for name in weights)
    whole.save_pretrained(tmp_path)
    settings = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({k: v for k, v in settings.items() if k != "legacy"}))
    encoder.tokenizer.save_pretrained(tmp_path)
    encoder = load_encoder(tmp_path, pooling="mean").eval()
    head = load_masked_head(encoder).eval()
    assert head.pretrained
    batch = encoder.tokenize(["the cat sat", "a dog"])
    with torch.inference_mode():
        states = encoder.token_states(**batch)
        torch.testing.assert_close(head(states[0]), whole(**batch).logits[0])


def test_weights_drawn_anew_get_a_new_head(tiny_folder, tmp_path):
    """The checkpoint has a head, but it belongs to the embeddings that were thrown away."""
    folder = tmp_path / "pretrained"
    AutoModelForMaskedLM.from_config(load_encoder(tiny_folder("bert")).backbone.config).save_pretrained(folder)
    load_encoder(tiny_folder("bert")).tokenizer.save_pretrained(folder)
    drawn = load_model(StudyModel(model=str(folder), name="drawn", weights="random"))
    assert load_masked_head(load_encoder(folder)).pretrained
    assert not load_masked_head(drawn).pretrained


@pytest.mark.parametrize("family", ["bert", "electra", "deberta-v2"])
def test_head_and_embeddings_stay_tied_and_both_are_trained(tiny_folder, family):
    encoder = load_encoder(tiny_folder(family))
    head = load_masked_head(encoder)
    assert not head.pretrained
    words = encoder.backbone.get_input_embeddings().weight
    assert any(parameter is words for parameter in head.parameters())
    examples = MaskedTexts(encoder, encoder.token_ids(TEXTS[:16]), head)
    examples.loss(encoder, range(16)).backward()
    assert all(parameter.grad is not None for parameter in head.parameters())
    assert all(p.grad is not None for p in encoder.parameters())


def test_a_killed_adaptation_continues_and_ends_alike(tiny_folder, tmp_path):
    encoder = load_encoder(tiny_folder("bert"))  # with dropout: its draws must continue too
    whole, result = adapted(encoder, TEXTS[:200], tmp_path / "whole", SHORT)
    # Kept weights are those of every model with these weights, whatever it has seen.
    same = truncate(encoder, encoder.depth)
    same.seen = np.array([3, 5], np.uint64)
    again, _ = adapted(same, TEXTS[:200], tmp_path / "whole", SHORT)
    assert (encoder.seen.size, again.seen.tolist()) == (0, [3, 5])
    steps = -(-result.num_texts // SHORT.batch_size)

    def stop(task, done, total):
        if done == steps + 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        adapted(encoder, TEXTS[:200], tmp_path / "killed", SHORT, progress=stop)
    assert list((tmp_path / "killed").glob("*/*.checkpoint"))
    resumed, again = adapted(encoder, TEXTS[:200], tmp_path / "killed", SHORT)
    assert again.losses == pytest.approx(result.losses)
    for ours, theirs in zip(resumed.parameters(), whole.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs)
    assert not list((tmp_path / "killed").glob("*/*.checkpoint"))


def test_from_a_middle_layer_and_once_only(tiny_folder, tmp_path):
    encoder = without_dropout(load_encoder(tiny_folder("electra")))
    before = {name: value.clone() for name, value in encoder.state_dict().items()}
    model, result = adapted(encoder, TEXTS, tmp_path, SHORT, layer=2)
    assert (model.depth, result.layer) == (2, 2)
    assert result.losses[result.best_epoch] == min(result.losses) < result.losses[0] - 0.1
    assert result.num_texts + result.num_held_out == len(TEXTS)
    assert all(torch.equal(value, before[name]) for name, value in encoder.state_dict().items())
    again, read = adapted(encoder, TEXTS, tmp_path, SHORT, layer=2)
    assert read == result
    assert all(torch.equal(value, again.state_dict()[name]) for name, value in model.state_dict().items())
    adapted(encoder, TEXTS, tmp_path, dataclasses.replace(SHORT, epochs=1), layer=2)
    assert len([path for path in tmp_path.iterdir() if path.is_dir()]) == 2


def test_a_checkpoint_with_a_head_is_not_given_the_adaptation_of_one_without(encoder, tmp_path):
    folders = {"with": tmp_path / "with", "without": tmp_path / "without"}
    torch.manual_seed(4)
    whole = AutoModelForMaskedLM.from_config(encoder.backbone.config)
    whole.save_pretrained(folders["with"])
    whole.base_model.save_pretrained(folders["without"])
    for folder in folders.values():
        encoder.tokenizer.save_pretrained(folder)
    short = dataclasses.replace(SHORT, epochs=1)
    models = {name: load_encoder(folder, pooling="mean") for name, folder in folders.items()}
    assert encoder_digest(models["with"]) == encoder_digest(models["without"])
    one, other = (adapted(model, TEXTS[:100], tmp_path / "out", short)[1] for model in models.values())
    assert (one.head_pretrained, other.head_pretrained) == (True, False)
    assert one.losses != other.losses


def test_what_cannot_be_adapted_is_said(encoder, tiny_folder):
    with pytest.raises(ModelError, match="predicts the next token"):
        adapt(load_encoder(tiny_folder("gpt2")), TEXTS, SHORT)
    with pytest.raises(DataError, match="No token of the held-out texts can be masked"):
        adapt(encoder, [f"\u2665{number}" for number in range(60)])
    with pytest.raises(DataError, match="Only 3 distinct texts"):
        adapt(encoder, ["a", "b", "c", "a"], SHORT)
    encoder.tokenizer.mask_token = None
    with pytest.raises(ModelError, match="has no mask token"):
        adapt(encoder, TEXTS, SHORT)
