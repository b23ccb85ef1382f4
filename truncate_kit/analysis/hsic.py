"""The Hilbert–Schmidt independence criterion of two Gram matrices, biased and unbiased."""

import torch
from torch import Tensor

from truncate_kit.errors import undefined_cka


def biased_from_sums(product: Tensor, rows: Tensor, totals: Tensor, count: int) -> Tensor:
    """Biased HSIC, tr(K H L H) / (n − 1)² (Gretton et al. 2005), never negative for positive kernels.

    Diagonals are included.

    Args:
        product: Σ K∘L.
        rows: The product of the row sums.
        totals: The product of the total sums.
        count: The number n.
    """
    return (product - 2 * rows / count + totals / count**2) / (count - 1) ** 2


def unbiased_from_sums(product: Tensor, rows: Tensor, totals: Tensor, count: int) -> Tensor:
    """Unbiased HSIC (arXiv:2010.15327, eq. 3) from the same sums of kernels whose diagonals were set to zero."""
    centred = product + totals / ((count - 1) * (count - 2)) - 2 * rows / (count - 2)
    return centred / (count * (count - 3))


def meaningful(own: Tensor, mean_squares: Tensor, precision: float) -> Tensor:
    """HSIC terms of layers with themselves, (L,), with 0 for those that are nothing but rounding.

    Args:
        own: The terms, (L,).
        mean_squares: (L,), mean squared length of the centred states.
        precision: Relative rounding error of the products.
    """
    # Such a term is a squared norm, zero when states are the same for every text, or all equally far apart.
    return torch.where(own <= precision * mean_squares.square(), 0.0, own)


def normalised(cross: Tensor, own_x: Tensor, own_y: Tensor) -> Tensor:
    """CKA from HSIC terms: cross / √(own_x · own_y), broadcast; NaN where an own term is not positive."""
    scale = torch.where(own_x > 0, own_x, torch.nan).sqrt() * torch.where(own_y > 0, own_y, torch.nan).sqrt()
    return cross / scale


def require_positive(own: Tensor, side: str) -> None:
    """Raise `DataError` naming the layers whose HSIC with themselves is 0 or none.

    Args:
        own: (L,).
        side: Whose layers.
    """
    nothing = [int(layer) for layer in (~(own > 0)).nonzero()]
    if nothing:
        same = "the same for every text (for most texts, under the RBF kernel)"
        raise undefined_cka(nothing, side, f"its states there are {same}, or all equally far apart")
