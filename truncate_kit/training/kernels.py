"""Speed up linear layers, dropout and attention on the CPU.

On processors not made by Intel, torch's MKL uses only 256-bit instructions; oneDNN is twice as fast on an AMD EPYC.
Sixteen random bits suffice for dropout. Fused attention runs in float32: its bfloat16 backward pass is slow
(benchmarks/training).
"""

import math
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack

from truncate_kit.core.hardware import has_avx512, processor_maker

LEAST_PRODUCTS = 2**20  # with fewer multiplications, oneDNN's overhead outweighs its gain


class FasterOnCPU(TorchFunctionMode):
    """Replace torch's linear layers, dropout and attention by faster versions on CPU tensors, gradients included."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is nn.functional.linear and not kwargs and onednn_pays() and _suits(*args):
            return linear(*args)
        if func is nn.functional.dropout and args[0].device.type == "cpu":
            return _dropout(*args, **kwargs)
        if func is nn.functional.scaled_dot_product_attention and args[0].device.type == "cpu":
            return _attention(*args, **kwargs)
        return func(*args, **kwargs)


def faster_on_cpu() -> bool:
    """Return whether a `FasterOnCPU` is active; it draws other random numbers for dropout than torch."""
    modes: list[Any] = _get_current_function_mode_stack()
    return any(isinstance(mode, FasterOnCPU) for mode in modes)


def onednn_pays() -> bool:
    """Return whether oneDNN is faster; known from the processor, not timed, for reproducible runs."""
    return has_avx512() and _beats_mkl()


@cache
def _beats_mkl() -> bool:
    """Return whether MKL is limited to 256 bits here, and oneDNN works."""
    intel = processor_maker() in (None, "GenuineIntel")
    if intel or not torch.backends.mkl.is_available():
        return False
    try:  # the operator is not public
        rows, weight, bias = torch.ones(64, 48), torch.ones(32, 48), torch.ones(32)
        return torch.equal(_product(rows, weight, bias), torch.full((64, 32), 49.0))
    except (AttributeError, RuntimeError, TypeError):
        return False


def linear(states: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return states (…, in) · weightᵀ (out, in) + bias (out,) by oneDNN, in float32 on the CPU."""
    if torch.is_grad_enabled() and any(part is not None and part.requires_grad for part in (states, weight, bias)):
        result: Tensor = _Linear.apply(states, weight, bias)  # type: ignore[no-untyped-call]  # of our class
        return result
    return _product(states, weight, bias)


def _suits(states: Tensor, weight: Tensor, bias: Tensor | None = None) -> bool:
    if states.ndim < 2 or weight.ndim != 2 or states.numel() * weight.shape[0] < LEAST_PRODUCTS:
        return False
    plain = all(
        part.dtype == torch.float32 and part.device.type == "cpu" and part.layout == torch.strided
        for part in (states, weight, bias)
        if part is not None
    )
    return plain and not torch.is_autocast_enabled("cpu")


def _product(states: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    result: Tensor = torch.ops.mkldnn._linear_pointwise(states, weight, bias, "none", [], "")
    return result


class _Linear(torch.autograd.Function):
    """Linear layer by oneDNN; gradients from g: g · weight (states), gᵀ · states (weight), Σ g (bias)."""

    @staticmethod
    def forward(context: Any, states: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        context.save_for_backward(states, weight)
        return _product(states, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        states, weight = context.saved_tensors
        wants_states, wants_weight, wants_bias = context.needs_input_grad
        rows = gradient.reshape(-1, gradient.shape[-1])
        return (
            _product(gradient, weight.t(), None) if wants_states else None,
            _product(rows.t(), states.reshape(-1, states.shape[-1]).t(), None) if wants_weight else None,
            rows.sum(dim=0) if wants_bias else None,
        )


def dropout(states: Tensor, p: float) -> Tensor:
    """Set about a share `p` of the elements to 0 and divide the others by 1 − p."""
    # Keep an element if sixteen random bits are below 2¹⁶ · (1 − p), rounded.
    words = torch.empty(-(-states.numel() // 4), dtype=torch.int64).random_(-(2**63), None)
    bits = words.view(torch.int16)[: states.numel()].view(states.shape)
    kept = (bits < round((1 - p) * 2**16) - 2**15).to(states.dtype)
    return states * kept.mul_(1 / (1 - p))


def _dropout(states: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    if not training or not 0 < p < 1 or inplace:
        return nn.functional.dropout(states, p, training, inplace)
    return dropout(states, p)


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    **others: Any,
) -> Tensor:
    """Compute attention: by torch's fused kernel (bfloat16 in float32), or step by step if there is dropout."""
    kind = query.dtype
    if dropout_p == 0 and kind == torch.bfloat16:
        with torch.autocast("cpu", enabled=False):
            mask = attn_mask.float() if attn_mask is not None and attn_mask.is_floating_point() else attn_mask
            wide = (query.float(), key.float(), value.float(), mask, 0.0, is_causal)
            return nn.functional.scaled_dot_product_attention(*wide, scale=scale, **others).to(kind)
    if dropout_p == 0 or is_causal or others:
        return nn.functional.scaled_dot_product_attention(
            query, key, value, attn_mask, dropout_p, is_causal, scale=scale, **others
        )
    scores = query @ key.transpose(-2, -1) * (1 / math.sqrt(query.shape[-1]) if scale is None else scale)
    if attn_mask is not None:
        hidden = attn_mask.dtype == torch.bool
        scores = scores.masked_fill(~attn_mask, torch.finfo(scores.dtype).min) if hidden else scores + attn_mask
    return dropout(scores.softmax(dim=-1), dropout_p).to(kind) @ value
