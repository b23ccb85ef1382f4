"""Getting states ready to be compared: checks, centring, scaling, the variants without outliers."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from truncate_kit.core.errors import UsageError, not_finite, too_few_texts, undefined_cka

# States that differ between texts by less than this share of their length differ by float32 rounding only.
ROUNDING = 1e-5


def check_states(states: Tensor, name: str = "states") -> Tensor:
    """Return states (L, n, d) in float32 or float64. Raises `UsageError` on anything else."""
    if states.ndim != 3 or not states.is_floating_point() or 0 in states.shape:
        raise UsageError(
            f"{name} must be floats of shape (layers, texts, width), found {states.dtype} {tuple(states.shape)}.",
            hint="Stack the pooled states of all layers: torch.stack(list_of_layers).",
        )
    return states if states.dtype in (torch.float32, torch.float64) else states.float()


def check_pair(first: Tensor, second: Tensor) -> None:
    """Raise `UsageError` when two states are not of the same texts."""
    if first.shape[1] != second.shape[1]:
        raise UsageError(
            f"The two models have states of {first.shape[1]} and {second.shape[1]} texts.",
            hint="Compare states of the same texts in the same order.",
        )


def check_same_model(states: Tensor, shape: tuple[int, int]) -> None:
    """Raise `UsageError` for a batch (L, b, d) of another model than the first one, whose shape is (L, d)."""
    if (states.shape[0], states.shape[2]) != shape:
        raise UsageError(
            f"This batch has {states.shape[0]} layers of width {states.shape[2]}, the first one had {shape[0]} of "
            f"width {shape[1]}.",
            hint="Feed all batches of one model to one accumulator.",
        )


def require_finite(values: Tensor) -> None:
    """Raise `ModelError` naming the layers whose values, (L,), are NaN or infinite."""
    if not values.isfinite().all():
        raise not_finite(_where(~values.isfinite()))


def unit_scale(states: Tensor) -> Tensor:
    """Powers of two, (L, 1, 1), that bring the largest magnitude of each layer of states (L, n, d) near 1.

    Squares of float32 states below 1e-19 would be 0, those above 1e19 infinite. A power of two rounds nothing.
    """
    largest = torch.maximum(states.amax((1, 2)), -states.amin((1, 2)))
    limit = int(-math.log2(torch.finfo(states.dtype).tiny))
    exponents = torch.frexp(largest).exponent.clamp(-limit, limit).tolist()
    return states.new_tensor([2.0**-exponent for exponent in exponents])[:, None, None]


def prepare(states: Tensor) -> tuple[Tensor, list[int]]:
    """Centre each layer and scale it to mean squared length 1; CKA ignores both, float32 products do not.

    Args:
        states: (L, n, d).

    Returns:
        The new states and the layers that are constant (see `ROUNDING`), which become zeros.

    Raises:
        ModelError: States are no numbers.
    """
    mean, scale = states.mean(1, keepdim=True), unit_scale(states)
    centred = (states - mean).mul_(scale)
    mean = mean * scale
    # Norms per text first: their squares are added in float64, where even large outlier dimensions do not overflow.
    length = torch.linalg.vector_norm(centred, dim=-1).double().square().mean(1).sqrt()
    require_finite(length)
    size = (length.square() + mean.double().square().sum((1, 2))).sqrt()
    constant = length <= ROUNDING * size
    centred *= torch.where(constant, 0.0, 1 / length).to(states.dtype)[:, None, None]
    return centred, _where(constant)


def outlier_dimensions(states: Tensor, count: int = 3) -> Tensor:
    """The dimensions of largest variance over the texts in each layer, (L, count) indices, largest first.

    "All Bark and No Bite" (arXiv:2109.04404) ranks a dimension by its share in the expected cosine of two texts. CKA
    is made of dot products of centred states, in which that share is the variance.
    """
    if not 0 < count < states.shape[-1]:
        raise UsageError(
            f"Cannot leave out {count} of {states.shape[-1]} dimensions.",
            hint="Leave out at least one dimension and keep at least one; 1 to 5 is usual.",
        )
    return states.var(1).topk(count, dim=-1).indices


def without_outliers(states: Tensor, count: int = 3) -> Tensor:
    """States (L, n, d) with each layer's `outlier_dimensions` set to zero: they no longer enter any kernel."""
    return states.scatter(-1, outlier_dimensions(states, count)[:, None, :].expand(-1, states.shape[1], -1), 0.0)


def _where(mask: Tensor) -> list[int]:
    return [int(index) for index in mask.nonzero().flatten()]


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
