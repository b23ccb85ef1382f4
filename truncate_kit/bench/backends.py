"""The runtimes that are compared: one row each, and what makes a model run in it."""

import copy
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

import numpy as np
import torch
from torch import Tensor

from truncate_kit.bench.roofline import products_in, synchronize
from truncate_kit.encoders import Encoder, length_batches
from truncate_kit.errors import TruncateKitError, UsageError
from truncate_kit.export.precision import GRAPH_FILES
from truncate_kit.hardware import bf16_instructions

Precision = Literal["fp32", "tf32", "bf16", "fp16", "int8"]
Ids = Sequence[Sequence[int]]
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
ENCODE_BATCH = {"cpu": 32, "cuda": 512}  # texts; a GPU wants more to be filled


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """One runtime at one precision.

    compiled: by torch.compile, for any shape. static: compiled for each shape anew. captured: as CUDA graphs, one for
    each shape. attention: the name that transformers gives a kernel, None for its own choice. tensorrt: by TensorRT
    inside ONNX Runtime, from a graph without ONNX Runtime's own operators.
    """

    name: str
    title: str
    runtime: Literal["torch", "onnx", "sentence-transformers"]
    precision: Precision = "fp32"
    compiled: bool = False
    static: bool = False
    captured: bool = False
    attention: str | None = None
    tensorrt: bool = False

    @property
    def graph_file(self) -> str | None:
        """The graph that it runs, None for torch."""
        return GRAPH_FILES[self.precision] if self.runtime == "onnx" else None

    @property
    def only_exported(self) -> bool:
        """Whether it runs only what `export` made before: its precision needs pairs or a GPU's kernels."""
        return self.runtime == "onnx" and self.precision != "fp32" and not self.tensorrt

    @property
    def on_cuda(self) -> bool:
        """Whether there is no sense or no kernel in it elsewhere."""
        narrow = self.runtime != "onnx" and self.precision in ("tf32", "fp16")
        return narrow or self.captured or self.tensorrt

    @property
    def rival(self) -> bool:
        """Whether it is measured only when asked for."""
        other = self.runtime == "sentence-transformers" or self.tensorrt
        return other or self.static or self.captured or self.attention is not None

    @property
    def fixed_shapes(self) -> bool:
        """Whether texts of all lengths cannot be run: each new shape would be compiled."""
        return self.runtime == "torch" and (self.static or self.captured)

    @property
    def slow_start(self) -> bool:
        """Whether the CPU needs tens of seconds per model before the first call."""
        return self.compiled


_ROWS = (
    Backend(name="torch-fp32", title="torch fp32", runtime="torch"),
    Backend(name="torch-tf32", title="torch tf32", runtime="torch", precision="tf32"),
    Backend(name="torch-bf16", title="torch bf16", runtime="torch", precision="bf16"),
    Backend(name="torch-fp16", title="torch fp16", runtime="torch", precision="fp16"),
    Backend(name="flash-fp16", title="torch fp16, variable-length flash attention", runtime="torch", precision="fp16",
            attention="flash_attention_2"),
    Backend(name="compile-fp32", title="torch.compile fp32", runtime="torch", compiled=True),
    Backend(name="compile-bf16", title="torch.compile bf16", runtime="torch", precision="bf16", compiled=True),
    Backend(name="compile-fp16", title="torch.compile fp16", runtime="torch", precision="fp16", compiled=True),
    Backend(name="compile-static-fp16", title="torch.compile fp16, static shapes", runtime="torch", precision="fp16",
            compiled=True, static=True),
    Backend(name="compile-graphs-fp16", title="torch.compile fp16, CUDA graphs", runtime="torch", precision="fp16",
            compiled=True, static=True, captured=True),
    Backend(name="st-fp32", title="sentence-transformers fp32", runtime="sentence-transformers"),
    Backend(name="st-bf16", title="sentence-transformers bf16", runtime="sentence-transformers", precision="bf16"),
    Backend(name="st-fp16", title="sentence-transformers fp16", runtime="sentence-transformers", precision="fp16"),
    Backend(name="st-flash-fp16", title="sentence-transformers fp16, flash attention without padding",
            runtime="sentence-transformers", precision="fp16", attention="flash_attention_2"),
    Backend(name="onnx-fp32", title="ONNX Runtime fp32", runtime="onnx"),
    Backend(name="onnx-fp16", title="ONNX Runtime fp16", runtime="onnx", precision="fp16"),
    Backend(name="onnx-graphs-fp16", title="ONNX Runtime fp16, CUDA graphs", runtime="onnx", precision="fp16",
            captured=True),
    Backend(name="tensorrt-fp16", title="ONNX Runtime TensorRT fp16", runtime="onnx", precision="fp16", tensorrt=True),
    Backend(name="onnx-int8", title="ONNX Runtime int8", runtime="onnx", precision="int8"),
)  # fmt: skip
BACKENDS: dict[str, Backend] = {row.name: row for row in _ROWS}
BASE = "torch-fp32"


