"""Centred kernel alignment between all layers of two models, states in memory."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from scipy.stats import t as student_t
from torch import Tensor

from truncate_kit.analysis.hsic import (
    GramSums,
    check_pair,
    check_states,
    gram_sums,
    normalised,
    prepare,
    require_positive,
    without_outliers,
)
from truncate_kit.analysis.result import Curve, Estimator, Kernel, Row
from truncate_kit.analysis.streaming import StreamedCKA
from truncate_kit.core.errors import UsageError, too_few_texts

# How much slower per operation the layer-by-layer products of tiles run than the tiles' own large products.
GRAM_OVERHEAD = 4
# Feature products are taken only while their float64 sums stay below this; Gram sums need a few MB whatever n is.
FEATURE_BYTES = 2 << 30


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

    Float32 states are multiplied in float32 and added up in float64 for the linear kernel; else all is float64.

    Args:
        states_x: (Lx, n, dx).
        states_y: (Ly, n, dy) of the same distinct texts, or None for the model with itself.
        estimator: "debiased" from the unbiased HSIC (arXiv:2010.15327, eq. 3) or "biased", which is high even between
            random states when n ≪ d.
        kernel: "linear", or "rbf" with σ = bandwidth × median distance of the layer.
        bandwidth: Unitless factor of the RBF kernel.
        undefined: "nan" leaves NaN for layers whose states are constant or all equally far apart, and under the RBF
            kernel for those in which most texts have the same.

    Returns:
        (Lx, Ly) float64; debiased values can be slightly below 0 or above 1.

    Raises:
        DataError: n < 4, or CKA is not defined at a layer.
        UsageError: States do not fit together, or an argument is impossible.
        ModelError: States are no numbers.
    """
    models = checked(states_x, states_y, estimator=estimator, kernel=kernel, bandwidth=bandwidth)
    ready = [prepare(model)[0] for model in models]
    if kernel == "linear" and _features_cost_less(models):
        streamed = StreamedCKA(estimator=estimator)
        streamed.update(*ready)
        return streamed.result(undefined=undefined)
    sums = gram_sums(ready, kernel=kernel, bandwidth=bandwidth)
    return cka_from_sums(sums, models[0].shape[0], estimator=estimator, undefined=undefined)


def cka_from_sums(
    sums: GramSums,
    layers_x: int,
    *,
    estimator: Estimator,
    without: int | None = None,
    undefined: Literal["raise", "nan"] = "raise",
) -> Tensor:
    """Compute CKA (Lx, Ly) float64 from sums with the `layers_x` layers of one model first.

    Args:
        sums: Those with the `layers_x` layers of one model first.
        layers_x: Number of layers of that model.
        estimator: As in `cka_matrix`.
        without: Texts to leave out.
        undefined: As in `cka_matrix`.
    """
    hsic = sums.hsic(debiased=estimator == "debiased", without=without)
    own = torch.diagonal(hsic)
    # With no layers of a second model, the first one is compared with itself.
    others = slice(layers_x, None) if hsic.shape[0] > layers_x else slice(None)
    if undefined == "raise":
        require_positive(own[:layers_x], "the model")
        require_positive(own[others], "the reference")
    return normalised(hsic[:layers_x, others], own[:layers_x, None], own[None, others])


def checked(
    states_x: Tensor, states_y: Tensor | None, *, estimator: str, kernel: str, bandwidth: float
) -> list[Tensor]:
    """Return the one or two models' states in one float type. Raises `UsageError` and the errors of `cka_matrix`."""
    if estimator not in ("debiased", "biased"):
        raise UsageError(f"Unknown estimator {estimator!r}.", hint="Use debiased or biased.")
    if kernel not in ("linear", "rbf"):
        raise UsageError(f"Unknown kernel {kernel!r}.", hint="Use linear or rbf.")
    if not 0 < bandwidth < float("inf"):
        raise UsageError(f"The bandwidth factor {bandwidth} is not positive.", hint="Use for example 0.5, 1 or 2.")
    models = [check_states(states_x, "states_x")]
    if states_y is not None:
        models.append(check_states(states_y, "states_y"))
        check_pair(*models)
        kind = torch.promote_types(models[0].dtype, models[1].dtype)
        models = [model.to(kind) for model in models]
    if kernel == "rbf":  # squared distances are differences of large numbers, too coarse in float32
        models = [model.double() for model in models]
    if models[0].shape[1] < 4:
        raise too_few_texts(models[0].shape[1])
    return models


def _features_cost_less(models: list[Tensor]) -> bool:
    """Compare the multiplications of both forms; when the widths are small and texts many, features win."""
    count = models[0].shape[1]
    layers = sum(model.shape[0] for model in models)
    widths = sum(model.shape[0] * model.shape[2] for model in models)
    gram = count * count * (widths + GRAM_OVERHEAD * layers * layers) / 2
    (lx, _, dx), (ly, _, dy) = models[0].shape, models[-1].shape
    entries = lx * ly * dx * dy + (lx * dx * dx + ly * dy * dy if len(models) == 2 else 0)
    if len(models) == 1:
        entries //= 2
    return count * entries < gram and 8 * entries < FEATURE_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerComparison:
    """CKA between the layers of a model and a reference, or of the model with itself (`reference_within` is None)."""

    matrix: tuple[Row, ...]  # rows are the model's layers, columns the reference's
    curve: Curve  # at the same relative depth, which is the same layer if depths agree
    within: tuple[Row, ...]
    reference_within: tuple[Row, ...] | None


