"""ONNX Runtime sessions that run what was asked for, or say why they cannot."""

import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from truncate_kit.errors import DeviceError, ModelError, first_line, require
from truncate_kit.export.graph_files import INPUTS, OUTPUT
from truncate_kit.hardware import is_out_of_memory

_CUDA, _TENSORRT = "CUDAExecutionProvider", "TensorrtExecutionProvider"
_EXPORT_HINT = "Export the model again with `export_onnx()`."
_GPU_FAILURE = re.compile("CUDA failure|CUBLAS|CUDNN|allocate memory", re.IGNORECASE)  # of ONNX Runtime's messages
# Slower on the CPU than the Add and LayerNormalization it replaces; see tracing.py.
_SLOW_ON_CPU = ["SkipLayerNormFusion"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CudaOptions:
    """How a session runs on CUDA; without effect on the CPU."""

    captured: bool = False  # fixed shapes may be recorded as CUDA graphs (`FixedShapes`)
    stream: int | None = None  # handle of the CUDA stream it works on, None for one of its own
    tensorrt: Mapping[str, Any] | None = None  # options of the TensorRT provider, which then comes before CUDA's

    def providers(self, index: int) -> list[Any]:
        """Providers and their options for the GPU of that index; without TF32, as torch's float32."""
        # A lean and a full model, or two servers, share the GPU: memory is taken as needed, not doubled each time.
        memory = {"arena_extend_strategy": "kSameAsRequested"}
        options: dict[str, Any] = {"device_id": index, "use_tf32": 0, **memory}
        if self.captured:
            options["enable_cuda_graph"] = 1
        if self.stream is not None:
            options["user_compute_stream"] = str(self.stream)
        cuda: list[Any] = [(_CUDA, options)]
        return cuda if self.tensorrt is None else [(_TENSORRT, {"device_id": index, **self.tensorrt}), *cuda]


_PLAIN = CudaOptions()


def open_session(file: Path, *, device: torch.device, threads: int, cuda_options: CudaOptions = _PLAIN) -> Any:
    """A session on `device` that uses `threads` CPU threads per call; on CUDA without TF32, as torch's float32.

    Raises `MissingExtraError`, `DeviceError` when CUDA is not active in the session, `ModelError` for a file that is
    missing, damaged, lacks its weights or is no exported sentence encoder.
    """
    cuda = device.type == "cuda"
    runtime = require("onnxruntime", extra="gpu" if cuda else "cpu")
    if not file.is_file():
        raise ModelError(f"There is no exported graph {file}.", hint=_EXPORT_HINT)
    options = runtime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 4  # what goes wrong is raised as well
    providers: list[Any] = ["CPUExecutionProvider"]
    if cuda:
        runtime.set_default_logger_severity(3)  # since 1.31 a warning for each session says that no plugin is there
        _check_active(runtime, runtime.get_available_providers())
        providers = cuda_options.providers(device.index or 0) + providers
    try:
        session = runtime.InferenceSession(
            str(file), options, providers=providers, disabled_optimizers=None if cuda else _SLOW_ON_CPU
        )
    except Exception as error:  # the runtime has a class of its own for each status, all plain exceptions
        reason = first_line(error)
        if cuda and _GPU_FAILURE.search(str(error)):
            raise DeviceError(
                f"The GPU fails while {file} is loaded: {reason}.",
                hint="Free its memory, or look at what `diagnose()` finds.",
            ) from error
        raise ModelError(f"ONNX Runtime cannot load {file}: {reason}.", hint=_EXPORT_HINT) from error
    if cuda:
        _check_active(runtime, session.get_providers())  # what runs, not what the build could run
        if cuda_options.tensorrt is not None and _TENSORRT not in session.get_providers():
            problem = "TensorRT was asked for but is not active in ONNX Runtime."
            raise DeviceError(problem, hint="Install it with: pip install tensorrt")
    inputs, outputs = ([value.name for value in values] for values in (session.get_inputs(), session.get_outputs()))
    if set(inputs) != set(INPUTS) or OUTPUT not in outputs:
        raise ModelError(
            f"{file} is not an exported sentence encoder: it has inputs {', '.join(inputs)} and outputs "
            f"{', '.join(outputs)}.",
            hint=_EXPORT_HINT,
        )
    return session


def bound_to(session: Any, feeds: Mapping[str, NDArray[np.int64]], device: torch.device) -> Any:
    """A binding whose inputs are on the device, and whose vectors stay there."""
    runtime = require("onnxruntime", extra="cpu")
    binding, place = session.io_binding(), (device.type, device.index or 0)
    for name, value in feeds.items():
        binding.bind_ortvalue_input(name, runtime.OrtValue.ortvalue_from_numpy(value, *place))
    binding.bind_output(OUTPUT, *place)
    return binding


def repeated(session: Any, binding: Any, options: Any = None) -> Callable[[], None]:
    """A call that runs what is bound again and again, waits, and fetches nothing."""

    def call() -> None:
        session.run_with_iobinding(binding, options)
        binding.synchronize_outputs()

    return call


def run_bound(session: Any, feeds: Mapping[str, NDArray[np.int64]], *, device: torch.device) -> NDArray[np.float32]:
    """Sentence vectors (b, out) of one batch by IO binding: ids go to the device once, only the vectors come back."""
    binding = bound_to(session, feeds, device)
    with _running():
        session.run_with_iobinding(binding)
    vectors: NDArray[np.float32] = binding.get_outputs()[0].numpy()
    return vectors


@contextmanager
def _running() -> Iterator[None]:
    """Turn what a graph fails at into `ModelError` or `DeviceError`, but for a lack of memory, which is halved."""
    try:
        yield
    except RuntimeError as error:
        if is_out_of_memory(error):
            raise
        if _GPU_FAILURE.search(str(error)):
            raise DeviceError(
                f"The GPU fails while the graph runs: {first_line(error)}.",
                hint="Look at what `diagnose()` finds.",
            ) from error
        raise ModelError(f"ONNX Runtime cannot run the graph: {first_line(error)}.", hint=_EXPORT_HINT) from error


@dataclass(slots=True)
class FixedShapes:
    """Runs of one session over buffers that stay where they are, so that each shape is recorded once as a CUDA graph.

    A graph is replayed with one call instead of one for every kernel; at small batches those calls are most of the
    time. On the CPU the same buffers are used and nothing is recorded.
    """

    session: Any
    device: torch.device
    width: int  # of the vectors
    _held: dict[tuple[int, int], tuple[dict[str, Any], Any, Any, Any]] = field(default_factory=dict)
    _turn: threading.Lock = field(default_factory=threading.Lock)  # one thread would overwrite the inputs of another

    def run(self, feeds: Mapping[str, NDArray[np.int64]]) -> NDArray[np.float32]:
        """Vectors (b, out) of one batch whose inputs are (b, t) each."""
        with self._turn:
            output, binding, options = self._filled(feeds)
            with _running():
                self.session.run_with_iobinding(binding, options)
            vectors: NDArray[np.float32] = output.numpy()
            return vectors if self.device.type == "cuda" else vectors.copy()  # a view on the CPU

    def bound(self, feeds: Mapping[str, NDArray[np.int64]]) -> Callable[[], None]:
        """A call that runs these feeds again and again, waits, and fetches nothing; for one thread."""
        _, binding, options = self._filled(feeds)
        return repeated(self.session, binding, options)

    def _filled(self, feeds: Mapping[str, NDArray[np.int64]]) -> tuple[Any, Any, Any]:
        """Output, binding and options of a run of these feeds, which stand in its buffers."""
        batch, length = next(iter(feeds.values())).shape
        if (batch, length) not in self._held:
            runtime = require("onnxruntime", extra="cpu")
            place = (self.device.type, self.device.index or 0)
            empty = np.zeros((batch, length), np.int64)
            inputs = {name: runtime.OrtValue.ortvalue_from_numpy(empty.copy(), *place) for name in INPUTS}
            output = runtime.OrtValue.ortvalue_from_numpy(np.zeros((batch, self.width), np.float32), *place)
            binding, options = self.session.io_binding(), runtime.RunOptions()
            for name, value in inputs.items():
                binding.bind_ortvalue_input(name, value)
            binding.bind_ortvalue_output(OUTPUT, output)
            options.add_run_config_entry("gpu_graph_id", str(len(self._held) + 1))
            self._held[batch, length] = inputs, output, binding, options
        inputs, output, binding, options = self._held[batch, length]
        for name, value in feeds.items():
            inputs[name].update_inplace(value)
        return output, binding, options


def _check_active(runtime: Any, providers: Sequence[str]) -> None:
    """Raise `DeviceError` unless CUDA is among the given providers."""
    if _CUDA not in providers:
        raise DeviceError(
            f"CUDA was asked for but is not active in ONNX Runtime {runtime.__version__}: it has "
            f"{', '.join(providers)}.",
            hint="Install it with: pip install 'truncate-kit[gpu]' (CUDA 13, cuDNN 9), or use `device=\"cpu\"`.",
        )
