"""An exported graph in ONNX Runtime, on the CPU or on CUDA."""

from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from truncate_kit.bench.backends import Backend
from truncate_kit.bench.running import AbsentError, Ids, encode_in_chunks
from truncate_kit.errors import ModelError, TruncateKitError
from truncate_kit.export.record import check_runnable
from truncate_kit.export.runtime import OnnxEncoder
from truncate_kit.export.sessions import CudaOptions, FixedShapes, bound_to, open_session, repeated
from truncate_kit.models import Encoder
from truncate_kit.models.text_reader import padded

TENSORRT_TEXTS = 512  # of one batch, at most
# What TensorRT builds its engines for: one for all shapes, or each new one would take it minutes.
_TENSORRT_SHAPES = {
    "trt_fp16_enable": True,
    "trt_profile_min_shapes": "input_ids:1x1,attention_mask:1x1",
    "trt_profile_opt_shapes": "input_ids:32x128,attention_mask:32x128",
    "trt_profile_max_shapes": f"input_ids:{TENSORRT_TEXTS}x512,attention_mask:{TENSORRT_TEXTS}x512",
}


def cuda_options(backend: Backend, device: torch.device) -> CudaOptions:
    """How a session of that row runs: on torch's current stream, so that one clock on the device sees both."""
    stream = torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0
    return CudaOptions(
        captured=backend.captured,
        stream=stream or None,  # ONNX Runtime takes torch's default stream, 0, for none
        tensorrt=_TENSORRT_SHAPES if backend.tensorrt else None,
    )


class OnnxRunner:
    """The graph of one model, run as `OnnxEncoder` runs it; fixed shapes in a session of their own.

    Raises `AbsentError` where this machine cannot run it, `ModelError` where the graph or its export.json is damaged.
    """

    def __init__(self, backend: Backend, encoder: Encoder, graph: Path, *, device: torch.device, threads: int) -> None:
        reader = encoder.reader if encoder.tokenizer is not None else None
        options = cuda_options(backend, device)
        self.most_texts = TENSORRT_TEXTS if backend.tensorrt else None
        try:
            check_runnable(graph, device.type)
            self.model = OnnxEncoder(
                graph,
                reader,
                threads=threads,
                device=str(device),
                heads=encoder.heads,
                buckets=backend.captured,
                cuda_options=options,
            )
            self.session = open_session(graph, device=device, threads=threads, cuda_options=options)
        except TruncateKitError as error:
            if isinstance(error, ModelError) and not backend.tensorrt:  # TensorRT does not build every graph
                raise
            raise AbsentError(f"{error} {error.hint}") from error
        self.fixed = FixedShapes(self.session, device, self.model.width) if backend.captured else None
        self.device = device
        self.padding = reader.padding_id if reader is not None else 0
        self.detail = f"{self.session.get_providers()[0]}, {self.model.batch_tokens} tokens per batch of a set"

    def prepare(self, ids: Ids) -> Callable[[], object]:
        """See `Runner`: inputs and outputs stay on the device, as they do for torch."""
        if self.fixed is not None:
            return self.fixed.bound(padded(ids, self.padding))
        return repeated(self.session, bound_to(self.session, padded(ids, self.padding), self.device))

    def encode_ids(self, ids: Ids) -> Tensor:
        """See `Runner`."""
        if self.most_texts is None:
            return self.model.encode_ids(ids)
        return encode_in_chunks(ids, self.most_texts, self.model.encode_ids)

    def encode(self, texts: Sequence[str]) -> Tensor:
        """See `Runner`."""
        if self.most_texts is None or self.model.reader is None:
            return self.model.vectors(texts)
        return self.encode_ids(self.model.reader.token_ids(texts))

    def similarities(self, first: Tensor, second: Tensor) -> Tensor:
        """By the model's own measure."""
        return self.model.similarities(first, second)