def relative_layers(depth: int, reference_depth: int) -> tuple[int, ...]:
    """Return for each layer 0 … depth the reference layer nearest in relative depth; of two the lower."""
    if depth == 0:
        return (0,)
    return tuple((2 * layer * reference_depth + depth - 1) // (2 * depth) for layer in range(depth + 1))


def compare_layers(
    states_x: Tensor,
    states_y: Tensor | None = None,
    *,
    estimator: Estimator = "debiased",
    kernel: Kernel = "linear",
    outliers: int = 0,
    blocks: int = 10,
    level: float = 0.95,
    seed: int = 0,
) -> LayerComparison:
    """Compare all layers of a model with a reference, or with itself, on the same distinct texts.

    The errors are those of `cka_matrix`, but undefined values are None; `DataError` also if a block leaves fewer than
    4 texts.

    Args:
        states_x: As in `cka_matrix`.
        states_y: As in `cka_matrix`.
        estimator: As in `cka_matrix`.
        kernel: As in `cka_matrix`.
        outliers: Number of dimensions of largest variance that are set to 0 at each layer (`outlier_dimensions`).
        blocks: Groups of texts that the jackknife leaves out in turn, 0 for no intervals.
        level: Of the intervals.
        seed: Draws the groups.
    """
    models = checked(states_x, states_y, estimator=estimator, kernel=kernel, bandwidth=1.0)
    models = [prepare(without_outliers(model, outliers) if outliers else model)[0] for model in models]
    layers, count, _ = models[0].shape
    if blocks == 1:
        raise UsageError("One block gives no interval.", hint="Use 0 for none, or 10.")
    if blocks and count - -(-count // blocks) < 4:
        raise too_few_texts(count, needed=4 + -(-count // blocks))
    if blocks:  # files are often ordered by source: blocks of neighbours would not be alike
        # A jackknife, because a bootstrap would repeat texts, which breaks the debiasing.
        order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
        models = [model[:, order] for model in models]
    sums = gram_sums(models, kernel=kernel, groups=max(1, blocks))
    matrix = cka_from_sums(sums, layers, estimator=estimator, undefined="nan")
    others = relative_layers(layers - 1, matrix.shape[1] - 1)
    place, low, high = (torch.arange(layers), torch.tensor(others)), None, None
    if blocks:
        left_out = [
            cka_from_sums(sums, layers, estimator=estimator, without=group, undefined="nan") for group in range(blocks)
        ]
        low, high = (without_nan(end[place]) for end in jackknife_bounds(matrix, torch.stack(left_out), level=level))
    hsic = sums.hsic(debiased=estimator == "debiased")
    return LayerComparison(
        matrix=_rows(matrix),
        curve=Curve(values=without_nan(matrix[place]), reference_layers=others, low=low, high=high),
        within=_within(hsic[:layers, :layers]),
        reference_within=None if len(models) == 1 else _within(hsic[layers:, layers:]),
    )


def jackknife_bounds(values: Tensor, left_out: Tensor, *, level: float) -> tuple[Tensor, Tensor]:
    """Return the delete-a-block jackknife interval, values ± t · standard error (Efron and Stein 1981).

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


def _within(hsic: Tensor) -> tuple[Row, ...]:
    own = torch.diagonal(hsic)
    return _rows(normalised(hsic, own[:, None], own[None, :]))


def _rows(matrix: Tensor) -> tuple[Row, ...]:
    return tuple(without_nan(row) for row in matrix)


def without_nan(values: Tensor) -> Row:
    """Return the numbers of a vector, None for NaN."""
    return tuple(value if value == value else None for value in map(float, values))


class StreamedCurve:
    """Accumulates CKA of each layer with one layer of the reference, over all texts and over each block of them.

    Memory is that of two `StreamedCKA` over the pairs of the curve, whatever the number of texts and blocks.
    reference_layers: of each layer 0 … L. level: of the interval.
    """

    def __init__(
        self, reference_layers: Sequence[int], *, estimator: Estimator = "debiased", level: float = 0.95
    ) -> None:
        self._reference_layers, self._level, self._estimator = tuple(reference_layers), level, estimator
        self._pairs = list(enumerate(self._reference_layers))
        self._whole, self._block = self._accumulator(), self._accumulator()
        self._values: list[Tensor] = []

    def _accumulator(self) -> StreamedCKA:
        return StreamedCKA(estimator=self._estimator, pairs=self._pairs)

    def update(self, states_x: Tensor, states_y: Tensor) -> None:
        """Add a batch of the current block: states (Lx, b, dx) and (Ly, b, dy)."""
        self._whole.update(states_x, states_y)
        self._block.update(states_x, states_y)

    def end_block(self) -> None:
        """Close the current block of texts; blocks should be of one size and drawn at random."""
        self._values.append(self._block.result(undefined="nan"))
        self._block = self._accumulator()

    def result(self) -> Curve:
        """Return the curve over all texts, None where CKA is not defined; raises as `StreamedCKA.result`.

        With two or more closed blocks the interval is that of batch means, values ± t · deviation of the blocks /
        √blocks: each block is an independent sample of n / blocks texts, drawn without replacement.
        """
        values = self._whole.result(undefined="nan")
        low = high = None
        blocks = len(self._values)
        if blocks > 1:
            deviation = torch.stack(self._values).std(0)
            reach = float(student_t.ppf((1 + self._level) / 2, blocks - 1)) * deviation / blocks**0.5
            low, high = without_nan(values - reach), without_nan(values + reach)
        return Curve(values=without_nan(values), reference_layers=self._reference_layers, low=low, high=high)
