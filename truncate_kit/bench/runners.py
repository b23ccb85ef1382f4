"""One model in one runtime: torch, an exported graph, or sentence-transformers."""

import contextlib
import copy
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from truncate_kit.bench.backends import BACKENDS, Backend
from truncate_kit.bench.bench_report import Key
from truncate_kit.core.errors import DeviceError, ModelError, TruncateKitError, first_line, require
from truncate_kit.core.hardware import bf16_instructions, check_precision, is_out_of_memory
from truncate_kit.core.precisions import PRECISIONS
from truncate_kit.export.record import check_runnable
from truncate_kit.export.runtime import FixedShapes, OnnxEncoder, bound_to, cuda_providers, open_session, repeated
from truncate_kit.models.encoder import Encoder, length_batches, original_order
from truncate_kit.models.tokenizer import padded

Ids = Sequence[Sequence[int]]
Found = TypeVar("Found")
ENCODE_BATCH = {"cpu": 32, "cuda": 512}  # texts; a GPU wants more to be filled
TENSORRT_TEXTS = 512  # of one batch, at most
# What TensorRT builds its engines for: one for all shapes, or each new one would take it minutes.
_TENSORRT_SHAPES = {
    "trt_fp16_enable": True,
    "trt_profile_min_shapes": "input_ids:1x1,attention_mask:1x1",
    "trt_profile_opt_shapes": "input_ids:32x128,attention_mask:32x128",
    "trt_profile_max_shapes": f"input_ids:{TENSORRT_TEXTS}x512,attention_mask:{TENSORRT_TEXTS}x512",
}


class AbsentError(TruncateKitError):
    """A runtime that cannot be measured here; the bench writes the reason into its row and goes on."""

    def __init__(self, reason: str | TruncateKitError) -> None:
        """Take the reason; of an error its message and its hint."""
        said = f"{reason} {reason.hint}" if isinstance(reason, TruncateKitError) else reason
        super().__init__(said, hint="Leave it out of `backends`.")


class ContestantError(Exception):
    """One contestant failed; `key`, its role and backend, says which, the message why."""

    def __init__(self, key: Key, reason: str) -> None:
        super().__init__(reason)
        self.key = key


class Runner(Protocol):
    """One model in one runtime."""

    detail: str

    def prepare(self, ids: Ids) -> Callable[[], object]:
        """Make a call that runs one batch of ids, whose inputs are ready on the device, and waits for it."""

    def encode_ids(self, ids: Ids) -> Tensor:
        """Encode texts that are already ids, sorted by length and cut into batches: vectors (n, d)."""

    def encode(self, texts: Sequence[str]) -> Tensor:
        """Encode texts, tokeniser included: vectors (n, d)."""

    def similarities(self, first: Tensor, second: Tensor) -> Tensor:
        """Score how alike the texts of each row are, (n,), from their vectors (n, d), by the model's own measure."""


def make_runner(
    backend: Backend,
    encoder: Encoder,
    *,
    graph: Callable[[], Path],
    folder: Callable[[], Path],
    device: torch.device,
    threads: int,
) -> Runner:
    """Make `encoder` run in `backend`.

    Args:
        backend: what runs it.
        encoder: the encoder that is run.
        graph: gives its ONNX graph, exporting it where needed.
        folder: gives its folder.
        device: on which it runs.
        threads: CPU cores that it takes.

    Raises:
        AbsentError: this machine or this environment cannot.
    """
    if backend.on_cuda and device.type != "cuda":
        raise AbsentError("it needs a GPU")
    try:
        check_precision(backend.precision, device)
    except DeviceError as error:
        message = str(error)
        raise AbsentError(f"{message[0].lower()}{message[1:].rstrip('.')}") from error
    if backend.runtime == "onnx":
        return OnnxRunner(backend, encoder, graph(), device=device, threads=threads)
    if backend.runtime == "sentence-transformers":
        return PeerRunner(backend, encoder, folder, device=device)
    return TorchRunner(backend, encoder, device=device)


