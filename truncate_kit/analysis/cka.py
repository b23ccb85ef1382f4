"""Centred kernel alignment (CKA) between all layers of two models, computed in memory or streamed.

CKA is a normalised Hilbert-Schmidt independence criterion (HSIC). Streamed HSIC needs only sums over the n texts. Let
z, w be the states of two layers minus the means of the first batch, and m, p the means of z, w:

    ⟨K, L⟩  = ‖Σ z wᵀ − n m pᵀ‖²     (K, L: centred Gram matrices)
    k · l   = Σ |z − m|² |w − p|²     (k, l: their diagonals)

The unbiased HSIC follows from these sums, Σ k and Σ l, because centred Gram matrices have zero row sums. The product
of the rows [z, |z|², 1] and [w, |w|², 1], summed over the texts, contains all these sums.
"""

import itertools
import math
from collections.abc import Sequence
from typing import Literal, get_args

import numpy as np
import torch
from scipy.stats import t as student_t
from torch import Tensor

from truncate_kit.analysis.result import AnalysisSettings, Curve, Estimator, Kernel, Row
from truncate_kit.core.errors import UsageError, known_name, not_finite, too_few_texts, undefined_cka

GRAM_OVERHEAD = 4  # slowdown of each operation in products of tiles
FEATURE_BYTES = 2 << 30  # memory limit for sums of feature products
ROUNDING = 1e-5  # relative; smaller differences between texts count as rounding errors
MEDIAN_TEXTS = 2048  # number of texts for the median distance
TILE = 256  # rows and columns: float32 tiles of 26 layers, 7 MB, fit in cache
# Texts per update: adding to L² d² float64 sums costs as much as products of 200 texts.
BUFFERED_TEXTS = 2048
PRODUCT_TEXTS = 512  # texts in one float32 product; fewer are more exact, more are faster

Undefined = Literal["raise", "nan"]


def cka_matrix(
    states_x: Tensor,
    states_y: Tensor | None = None,
    *,
    estimator: Estimator = "debiased",
    kernel: Kernel = "linear",
    bandwidth: float = 1.0,
    undefined: Undefined = "raise",
) -> Tensor:
    """Compute CKA of every layer of one model with every layer of another (Kornblith et al., arXiv:1905.00414).

    Args:
        states_x: (Lx, n, dx); float32 products are summed in float64, RBF is computed in float64.
        states_y: (Ly, n, dy) for the same distinct texts; by default `states_x`.
        estimator: "debiased" (arXiv:2010.15327, eq. 3), or "biased" (high even between random states if n ≪ d).
        kernel: "linear", or "rbf" with σ = bandwidth × median distance of the layer.
        bandwidth: Unitless.
        undefined: "raise" an error or return "nan" for constant or equidistant states (RBF: if most texts share a
            state).

    Returns:
        (Lx, Ly) float64; debiased values can be slightly below 0 or above 1.

    Raises:
        DataError: n < 4, or CKA is undefined at a layer.
        UsageError: States do not match, or an argument is invalid.
        ModelError: States hold NaN or infinity.
    """
    models = _prepared(check_states(states_x, states_y), estimator, kernel)
    if kernel == "linear" and _features_cost_less(models):
        streamed = StreamedCKA(estimator=estimator)
        streamed.update(*models)
        return streamed.result(undefined=undefined)
    bounds = [(0, models[0].shape[1])]
    hsic, *_ = gram_hsic(models, bounds, kernel=kernel, bandwidth=bandwidth, debiased=estimator == "debiased")
    return _cka_of(hsic, len(states_x), undefined)


