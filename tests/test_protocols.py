"""What nobody has to tell: the defaults are the protocols of the papers."""

import inspect

import pytest

from truncate_kit.evaluation.retrieval import score_retrieval
from truncate_kit.evaluation.transfer import LOGISTIC, TransferSettings
from truncate_kit.methods.bert_lc.settings import CombineSettings
from truncate_kit.methods.contrast.settings import ContrastiveSettings
from truncate_kit.methods.frozen.settings import FrozenSettings


def test_layer_combination():
    settings = CombineSettings()
    assert (settings.over, settings.dev_pairs, settings.splits, settings.up_to) == ("mean", 350, 5, None)


@pytest.mark.parametrize(("objective", "epochs"), [("in-batch", 3), ("hard-negatives", 3), ("dropout", 1)])
def test_layer_attention(objective, epochs):
    settings = ContrastiveSettings(objective=objective)
    training = settings.training("bert", 768)
    assert (training.epochs, training.warmup, training.weight_decay) == (epochs, 0, 0)
    assert (settings.pooling, settings.over, settings.last_cls, settings.literal) == (
        "layer-attention", "both", True, False,
    )  # fmt: skip
    assert (settings.temperature, settings.max_tokens, settings.keep_pooler, settings.mlp) == (0.05, 64, True, True)


def test_frozen_heads():
    settings = FrozenSettings()
    assert settings.steps == ("cosine", "siamese", "autoencoder")
    assert settings.raw_sentences == 20_000
    assert set(settings.code_widths(24, 1024)) == {256, 512}
    assert (settings.loss, settings.depth, settings.final_norm) == ("log-variance", 1, False)


def test_transfer():
    settings = TransferSettings()
    assert (settings.splits, settings.test_share) == (10, 0.15)
    assert (settings.inner_splits, settings.inner_share) == (10, 0.18)
    assert (settings.largest_subset(13), settings.largest_subset(25), settings.largest_subset(3)) == (4, 3, 3)
    assert LOGISTIC == {"solver": "saga", "C": 10, "tol": 0.01, "max_iter": 200}
    assert (settings.fractions, settings.max_rows) == ((1.0,), None)


def test_retrieval():
    assert inspect.signature(score_retrieval).parameters["lists"].default == 1024
