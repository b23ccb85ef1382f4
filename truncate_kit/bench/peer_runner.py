"""sentence-transformers with its own encode, as its users run it."""

from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from truncate_kit.bench.backends import Backend
from truncate_kit.bench.roofline import synchronize
from truncate_kit.bench.running import ENCODE_BATCH, AbsentError, Ids, encode_in_chunks
from truncate_kit.errors import TruncateKitError, first_line
from truncate_kit.extras import require
from truncate_kit.models import Encoder


class PeerRunner:
    """The saved folder of one model, loaded and run by sentence-transformers (extra `st`)."""

    def __init__(self, backend: Backend, encoder: Encoder, folder: Callable[[], Path], *, device: torch.device) -> None:
        if encoder.tokenizer is None:
            raise AbsentError("sentence-transformers needs a tokenizer")
        try:
            peer = require("sentence_transformers", extra="st")
        except TruncateKitError as error:
            raise AbsentError(f"{error} {error.hint}") from error
        self.device = device
        self.encoder = encoder
        self.batch_size = ENCODE_BATCH[device.type]
        wanted = {} if backend.attention is None else {"attn_implementation": backend.attention}
        try:
            model = peer.SentenceTransformer(
                str(folder()), device=str(device), local_files_only=True, model_kwargs=wanted
            )
        except Exception as error:  # a module of its own, an old version: whatever its loader raises
            raise AbsentError(f"sentence-transformers does not load it: {first_line(error)}") from error
        self.model = model if backend.dtype is None else model.to(backend.dtype)
        self.detail = f"{peer.__version__}, {self.batch_size} texts per batch of a set"
        if backend.attention is not None:
            self.detail += ", without padding where it encodes texts"

    def prepare(self, ids: Ids) -> Callable[[], Tensor]:
        """See `Runner`: its modules without its tokenizer."""
        model, device = self.model, self.device  # not self: where memory is measured, the other model goes with it
        batch = {name: value.to(device) for name, value in self.encoder.padded(ids).items()}

        def call() -> Tensor:
            with torch.inference_mode():
                vectors: Tensor = model(dict(batch))["sentence_embedding"]
            synchronize(device)
            return vectors

        return call

    def encode_ids(self, ids: Ids) -> Tensor:
        """See `Runner`: its modules on batches as this package cuts them, because its encode takes texts only."""
        return encode_in_chunks(ids, self.batch_size, lambda part: self.prepare(part)().float().cpu())

    def encode(self, texts: Sequence[str]) -> Tensor:
        """See `Runner`."""
        vectors: Tensor = self.model.encode(
            list(texts), batch_size=self.batch_size, convert_to_tensor=True, show_progress_bar=False
        )
        return vectors.float().cpu()

    def similarities(self, first: Tensor, second: Tensor) -> Tensor:
        """By the model's own measure."""
        return self.encoder.similarities(first, second)
