"""Run one model in one runtime (torch, an exported graph, or sentence-transformers), and time runners in turns.

All runners have four methods: `prepare(ids)` moves a batch to the device and returns a function that encodes the batch
and waits for the device; `encode_ids(ids)` and `encode(texts)` return vectors (n, d); `similarities(first, second)`
returns scores (n,).
"""

import copy
import itertools
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from truncate_kit.bench.result import BACKENDS, Backend, Key, Role, Scenario, Timing
from truncate_kit.core.errors import DeviceError, ModelError, TruncateKitError, first_line, require
from truncate_kit.core.hardware import PRECISIONS, check_precision, is_out_of_memory
from truncate_kit.data.pairs import spread
from truncate_kit.export.record import check_runnable
from truncate_kit.export.runtime import GraphEncoder, OnnxEncoder, OpenVinoEncoder
from truncate_kit.export.sessions import cuda_providers
from truncate_kit.models.encoder import Encoder, length_batches, original_order

Ids = Sequence[Sequence[int]]
Value = TypeVar("Value")
Name = TypeVar("Name", bound=Hashable)
Call = Callable[[], object]
ENCODE_BATCH = {"cpu": 32, "cuda": 512}  # texts
TENSORRT_TEXTS = 512  # maximum texts per batch
# Seconds; idle thread pools spin for some milliseconds and would slow the next runtime.
_REST = 0.02
WARM_UP_TEXTS = 64
LATENCY_CALLS = 10  # per round; a 95th percentile needs many
# TensorRT builds one engine for all shapes, because a build takes minutes.
_TENSORRT_SHAPES = {
    "trt_fp16_enable": True,
    "trt_profile_min_shapes": "input_ids:1x1,attention_mask:1x1",
    "trt_profile_opt_shapes": "input_ids:32x128,attention_mask:32x128",
    "trt_profile_max_shapes": f"input_ids:{TENSORRT_TEXTS}x512,attention_mask:{TENSORRT_TEXTS}x512",
}


class AbsentError(TruncateKitError):
    """A contestant cannot be measured; `key` names the contestant if a call failed."""

    def __init__(self, reason: str | TruncateKitError, key: Key | None = None) -> None:
        message = f"{reason} {reason.hint}" if isinstance(reason, TruncateKitError) else reason
        super().__init__(message, hint="Remove this backend from `backends`.")
        self.key = key


