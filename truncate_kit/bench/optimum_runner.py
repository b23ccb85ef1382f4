"""The O3 graph that Optimum made of a model, beside it; run by ONNX Runtime, pooled as the model pools.

Optimum's level O3 is ONNX Runtime's own transformer optimizer with all fusions and approximated GELU, behind Optimum's
exporter (optimum-onnx 0.1.0, `optimum.onnxruntime.AutoOptimizationConfig.O3`). It needs transformers below 4.58 and
this package 5: the graph is made in an environment of its own and only run here.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from truncate_kit.bench.running import ENCODE_BATCH, AbsentError, Ids, encode_in_chunks
from truncate_kit.errors import TruncateKitError, first_line
from truncate_kit.extras import require
from truncate_kit.models import Encoder

OPTIMUM_GRAPH = Path("onnx/model_O3.onnx")
"""Where `sentence_transformers.export_optimized_onnx_model(model, "O3", FOLDER)` writes it, beside the model."""
_STATES = ("last_hidden_state", "token_embeddings")  # Optimum's name, and sentence-transformers'
_TOLERANCE = 1e-2  # of normalised vectors: GELU is approximated


class OptimumRunner:
    """A graph of token states; pooling and what follows are the encoder's, as in sentence-transformers.

    Raises `AbsentError` where there is none, where it cannot be run, or where it is of another model.
    """

    def __init__(self, encoder: Encoder, folder: Path, *, device: torch.device, threads: int) -> None:
        file = folder / OPTIMUM_GRAPH
        if device.type != "cpu":
            raise AbsentError("it is made for the CPU")
        if not file.is_file():
            raise AbsentError(
                f"no {OPTIMUM_GRAPH} beside the model: where optimum-onnx is installed, which needs transformers below "
                '4.58, `sentence_transformers.export_optimized_onnx_model(model, "O3", FOLDER)` writes it'
            )
        if not encoder.pools_tokens:
            raise AbsentError("it has the last layer's states alone, and this model pools others")
        self.session = _opened(file, threads)
        self.encoder = encoder
        self.batch_size = ENCODE_BATCH[device.type]
        self.inputs = {value.name for value in self.session.get_inputs()}
        found = [value.name for value in self.session.get_outputs() if value.name in _STATES]
        if not found:
            raise AbsentError(f"{file} gives no token states")
        self.output = found[0]
        self._check(file)
        self.detail = f"{self.session.get_providers()[0]}, {self.batch_size} texts per batch of a set"

    def _check(self, file: Path) -> None:
        ids = [[1, 2, 3, 4], [2, 1]]
        ours, theirs = self.encoder.encode_ids(ids), self.encode_ids(ids)
        scaled = torch.nn.functional.normalize
        if not torch.allclose(scaled(theirs), scaled(ours), atol=_TOLERANCE):
            raise AbsentError(f"{file} was made of another model than the one beside it")

    def prepare(self, ids: Ids) -> Callable[[], object]:
        """See `Runner`."""
        batch = self.encoder.padded(ids)
        return lambda: self._vectors_of(batch)

    def _vectors_of(self, batch: dict[str, Tensor]) -> Tensor:
        feeds = {name: value.numpy() for name, value in batch.items()}
        if "token_type_ids" in self.inputs:
            feeds["token_type_ids"] = np.zeros_like(feeds["input_ids"])
        states = torch.from_numpy(self.session.run([self.output], feeds)[0])
        with torch.inference_mode():
            return self.encoder.from_states(states, batch["attention_mask"])

    def encode_ids(self, ids: Ids) -> Tensor:
        """See `Runner`."""
        return encode_in_chunks(ids, self.batch_size, lambda part: self._vectors_of(self.encoder.padded(part)))

    def encode(self, texts: Sequence[str]) -> Tensor:
        """See `Runner`."""
        return self.encode_ids(self.encoder.token_ids(texts))

    def similarities(self, first: Tensor, second: Tensor) -> Tensor:
        """By the model's own measure."""
        return self.encoder.similarities(first, second)


def _opened(file: Path, threads: int) -> Any:
    """A session as sentence-transformers opens one: with all of ONNX Runtime's own optimizations."""
    try:
        runtime = require("onnxruntime", extra="cpu")
    except TruncateKitError as error:
        raise AbsentError(f"{error} {error.hint}") from error
    options = runtime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 4  # what goes wrong is raised as well
    try:
        return runtime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # the runtime has a class of its own for each status, all plain exceptions
        raise AbsentError(f"ONNX Runtime cannot load {file}: {first_line(error)}") from error
