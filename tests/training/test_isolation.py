"""A training depends on nothing that its process does besides, and leaves nothing behind in it."""

import functools
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch

from tests.support.training import ONCE, swept
from truncate_kit.core.hardware import bf16_instructions
from truncate_kit.methods.priors import adapt
from truncate_kit.models.loading import load_encoder
from truncate_kit.training.settings import AdaptationSettings


@pytest.fixture(scope="module")
def train(tiny_folder, tmp_path_factory):
    """Train a model that drops units; its vectors of a text, to the last bit."""
    encoder = load_encoder(tiny_folder("bert"))
    assert encoder.backbone.config.hidden_dropout_prob > 0

    def run(context=nullcontext, precision="fp32"):
        out = tmp_path_factory.mktemp("trained")
        with context():
            swept(encoder, out, training=replace(ONCE, precision=precision), layers="1")
        return load_encoder(out / "lean").encode("the cat sat").tobytes()

    return run


@pytest.fixture(scope="module")
def alone(train):
    """What a training gives where nothing else is done, by its precision; each is done once."""
    return functools.cache(lambda precision: train(precision=precision))


def autocast():
    return torch.autocast("cpu", dtype=torch.bfloat16)


@pytest.mark.parametrize(
    ("context", "precision"),
    [(torch.no_grad, "fp32"), (torch.inference_mode, "fp32"), (autocast, "fp32"), (autocast, "bf16")],
)
def test_what_the_caller_has_switched_on_does_not_reach_it(train, alone, context, precision):
    if precision == "bf16" and bf16_instructions(torch.device("cpu")) is None:
        pytest.skip("bf16 is emulated on this processor")
    assert train(context, precision) == alone(precision)


def test_the_generator_is_as_it_was(train, tiny_folder):
    for call in (train, lambda: adapt(load_encoder(tiny_folder("bert")), ["the cat"] * 20 + TEXTS, ONE)):
        torch.manual_seed(123)
        expected = torch.rand(3)
        torch.manual_seed(123)
        call()
        assert torch.equal(torch.rand(3), expected)


ONE = AdaptationSettings(epochs=1, batch_size=8)
TEXTS = [f"{kind} {beast} {deed}" for kind in ("the", "a red") for beast in ("cat", "dog") for deed in
         ("sat", "ran", "sat on the mat", "ran under the tree", "and the dog", "is big", "is small")]  # fmt: skip


def test_threads_that_train_do_not_change_each_other(train, alone):
    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(train, [nullcontext] * 2)) == [alone("fp32")] * 2
