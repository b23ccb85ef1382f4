"""States of every layer equal transformers' own in any batch, and no block runs in vain."""

from itertools import chain

import pytest
import torch
from transformers.models.bert.modeling_bert import BertLayer

from tests.support.families import PLAIN_POOLING, TINY_CONFIGS, make_tiny, plain_states
from truncate_kit.models.loading import load_encoder
from truncate_kit.models.truncation import (
    BATCH_TOKENS,
    WINDOW_TEXTS,
    iter_states,
    layer_states,
    layers_held,
)

TEXTS = [
    "a red dog",
    "the cat sat on the mat and the dog ran under a tree",
    "the big cat sat under the small blue tree",
    "dog",
    "a red dog",
]


CASES = [(name, "mean", False) for name in TINY_CONFIGS]
CASES += [(name, pooling, True) for name in ("bert", "gpt2", "llama") for pooling in ("mean", "cls", "max", "last")]


@pytest.mark.parametrize(("name", "pooling", "raw"), CASES)
def test_states_are_those_of_transformers_in_input_order_also_up_to_a_layer(name, pooling, raw, tiny_folder):
    encoder = load_encoder(tiny_folder(name))
    states = layer_states(encoder, TEXTS, pooling=pooling, raw=raw)
    layers = [plain_states(tiny_folder(name), text, normed=not raw) for text in TEXTS]
    expected = [torch.stack([PLAIN_POOLING[pooling](layer) for layer in text]) for text in layers]
    torch.testing.assert_close(states, torch.stack(expected, 1), atol=2e-5, rtol=1e-4)
    for layer in layers_held(encoder.backbone.config):
        assert torch.equal(layer_states(encoder, TEXTS, pooling=pooling, raw=raw, up_to=layer), states[: layer + 1])


@pytest.mark.parametrize("layer", [0, 1, 2, 3])
def test_up_to_never_runs_an_upper_block(layer, tiny_folder, monkeypatch):
    encoder, calls, forward = load_encoder(tiny_folder("bert")), [], BertLayer.forward
    monkeypatch.setattr(BertLayer, "forward", lambda *args, **named: calls.append(1) or forward(*args, **named))
    layer_states(encoder, TEXTS, up_to=layer)
    assert len(calls) == layer


def test_batches_hold_each_text_once_with_tokens_mask_and_progress(encoder):
    encoder.train()
    heard = []
    batches = list(chain(*iter_states([encoder], TEXTS, batch_size=2, progress=lambda *step: heard.append(step))))
    assert encoder.training
    assert [places for places, _, _, _ in batches] == [[1, 2], [0, 4], [3]]  # longest first
    assert [done for _, done, _ in heard] == [2, 4, 5]
    assert {total for _, _, total in heard} == {5}
    whole = layer_states(encoder, TEXTS)
    for places, pooled, hidden, mask in batches:
        assert len(hidden) == 4
        assert hidden[0].shape == (*mask.shape, 16)
        assert mask.sum(1).tolist() == [len(encoder.token_ids([TEXTS[place]])[0]) for place in places]
        torch.testing.assert_close(pooled, whole[:, places], atol=2e-5, rtol=1e-4)
        pooled.mul_(2)  # an ordinary tensor


def test_many_texts_come_in_windows_and_long_texts_in_small_batches(encoder):
    texts = ["dog"] * WINDOW_TEXTS + [TEXTS[1]] * (BATCH_TOKENS // 15 + 1)  # of 15 tokens
    batches = list(chain(*iter_states([encoder], texts, batch_size=len(texts))))
    assert sorted(place for places, _, _, _ in batches for place in places) == list(range(len(texts)))
    assert max(mask.numel() for _, _, _, mask in batches) <= BATCH_TOKENS
    sizes = [len(places) for places, _, _, _ in batches]
    assert sizes[-2:] == [BATCH_TOKENS // 15, 1]  # the second window comes after the first
    assert {mask.shape[1] for _, _, _, mask in batches[:-2]} == {3}


def test_two_encoders_with_different_tokenizers_share_batches(tiny_folder, tmp_path):
    first = load_encoder(tiny_folder("bert"))
    folder = make_tiny("electra-generator", tmp_path / "other", seed=1)
    text = (folder / "tokenizer.json").read_text(encoding="utf-8")
    (folder / "tokenizer.json").write_text(text.replace('"mat"', '"rug"'), encoding="utf-8")
    second = load_encoder(folder)
    second.max_length = 6
    assert first.token_ids([TEXTS[1]]) != second.token_ids([TEXTS[1]])
    expected = [layer_states(first, TEXTS), layer_states(second, TEXTS)]
    seen = 0
    for batches in iter_states([first, second], TEXTS, batch_size=2):
        assert batches[0][0] == batches[1][0]
        seen += len(batches[0][0])
        for (places, pooled, _, _), states in zip(batches, expected, strict=True):
            torch.testing.assert_close(pooled, states[:, places], atol=2e-5, rtol=1e-4)
    assert seen == 5
