"""Comparison of the layers of two models, or of one: curves, the full matrix, intervals."""

from dataclasses import dataclass
from typing import Literal

import torch
from scipy.stats import t as student_t
from torch import Tensor

from truncate_kit.analysis.cka import checked, cka_from_sums
from truncate_kit.analysis.curve import Curve, Row
from truncate_kit.analysis.gram_sums import gram_sums
from truncate_kit.analysis.hsic import normalised
from truncate_kit.analysis.preparing import prepare, standardise, without_outliers
from truncate_kit.analysis.settings import Estimator, Kernel
from truncate_kit.errors import UsageError, too_few_texts
from truncate_kit.results import Result

Variant = Literal["plain", "without_outliers", "standardised"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerComparison(Result):
    """CKA between the layers of a model and a reference, or of the model with itself (`reference_within` is None)."""

    matrix: tuple[Row, ...]  # rows are the model's layers, columns the reference's
    same_layer: Curve | None  # None when depths differ
    relative_depth: Curve  # equal to same_layer when depths agree
    within: tuple[Row, ...]
    reference_within: tuple[Row, ...] | None
    estimator: str
    kernel: str
    variant: str
    num_texts: int
    level: float
    blocks: int  # number of jackknife blocks, 0 without intervals


def relative_layers(depth: int, reference_depth: int) -> tuple[int, ...]:
    """For each layer 0 … depth the reference layer nearest in relative depth; of two equally near ones the lower."""
    if depth == 0:
        return (0,)
    return tuple((2 * layer * reference_depth + depth - 1) // (2 * depth) for layer in range(depth + 1))


def compare_layers(
    states_x: Tensor,
    states_y: Tensor | None = None,
    *,
    estimator: Estimator = "debiased",
    kernel: Kernel = "linear",
    bandwidth: float = 1.0,
    variant: Variant = "plain",
    outliers: int = 3,
    blocks: int = 10,
    level: float = 0.95,
    seed: int = 0,
) -> LayerComparison:
    """Compare all layers of a model with a reference, or with itself, on the same distinct texts.

    The errors are those of `cka_matrix`, but undefined values are None; `DataError` also where a block leaves fewer
    than 4 texts.

    Args:
        states_x: As in `cka_matrix`.
        states_y: As in `cka_matrix`.
        estimator: As in `cka_matrix`.
        kernel: As in `cka_matrix`.
        bandwidth: As in `cka_matrix`.
        variant: "without_outliers" sets each layer's `outliers` dimensions of largest variance to 0
            (`outlier_dimensions`), "standardised" gives all dimensions variance 1.
        outliers: Number of dimensions of largest variance in each layer.
        blocks: Groups of texts, drawn by `seed`, that the jackknife leaves out in turn, 0 for no intervals of this
            `level`.
        level: Of the intervals.
        seed: Draws the groups.
    """
    models = checked(states_x, states_y, estimator=estimator, kernel=kernel, bandwidth=bandwidth)
    models = [prepare(_varied(model, variant, outliers))[0] for model in models]
    layers, count, _ = models[0].shape
    groups = _checked_blocks(blocks, level, count)
    if groups:  # files are often ordered by source: blocks of neighbours would not be alike
        # A jackknife, because a bootstrap would repeat texts, which breaks the debiasing.
        order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
        models = [model[:, order] for model in models]
    sums = gram_sums(models, kernel=kernel, bandwidth=bandwidth, groups=max(1, groups))
    matrix = cka_from_sums(sums, layers, estimator=estimator, undefined="nan")
    left_out = [
        cka_from_sums(sums, layers, estimator=estimator, without=group, undefined="nan") for group in range(groups)
    ]
    bounds = jackknife_bounds(matrix, torch.stack(left_out), level=level) if groups else None
    hsic = sums.hsic(debiased=estimator == "debiased")
    return LayerComparison(
        matrix=_rows(matrix),
        same_layer=_curve(matrix, bounds, tuple(range(layers))) if layers == matrix.shape[1] else None,
        relative_depth=_curve(matrix, bounds, relative_layers(layers - 1, matrix.shape[1] - 1)),
        within=_within(hsic[:layers, :layers]),
        reference_within=None if len(models) == 1 else _within(hsic[layers:, layers:]),
        estimator=estimator,
        kernel=kernel,
        variant=variant,
        num_texts=count,
        level=level,
        blocks=groups,
    )


def jackknife_bounds(values: Tensor, left_out: Tensor, *, level: float) -> tuple[Tensor, Tensor]:
    """Bounds of the delete-a-block jackknife interval, values ± t · standard error (Efron and Stein 1981).

    The variance is (G − 1)/G Σ (value without the block − their mean)²; t is Student's with G − 1 degrees of freedom.

    Args:
        values: Any shape.
        left_out: (G, *shape), the same with each of G equal blocks of texts left out.
        level: Of the interval.
    """
    blocks = left_out.shape[0]
    variance = (blocks - 1) / blocks * (left_out - left_out.mean(0)).square().sum(0)
    reach = float(student_t.ppf((1 + level) / 2, blocks - 1)) * variance.sqrt()
    return values - reach, values + reach


def _checked_blocks(blocks: int, level: float, count: int) -> int:
    if blocks < 0 or blocks == 1:
        raise UsageError(f"{blocks} blocks give no interval.", hint="Use 0 for none, or 10.")
    if not 0 < level < 1:
        raise UsageError(f"A confidence level of {level} makes no sense.", hint="Use a share such as 0.95.")
    if blocks and count - -(-count // blocks) < 4:
        raise too_few_texts(count, needed=4 + -(-count // blocks))
    return blocks


def _varied(states: Tensor, variant: str, outliers: int) -> Tensor:
    if variant == "plain":
        return states
    if variant == "without_outliers":
        return without_outliers(states, outliers)
    if variant == "standardised":
        return standardise(states)
    raise UsageError(f"Unknown variant {variant!r}.", hint="Use plain, without_outliers or standardised.")


def _within(hsic: Tensor) -> tuple[Row, ...]:
    own = torch.diagonal(hsic)
    return _rows(normalised(hsic, own[:, None], own[None, :]))


def _curve(matrix: Tensor, bounds: tuple[Tensor, Tensor] | None, reference_layers: tuple[int, ...]) -> Curve:
    index = (torch.arange(len(reference_layers)), torch.tensor(reference_layers))
    low, high = (None, None) if bounds is None else (without_nan(bound[index]) for bound in bounds)
    return Curve(values=without_nan(matrix[index]), reference_layers=reference_layers, low=low, high=high)


def _rows(matrix: Tensor) -> tuple[Row, ...]:
    return tuple(without_nan(row) for row in matrix)


def without_nan(values: Tensor) -> Row:
    """The numbers of a vector, None for NaN."""
    return tuple(value if value == value else None for value in map(float, values))
