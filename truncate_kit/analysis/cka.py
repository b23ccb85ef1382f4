"""Centred kernel alignment between all layers of two models."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, get_args

import torch
from scipy.stats import t as student_t
from torch import Tensor

from truncate_kit.analysis.hsic import (
    GramSums,
    check_pair,
    check_states,
    gram_sums,
    normalised,
    outlier_mask,
    prepare,
    require_positive,
)
from truncate_kit.analysis.result import Curve, Estimator, Kernel, Row
from truncate_kit.analysis.streaming import StreamedCKA
from truncate_kit.core.errors import UsageError, known_name, too_few_texts

GRAM_OVERHEAD = 4  # slowdown per operation of layer-by-layer products of tiles
FEATURE_BYTES = 2 << 30  # limit for sums of feature products


def cka_matrix(
    states_x: Tensor,
    states_y: Tensor | None = None,
    *,
    estimator: Estimator = "debiased",
    kernel: Kernel = "linear",
    bandwidth: float = 1.0,
    undefined: Literal["raise", "nan"] = "raise",
) -> Tensor:
    """Compute CKA of every layer of one model with every layer of another (Kornblith et al., arXiv:1905.00414).

    Args:
        states_x: (Lx, n, dx); float32 products are added up in float64, RBF is float64 throughout.
        states_y: (Ly, n, dy) of the same distinct texts; by default `states_x`.
        estimator: "debiased" (arXiv:2010.15327, eq. 3), or "biased", which is high even between random states if n ≪ d.
        kernel: "linear", or "rbf" with σ = bandwidth × median distance of the layer.
        bandwidth: Unitless.
        undefined: "nan" for layers with constant or equidistant states (RBF: if most texts share a state).

    Returns:
        (Lx, Ly) float64; debiased values can be slightly below 0 or above 1.

    Raises:
        DataError: n < 4, or CKA is undefined at a layer.
        UsageError: States do not fit together, or an argument is impossible.
        ModelError: States hold NaN or infinity.
    """
    models = _checked(states_x, states_y, estimator=estimator, kernel=kernel, bandwidth=bandwidth)
    prepared = [prepare(model) for model in models]
    if kernel == "linear" and _features_cost_less(models):
        streamed = StreamedCKA(estimator=estimator)
        streamed.update(*prepared)
        return streamed.result(undefined=undefined)
    sums = gram_sums(prepared, kernel=kernel, bandwidth=bandwidth)
    return _cka_from_sums(sums, models[0].shape[0], estimator=estimator, undefined=undefined)


def _cka_from_sums(
    sums: GramSums, layers_x: int, *, estimator: Estimator, undefined: str = "nan", without: int | None = None
) -> Tensor:
    """Compute CKA (Lx, Ly) float64, the model's `layers_x` layers first, without a group of texts."""
    hsic = sums.hsic(debiased=estimator == "debiased", without=without)
    own = torch.diagonal(hsic)
    others = slice(layers_x, None) if hsic.shape[0] > layers_x else slice(None)
    if undefined == "raise":
        require_positive(own[:layers_x], "the model")
        require_positive(own[others], "the reference")
    return normalised(hsic[:layers_x, others], own[:layers_x, None], own[None, others])


def _checked(
    states_x: Tensor, states_y: Tensor | None, *, estimator: str, kernel: str, bandwidth: float = 1.0
) -> list[Tensor]:
    known_name("estimator", estimator, get_args(Estimator))
    known_name("kernel", kernel, get_args(Kernel))
    if not 0 < bandwidth < float("inf"):
        raise UsageError(f"The bandwidth factor {bandwidth} is not positive.", hint="Use for example 0.5, 1 or 2.")
    models = [check_states(states_x, "states_x")]
    if states_y is not None:
        models.append(check_states(states_y, "states_y"))
        check_pair(*models)
    if models[0].shape[1] < 4:
        raise too_few_texts(models[0].shape[1])
    kind = torch.promote_types(models[0].dtype, models[-1].dtype)
    # Squared distances are differences of large numbers, too coarse in float32.
    return [model.to(torch.float64 if kernel == "rbf" else kind) for model in models]


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
    """Return the reference layer nearest in relative depth for each layer; of two the lower."""
    if depth == 0:
        return (0,)
    return tuple((2 * layer * reference_depth + depth - 1) // (2 * depth) for layer in range(depth + 1))


def compare_layers(
    states_x: Tensor,
    states_y: Tensor | None = None,
    *,
    layers: Sequence[int] | None = None,
    estimator: Estimator = "debiased",
    kernel: Kernel = "linear",
    outliers: int = 0,
    blocks: int = 10,
    level: float = 0.95,
    seed: int = 0,
) -> tuple[Curve, tuple[Row, ...]]:
    """Compare all layers of a model with a reference, or with itself; see `cka_matrix`.

    layers: reference layers of the curve, by default at the same relative depth. outliers: dimensions of largest
    variance set to 0 per layer. blocks: groups of texts for jackknife intervals, or 0. Returns the curve and CKA of all
    pairs, (model, reference); undefined values are None.
    """
    models = _checked(states_x, states_y, estimator=estimator, kernel=kernel)
    models = [prepare(model * outlier_mask(model, outliers) if outliers else model) for model in models]
    depth, count, _ = models[0].shape
    if blocks == 1:
        raise UsageError("One block gives no interval.", hint="Use 0 for none, or 10.")
    if blocks and count - -(-count // blocks) < 4:
        raise too_few_texts(count, needed=4 + -(-count // blocks))
    if blocks:  # files are often ordered by source
        # A bootstrap would repeat texts, which breaks the debiasing.
        order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
        models = [model[:, order] for model in models]
    sums = gram_sums(models, kernel=kernel, groups=max(1, blocks))
    matrix, *left_out = (
        _cka_from_sums(sums, depth, estimator=estimator, without=group) for group in (None, *range(blocks))
    )
    layers = relative_layers(depth - 1, matrix.shape[1] - 1) if layers is None else layers
    place = (torch.arange(depth), torch.tensor(layers))
    error = jackknife_error(torch.stack(left_out))[place] if blocks else None
    return curve_of(matrix[place], layers, error, blocks, level), tuple(map(without_nan, matrix))


def jackknife_error(left_out: Tensor) -> Tensor:
    """Return the delete-a-block jackknife standard error (Efron and Stein 1981), √((G − 1)/G Σ (value − mean)²).

    left_out: (G, *shape), values without each of G equal blocks of texts.
    """
    blocks = left_out.shape[0]
    return ((blocks - 1) / blocks * (left_out - left_out.mean(0)).square().sum(0)).sqrt()


def curve_of(values: Tensor, layers: Sequence[int], error: Tensor | None, blocks: int, level: float) -> Curve:
    """Return the curve with the interval values ± t · error, Student's t with blocks − 1 degrees of freedom."""
    curve = Curve(values=without_nan(values), reference_layers=tuple(layers))
    if error is None:
        return curve
    reach = float(student_t.ppf((1 + level) / 2, blocks - 1)) * error
    return replace(curve, low=without_nan(values - reach), high=without_nan(values + reach))


def without_nan(values: Tensor) -> Row:
    """Replace NaN by None."""
    return tuple(value if value == value else None for value in map(float, values))
