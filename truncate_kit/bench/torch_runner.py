"""torch, eager or compiled."""

import copy
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from truncate_kit.bench.backends import Backend
from truncate_kit.bench.roofline import products_in, synchronize
from truncate_kit.bench.running import ENCODE_BATCH, AbsentError, Ids
from truncate_kit.errors import first_line
from truncate_kit.hardware import bf16_instructions
from truncate_kit.models import Encoder
from truncate_kit.precisions import PRECISIONS


class TorchRunner:
    """torch, eager or compiled, in fp32 or with all weights in bf16 or fp16."""

    def __init__(self, backend: Backend, encoder: Encoder, *, device: torch.device) -> None:
        self.device = device
        self.products = PRECISIONS[backend.precision].products
        model = encoder if backend.dtype is None else copy.deepcopy(encoder).to(backend.dtype)
        if backend.attention is not None:
            model = _with_attention(model, backend.attention)
        self.detail = f"{model.backbone.config._attn_implementation} attention"
        if backend.precision == "bf16":
            self.detail += f", {bf16_instructions(device)}"
        if backend.compiled:
            model = copy.copy(model)  # compiling marks the module; the eager row shares the weights, not the mark
            model.compile(dynamic=not backend.static, mode="reduce-overhead" if backend.captured else None)
            self.detail += f", {_shapes_of(backend)}"
        if not backend.fixed_shapes:
            self.detail += f", {ENCODE_BATCH[device.type]} texts per batch of a set"
        self.model = model.to(device).eval()

    def prepare(self, ids: Ids) -> Callable[[], object]:
        """See `Runner`."""
        with torch.inference_mode():  # tensors made outside would let a compiled model compile once more
            batch = {name: value.to(self.device) for name, value in self.model.pad(ids).items()}

        def call() -> Tensor:
            with torch.inference_mode(), products_in(self.products):
                vectors: Tensor = self.model(**batch)
            synchronize(self.device)
            return vectors

        return call

    def encode_ids(self, ids: Ids) -> Tensor:
        """See `Runner`; the vectors come to the CPU, so nothing is left to wait for."""
        with products_in(self.products):
            return self.model.encode_ids(ids, batch_size=ENCODE_BATCH[self.device.type])

    def encode(self, texts: Sequence[str]) -> Tensor:
        """See `Runner`."""
        return self.encode_ids(self.model.token_ids(texts))

    def similarities(self, first: Tensor, second: Tensor) -> Tensor:
        """By the model's own measure."""
        return self.model.similarities(first, second)


def _shapes_of(backend: Backend) -> str:
    """For which shapes torch.compile makes its kernels."""
    if backend.captured:
        return "CUDA graphs of fixed shapes"
    return "static shapes" if backend.static else "dynamic shapes"


def _with_attention(encoder: Encoder, name: str) -> Encoder:
    """A copy with another attention kernel. Raises `AbsentError` where it is not installed or not for this model."""
    changed = copy.deepcopy(encoder)
    try:
        changed.backbone.set_attn_implementation(name)
    except (ImportError, ValueError) as error:
        raise AbsentError(f"{name} cannot be used: {first_line(error)}") from error
    return changed