class AbsentError(TruncateKitError):
    """A runtime that cannot be measured here; the bench writes the reason into its row and goes on."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason, hint="Leave it out with --backends.")


class Runner(Protocol):
    """One model in one runtime."""

    detail: str

    def prepare(self, ids: Sequence[Sequence[int]]) -> Callable[[], object]:
        """A call that runs one batch of ids and waits for the device; its inputs are ready where they are needed."""

    def encode_ids(self, ids: Sequence[Sequence[int]]) -> Tensor:
        """Vectors (n, d) of texts that are already ids, sorted by length and cut into batches."""

    def encode(self, texts: Sequence[str]) -> Tensor:
        """Vectors (n, d), tokeniser included."""

    def similarities(self, first: Tensor, second: Tensor) -> Tensor:
        """How alike the texts of each row are, (n,), from their vectors (n, d), by the model's own measure."""


def select_backends(
    names: Sequence[str] | None, device: torch.device, folders: Sequence[Path] = ()
) -> tuple[Backend, ...]:
    """The rows of the given names in the order of `BACKENDS`; `["all"]` gives every row that makes sense on `device`.

    None: all but rivals on CUDA, on the CPU those that start at once; fp16 and int8 graphs only where one of `folders`
    holds one, and where the device has kernels for them. Raises `UsageError` for a name nobody knows.
    """
    cuda = device.type == "cuda"
    sensible = tuple(row for row in _ROWS if cuda or not row.on_cuda)
    if names is None:
        return tuple(
            row
            for row in sensible
            if not row.rival and (cuda or not row.slow_start) and (not row.only_exported or _held(row, device, folders))
        )
    if list(names) == ["all"]:
        return sensible
    unknown = [name for name in names if name not in BACKENDS]
    if unknown or not names:
        raise UsageError(
            f"There is no backend {unknown[0]!r}." if unknown else "No backend is named.",
            hint=f"Use --backends all, or some of: {', '.join(BACKENDS)}.",
        )
    return tuple(row for row in _ROWS if row.name in names)


def _held(row: Backend, device: torch.device, folders: Sequence[Path]) -> bool:
    suits = row.precision == ("fp16" if device.type == "cuda" else "int8")
    return suits and any((folder / str(row.graph_file)).is_file() for folder in folders)


def make_runner(
    backend: Backend,
    encoder: Encoder,
    *,
    graph: Callable[[], Path],
    folder: Callable[[], Path],
    device: torch.device,
    threads: int,
) -> Runner:
    """Make `encoder` run in `backend`. graph: gives its ONNX graph, exporting it where needed. folder: its folder.

    Raises `AbsentError` where this machine or this environment cannot.
    """
    if backend.on_cuda and device.type != "cuda":
        raise AbsentError("it needs a GPU")
    if backend.runtime == "onnx":
        from truncate_kit.bench.onnx_runner import OnnxRunner

        return OnnxRunner(backend, encoder, graph(), device=device, threads=threads)
    if backend.runtime == "sentence-transformers":
        from truncate_kit.bench.peer_runner import PeerRunner

        return PeerRunner(backend, encoder, folder, device=device)
    return TorchRunner(backend, encoder, device=device)


