import pytest
import torch

from tests.support import cka as reference
from truncate_kit.errors import DataError
from truncate_kit.similarity import center_gram, hsic_biased, hsic_unbiased, linear_gram, rbf_gram, u_center_gram


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


def test_centred_gram_is_the_gram_of_centred_states():
    x = torch.randn(9, 4, dtype=torch.float64) + 3
    torch.testing.assert_close(center_gram(linear_gram(x)), linear_gram(x - x.mean(0)))


def test_rbf_gram_uses_the_median_of_distinct_pairs():
    x = torch.tensor([[0.0], [1.0], [3.0]], dtype=torch.float64)  # distances 1, 2, 3
    expected = torch.exp(torch.tensor([-1.0, -4.0, -9.0], dtype=torch.float64) / (2 * 4 * 0.25))
    gram = rbf_gram(x, bandwidth=0.5)
    torch.testing.assert_close(gram[[0, 1, 0], [1, 2, 2]], expected)


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
        hsic_unbiased(torch.eye(3), torch.eye(3))
    assert "4" in caught.value.hint
