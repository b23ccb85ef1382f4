"""The vectors that are learned, of all texts: computed once, stored in float16, read from a memory-mapped file."""

import importlib.util
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from truncate_kit.engines import Engine, Send, Sequential
from truncate_kit.errors import LayerOutOfRangeError, MissingExtraError, ModelError, UsageError
from truncate_kit.export.exporting import export_onnx
from truncate_kit.export.record import is_graph_of
from truncate_kit.export.runtime import OnnxEncoder
from truncate_kit.methods.distill.settings import LOWEST_TAUGHT
from truncate_kit.methods.distill.texts import TextStore
from truncate_kit.models import Encoder, check_encoder, encoder_digest, truncate
from truncate_kit.precisions import GRAPH_FILES
from truncate_kit.progress import Progress, silent
from truncate_kit.serving.work import Chunk, Encoded, EncodingWork
from truncate_kit.training.rows import StoredRows
from truncate_kit.vectors import VectorFormat

CHUNK = 4096
VECTORS_FILE = "vectors.bin"
HALF = VectorFormat(precision="float16")


class TokenWork(EncodingWork):
    """Encoding of texts that are token ids already."""

    def perform(self, chunk: Chunk, send: Send) -> Encoded:
        """Rows as they are stored, in the order of the texts; those that were cut are counted where they are read."""
        vectors = self._encoder.encode_ids(chunk.texts)  # type: ignore[union-attr, arg-type]  # moved; ids, not texts
        return Encoded(self._form.store(vectors).tobytes(), 0)


def teacher_of(encoder: Encoder, layer: int | None) -> Encoder:
    """What gives the vectors that are learned: the full model, or the full model cut at a layer before its end.

    Raises `LayerOutOfRangeError`, and `UsageError` where `encoder` is no model that was loaded.
    """
    check_encoder(encoder)
    if layer is not None and layer > encoder.depth:
        raise LayerOutOfRangeError(layer, encoder.depth, lowest=LOWEST_TAUGHT)
    return encoder if layer is None or layer == encoder.depth else truncate(encoder, layer)


def fastest(encoder: Encoder, folder: Path) -> Encoder | OnnxEncoder:
    """The encoder's float32 graph on a CPU, made in `folder` where it is not there whole; torch on a GPU.

    The graph runs on as many threads as torch does. Where ONNX Runtime is not installed or the encoder cannot be
    exported, the encoder itself.
    """
    if encoder.device.type != "cpu" or importlib.util.find_spec("onnxruntime") is None:
        return encoder
    try:
        if not is_graph_of(folder / GRAPH_FILES["fp32"], encoder_digest(encoder)):
            shutil.rmtree(folder, ignore_errors=True)
            export_onnx(encoder, folder)
        return OnnxEncoder.load(folder, precision="fp32", threads=torch.get_num_threads())
    except (ModelError, MissingExtraError):
        return encoder


def teacher_vectors(
    encoder: Encoder, texts: TextStore, folder: Path, *, engine: Engine | None = None, progress: Progress = silent
) -> NDArray[np.float16]:
    """Vectors (n, out) of all texts in float16, memory-mapped; what a killed run left is taken up.

    Args:
        encoder: The teacher.
        texts: In token ids.
        folder: Gets the graph and the vectors.
        engine: Where chunks are encoded, None is here; the bytes do not depend on it where processors are alike.
        progress: Called after each chunk.

    Raises:
        UsageError: The disk is too small, or a vector does not fit into float16.
        FileProblemError: The folder cannot be written.
    """
    runner = fastest(encoder, folder / "full")
    width = int(encoder.encode_ids([texts.ids(0)]).shape[1])
    made_from = {"encoder": encoder_digest(encoder), "texts": texts.digest, "width": width}
    file = folder / VECTORS_FILE
    stored = StoredRows(file, made_from, num_rows=len(texts), row_bytes=2 * width, chunk=CHUNK)
    missing = set(stored.missing)
    done = len(texts) - sum(min(CHUNK, len(texts) - start) for start in missing)

    def chunks() -> Iterator[Chunk]:
        for start in sorted(missing):
            places = range(start, min(start + CHUNK, len(texts)))
            yield Chunk(start, [texts.ids(place) for place in places])  # type: ignore[misc]  # ids, for TokenWork

    for chunk, encoded in (engine or Sequential()).run(TokenWork(runner, HALF), chunks(), lambda message: None):
        if not np.isfinite(np.frombuffer(encoded.rows, dtype=np.float16)).all():
            hint = "Use a model that gives vectors of length 1."
            raise UsageError("The full model's vectors do not fit into float16.", hint=hint)
        stored.write(chunk.start, encoded.rows)
        done += len(chunk.texts)
        progress("Encoding with the full model", done, len(texts))
    return read_vectors(encoder, texts, folder)


def read_vectors(encoder: Encoder, texts: TextStore, folder: Path) -> NDArray[np.float16]:
    """What `teacher_vectors` has written to `folder`."""
    width = int(encoder.encode_ids([texts.ids(0)]).shape[1])
    return np.memmap(folder / VECTORS_FILE, dtype=np.float16, mode="r", shape=(len(texts), width))


def rows_of(vectors: NDArray[np.float16], places: list[int]) -> torch.Tensor:
    """Some of the vectors in float32, (b, out)."""
    return torch.from_numpy(np.asarray(vectors[places], dtype=np.float32))
