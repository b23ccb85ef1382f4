"""DeBERTa's scores by distance: the same as transformers' own, gradients too, from fewer products."""

import copy
import pickle

import pytest
import torch
from transformers import AutoModel, DebertaV2Config

from truncate_kit.models.families import DisentangledSelfAttention, NearAttention
from truncate_kit.models.loading import load_encoder, random_encoder
from truncate_kit.models.pipeline import save_encoder
from truncate_kit.models.truncation import keep, truncate

KINDS = {
    "buckets": {"position_buckets": 8},
    "no buckets": {"position_buckets": -1, "max_relative_positions": 6},
    "buckets beyond their distances": {"position_buckets": 16, "max_relative_positions": 16},
    "fewer positions than buckets": {"position_buckets": 16, "max_relative_positions": 9},
    "as long as its buckets": {"position_buckets": 32, "max_position_embeddings": 40},
    "projections of their own": {"position_buckets": 8, "share_att_key": False},
    "content to position": {"position_buckets": 8, "pos_att_type": ["c2p"]},
    "position to content": {"position_buckets": 8, "pos_att_type": ["p2c"]},
    "neither": {"position_buckets": 8, "pos_att_type": []},
    "no distances": {"relative_attention": False},
}


def made(**more):
    usual = {
        "vocab_size": 60, "hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 64, "num_hidden_layers": 2,
        "relative_attention": True, "norm_rel_ebd": "layer_norm", "share_att_key": True, "pos_att_type": ["p2c", "c2p"],
        "position_biased_input": False, "type_vocab_size": 0, "max_position_embeddings": 64,
    }  # fmt: skip
    torch.manual_seed(0)
    encoder = random_encoder(DebertaV2Config(**usual | more), name="deberta")
    with torch.no_grad():
        for weight in encoder.parameters():
            weight.normal_(0, 0.3)
    return encoder


def attentions(module):
    return [one for one in module.modules() if isinstance(one, DisentangledSelfAttention)]


def batch(length):
    ids = torch.randint(0, 60, (3, length), generator=torch.Generator().manual_seed(length))
    mask = torch.ones_like(ids)
    mask[1, length // 2 + 1 :] = 0
    return ids, mask


def plain(encoder):
    """A copy with transformers' own attention."""
    other = copy.deepcopy(encoder)
    for one in attentions(other):
        one.__class__ = DisentangledSelfAttention
    return other


@pytest.mark.parametrize("kind", KINDS)
def test_vectors_are_those_of_transformers(kind):
    encoder = made(**KINDS[kind]).eval()
    other = plain(encoder)
    assert {type(one) for one in attentions(encoder)} == {NearAttention}
    for length in (1, 2, 5, 9, 17, 33, 40):  # the table reaches 6, 8, 16 or 32 distances
        with torch.inference_mode():
            found, wanted = encoder(*batch(length)), other(*batch(length))
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6)


def test_copies_cuts_and_other_processes_have_it_and_saved_folders_do_not(tmp_path):
    encoder = made(position_buckets=8).eval()
    for one in (copy.deepcopy(encoder), truncate(encoder, 1), keep(encoder, [2]), pickle.loads(pickle.dumps(encoder))):
        assert {type(found) for found in attentions(one)} == {NearAttention}
    wide = made(position_buckets=8, vocab_size=8192)
    wide.tokenizer = load_encoder("mini-bert").tokenizer
    save_encoder(wide, tmp_path / "saved")
    assert {type(one) for one in attentions(load_encoder(tmp_path / "saved"))} == {NearAttention}
    plainly = attentions(AutoModel.from_pretrained(tmp_path / "saved"))
    assert {type(one) for one in plainly} == {DisentangledSelfAttention}
