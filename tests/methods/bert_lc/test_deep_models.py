"""Where there are too many layers to try every subset, less is tried and the report says so."""

import pytest
import torch
from transformers import AutoModel, BertConfig

from tests.support.families import TINY_CONFIGS, tiny_tokenizer
from tests.support.pairs import sentence_pairs
from truncate_kit.errors import UsageError
from truncate_kit.methods.bert_lc.combine import combine
from truncate_kit.methods.bert_lc.search import count_subsets
from truncate_kit.methods.bert_lc.settings import CombineSettings
from truncate_kit.models import load_encoder


def deep_encoder(depth, folder):
    torch.manual_seed(0)
    sizes = TINY_CONFIGS["bert"].to_dict() | {"num_hidden_layers": depth}
    AutoModel.from_config(BertConfig(**sizes)).save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return load_encoder(folder)


def test_a_beam_beyond_27_layers_with_its_loss_on_sixteen_of_them(tmp_path):
    encoder, pairs = deep_encoder(27, tmp_path / "m"), sentence_pairs(30)
    report = combine(encoder, pairs, settings=CombineSettings(dev_pairs=12, splits=1, width=2))
    assert (report.method, report.up_to, report.depth) == ("beam", 28, 27)
    assert report.num_subsets <= 28 + 2 * 27 * 28
    assert len(report.beam_layers) == 16
    assert {0, 27} <= set(report.beam_layers)
    assert report.beam_loss >= 0
    assert f"Tried on 16 of the layers, the beam search lost at most {report.beam_loss:.3f}" in report.statements()[-1]
    with pytest.raises(UsageError, match="268,435,455 combinations are too many"):
        combine(encoder, pairs, settings=CombineSettings(dev_pairs=12, splits=1, search="exact"))
    few = combine(encoder, pairs, settings=CombineSettings(dev_pairs=12, splits=1, up_to=2))
    assert (few.method, few.num_subsets) == ("exact", 28 + 28 * 27 // 2)


def test_maxima_are_capped_by_size_and_it_is_said(tmp_path):
    encoder, pairs = deep_encoder(19, tmp_path / "m"), sentence_pairs(30)
    report = combine(encoder, pairs, settings=CombineSettings(over="max", dev_pairs=12, splits=1))
    assert (report.up_to, report.num_subsets) == (4, count_subsets(20, 4))
    assert "Combinations of more than 4 layers were left out" in report.statements()[1]
