"""What the transfer suite classifies by is what the model gives, however it makes its vectors."""

import numpy as np
import pytest
import torch
from torch import nn

from tests.support.classification import SMALL, fit_and_score, plain_divisions, sentences
from truncate_kit.data.suites import LabelledSet
from truncate_kit.evaluation.transfer import score_transfer, text_features
from truncate_kit.methods.bert_lc.combine import combined_encoder
from truncate_kit.methods.contrast.model import poolable_encoder
from truncate_kit.methods.contrast.settings import ContrastiveSettings
from truncate_kit.models.loading import load_encoder
from truncate_kit.models.pipeline import Normalize, save_encoder
from truncate_kit.models.truncation import layer_states

TEXTS = sentences(12)


@pytest.mark.parametrize("layers", [(1, 3), (0, 2)])
def test_of_a_combination_the_mean_over_its_layers(tiny_folder, tmp_path, layers):
    full = load_encoder(tiny_folder("bert"))
    folder = save_encoder(combined_encoder(full, layers), tmp_path / "combined")
    vectors, states = text_features(load_encoder(folder), TEXTS)
    torch.testing.assert_close(vectors, layer_states(full, TEXTS)[list(layers)].mean(dim=0), atol=1e-5, rtol=1e-4)
    assert states.shape == (max(layers) + 1, len(TEXTS), 16)


@pytest.mark.parametrize(("name", "tokens"), [("bert", "mean"), ("electra", "max"), ("gpt2", "last")])
def test_of_a_maximum_over_layers_its_vectors_and_the_states_it_is_taken_from(tiny_folder, tmp_path, name, tokens):
    full = load_encoder(tiny_folder(name), pooling=tokens)
    folder = save_encoder(combined_encoder(full, (0, 2), over="max"), tmp_path / "combined")
    vectors, states = text_features(load_encoder(folder), TEXTS)
    expected = layer_states(full, TEXTS)
    torch.testing.assert_close(vectors, torch.maximum(expected[0], expected[2]), atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(states, expected[:3], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("pooling", ["layer-attention", "first-last", "concat", "cls"])
def test_of_a_trained_pooling_its_vectors(tiny_folder, pooling):
    encoder = poolable_encoder(load_encoder(tiny_folder("bert")), ContrastiveSettings(pooling=pooling), seed=1).eval()
    encoder.tail = nn.ModuleList([*encoder.tail, Normalize()])
    torch.testing.assert_close(text_features(encoder, TEXTS)[0], encoder.vectors(TEXTS), atol=1e-6, rtol=1e-5)


def test_accuracies_of_a_combination(tiny_folder):
    texts = sentences(120, seed=4)
    labels = np.array([int(text.split().count("cat") > text.split().count("dog")) for text in texts])
    rows = LabelledSet(name="MR", first=tuple(texts), second=None, labels=tuple(labels.tolist()), classes=("0", "1"))
    encoder = combined_encoder(load_encoder(tiny_folder("bert")), (0, 1))
    (point,) = score_transfer(encoder, [rows], model="tiny", settings=SMALL).rows
    values = layer_states(encoder, texts)
    for kind, features in (("as it is", values.mean(dim=0)), ("last layer", values[1])):
        expected = [fit_and_score(features.numpy(), labels, *division) for division in plain_divisions(labels, 2)]
        assert point.values[kind] == pytest.approx(np.mean(expected))