def random_ids(lengths: Sequence[int], vocabulary: int) -> list[list[int]]:
    """Draw random token ids for each length, without the lowest ids (special tokens)."""
    generator = np.random.default_rng(0)
    low = min(vocabulary // 10, 1000)
    return [generator.integers(low, vocabulary, size=length).tolist() for length in lengths]


def _dtype(backend: Backend) -> torch.dtype | None:
    weights = PRECISIONS[backend.precision].weights
    return None if weights in (None, "float32") else getattr(torch, str(weights))


def encode_in_chunks(ids: Ids, size: int, encode: Callable[[Ids], Tensor]) -> Tensor:
    """Encode up to `size` texts of similar length per call; return vectors (n, d) in input order."""
    chunks = length_batches([len(row) for row in ids], size)
    vectors = torch.cat([encode([ids[place] for place in chunk]) for chunk in chunks])
    return vectors[original_order(chunks)]


@contextmanager
def _products(precision: str) -> Iterator[None]:
    """Set torch's precision of float32 products in this context (`high` is TF32)."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def _waiting(call: Callable[[], Tensor], device: torch.device, products: str = "highest") -> Callable[[], Tensor]:
    """Wrap `call`: run without gradients and with `_products(products)`, and wait for the device."""

    def run() -> Tensor:
        with _products(products), torch.inference_mode():
            vectors = call()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return vectors

    return run


class TorchRunner:
    """Run a model in torch, eagerly or compiled."""

    def __init__(self, backend: Backend, encoder: Encoder, *, device: torch.device) -> None:
        self.device = device
        self.products = PRECISIONS[backend.precision].products
        model = encoder if (dtype := _dtype(backend)) is None else copy.deepcopy(encoder).to(dtype)
        if backend.attention is not None:
            model = copy.deepcopy(model)
            try:
                model.backbone.set_attn_implementation(backend.attention)
            except (ImportError, ValueError) as error:
                raise AbsentError(f"{backend.attention} cannot be used: {first_line(error)}") from error
        if backend.compiled:
            model = copy.copy(model)  # compiling changes the module, which the eager runner shares
            model.compile(dynamic=not backend.static, mode="reduce-overhead" if backend.captured else None)
        self.model = model.to(device).eval()
        self.similarities = self.model.similarities

    def prepare(self, ids: Ids) -> Callable[[], object]:
        """Move a batch to the device; return a function that encodes it."""
        with torch.inference_mode():  # tensors made outside would trigger another compilation
            batch = {name: value.to(self.device) for name, value in self.model.pad(ids).items()}
        return _waiting(lambda: self.model(**batch), self.device, self.products)

    def encode_ids(self, ids: Ids) -> Tensor:
        """Encode token ids to vectors (n, d)."""
        with _products(self.products):
            return self.model.encode_ids(ids, batch_size=ENCODE_BATCH[self.device.type])

    def encode(self, texts: Sequence[str]) -> Tensor:
        """Encode texts to vectors (n, d)."""
        return self.encode_ids(self.model.token_ids(texts))


def _open_graph(backend: Backend, encoder: Encoder, graph: Path, device: torch.device) -> GraphEncoder:
    """Open a graph; raise `AbsentError` if it cannot run here, `ModelError` if it is damaged."""
    # ONNX Runtime uses torch's current stream, so that GPU events time both; 0 means no stream.
    stream = torch.cuda.current_stream(device).cuda_stream or None if device.type == "cuda" else None
    shapes, most_texts = (_TENSORRT_SHAPES, TENSORRT_TEXTS) if backend.tensorrt else (None, None)
    try:
        if not backend.tensorrt:
            check_runnable(graph, device.type, backend.precision)
        common: dict[str, Any] = {"threads": torch.get_num_threads(), "device": str(device), "heads": encoder.heads}
        if backend.runtime == "openvino":
            return OpenVinoEncoder(graph, encoder.reader, precision=backend.precision, **common)
        return OnnxEncoder(
            graph,
            encoder.reader,
            buckets=backend.captured,
            on_cuda=cuda_providers(device.index, captured=backend.captured, stream=stream, tensorrt=shapes),
            most_texts=most_texts,
            **common,
        )
    except TruncateKitError as error:
        if isinstance(error, ModelError) and not backend.tensorrt:  # TensorRT refuses some graphs
            raise
        raise AbsentError(error) from error


class PeerRunner:
    """Run a saved model in sentence-transformers."""

    def __init__(self, backend: Backend, encoder: Encoder, folder: Callable[[], Path], *, device: torch.device) -> None:
        try:
            peer = require("sentence_transformers", extra="st")
        except TruncateKitError as error:
            raise AbsentError(error) from error
        self.device, self.encoder, self.batch_size = device, encoder, ENCODE_BATCH[device.type]
        options = {} if backend.attention is None else {"attn_implementation": backend.attention}
        try:
            model = peer.SentenceTransformer(
                str(folder()), device=str(device), local_files_only=True, model_kwargs=options
            )
        except Exception as error:  # the loader may raise any exception
            raise AbsentError(f"sentence-transformers cannot load the model: {first_line(error)}") from error
        self.model = model if (dtype := _dtype(backend)) is None else model.to(dtype)
        self.similarities = encoder.similarities

    def prepare(self, ids: Ids) -> Callable[[], Tensor]:
        """Move a batch to the device; return a function that encodes it."""
        model = self.model  # a closure over self would also keep the encoder in memory
        batch = {name: value.to(self.device) for name, value in self.encoder.padded(ids).items()}
        return _waiting(lambda: model(dict(batch))["sentence_embedding"], self.device)

    def encode_ids(self, ids: Ids) -> Tensor:
        """Encode token ids to vectors (n, d)."""
        return encode_in_chunks(ids, self.batch_size, lambda part: self.prepare(part)().float().cpu())

    def encode(self, texts: Sequence[str]) -> Tensor:
        """Encode texts to vectors (n, d)."""
        options = {"batch_size": self.batch_size, "convert_to_tensor": True, "show_progress_bar": False}
        with _products("highest"):
            vectors: Tensor = self.model.encode(list(texts), **options)
        return vectors.float().cpu()


Runner = TorchRunner | GraphEncoder | PeerRunner
Runners = Mapping[Key, Runner]


def make_runner(
    backend: Backend,
    encoder: Encoder,
    *,
    graph: Path | None,
    folder: Callable[[], Path],
    device: torch.device,
) -> Runner:
    """Make a backend's runner, with torch's CPU threads. Raises `AbsentError` if it cannot run."""
    if backend.on_cuda and device.type != "cuda":
        raise AbsentError("needs a GPU")
    if backend.on_cpu and device.type != "cpu":
        raise AbsentError("runs on the CPU only")
    try:
        check_precision(backend.precision, device)
    except DeviceError as error:
        raise AbsentError(str(error)) from error
    if graph is not None:
        return _open_graph(backend, encoder, graph, device)
    if backend.runtime == "sentence-transformers":
        return PeerRunner(backend, encoder, folder, device=device)
    return TorchRunner(backend, encoder, device=device)


def guarded(key: Key, call: Callable[..., Value]) -> Callable[..., Value]:
    """Wrap `call`: a failure of the runtime becomes `AbsentError`."""

    def guard(*arguments: Any, **options: Any) -> Value:
        try:
            return call(*arguments, **options)
        except Exception as error:  # runtimes and compilers may raise any exception
            # Our own errors have the runtime's as their cause; a damaged graph ends the bench.
            if isinstance(error, TruncateKitError) and (call is make_runner or error.__cause__ is None):
                raise
            backend = BACKENDS[key[1]]
            reason = "out of GPU memory" if is_out_of_memory(error) else first_line(error)
            runtime = "torch.compile" if backend.compiled else backend.title
            raise AbsentError(f"{runtime} failed: {reason}", key) from error

    return guard


# Timing


def interleaved(
    calls: Mapping[Name, Call],
    *,
    rounds: int,
    calls_per_round: int = 1,
    warm_up: Mapping[Name, Call] | None = None,
    on_device: dict[Name, list[float]] | None = None,
) -> dict[Name, tuple[float, ...]]:
    """Time the calls in turns, so that slowdowns affect all; return the seconds of each call.

    In each round every name has a turn: a pause, an untimed `warm_up` (by default the call itself), and
    `calls_per_round` timed calls. `on_device` collects the seconds between GPU events around each call.
    """
    seconds: dict[Name, list[float]] = {key: [] for key in calls}
    order = list(calls)
    for turn in range(rounds):
        start = turn % max(len(order), 1)
        for key in order[start:] + order[:start]:
            time.sleep(_REST)
            (warm_up or calls)[key]()
            for _ in range(calls_per_round):
                if on_device is None:
                    begin = time.perf_counter()
                    calls[key]()
                    seconds[key].append(time.perf_counter() - begin)
                    continue
                first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                first.record()
                begin = time.perf_counter()
                calls[key]()
                last.record()
                seconds[key].append(time.perf_counter() - begin)
                last.synchronize()
                on_device.setdefault(key, []).append(first.elapsed_time(last) / 1000)
    return {key: tuple(values) for key, values in seconds.items()}


def time_shape(
    runners: Runners, encoders: Mapping[Role, Encoder], shape: tuple[int, int], *, rounds: int, device: torch.device
) -> list[Timing]:
    """Time all runners on random ids of one shape (batch size, length)."""
    batch_size, length = shape
    calls = {}
    for key, runner in runners.items():
        ids = random_ids([length] * batch_size, encoders[key[0]].backbone.config.vocab_size)
        calls[key] = guarded(key, guarded(key, runner.prepare)(ids))
    on_device: dict[Key, list[float]] = {}
    seconds = interleaved(
        calls,
        rounds=rounds,
        calls_per_round=LATENCY_CALLS if batch_size == 1 else 1,
        on_device=on_device if device.type == "cuda" else None,
    )
    tokens = dict.fromkeys(encoders, batch_size * length)
    return _timings(seconds, "latency" if batch_size == 1 else "throughput", batch_size, tokens, shape, on_device)


def _timings(
    seconds: Mapping[Key, tuple[float, ...]],
    scenario: Scenario,
    sentences: int,
    tokens: Mapping[Role, int],
    shape: tuple[int, int] | tuple[None, None] = (None, None),
    on_device: Mapping[Key, list[float]] = MappingProxyType({}),
) -> list[Timing]:
    return [
        Timing(
            role=role,
            backend=backend,
            scenario=scenario,
            batch_size=shape[0],
            length=shape[1],
            sentences=sentences,
            tokens=tokens[role],
            seconds=values,
            device_seconds=tuple(on_device.get((role, backend), ())),
        )
        for (role, backend), values in seconds.items()
    ]


def time_texts(
    runners: Runners, encoders: Mapping[Role, Encoder], texts: Sequence[str], *, rounds: int, singly: bool
) -> list[Timing]:
    """Time all runners on texts, including tokenization, in batches or, if `singly`, one by one."""
    texts = spread(texts, rounds * LATENCY_CALLS) if singly else texts

    def call(key: Key, runner: Runner, count: int | None = None) -> Call:
        encode, endless = guarded(key, runner.encode), itertools.cycle(texts)
        return (lambda: encode([next(endless)])) if singly else (lambda: encode(texts[:count]))

    seconds = interleaved(
        {key: call(key, runner) for key, runner in runners.items()},
        rounds=rounds,
        calls_per_round=LATENCY_CALLS if singly else 1,
        warm_up=None if singly else {key: call(key, runner, WARM_UP_TEXTS) for key, runner in runners.items()},
    )
    calls = len(texts) if singly else 1
    tokens = {role: round(sum(map(len, encoder.token_ids(texts))) / calls) for role, encoder in encoders.items()}
    return _timings(seconds, "one sentence" if singly else "real set", len(texts) // calls, tokens)
