import numpy as np
import pytest
import torch
from scipy.spatial.distance import pdist

from tests.support import cka as reference
from truncate_kit.analysis.cka import cka_matrix
from truncate_kit.analysis.hsic import biased_from_sums, median_distance, unbiased_from_sums
from truncate_kit.core.errors import DataError


def linear_gram(states):
    return states @ states.mT


def hsic_biased(k, m):
    k, m = k.double(), m.double()
    return biased_from_sums((k * m).sum(), k.sum(0) @ m.sum(0), k.sum() * m.sum(), len(k))


def hsic_unbiased(k, m):
    k, m = (gram.double().clone().fill_diagonal_(0) for gram in (k, m))
    return unbiased_from_sums((k * m).sum(), k.sum(0) @ m.sum(0), k.sum() * m.sum(), len(k))


def u_center_gram(gram):
    """Székely and Rizzo 2014: rows and columns of the zero-diagonal result sum to zero."""
    n, hollow = len(gram), gram.clone().fill_diagonal_(0)
    rows = hollow.sum(0) / (n - 2)
    return (hollow - rows[:, None] - rows[None, :] + hollow.sum() / ((n - 1) * (n - 2))).fill_diagonal_(0)


@pytest.fixture(scope="module")
def grams():
    x, y = reference.related_states(30, 8, 6)
    return linear_gram(x[1]), linear_gram(y[1])


@pytest.mark.parametrize(("ours", "estimator"), [(hsic_biased, "biased"), (hsic_unbiased, "debiased")])
def test_hsic_equals_its_matrix_formula(grams, ours, estimator):
    k, m = grams
    torch.testing.assert_close(ours(k, m), reference.hsic(k.double(), m.double(), estimator), rtol=1e-9, atol=0)


def test_unbiased_hsic_is_the_inner_product_of_u_centred_grams(grams):
    k, m = (gram.double() for gram in grams)
    inner = (u_center_gram(k) * u_center_gram(m)).sum() / (30 * 27)
    torch.testing.assert_close(hsic_unbiased(k, m), inner)


def test_the_bandwidth_of_rbf_is_the_median_of_distinct_pairs():
    x = torch.tensor([[[0.0], [1.0], [3.0]], [[0.0], [3.0], [9.0]]], dtype=torch.float64)  # distances 1, 2, 3; 3, 6, 9
    assert median_distance(x).tolist() == [2.0, 6.0]


@pytest.mark.parametrize("count", [2, 3, 4, 5, 6])
def test_the_median_is_the_usual_one(count):
    x = torch.randn(2, count, 3, generator=torch.Generator().manual_seed(count))
    expected = [np.median(pdist(layer)) for layer in x.numpy()]
    np.testing.assert_allclose(median_distance(x), expected, rtol=1e-6)


def test_unbiased_hsic_of_independent_states_averages_to_zero_and_biased_does_not():
    generator = torch.Generator().manual_seed(1)
    draws = [[linear_gram(torch.randn(10, 5, generator=generator)) for _ in range(2)] for _ in range(400)]
    unbiased = torch.stack([hsic_unbiased(*draw) for draw in draws])
    biased = torch.stack([hsic_biased(*draw) for draw in draws])
    assert abs(unbiased.mean()) < 3 * unbiased.std() / 20
    assert (unbiased < 0).any()
    assert biased.mean() > 20 * biased.std() / 20


def test_three_texts_are_too_few():
    with pytest.raises(DataError, match="3 texts are too few") as caught:
        cka_matrix(torch.randn(1, 3, 2))
    assert "4" in caught.value.hint
