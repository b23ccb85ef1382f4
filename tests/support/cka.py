"""Independent definitions that the tests compare with: whole float64 matrices, written from the papers' formulas."""

from typing import Any

import torch
from torch import Tensor


def gram(states: Tensor, kernel: str = "linear", bandwidth: float = 1.0) -> Tensor:
    states = states.double() - states.double().mean(0)
    if kernel == "linear":
        return states @ states.T
    distances = torch.cdist(states, states, compute_mode="donot_use_mm_for_euclid_dist")
    upper = distances[torch.triu_indices(len(states), len(states), 1).unbind()]
    return torch.exp(-(distances**2) / (2 * (bandwidth * upper.quantile(0.5)) ** 2))


def hsic(k: Tensor, m: Tensor, estimator: str) -> Tensor:
    n = len(k)
    one = torch.ones(n, 1, dtype=torch.float64)
    if estimator == "biased":
        h = torch.eye(n, dtype=torch.float64) - one @ one.T / n
        return torch.trace(k @ h @ m @ h) / (n - 1) ** 2
    k, m = k - torch.diag(k.diag()), m - torch.diag(m.diag())
    first = torch.trace(k @ m)
    second = (one.T @ k @ one @ one.T @ m @ one).squeeze() / ((n - 1) * (n - 2))
    third = 2 / (n - 2) * (one.T @ k @ m @ one).squeeze()
    return (first + second - third) / (n * (n - 3))


def cka(x: Tensor, y: Tensor, estimator: str = "debiased", kernel: str = "linear", bandwidth: float = 1.0) -> Tensor:
    """One layer (n, d) against one."""
    k, m = gram(x, kernel, bandwidth), gram(y, kernel, bandwidth)
    return hsic(k, m, estimator) / (hsic(k, k, estimator) * hsic(m, m, estimator)).sqrt()


def matrix(xs: Tensor, ys: Tensor, estimator: str = "debiased", **options: Any) -> Tensor:
    """Each layer against each, as `cka` has it; what depends on one layer alone is computed once."""
    ks, ms = ([gram(layer, **options) for layer in side] for side in (xs, ys))
    own, other = ([hsic(one, one, estimator) for one in side] for side in (ks, ms))
    rows = [
        [hsic(k, m, estimator) / (a * b).sqrt() for m, b in zip(ms, other, strict=True)]
        for k, a in zip(ks, own, strict=True)
    ]
    return torch.stack([torch.stack(row) for row in rows])


def related_states(texts: int, width_x: int, width_y: int) -> tuple[Tensor, Tensor]:
    """Four and three layers that share more or less, off the origin, one layer ruled by an outlier dimension."""
    generator = torch.Generator().manual_seed(0)
    base = torch.randn(texts, width_x, generator=generator)
    x = torch.stack([base + 0.3 * i * torch.randn(texts, width_x, generator=generator) for i in range(4)]) + 5
    x[2, :, 3] *= 300
    x[3, :, 5] += 1000
    turn = torch.randn(width_x, width_y, generator=generator) / width_x**0.5
    noise = torch.randn(3, texts, width_y, generator=generator)
    return x, torch.tanh(base @ turn) + 0.4 * torch.arange(3)[:, None, None] * noise
