"""The screening equals ridge regressions fitted one by one."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge
from sklearn.model_selection import StratifiedKFold

from tests.support.classification import SMALL, sentences
from truncate_kit.data import LabelledSet
from truncate_kit.evaluation.screening import (
    RIDGE,
    WIDTH,
    few_coordinates,
    layer_subsets,
    projected,
    screen_features,
    screen_means,
)
from truncate_kit.evaluation.transfer import score_transfer
from truncate_kit.models import load_encoder


@pytest.fixture(scope="module")
def problem():
    """Five layers of 12 numbers for 240 texts of three classes, which layers 1 and 3 tell apart a little."""
    drawn = np.random.default_rng(0)
    labels = drawn.integers(3, size=240)
    states = drawn.normal(size=(5, 240, 12)) + drawn.normal(size=(5, 1, 12))
    states[1] += 0.4 * drawn.normal(size=(3, 12))[labels]
    states[3] += 0.5 * drawn.normal(size=(3, 12))[labels]
    folds = list(StratifiedKFold(4, shuffle=True, random_state=0).split(labels, labels))
    return states, labels, folds


def as_tensors(states, labels, folds):
    pairs = [(torch.from_numpy(a), torch.from_numpy(b)) for a, b in folds]
    return torch.from_numpy(states), torch.from_numpy(labels), pairs


def plain_accuracy(features, labels, folds):
    """Share of rows a ridge classifier of scikit-learn gets right, each held out in its fold."""
    right = 0
    for fitted, held in folds:
        values = features[fitted]
        penalty = RIDGE * ((values - values.mean(axis=0)) ** 2).sum(axis=0).mean()
        model = Ridge(alpha=penalty).fit(values, np.eye(3)[labels[fitted]])
        right += (model.predict(features[held]).argmax(axis=1) == labels[held]).sum()
    return right / len(labels)


def test_number_of_subsets_of_the_paper():
    assert len(layer_subsets(13, 4)) == 1092
    assert layer_subsets(3, 2) == [(0,), (1,), (2,), (0, 1), (0, 2), (1, 2)]


def test_means_of_layers(problem):
    states, labels, folds = problem
    subsets = layer_subsets(5, 4)
    expected = [plain_accuracy(states[list(subset)].mean(axis=0), labels, folds) for subset in subsets]
    tensors = as_tensors(*problem)
    assert screen_means(*tensors, subsets) == pytest.approx(expected, abs=1e-12)
    assert max(expected) > 0.6  # there is something to find
    assert min(expected) < 0.45


def test_more_subsets_than_are_solved_at_a_time(problem):
    tensors = as_tensors(*problem)
    many = layer_subsets(5, 5) * 5
    assert screen_means(*tensors, many) == screen_means(*tensors, layer_subsets(5, 5)) * 5


def test_features_that_are_not_linear(problem):
    states, labels, folds = problem
    subsets = layer_subsets(5, 2)
    tensors, tensor_labels, tensor_folds = as_tensors(*problem)

    def features(subset):
        return tensors[list(subset)].mean(dim=0).abs()

    expected = [plain_accuracy(np.abs(states[list(subset)].mean(axis=0)), labels, folds) for subset in subsets]
    found = screen_features(features, tensor_labels, tensor_folds, subsets)
    assert found == pytest.approx(expected, abs=1e-12)


def test_wide_states_are_projected_alike_and_keep_their_geometry():
    states = torch.randn(3, 50, 600, generator=torch.Generator().manual_seed(1))
    small = projected(states)
    assert small.shape == (3, 50, WIDTH)
    torch.testing.assert_close(small.mean(dim=0), projected(states.mean(dim=0, keepdim=True))[0])  # linear
    before, after = torch.cdist(states[0], states[0]), torch.cdist(small[0], small[0])
    off = ~torch.eye(50, dtype=torch.bool)
    ratio = after[off] / before[off] * (600 / WIDTH) ** 0.5
    assert ratio.min() > 0.8
    assert ratio.max() < 1.2
    torch.testing.assert_close(projected(states[:, :, :40]), states[:, :, :40].double())  # narrow ones stay as they are


def test_few_coordinates_are_the_same_of_every_layer():
    states = torch.arange(600.0).expand(4, 7, 600) + 1000 * torch.arange(4)[:, None, None]
    kept = few_coordinates(states)
    assert kept.shape == (4, 7, WIDTH // 2)
    assert torch.equal(kept[2] - 2000, kept[0])
    assert len(set(kept[0, 0].tolist())) == WIDTH // 2


@pytest.mark.parametrize("noise", [0.0, 1e-7])
def test_states_that_are_all_equal_are_no_error(problem, noise):
    states, labels, folds = as_tensors(*problem)
    states = states.clone()
    drawn = np.random.default_rng(3)
    # As the CLS states of the embeddings are: the same for every text, but for float32 rounding.
    states[0] = torch.from_numpy(30 * drawn.normal(size=(1, 12)) + noise * drawn.normal(size=(240, 12)))
    found = screen_means(states, labels, folds, [(0,), (3,), (0, 3)])
    assert found[0] <= 0.45  # no better than naming the most frequent class
    assert found[1] > 0.5
    assert found[2] == pytest.approx(found[1], abs=0.02)  # a layer that is constant adds a shift
    alone = screen_features(lambda subset: states[list(subset)].mean(dim=0), labels, folds, [(0,), (3,), (0, 3)])
    assert alone == pytest.approx(found, abs=0.02)


@pytest.mark.parametrize("paired", [False, True])
def test_a_model_that_is_pooled_by_cls(tiny_folder, paired):
    """Its embeddings have one CLS state for every text."""
    first, second = sentences(60, 1), sentences(60, 2)
    labels = tuple(int("red" in text) for text in first)
    one = LabelledSet(
        name="MR", first=tuple(first), second=tuple(second) if paired else None, labels=labels, classes=("0", "1")
    )
    report = score_transfer(load_encoder(tiny_folder("bert"), pooling="cls"), [one], model="tiny", settings=SMALL)
    assert (0,) not in report.sets[0].whole.chosen
