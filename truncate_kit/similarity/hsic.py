"""The Hilbert–Schmidt independence criterion of two Gram matrices, biased and unbiased."""

import torch
from torch import Tensor

from truncate_kit.errors import too_few_texts, undefined_cka


def hsic_biased(gram_x: Tensor, gram_y: Tensor) -> Tensor:
    """Biased HSIC, tr(K H L H) / (n − 1)² (Gretton et al. 2005).

    gram_x, gram_y: symmetric kernels of the same texts, each (n, n).
    Returns a 0-d float64 in product-of-kernel units, never negative for positive kernels.
    Raises `DataError` when n < 2.
    """
    count = gram_x.shape[0]
    if count < 2:
        raise too_few_texts(count, needed=2)
    gram_x, gram_y = gram_x.double(), gram_y.double()
    product = (gram_x * gram_y).sum()
    return biased_from_sums(product, gram_x.sum(0) @ gram_y.sum(0), gram_x.sum() * gram_y.sum(), count)


def hsic_unbiased(gram_x: Tensor, gram_y: Tensor) -> Tensor:
    """Unbiased HSIC of one minibatch (arXiv:2010.15327, eq. 3).

    gram_x, gram_y: symmetric kernels of the same texts, each (n, n); their diagonals are not used.
    Returns a 0-d float64 in product-of-kernel units; can be negative.
    Raises `DataError` when n < 4.
    """
    count = gram_x.shape[0]
    if count < 4:
        raise too_few_texts(count)
    gram_x, gram_y = (gram.double().clone().fill_diagonal_(0) for gram in (gram_x, gram_y))
    product = (gram_x * gram_y).sum()
    return unbiased_from_sums(product, gram_x.sum(0) @ gram_y.sum(0), gram_x.sum() * gram_y.sum(), count)


def biased_from_sums(product: Tensor, rows: Tensor, totals: Tensor, count: int) -> Tensor:
    """Biased HSIC from Σ K∘L, the product of the row sums, and the product of the total sums; diagonals included."""
    return (product - 2 * rows / count + totals / count**2) / (count - 1) ** 2


def unbiased_from_sums(product: Tensor, rows: Tensor, totals: Tensor, count: int) -> Tensor:
    """Unbiased HSIC from the same three sums as `biased_from_sums`, of kernels whose diagonals were set to zero."""
    centred = product + totals / ((count - 1) * (count - 2)) - 2 * rows / (count - 2)
    return centred / (count * (count - 3))


def meaningful(own: Tensor, mean_squares: Tensor, precision: float) -> Tensor:
    """HSIC terms of layers with themselves, (L,), with 0 for those that are nothing but rounding.

    Such a term is a squared norm, so never negative but for rounding; it is zero when states are the same for every
    text and also when they are all equally far apart. mean_squares: (L,), mean squared length of the centred states.
    precision: the relative rounding error of the products.
    """
    return torch.where(own <= precision * mean_squares.square(), 0.0, own)


def normalised(cross: Tensor, own_x: Tensor, own_y: Tensor) -> Tensor:
    """CKA from HSIC terms: cross / √(own_x · own_y), broadcast; NaN where an own term is not positive.

    The cross term may be negative: the unbiased estimate lies on both sides of zero for unrelated states.
    """
    scale = torch.where(own_x > 0, own_x, torch.nan).sqrt() * torch.where(own_y > 0, own_y, torch.nan).sqrt()
    return cross / scale


def require_positive(own: Tensor, side: str) -> None:
    """Raise `DataError` naming the layers whose HSIC with themselves is 0. own: (L,); side: whose layers."""
    nothing = [int(layer) for layer in (own == 0).nonzero()]
    if nothing:
        raise undefined_cka(nothing, side, "its states there are the same for every text, or all equally far apart")