class TorchRunner:
    """torch, eager or compiled, in fp32 or with all weights in bf16 or fp16."""

    def __init__(self, backend: Backend, encoder: Encoder, *, device: torch.device) -> None:
        self.device = device
        self.products = "high" if backend.precision == "tf32" else "highest"
        instructions = check_precision(backend.precision, device)
        kind = DTYPES.get(backend.precision)
        model = encoder if kind is None else copy.deepcopy(encoder).to(kind)
        if backend.attention is not None:
            model = _with_attention(model, backend.attention)
        self.detail = f"{model.backbone.config._attn_implementation} attention"
        if instructions is not None:
            self.detail += f", {instructions}"
        if backend.compiled:
            model = copy.copy(model)  # compiling marks the module; the eager row shares the weights, not the mark
            model.compile(dynamic=not backend.static, mode="reduce-overhead" if backend.captured else None)
            self.detail += f", {_shapes_of(backend)}"
        if not backend.fixed_shapes:
            self.detail += f", {ENCODE_BATCH[device.type]} texts per batch of a set"
        self.model = model.to(device).eval()

    def prepare(self, ids: Sequence[Sequence[int]]) -> Callable[[], object]:
        """See `Runner`."""
        with torch.inference_mode():  # tensors made outside would let a compiled model compile once more
            batch = {name: value.to(self.device) for name, value in self.model.pad(ids).items()}

        def call() -> Tensor:
            with torch.inference_mode(), products_in(self.products):
                vectors: Tensor = self.model(**batch)
            synchronize(self.device)
            return vectors

        return call

    def encode_ids(self, ids: Sequence[Sequence[int]]) -> Tensor:
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


def check_precision(precision: Precision, device: torch.device) -> str | None:
    """What computes in bf16 here, None for any other precision. Raises `AbsentError` where nothing does."""
    if precision != "bf16":
        return None
    instructions = bf16_instructions(device)
    if instructions is None:
        raise AbsentError(f"this {'GPU' if device.type == 'cuda' else 'processor'} has no bf16 instructions")
    return instructions


def _with_attention(encoder: Encoder, name: str) -> Encoder:
    """A copy with another attention kernel. Raises `AbsentError` where it is not installed or not for this model."""
    changed = copy.deepcopy(encoder)
    try:
        changed.backbone.set_attn_implementation(name)
    except (ImportError, ValueError) as error:
        raise AbsentError(f"{name} is not to be had: {str(error).strip().splitlines()[0].rstrip('.')}") from error
    return changed


def random_ids(lengths: Sequence[int], vocabulary: int, *, seed: int = 0) -> list[list[int]]:
    """Ids of texts of the given lengths, drawn evenly from the vocabulary but its first tenth (special tokens)."""
    generator = np.random.default_rng(seed)
    low = min(vocabulary // 10, 1000)
    return [generator.integers(low, vocabulary, size=length).tolist() for length in lengths]


def encode_in_chunks(ids: Ids, size: int, encode: Callable[[Ids], Tensor]) -> Tensor:
    """Vectors (n, d) in the order of `ids`, by calls of `encode` with at most `size` texts of like length each."""
    chunks = length_batches([len(row) for row in ids], size)
    vectors = torch.cat([encode([ids[place] for place in chunk]) for chunk in chunks])
    return vectors[torch.tensor([place for chunk in chunks for place in chunk]).argsort()]


def first_calls(calls: Sequence[Callable[[], object]]) -> float:
    """Seconds of running each call twice: whatever compiles or tunes itself has done so afterwards."""
    begin = time.perf_counter()
    for call in calls:
        call()
        call()
    return time.perf_counter() - begin
