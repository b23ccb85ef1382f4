"""Centred kernel alignment between all layers of two models, states in memory."""

from typing import Literal

import torch
from torch import Tensor

from truncate_kit.analysis.gram_sums import GramSums, gram_sums
from truncate_kit.analysis.hsic import normalised, require_positive
from truncate_kit.analysis.preparing import check_pair, check_states, prepare
from truncate_kit.analysis.settings import Estimator, Kernel
from truncate_kit.analysis.streaming import StreamedCKA
from truncate_kit.errors import UsageError, too_few_texts

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
    """CKA of every layer of one model with every layer of another (Kornblith et al., arXiv:1905.00414).

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
    """CKA (Lx, Ly) float64 from sums with the `layers_x` layers of one model first.

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
    """The one or two models' states in one float type. Raises `UsageError` and the errors of `cka_matrix`."""
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
