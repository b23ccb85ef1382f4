"""An exported graph in ONNX Runtime, on the CPU or on CUDA."""

from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from truncate_kit.bench.backends import AbsentError
from truncate_kit.encoders import Encoder
from truncate_kit.errors import TruncateKitError
from truncate_kit.export import OnnxEncoder, check_record, open_session
from truncate_kit.export.runtime import padded
from truncate_kit.export.tracing import OUTPUT
from truncate_kit.extras import require


def onnx_bytes(graph: Path) -> int:
    """Size of the graph with the weights kept beside it."""
    return sum(file.stat().st_size for file in graph.parent.glob(f"{graph.name}*"))


class OnnxRunner:
    """The graph of one model, run as `OnnxEncoder` runs it; fixed shapes in a session of their own."""

    def __init__(self, encoder: Encoder, graph: Path, *, device: torch.device, threads: int) -> None:
        reader = encoder.reader if encoder.tokenizer is not None else None
        try:
            check_record(graph)
            self.model = OnnxEncoder(graph, reader, threads=threads, device=str(device), heads=encoder.heads)
            self.session = open_session(graph, device=device, threads=threads)
        except TruncateKitError as error:
            raise AbsentError(f"{error} {error.hint}") from error
        self.device = device
        self.padding = reader.padding_id if reader is not None else 0
        self.detail = f"{self.session.get_providers()[0]}, {self.model.batch_tokens} tokens per batch of a set"

    def prepare(self, ids: Sequence[Sequence[int]]) -> Callable[[], object]:
        """See `Runner`: inputs and outputs stay on the device, as they do for torch."""
        runtime = require("onnxruntime", extra="cpu")
        index = self.device.index or 0
        binding = self.session.io_binding()
        for name, value in padded(ids, self.padding).items():
            binding.bind_ortvalue_input(name, runtime.OrtValue.ortvalue_from_numpy(value, self.device.type, index))
        binding.bind_output(OUTPUT, self.device.type, index)

        def call() -> None:
            self.session.run_with_iobinding(binding)
            binding.synchronize_outputs()

        return call

    def encode_ids(self, ids: Sequence[Sequence[int]]) -> Tensor:
        """See `Runner`."""
        return self.model.encode_ids(ids)

    def encode(self, texts: Sequence[str]) -> Tensor:
        """See `Runner`."""
        return self.model.encode(texts)

    def similarities(self, first: Tensor, second: Tensor) -> Tensor:
        """By the model's own measure."""
        return self.model.similarities(first, second)