def compare_layers(
    states: Sequence[Tensor], settings: AnalysisSettings, layers: Sequence[int] = (), groups: Tensor | None = None
) -> tuple[Curve, tuple[Row, ...]]:
    """Return a CKA curve with confidence intervals, and the CKA of all layer pairs (model, reference).

    states: Of the model and, if any, the reference; see `cka_matrix`. layers: Reference layer for each layer of the
    curve, by default at the same relative depth. groups: See `text_blocks`. At each layer, the `settings.outliers`
    dimensions of largest variance are set to 0. Intervals are by jackknife. Undefined values are missing.
    """
    estimator, kernel = settings.estimator, settings.kernel
    models = _prepared(check_states(*states), estimator, kernel, settings.outliers)
    depth, count, _ = models[0].shape
    # A bootstrap would repeat texts, which breaks the debiasing.
    order, bounds = text_blocks(count, settings.intervals, groups, settings.seed)
    if blocks := len(bounds):
        models = [model[:, order] for model in models]
    hsic = gram_hsic(models, bounds or [(0, count)], kernel=kernel, debiased=estimator == "debiased")
    matrix, *left_out = (_cka_of(part, depth) for part in hsic)
    layers = layers or relative_layers(depth - 1, matrix.shape[1] - 1)
    place = (torch.arange(depth), torch.tensor(layers))
    error = jackknife_error(torch.stack(left_out))[place] if blocks else None
    return curve_of(matrix[place], layers, error, blocks, settings.level), tuple(map(without_nan, matrix))


def _prepared(models: list[Tensor], estimator: str, kernel: str, outliers: int = 0) -> list[Tensor]:
    known_name("estimator", estimator, get_args(Estimator))
    known_name("kernel", kernel, get_args(Kernel))
    if models[0].shape[1] < 4:
        raise too_few_texts(models[0].shape[1])
    # Squared distances are differences of large numbers, too coarse in float32.
    kind = torch.float64 if kernel == "rbf" else torch.promote_types(models[0].dtype, models[-1].dtype)
    models = [model.to(kind) for model in models]
    return [prepare(model * outlier_mask(model, outliers) if outliers else model) for model in models]


def check_states(states_x: Tensor, states_y: Tensor | None = None) -> list[Tensor]:
    """Return the states of one or two models in float32 or float64, each (L, n, d). Raises `UsageError`."""
    models = [states_x] if states_y is None else [states_x, states_y]
    for states in models:
        if states.ndim != 3 or not states.is_floating_point() or 0 in states.shape:
            raise UsageError(
                f"States must be floats of shape (layers, texts, width), found {states.dtype} {tuple(states.shape)}.",
                hint="Stack the pooled states of all layers: torch.stack(list_of_layers).",
            )
    if models[0].shape[1] != models[-1].shape[1]:
        raise UsageError(
            f"The two models have states of {models[0].shape[1]} and {models[-1].shape[1]} texts.",
            hint="Compare states of the same texts in the same order.",
        )
    return [states if states.dtype in (torch.float32, torch.float64) else states.float() for states in models]


def _features_cost_less(models: list[Tensor]) -> bool:
    count = models[0].shape[1]
    layers = sum(model.shape[0] for model in models)
    widths = sum(model.shape[0] * model.shape[2] for model in models)
    gram = count * count * (widths + GRAM_OVERHEAD * layers * layers) / 2
    (lx, _, dx), (ly, _, dy) = models[0].shape, models[-1].shape
    entries = lx * ly * dx * dy + (lx * dx * dx + ly * dy * dy if len(models) == 2 else 0)
    if len(models) == 1:
        entries //= 2
    return count * entries < gram and 8 * entries < FEATURE_BYTES


