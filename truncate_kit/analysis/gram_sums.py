"""Sums over Gram matrices of many layers, tile by tile: the arithmetic behind CKA in memory.

No Gram matrix is ever held whole. A tile of every layer's kernel is computed, multiplied with the same tile of every
other layer, added up in float64 and forgotten; by symmetry only the tiles on and above the diagonal are computed. All
layer pairs come out of one sweep: n² Σ d for the kernels instead of n L² d² for feature products.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from truncate_kit.analysis.hsic import biased_from_sums, meaningful, unbiased_from_sums
from truncate_kit.errors import too_few_texts

# Texts that the median distance is taken over at most: its error is far below what the bandwidth factor decides.
MEDIAN_TEXTS = 2048
# Texts on a tile's side: 26 layers of float32 tiles are 7 MB, which second- and third-level caches still hold.
TILE = 256


@dataclass(frozen=True, slots=True)
class GramSums:
    """Sums for biased and unbiased HSIC of every layer pair, kept apart by groups of texts."""

    products: Tensor  # (G, G, L, L), Σ K∘L over pairs i ≠ j with i in one group and j in the other
    rows: Tensor  # (L, n, G), Σ K_ij over j ≠ i in each group
    diagonal: Tensor  # (L, n), K_ii
    edges: tuple[int, ...]  # G + 1 bounds of the groups
    precision: float  # relative rounding error of the products

    def hsic(self, *, debiased: bool, without: int | None = None) -> Tensor:
        """HSIC of all layer pairs, (L, L) float64, over all texts or over all but one group; see `meaningful`."""
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
        combine = unbiased_from_sums if debiased else biased_from_sums
        values = combine(products, rows @ rows.mT, totals[:, None] * totals[None, :], count)
        own = torch.diagonal(values)
        own.copy_(meaningful(own, diagonal.mean(1), self.precision))
        return values


def gram_sums(models: Sequence[Tensor], *, kernel: str = "linear", bandwidth: float = 1.0, groups: int = 1) -> GramSums:
    """Sum the kernels of all layers of all models.

    Args:
        models: States (L_m, n, d_m) of the same n texts, centred and scaled (see `prepare`), all of one float type.
        kernel: "linear", or "rbf", which is exp(−|x − y|² / 2σ²) with σ = bandwidth × median distance (Kornblith et
            al., arXiv:1905.00414).
        bandwidth: Unitless factor of the RBF kernel.
        groups: Number of runs of texts that are kept apart.
    """
    count = models[0].shape[1]
    edges = torch.linspace(0, count, groups + 1).round().long().tolist()
    norms = torch.cat([model.square().sum(-1) for model in models])
    scales = torch.cat([2 * (bandwidth * median_distance(model)) ** 2 for model in models]) if kernel == "rbf" else None
    layers = norms.shape[0]
    products = torch.zeros(groups, groups, layers, layers, dtype=torch.float64)
    rows = torch.zeros(layers, count, groups, dtype=torch.float64)
    tiles = [(group, *bounds) for group in range(groups) for bounds in _split(edges[group], edges[group + 1])]
    buffer = norms.new_empty(layers * max(stop - start for _, start, stop in tiles) ** 2)
    for index, (group, start, stop) in enumerate(tiles):
        for other, left, right in tiles[index:]:
            tile = buffer[: layers * (stop - start) * (right - left)].view(layers, stop - start, right - left)
            _fill(tile, models, slice(start, stop), slice(left, right))
            if scales is not None:
                _to_gaussian(tile, norms[:, start:stop], norms[:, left:right], scales)
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
    if scales is None:
        rows = _linear_rows(models, norms, edges)
    diagonal = norms.double() if scales is None else torch.ones(layers, count, dtype=torch.float64)
    return GramSums(products, rows, diagonal, tuple(edges), torch.finfo(norms.dtype).eps)


def median_distance(states: Tensor) -> Tensor:
    """Median Euclidean distance (L,) of the pairs of distinct rows of each layer, states (L, n, d), in their units.

    Of an even number of pairs it is the mean of the two in the middle.
    """
    count = states.shape[1]
    if count < 2:
        raise too_few_texts(count, needed=2)
    if count > MEDIAN_TEXTS:
        states = states[:, torch.linspace(0, count - 1, MEDIAN_TEXTS).long()]
    return torch.stack([_median(torch.pdist(layer)) for layer in states])


def _median(values: Tensor) -> Tensor:
    """The usual one: `Tensor.median` takes the lower of the two values in the middle."""
    count = values.numel()
    lower = values.kthvalue((count + 1) // 2).values
    return lower if count % 2 else (lower + values.kthvalue(count // 2 + 1).values) / 2


def _linear_rows(models: Sequence[Tensor], norms: Tensor, edges: Sequence[int]) -> Tensor:
    """Row sums of the linear kernels without a pass over them: x_i · Σ x_j over each group, less |x_i|²."""
    bounds = list(itertools.pairwise(edges))
    sums = [torch.stack([model[:, start:stop].sum(1) for start, stop in bounds], -1) for model in models]
    rows = torch.cat([torch.bmm(model, total) for model, total in zip(models, sums, strict=True)]).double()
    for group, (start, stop) in enumerate(bounds):
        rows[:, start:stop, group] -= norms[:, start:stop]
    return rows


def _split(start: int, stop: int) -> list[tuple[int, int]]:
    parts = max(1, math.ceil((stop - start) / TILE))
    bounds = [start + (stop - start) * part // parts for part in range(parts + 1)]
    return list(itertools.pairwise(bounds))


def _fill(tile: Tensor, models: Sequence[Tensor], rows: slice, columns: slice) -> None:
    first = 0
    for model in models:
        torch.bmm(model[:, rows], model[:, columns].mT, out=tile[first : first + model.shape[0]])
        first += model.shape[0]


def _to_gaussian(tile: Tensor, left: Tensor, right: Tensor, scales: Tensor) -> None:
    tile.mul_(-2).add_(left[:, :, None]).add_(right[:, None, :]).clamp_min_(0)
    tile.div_(-scales[:, None, None]).exp_()


def _products(tile: Tensor) -> Tensor:
    """Sum of the elementwise products of all layer pairs, (L, L) float64."""
    # Runs of about a thousand terms are added in the tile's type, the runs in float64: fast, with errors near 1e-8.
    parts = math.gcd(tile.shape[1], 64)
    runs = tile.view(tile.shape[0], parts, -1).transpose(0, 1)
    return torch.bmm(runs, runs.mT).sum(0, dtype=torch.float64)
