import numpy as np
import pytest
import torch
from scipy.spatial.distance import pdist

from tests.support import cka as reference
from truncate_kit.analysis.hsic import biased_from_sums, median_distance, unbiased_from_sums


def linear_gram(states):
    return states @ states.mT


def hsic_biased(k, m):
    k, m = k.double(), m.double()
    return biased_from_sums((k * m).sum(), k.sum(0) @ m.sum(0), k.sum() * m.sum(), len(k))


def hsic_unbiased(k, m):
    k, m = (gram.double().clone().fill_diagonal_(0) for gram in (k, m))
    return unbiased_from_sums((k * m).sum(), k.sum(0) @ m.sum(0), k.sum() * m.sum(), len(k))


@pytest.fixture(scope="module")
def grams():
    x, y = reference.related_states(30, 8, 6)
    return linear_gram(x[1]), linear_gram(y[1])


@pytest.mark.parametrize(("ours", "estimator"), [(hsic_biased, "biased"), (hsic_unbiased, "debiased")])
def test_hsic_equals_its_matrix_formula(grams, ours, estimator):
    k, m = grams
    torch.testing.assert_close(ours(k, m), reference.hsic(k.double(), m.double(), estimator), rtol=1e-9, atol=0)


@pytest.mark.parametrize("count", [2, 3, 4, 5, 6])
def test_the_median_is_the_usual_one(count):
    x = torch.randn(2, count, 3, generator=torch.Generator().manual_seed(count))
    expected = [np.median(pdist(layer)) for layer in x.numpy()]
    np.testing.assert_allclose(median_distance(x), expected, rtol=1e-6)
