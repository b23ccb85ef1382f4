"""HSIC: preparation of states, sums over kernels, and both estimators."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from truncate_kit.core.errors import UsageError, not_finite, undefined_cka

ROUNDING = 1e-5  # relative; smaller differences between texts are rounding
MEDIAN_TEXTS = 2048  # texts of the median distance
TILE = 256  # on a side: 26 layers of float32 tiles, 7 MB, fit in cache


def check_states(states: Tensor, name: str = "states", shape: tuple[int, int] | None = None) -> Tensor:
    """Return states (L, n, d) in float32 or float64. Raises `UsageError`, also unless (L, d) is `shape`."""
    if states.ndim != 3 or not states.is_floating_point() or 0 in states.shape:
        raise UsageError(
            f"{name} must be floats of shape (layers, texts, width), found {states.dtype} {tuple(states.shape)}.",
            hint="Stack the pooled states of all layers: torch.stack(list_of_layers).",
        )
    layers, _, width = states.shape
    if shape is not None and (layers, width) != shape:
        raise UsageError(
            f"This batch has {layers} layers of width {width}, the first one had {shape[0]} of width {shape[1]}.",
            hint="Feed all batches of one model to one accumulator.",
        )
    return states if states.dtype in (torch.float32, torch.float64) else states.float()


def check_pair(first: Tensor, second: Tensor) -> None:
    """Raise `UsageError` unless both have as many texts."""
    if first.shape[1] != second.shape[1]:
        raise UsageError(
            f"The two models have states of {first.shape[1]} and {second.shape[1]} texts.",
            hint="Compare states of the same texts in the same order.",
        )


def require_finite(values: Tensor) -> None:
    """Raise `ModelError` naming the layers (L,) with NaN or infinity."""
    if not values.isfinite().all():
        raise not_finite((~values.isfinite()).nonzero().flatten().tolist())


def unit_scale(states: Tensor) -> Tensor:
    """Return powers of two (L, 1, 1), which round nothing, that bring each layer of (L, n, d) near magnitude 1."""
    largest = torch.maximum(states.amax((1, 2)), -states.amin((1, 2)))
    exponents = torch.frexp(largest).exponent.clamp(-126, 126).tolist()
    return states.new_tensor([2.0**-exponent for exponent in exponents])[:, None, None]


def prepare(states: Tensor) -> Tensor:
    """Centre states (L, n, d) and scale layers to mean squared length 1; constant ones become zeros.

    CKA ignores both, float32 products do not. Raises `ModelError` on NaN or infinity.
    """
    mean, scale = states.mean(1, keepdim=True), unit_scale(states)
    centred, mean = (states - mean).mul_(scale), mean * scale
    # Norms first, squared in float64: large outlier dimensions would overflow.
    length = torch.linalg.vector_norm(centred, dim=-1).double().square().mean(1).sqrt()
    require_finite(length)
    size = (length.square() + mean.double().square().sum((1, 2))).sqrt()
    centred *= torch.where(length <= ROUNDING * size, 0.0, 1 / length).to(states.dtype)[:, None, None]
    return centred


def outlier_mask(states: Tensor, count: int) -> Tensor:
    """Return (L, 1, d), 0 at the `count` dimensions of largest variance in each layer, 1 elsewhere.

    The ranking is that in "All Bark and No Bite" (arXiv:2109.04404) for centred states.
    """
    kept = states.new_ones(states.shape[0], 1, states.shape[2])
    return kept.scatter_(-1, states.var(1).topk(count, dim=-1).indices[:, None, :], 0.0)


def hsic_of_sums(product: Tensor, rows: Tensor, totals: Tensor, count: int, *, debiased: bool) -> Tensor:
    """Return HSIC from Σ K∘L and products of row sums and of total sums of two kernels of n texts.

    Biased: tr(K H L H) / (n − 1)² (Gretton et al. 2005). Debiased: arXiv:2010.15327, eq. 3, sums without diagonals.
    """
    if not debiased:
        return (product - 2 * rows / count + totals / count**2) / (count - 1) ** 2
    centred = product + totals / ((count - 1) * (count - 2)) - 2 * rows / (count - 2)
    return centred / (count * (count - 3))


def meaningful(own: Tensor, mean_squares: Tensor, precision: float) -> Tensor:
    """Set own HSIC terms (L,) that are only rounding, of constant or equidistant states, to 0.

    mean_squares: (L,), of centred states. precision: relative, of the products.
    """
    return torch.where(own <= precision * mean_squares.square(), 0.0, own)


def normalised(cross: Tensor, own_x: Tensor, own_y: Tensor) -> Tensor:
    """Return cross / √(own_x · own_y), broadcast; NaN unless both own terms are positive."""
    return cross / (torch.where(own_x > 0, own_x, torch.nan).sqrt() * torch.where(own_y > 0, own_y, torch.nan).sqrt())


def require_positive(own: Tensor, side: str) -> None:
    """Raise `DataError` naming the layers without positive own HSIC, (L,)."""
    if layers := (~(own > 0)).nonzero().flatten().tolist():
        same = "the same for every text (for most texts, under the RBF kernel)"
        raise undefined_cka(layers, side, f"its states there are {same}, or all equally far apart")


@dataclass(frozen=True, slots=True)
class GramSums:
    """Sums for HSIC of every layer pair, by groups of texts."""

    products: Tensor  # (G, G, L, L), Σ K∘L over pairs i ≠ j, i in one group and j in the other
    rows: Tensor  # (L, n, G), Σ K_ij over j ≠ i in each group
    diagonal: Tensor  # (L, n), K_ii
    edges: tuple[int, ...]  # G + 1 bounds of the groups
    precision: float  # relative rounding error of the products

    def hsic(self, *, debiased: bool, without: int | None = None) -> Tensor:
        """Return HSIC of all layer pairs, (L, L) float64, without a group of texts."""
        count = self.rows.shape[1]
        products, rows, diagonal = self.products.sum((0, 1)), self.rows.sum(-1), self.diagonal
        if without is not None:
            start, stop = self.edges[without], self.edges[without + 1]
            products = products - 2 * self.products[without].sum(0) + self.products[without, without]
            kept = torch.cat([torch.arange(start), torch.arange(stop, count)])
            rows, diagonal = (rows - self.rows[..., without])[:, kept], diagonal[:, kept]
            count -= stop - start
        if not debiased:
            products, rows = products + diagonal @ diagonal.mT, rows + diagonal
        totals = rows.sum(1)
        values = hsic_of_sums(products, rows @ rows.mT, totals[:, None] * totals[None, :], count, debiased=debiased)
        own = torch.diagonal(values)
        own.copy_(meaningful(own, diagonal.mean(1), self.precision))
        return values


def gram_sums(models: Sequence[Tensor], *, kernel: str = "linear", bandwidth: float = 1.0, groups: int = 1) -> GramSums:
    """Sum the kernels of all layers of all models over `groups` runs of texts.

    models: prepared states (L_m, n, d_m) of one float type. RBF: exp(−|x − y|² / 2σ²), σ = bandwidth × median distance
    (Kornblith et al., arXiv:1905.00414).
    """
    count = models[0].shape[1]
    edges = torch.linspace(0, count, groups + 1).round().long().tolist()
    norms = torch.cat([model.square().sum(-1) for model in models])
    scales = torch.cat([2 * (bandwidth * median_distance(model)) ** 2 for model in models]) if kernel == "rbf" else None
    layers = norms.shape[0]
    products = torch.zeros(groups, groups, layers, layers, dtype=torch.float64)
    rows = torch.zeros(layers, count, groups, dtype=torch.float64)
    tiles = [(group, *bounds) for group in range(groups) for bounds in _split(edges[group], edges[group + 1])]
    for index, (group, start, stop) in enumerate(tiles):
        for other, left, right in tiles[index:]:
            tile = norms.new_empty(layers, stop - start, right - left)
            for model, part in zip(models, torch.split(tile, [len(model) for model in models]), strict=True):
                torch.bmm(model[:, start:stop], model[:, left:right].mT, out=part)
            if scales is not None:
                tile.mul_(-2).add_(norms[:, start:stop, None]).add_(norms[:, None, left:right]).clamp_min_(0)
                tile.div_(-scales[:, None, None]).exp_()
            if start == left:
                torch.diagonal(tile, dim1=1, dim2=2).zero_()
            added = _products(tile)
            products[group, other] += added
            if start != left:
                products[other, group] += added
            if scales is not None:
                rows[:, start:stop, other] += tile.sum(2)
                if start != left:
                    rows[:, left:right, group] += tile.sum(1)
    if scales is None:  # x_i · Σ x_j over each group, less |x_i|²
        bounds = list(itertools.pairwise(edges))
        sums = [torch.stack([model[:, start:stop].sum(1) for start, stop in bounds], -1) for model in models]
        rows = torch.cat([*map(torch.bmm, models, sums)]).double()
        for group, (start, stop) in enumerate(bounds):
            rows[:, start:stop, group] -= norms[:, start:stop]
    diagonal = norms.double() if scales is None else torch.ones(layers, count, dtype=torch.float64)
    return GramSums(products, rows, diagonal, tuple(edges), torch.finfo(norms.dtype).eps)


def median_distance(states: Tensor) -> Tensor:
    """Return the median Euclidean distance (L,) between texts, states (L, n, d)."""
    if states.shape[1] > MEDIAN_TEXTS:
        states = states[:, torch.linspace(0, states.shape[1] - 1, MEDIAN_TEXTS).long()]
    return states.new_tensor([float(np.median(torch.pdist(layer))) for layer in states])


def _split(start: int, stop: int) -> list[tuple[int, int]]:
    parts = max(1, math.ceil((stop - start) / TILE))
    return list(itertools.pairwise(start + (stop - start) * part // parts for part in range(parts + 1)))


def _products(tile: Tensor) -> Tensor:
    """Sum the products of all layer pairs, (L, L) float64."""
    # Runs of about a thousand terms, their sum in float64: fast, with errors near 1e-8.
    parts = math.gcd(tile.shape[1], 64)
    runs = tile.view(tile.shape[0], parts, -1).transpose(0, 1)
    return torch.bmm(runs, runs.mT).sum(0, dtype=torch.float64)