def random_ids(lengths: Sequence[int], vocabulary: int) -> list[list[int]]:
    """Draw ids of texts of the given lengths evenly from the vocabulary but its first tenth (special tokens)."""
    generator = np.random.default_rng(0)
    low = min(vocabulary // 10, 1000)
    return [generator.integers(low, vocabulary, size=length).tolist() for length in lengths]


def encode_in_chunks(ids: Ids, size: int, encode: Callable[[Ids], Tensor]) -> Tensor:
    """Encode at most `size` texts of like length per call of `encode`: vectors (n, d) in the order of `ids`."""
    chunks = length_batches([len(row) for row in ids], size)
    vectors = torch.cat([encode([ids[place] for place in chunk]) for chunk in chunks])
    return vectors[original_order(chunks)]


def synchronize(device: torch.device) -> None:
    """Wait until the device has done all it was given; the CPU always has."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


@contextlib.contextmanager
def _products_in(precision: str) -> Iterator[None]:
    """How torch multiplies matrices of float32 inside the block: `highest`, or `high` for TF32."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


class TorchRunner:
    """torch, eager or compiled, in fp32 or with all weights in bf16 or fp16."""

    def __init__(self, backend: Backend, encoder: Encoder, *, device: torch.device) -> None:
        self.device = device
        self.products = PRECISIONS[backend.precision].products
        model = encoder if backend.dtype is None else copy.deepcopy(encoder).to(backend.dtype)
        if backend.attention is not None:
            model = copy.deepcopy(model)
            try:
                model.backbone.set_attn_implementation(backend.attention)
            except (ImportError, ValueError) as error:
                raise AbsentError(f"{backend.attention} cannot be used: {first_line(error)}") from error
        self.detail = f"{model.backbone.config._attn_implementation} attention"
        if backend.precision == "bf16":
            self.detail += f", {bf16_instructions(device)}"
        if backend.compiled:
            model = copy.copy(model)  # compiling marks the module; the eager row shares the weights, not the mark
            model.compile(dynamic=not backend.static, mode="reduce-overhead" if backend.captured else None)
            shapes = "static" if backend.static else "dynamic"
            self.detail += ", CUDA graphs of fixed shapes" if backend.captured else f", {shapes} shapes"
        if not backend.fixed_shapes:
            self.detail += f", {ENCODE_BATCH[device.type]} texts per batch of a set"
        self.model = model.to(device).eval()
        self.similarities = self.model.similarities

    def prepare(self, ids: Ids) -> Callable[[], object]:
        """See `Runner`."""
        with torch.inference_mode():  # tensors made outside would let a compiled model compile once more
            batch = {name: value.to(self.device) for name, value in self.model.pad(ids).items()}

        def call() -> Tensor:
            with torch.inference_mode(), _products_in(self.products):
                vectors: Tensor = self.model(**batch)
            synchronize(self.device)
            return vectors

        return call

    def encode_ids(self, ids: Ids) -> Tensor:
        """See `Runner`; the vectors come to the CPU, so nothing is left to wait for."""
        with _products_in(self.products):
            return self.model.encode_ids(ids, batch_size=ENCODE_BATCH[self.device.type])

    def encode(self, texts: Sequence[str]) -> Tensor:
        """See `Runner`."""
        return self.encode_ids(self.model.token_ids(texts))


class OnnxRunner:
    """The graph of one model, run as `OnnxEncoder` runs it; fixed shapes in a session of their own.

    Raises `AbsentError` where this machine cannot run it, `ModelError` where the graph or its export.json is damaged.
    """

    def __init__(self, backend: Backend, encoder: Encoder, graph: Path, *, device: torch.device, threads: int) -> None:
        reader = encoder.reader if encoder.tokenizer is not None else None
        # On torch's current stream, so that one clock on the device sees both; its default, 0, is none to ONNX Runtime.
        stream = torch.cuda.current_stream(device).cuda_stream or None if device.type == "cuda" else None
        shapes = _TENSORRT_SHAPES if backend.tensorrt else None
        on_cuda = cuda_providers(device.index, captured=backend.captured, stream=stream, tensorrt=shapes)
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
                on_cuda=on_cuda,
            )
            self.session = open_session(graph, device=device, threads=threads, on_cuda=on_cuda)
        except TruncateKitError as error:
            if isinstance(error, ModelError) and not backend.tensorrt:  # TensorRT does not build every graph
                raise
            raise AbsentError(error) from error
        self.fixed = FixedShapes(self.session, device, self.model.width) if backend.captured else None
        self.device = device
        self.padding = reader.padding_id if reader is not None else 0
        self.detail = f"{self.session.get_providers()[0]}, {self.model.batch_tokens} tokens per batch of a set"
        self.similarities = self.model.similarities

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


class PeerRunner:
    """The saved folder of one model, loaded and run by sentence-transformers (extra `st`) as its users run it."""

    def __init__(self, backend: Backend, encoder: Encoder, folder: Callable[[], Path], *, device: torch.device) -> None:
        if encoder.tokenizer is None:
            raise AbsentError("sentence-transformers needs a tokenizer")
        try:
            peer = require("sentence_transformers", extra="st")
        except TruncateKitError as error:
            raise AbsentError(error) from error
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
        """See `Runner`."""
        return self.encoder.similarities(first, second)


def failure_reason(backend: Backend, error: Exception) -> str:
    """Say in one line why a runtime failed: runtimes and compilers raise classes of their own, many plain ones."""
    if is_out_of_memory(error):
        return "the GPU's memory does not hold it"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    found = lines[0].rstrip(".") if lines else type(error).__name__
    return f"{'torch.compile' if backend.compiled else backend.title} failed: {found}"


def guarded(key: Key, call: Callable[..., Found]) -> Callable[..., Found]:
    """Make a call whose failures are `ContestantError`, but for `TruncateKitError`, which the user can mend.

    A contestant that fails while it runs must not take the others' figures with it.
    """

    def guard(*arguments: Any) -> Found:
        try:
            return call(*arguments)
        except TruncateKitError:
            raise
        except Exception as error:
            raise ContestantError(key, failure_reason(BACKENDS[key[1]], error)) from error

    return guard
