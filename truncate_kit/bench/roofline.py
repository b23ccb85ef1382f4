"""How near a model comes to what this machine can multiply."""

import contextlib
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from truncate_kit.bench.bench_report import Ceiling
from truncate_kit.bench.timing import interleaved
from truncate_kit.models import Encoder
from truncate_kit.precisions import PRECISIONS, Precision
from truncate_kit.training.kernels import linear, onednn_pays

_SIZES = {"cpu": 1536, "cuda": 8192}


def flops(encoder: Encoder, batch_size: int, length: int) -> int | None:
    """Floating-point operations of the matrix products for a batch of unpadded texts of `length` tokens.

    2·b·t·W + 4·b·t²·A·L + 2·b·D with b texts, t tokens each, L layers, A = heads × head size. W: weights of the linear
    layers over tokens, shared blocks counted once for each layer that runs them; D: weights of the Dense layers over
    sentence vectors. Attention is counted in full, also where a mask hides part of it; norms, activations, softmax and
    pooling are left out. None for disentangled attention, which multiplies more than this counts.
    """
    config = encoder.backbone.config
    if getattr(config, "pos_att_type", None):
        return None
    blocks = encoder.backbone.get_submodule(encoder.family.blocks)
    in_blocks, everywhere = _linear_weights(blocks), _linear_weights(encoder.backbone)
    stored = len(list(blocks.children()))
    runs = encoder.depth / stored if stored else 0  # more than one where layers share a block
    over_tokens = everywhere - in_blocks + int(in_blocks * runs)
    head = int(getattr(config, "head_dim", None) or encoder.width // config.num_attention_heads)
    attention: int = 4 * batch_size * length**2 * config.num_attention_heads * head * encoder.depth
    over_texts = _linear_weights(encoder.tail) + (encoder.heads.weights_per_text if encoder.heads is not None else 0)
    return 2 * batch_size * length * over_tokens + attention + 2 * batch_size * over_texts


def _linear_weights(module: nn.Module) -> int:
    return sum(part.weight.numel() for part in module.modules() if isinstance(part, nn.Linear | Conv1D))


def ceiling_calls(device: torch.device, precisions: Sequence[Precision]) -> dict[str, Callable[[], object]]:
    """One square matrix product per precision, to be timed among the contestants; each waits for its device."""
    size = _SIZES[device.type]

    def call(precision: Precision, weights: str) -> Callable[[], object]:
        left, right = (torch.randn(size, size, device=device).to(getattr(torch, weights)) for _ in range(2))
        out = torch.empty_like(left)

        def product() -> None:
            with products_in(PRECISIONS[precision].products):
                torch.mm(left, right, out=out)
            synchronize(device)

        if device.type == "cpu" and precision == "fp32" and onednn_pays():
            return lambda: linear(left, right)  # torch.mm does not reach what the processor can
        return product

    types = {precision: PRECISIONS[precision].weights for precision in precisions}
    return {precision: call(precision, weights) for precision, weights in types.items() if weights is not None}


def ceiling(device: torch.device, precision: str, seconds: tuple[float, ...]) -> Ceiling:
    """The `Ceiling` of timed products: the fastest one, because noise only ever slows them."""
    size = _SIZES[device.type]
    return Ceiling(precision=precision, size=size, seconds=seconds, gflops_per_second=2 * size**3 / min(seconds) / 1e9)


def slower_in_bf16(device: torch.device) -> str:
    """That `device` multiplies fewer matrices in bfloat16 than in float32, in words; empty where it does not.

    Instructions of its own do not make it the faster one (benchmarks/training).
    """
    seconds = interleaved(ceiling_calls(device, ("fp32", "bf16")), rounds=3)
    plain, half = (ceiling(device, name, seconds[name]).gflops_per_second for name in ("fp32", "bf16"))
    return "" if half >= plain else f"bf16 is the slower one here: {half:.0f} GFLOP/s, fp32 {plain:.0f}."


@contextlib.contextmanager
def products_in(precision: str) -> Iterator[None]:
    """How torch multiplies matrices of float32 inside the block: `highest`, or `high` for TF32."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def synchronize(device: torch.device) -> None:
    """Wait until the device has done all it was given; the CPU always has."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
