"""Kernels between texts: linear and Gaussian Gram matrices and their centring.

These are the plain definitions, for whole matrices that fit in memory. `cka_matrix` computes the same kernels tile by
tile, and the tests hold it to these.
"""

import torch
from torch import Tensor

from truncate_kit.errors import too_few_texts

MEDIAN_TEXTS = 2048
"""Texts that the median distance is taken over at most: its error is far below what the bandwidth factor decides."""


def linear_gram(states: Tensor) -> Tensor:
    """Dot products of all pairs of texts. states: (n, d). Returns (n, n)."""
    return states @ states.mT


def median_distance(states: Tensor) -> Tensor:
    """Median Euclidean distance of the pairs of distinct rows.

    states: (..., n, d). Beyond `MEDIAN_TEXTS` rows, only that many evenly spaced ones are used.
    Returns (...), in units of the states.
    """
    count = states.shape[-2]
    if count < 2:
        raise too_few_texts(count, needed=2)
    if count > MEDIAN_TEXTS:
        states = states[..., torch.linspace(0, count - 1, MEDIAN_TEXTS).long(), :]
    layers = states.reshape(-1, *states.shape[-2:])
    return torch.stack([torch.pdist(layer).median() for layer in layers]).reshape(states.shape[:-2])


def rbf_gram(states: Tensor, *, bandwidth: float = 1.0) -> Tensor:
    """Gaussian kernel exp(−|x − y|² / 2σ²) with σ = bandwidth × median distance (Kornblith et al., arXiv:1905.00414).

    states: (n, d). bandwidth: unitless factor. Returns (n, n) with ones on the diagonal.
    """
    sigma = bandwidth * median_distance(states)
    norms = states.square().sum(-1)
    squared = (norms[:, None] + norms[None, :] - 2 * linear_gram(states)).clamp_min_(0)
    return squared.div_(-2 * sigma.square()).exp_().fill_diagonal_(1)


def center_gram(gram: Tensor) -> Tensor:
    """H K H with H = I − 11ᵀ/n: the Gram matrix of the centred features. gram: symmetric (n, n)."""
    means = gram.mean(0)
    return gram - means[:, None] - means[None, :] + means.mean()


def u_center_gram(gram: Tensor) -> Tensor:
    """U-centring (Székely and Rizzo 2014): rows and columns of the zero-diagonal result sum to zero.

    gram: symmetric (n, n); its diagonal is not used. Raises `DataError` when n < 4.
    """
    count = gram.shape[0]
    if count < 4:
        raise too_few_texts(count)
    hollow = gram.clone().fill_diagonal_(0)
    rows = hollow.sum(0) / (count - 2)
    centred = hollow - rows[:, None] - rows[None, :] + hollow.sum() / ((count - 1) * (count - 2))
    return centred.fill_diagonal_(0)
