"""The prediction that bounds a sweep sees training pairs alone, and is made where it can count."""

from dataclasses import replace

import pytest

from truncate_kit import sweep_prediction
from truncate_kit.analysis.profile import predicted_drop
from truncate_kit.data import BUNDLED, load_pairs
from truncate_kit.methods.tmft.settings import SweepSettings
from truncate_kit.models import load_encoder
from truncate_kit.training.settings import TrainingSettings


@pytest.fixture(scope="module")
def splits():
    pairs = load_pairs(BUNDLED)
    return replace(pairs, train=replace(pairs.train, pairs=pairs.train.pairs[:60]))


def test_it_is_that_of_the_training_pairs(splits):
    encoder = load_encoder("mini-bert")
    found = sweep_prediction(encoder, splits)
    train = splits.train
    assert found == predicted_drop(encoder, train.texts(), pairs=train.pairs)
    assert found.probability is not None
    assert sweep_prediction(encoder, replace(splits, dev=None, test=None)) == found


@pytest.mark.parametrize("layers", ["3", "2..4"])
def test_there_is_none_where_layers_are_named(splits, layers):
    assert sweep_prediction(load_encoder("mini-bert"), splits, SweepSettings(layers=layers)) is None


def test_there_is_none_without_graded_similarity_to_learn(splits):
    encoder = load_encoder("mini-bert")
    assert sweep_prediction(encoder, splits, training=TrainingSettings(objective="entailment")) is None
    assert sweep_prediction(encoder, replace(splits, train=None)) is None