def relative_layers(depth: int, reference_depth: int) -> tuple[int, ...]:
    """Return for each layer the reference layer nearest in relative depth; ties go to the lower."""
    if depth == 0:
        return (0,)
    return tuple((2 * layer * reference_depth + depth - 1) // (2 * depth) for layer in range(depth + 1))


def text_blocks(
    count: int, blocks: int, groups: Tensor | None = None, seed: int = 0
) -> tuple[Tensor, list[tuple[int, int]]]:
    """Divide n = `count` texts into random blocks that never separate the texts of a group.

    Texts of a pair are near-duplicates: in different blocks, they make an interval too narrow.

    groups: Group of each text (n,), by default a group for each text.
    Returns the texts in random order (n,), and start and end of each block in it; no blocks if groups are too large.
    """
    groups = torch.arange(count) if groups is None else groups
    # Files are often ordered by source.
    rank = torch.randperm(int(groups.max()) + 1, generator=torch.Generator().manual_seed(seed)).argsort()[groups]
    order = rank.argsort(stable=True)
    starts = torch.cat([torch.tensor([0]), rank[order].diff().nonzero().flatten() + 1, torch.tensor([count])])
    wanted = torch.linspace(0, count, blocks + 1).round()
    nearest = starts[(starts[:, None] - wanted).abs().argmin(0)].tolist() if blocks > 1 else []
    return order, list(itertools.pairwise(nearest)) if len({*nearest}) > blocks else []


def jackknife_error(left_out: Tensor) -> Tensor:
    """Return the delete-a-block jackknife standard error (Efron and Stein 1981), √((G − 1)/G Σ (value − mean)²).

    left_out: (G, *shape), the values without each of G equal blocks of texts.
    """
    blocks = left_out.shape[0]
    return ((blocks - 1) / blocks * (left_out - left_out.mean(0)).square().sum(0)).sqrt()


def curve_of(values: Tensor, layers: Sequence[int], error: Tensor | None, blocks: int, level: float) -> Curve:
    """Return the curve with intervals values ± t · error, Student's t with blocks − 1 degrees of freedom."""
    low = high = None
    if error is not None:
        reach = float(student_t.ppf((1 + level) / 2, blocks - 1)) * error
        low, high = without_nan(values - reach), without_nan(values + reach)
    return Curve(values=without_nan(values), reference_layers=tuple(layers), low=low, high=high)


def without_nan(values: Tensor) -> Row:
    """Replace NaN by None."""
    return tuple(value if value == value else None for value in map(float, values))


def require_finite(values: Tensor) -> None:
    """Raise `ModelError` if any layer's value (L,) is NaN or infinite."""
    if not values.isfinite().all():
        raise not_finite((~values.isfinite()).nonzero().flatten().tolist())


def _unit_scale(states: Tensor) -> Tensor:
    """Return powers of two (L, 1, 1) that scale the largest entry of each layer to about 1, exactly."""
    largest = torch.maximum(states.amax((1, 2)), -states.amin((1, 2)))
    exponents = torch.frexp(largest).exponent.clamp(-126, 126).tolist()
    return states.new_tensor([2.0**-exponent for exponent in exponents])[:, None, None]


def prepare(states: Tensor) -> Tensor:
    """Centre states (L, n, d) and scale layers to mean squared length 1; constant layers become zeros.

    This keeps float32 products precise and leaves CKA unchanged. Raises `ModelError` on NaN or infinity.
    """
    mean, scale = states.mean(1, keepdim=True), _unit_scale(states)
    centred, mean = (states - mean).mul_(scale), mean * scale
    # Square in float64: large outlier dimensions would overflow.
    length = torch.linalg.vector_norm(centred, dim=-1).double().square().mean(1).sqrt()
    require_finite(length)
    size = (length.square() + mean.double().square().sum((1, 2))).sqrt()
    centred *= torch.where(length <= ROUNDING * size, 0.0, 1 / length).to(states.dtype)[:, None, None]
    return centred


def outlier_mask(states: Tensor, count: int) -> Tensor:
    """Return a mask (L, 1, d): 0 at the `count` dimensions of largest variance of each layer, else 1.

    Source: "All Bark and No Bite" (arXiv:2109.04404).
    """
    kept = states.new_ones(states.shape[0], 1, states.shape[2])
    return kept.scatter_(-1, states.var(1).topk(count, dim=-1).indices[:, None, :], 0.0)


def _hsic_of_sums(product: Tensor, rows: Tensor, totals: Tensor, count: int, *, debiased: bool) -> Tensor:
    """Return the HSIC of two kernels from Σ K∘L, the sum of products of row sums, and the product of totals.

    Biased: tr(K H L H) / (n − 1)² (Gretton et al. 2005). Debiased: arXiv:2010.15327, eq. 3, sums without diagonals.
    """
    if not debiased:
        return (product - 2 * rows / count + totals / count**2) / (count - 1) ** 2
    centred = product + totals / ((count - 1) * (count - 2)) - 2 * rows / (count - 2)
    return centred / (count * (count - 3))


def _meaningful(own: Tensor, mean_squares: Tensor, precision: float) -> Tensor:
    """Set the HSIC of a layer with itself to 0 if it is a rounding error (constant or equidistant states).

    mean_squares: Mean squared lengths (L,) of centred states. precision: Relative error of products.
    """
    return torch.where(own <= precision * mean_squares.square(), 0.0, own)


def _normalised(cross: Tensor, own_x: Tensor, own_y: Tensor, undefined: Undefined) -> Tensor:
    """Return cross / √(own_x[:, None] · own_y). Values ≤ 0 in own_x or own_y give NaN, or raise `DataError`."""
    for own, side in ((own_x, "the model"), (own_y, "the reference")):
        if undefined == "raise" and (layers := (~(own > 0)).nonzero().flatten().tolist()):
            same = "the same for every text (for most texts, under the RBF kernel)"
            raise undefined_cka(layers, side, f"its states there are {same}, or all equally far apart")
    root_x, root_y = (torch.where(own > 0, own, torch.nan).sqrt() for own in (own_x, own_y))
    return cross / (root_x[:, None] * root_y)


def _cka_of(hsic: Tensor, layers_x: int, undefined: Undefined = "nan") -> Tensor:
    """Return CKA (Lx, Ly) from HSIC of all layers: `layers_x` of the model, then the layers of a reference, if any."""
    own = torch.diagonal(hsic)
    others = slice(layers_x, None) if len(hsic) > layers_x else slice(None)
    return _normalised(hsic[:layers_x, others], own[:layers_x], own[others], undefined)


def gram_hsic(
    models: Sequence[Tensor],
    bounds: Sequence[tuple[int, int]],
    *,
    kernel: str = "linear",
    bandwidth: float = 1.0,
    debiased: bool,
) -> list[Tensor]:
    """Return HSIC of all layer pairs, (L, L) float64, on all texts and then without each block of texts.

    models: Prepared states (L_m, n, d_m) of one dtype. bounds: Start and end of each block. RBF: exp(−|x − y|² / 2σ²),
    σ = bandwidth × median distance (Kornblith et al., arXiv:1905.00414).
    """
    count = models[0].shape[1]
    products, rows, diagonal = _gram_sums(models, bounds, bandwidth if kernel == "rbf" else None)
    matrices = []
    for without in (None, *(range(len(bounds)) if len(bounds) > 1 else ())):
        product, row, own, left = products.sum((0, 1)), rows.sum(-1), diagonal, count
        if without is not None:
            start, stop = bounds[without]
            product = product - 2 * products[without].sum(0) + products[without, without]
            kept = torch.cat([torch.arange(start), torch.arange(stop, count)])
            row, own, left = (row - rows[..., without])[:, kept], own[:, kept], count - (stop - start)
        if not debiased:
            product, row = product + own @ own.mT, row + own
        totals = row.sum(1)
        hsic = _hsic_of_sums(product, row @ row.mT, totals[:, None] * totals[None, :], left, debiased=debiased)
        values = torch.diagonal(hsic)
        values.copy_(_meaningful(values, own.mean(1), torch.finfo(models[0].dtype).eps))
        matrices.append(hsic)
    return matrices


def _gram_sums(
    models: Sequence[Tensor], bounds: Sequence[tuple[int, int]], bandwidth: float | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return sums of the layers' kernels K by G groups of texts; RBF kernels if a bandwidth is given.

    Returns:
        Σ K∘K′ over i ≠ j by the groups of i and j (G, G, L, L), Σ K_ij over j ≠ i in each group (L, n, G), and K_ii
        (L, n).
    """
    count, groups = models[0].shape[1], len(bounds)
    norms = torch.cat([model.square().sum(-1) for model in models])
    layers = norms.shape[0]
    products = torch.zeros(groups, groups, layers, layers, dtype=torch.float64)
    rows, diagonal, scales = torch.zeros(layers, count, groups, dtype=torch.float64), norms.double(), None
    if bandwidth is not None:
        scales = torch.cat([2 * (bandwidth * _median_distance(model)) ** 2 for model in models])
        diagonal = torch.ones_like(diagonal)
    tiles = [(group, *part) for group, (start, stop) in enumerate(bounds) for part in _split(start, stop)]
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
        sums = [torch.stack([model[:, start:stop].sum(1) for start, stop in bounds], -1) for model in models]
        rows = torch.cat([*map(torch.bmm, models, sums)]).double()
        for group, (start, stop) in enumerate(bounds):
            rows[:, start:stop, group] -= norms[:, start:stop]
    return products, rows, diagonal


def _median_distance(states: Tensor) -> Tensor:
    if states.shape[1] > MEDIAN_TEXTS:
        states = states[:, torch.linspace(0, states.shape[1] - 1, MEDIAN_TEXTS).long()]
    return states.new_tensor([float(np.median(torch.pdist(layer))) for layer in states])


def _split(start: int, stop: int) -> list[tuple[int, int]]:
    parts = max(1, math.ceil((stop - start) / TILE))
    return list(itertools.pairwise(start + (stop - start) * part // parts for part in range(parts + 1)))


def _products(tile: Tensor) -> Tensor:
    # Sum a thousand terms in float32, these sums in float64: fast, with errors near 1e-8.
    parts = math.gcd(tile.shape[1], 64)
    runs = tile.view(tile.shape[0], parts, -1).transpose(0, 1)
    return torch.bmm(runs, runs.mT).sum(0, dtype=torch.float64)


def _product(z: Tensor, w: Tensor) -> Tensor:
    """Return Σ z wᵀ in float64 from float32 products, exact to about 1e-8."""
    whole = len(z) // PRODUCT_TEXTS * PRODUCT_TEXTS
    result = (z[whole:].mT @ w[whole:]).double()
    if whole:
        z, w = (part[:whole].view(-1, PRODUCT_TEXTS, part.shape[1]) for part in (z, w))
        result += torch.bmm(z.mT, w).sum(0, dtype=torch.float64)
    return result


class StreamedCKA:
    """Accumulates linear CKA between the layers of two models, or of one model with itself, batch by batch.

    The result equals `cka_matrix` on all texts. Memory: 8 dx dy bytes per layer pair, and a buffer.

    Args:
        pairs: Layer pairs, by default all.
    """

    def __init__(self, *, estimator: Estimator = "debiased", pairs: Sequence[tuple[int, int]] | None = None) -> None:
        self._debiased = known_name("estimator", estimator, get_args(Estimator)) == "debiased"
        self._pairs = None if pairs is None else list(pairs)
        self.count = self._waiting = 0
        self._shifts: list[Tensor] = []  # means of each model's first batch (L, 1, d)
        self._scales: list[Tensor] = []  # scales that keep squares from overflowing
        self._pending: list[list[Tensor]] = []  # shifted batches of each model
        self._sums: dict[tuple[int, int, int, int], Tensor] = {}  # by model, layer, model, layer

    def update(self, batch_x: Tensor, batch_y: Tensor | None = None) -> None:
        """Add a batch of texts: states (Lx, b, dx) and, for a second model, (Ly, b, dy)."""
        batches = check_states(batch_x, batch_y)
        if not self._shifts:
            self._start(batches)
        for parts in zip(*(torch.split(batch, BUFFERED_TEXTS, 1) for batch in batches), strict=True):
            rows = zip(parts, self._shifts, self._scales, self._pending, strict=True)
            for part, shift, scale, pending in rows:
                pending.append((part.to(shift.dtype) - shift).mul_(scale))
            self.count += parts[0].shape[1]
            self._waiting += parts[0].shape[1]
            if self._waiting >= BUFFERED_TEXTS:
                self._flush()

    def result(self, *, undefined: Undefined = "raise") -> Tensor:
        """Return the CKA of all layer pairs (Lx, Ly), or of `pairs` (P,), in float64; more batches may follow.

        Raises `ModelError` on NaN or infinity, and `DataError` for fewer than four texts or undefined CKA.
        """
        if self.count < 4:
            raise too_few_texts(self.count)
        self._flush()
        own = [self._own(model) for model in range(len(self._shifts))]
        cross = own[0].new_full((len(own[0]), len(own[-1])), torch.nan)
        for (x, i, y, j), sums in self._sums.items():
            if (x, y) == (0, len(own) - 1):
                cross[i, j] = self._hsic(sums)
        if len(own) == 1:
            cross = torch.where(cross.isnan(), cross.mT, cross)
        cka = _normalised(cross, own[0], own[-1], undefined)
        return cka if self._pairs is None else cka[tuple(torch.tensor(self._pairs).mT)]

    def _start(self, batches: Sequence[Tensor]) -> None:
        self._shifts, self._scales = [batch.mean(1, keepdim=True) for batch in batches], [*map(_unit_scale, batches)]
        self._pending = [[] for _ in batches]
        y, pairs = len(batches) - 1, self._pairs
        if pairs is None:  # one model: CKA is symmetric
            pairs = [(i, j) for i in range(len(batches[0])) for j in range(0 if y else i, len(batches[y]))]
        own = [key for i, j in pairs for key in ((0, i, 0, i), (y, j, y, j))]
        for key in dict.fromkeys([*((0, i, y, j) for i, j in pairs), *own]):
            widths = (batches[model].shape[2] + 2 for model in key[::2])
            self._sums[key] = torch.zeros(*widths, dtype=torch.float64)

    def _flush(self) -> None:
        if not self._waiting:
            return
        rows = []
        for pending in self._pending:
            states = torch.cat(pending, 1)
            lengths = torch.linalg.vector_norm(states, dim=-1, keepdim=True).square()
            rows.append(torch.cat([states, lengths, torch.ones_like(lengths)], -1))
            pending.clear()
        for (x, i, y, j), sums in self._sums.items():
            sums += _product(rows[x][i], rows[y][j])
        self._waiting = 0

    def _own(self, model: int) -> Tensor:
        """Return HSIC of each layer with itself (L,): 0 for constant states, infinite for layers in no pair."""
        shift, scale = self._shifts[model], self._scales[model]
        own, squares = shift.new_full((len(shift),), torch.inf, dtype=torch.float64), torch.zeros(len(shift))
        for layer, middle in enumerate((shift * scale)[:, 0].double()):
            if (sums := self._sums.get((model, layer, model, layer))) is None:
                continue
            mean, squares[layer] = sums[:-2, -1] / self.count, sums[-2, -1]
            spread = sums[-2, -1] / self.count - mean @ mean
            constant = spread <= ROUNDING**2 * (mean + middle).square().sum()
            meaningful = _meaningful(self._hsic(sums), spread, torch.finfo(shift.dtype).eps)
            own[layer] = torch.where(constant, 0.0, meaningful)
        require_finite(squares)
        return own

    def _hsic(self, sums: Tensor) -> Tensor:
        count, (cross, left, right, lengths) = self.count, (sums[:-2, :-2], sums[:-2, -2], sums[-2, :-2], sums[-2, -2])
        m, p, a, b = sums[:-2, -1] / count, sums[-1, :-2] / count, sums[-2, -1], sums[-1, -2]
        product = (cross - count * torch.outer(m, p)).square().sum()
        if not self._debiased:
            zero = product.new_zeros(())
            return _hsic_of_sums(product, zero, zero, count, debiased=False)
        mm, pp = m @ m, p @ p
        mixed = 2 * (p @ right + m @ left) - 4 * m @ cross @ p
        diagonals = lengths - mixed + pp * a + mm * b - 3 * count * mm * pp
        # Without its diagonal, a centred Gram matrix has row sums equal to minus the diagonal.
        traces = (a - count * mm) * (b - count * pp)
        return _hsic_of_sums(product - diagonals, diagonals, traces, count, debiased=True)
