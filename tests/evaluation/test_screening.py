"""The screening equals ridge regressions fitted one by one."""

from itertools import combinations

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge
from sklearn.model_selection import StratifiedKFold

from truncate_kit.evaluation.classifiers import RIDGE, WIDTH, _small, ridge_accuracies


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


def layer_subsets(layers, most):
    return [subset for size in range(1, most + 1) for subset in combinations(range(layers), size)]


def plain_accuracy(features, labels, folds):
    """Share of rows a ridge classifier of scikit-learn gets right, each held out in its fold."""
    right = 0
    for fitted, held in folds:
        values = features[fitted]
        penalty = RIDGE * ((values - values.mean(axis=0)) ** 2).sum(axis=0).mean()
        model = Ridge(alpha=penalty).fit(values, np.eye(3)[labels[fitted]])
        right += (model.predict(features[held]).argmax(axis=1) == labels[held]).sum()
    return right / len(labels)


def test_means_of_layers_equal_ridge_regressions_of_scikit_learn(problem):
    states, labels, folds = problem
    subsets = layer_subsets(5, 5) * 3  # more than are solved at a time
    expected = [plain_accuracy(states[list(subset)].mean(axis=0), labels, folds) for subset in subsets[:31]]
    found = ridge_accuracies(torch.from_numpy(states), labels, folds, subsets)
    assert found == pytest.approx(expected * 3, abs=1e-12)
    assert max(expected) > 0.6  # there is something to find
    assert min(expected) < 0.45


def test_wide_states_are_projected_alike_and_keep_their_geometry():
    states = torch.randn(3, 50, 600, generator=torch.Generator().manual_seed(1))
    small = _small(states, True, True)
    assert small.shape == (3, 50, WIDTH)
    torch.testing.assert_close(small.mean(dim=0), _small(states.mean(dim=0, keepdim=True), True, True)[0])  # linear
    before, after = torch.cdist(states[0], states[0]), torch.cdist(small[0], small[0])
    off = ~torch.eye(50, dtype=torch.bool)
    ratio = after[off] / before[off] * (600 / WIDTH) ** 0.5
    assert ratio.min() > 0.8
    assert ratio.max() < 1.2
    torch.testing.assert_close(_small(states[:, :, :40], True, True), states[:, :, :40].double())  # narrow: as they are
    assert _small(states, False, True).shape == (3, 50, WIDTH)
    assert _small(states, True, False).shape == (3, 50, WIDTH // 2)


@pytest.mark.parametrize("noise", [0.0, 1e-7])
def test_states_that_are_all_equal_are_no_error(problem, noise):
    states, labels, folds = problem
    states = states.copy()
    drawn = np.random.default_rng(3)
    # As the CLS states of the embeddings are: the same for every text, but for float32 rounding.
    states[0] = 30 * drawn.normal(size=(1, 12)) + noise * drawn.normal(size=(240, 12))
    found = ridge_accuracies(torch.from_numpy(states), labels, folds, [(0,), (3,), (0, 3)])
    assert found[0] <= 0.45  # no better than naming the most frequent class
    assert found[1] > 0.5
    assert found[2] == pytest.approx(found[1], abs=0.02)  # a layer that is constant adds a shift
