"""Getting states ready to be compared: checks, centring, scaling, the variants without outliers."""

import math

import torch
from torch import Tensor

from truncate_kit.errors import UsageError, not_finite

# States that differ between texts by less than this share of their length differ by float32 rounding only.
ROUNDING = 1e-5


def check_states(states: Tensor, name: str = "states") -> Tensor:
    """Return states (L, n, d) in float32 or float64. Raises `UsageError` on anything else."""
    if not isinstance(states, Tensor):
        raise UsageError(
            f"{name} must be a tensor, found {type(states).__name__}.", hint="Make one: torch.as_tensor(states)."
        )
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


def standardise(states: Tensor) -> Tensor:
    """States (L, n, d) of mean 0 and variance 1 over the texts (the remedy of arXiv:2109.04404); constant ones 0."""
    mean = states.mean(1, keepdim=True)
    deviation = states.std(1, keepdim=True, correction=0)
    moving = deviation > ROUNDING * (mean.abs() + deviation)
    return torch.where(moving, (states - mean) / deviation, 0.0)


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
