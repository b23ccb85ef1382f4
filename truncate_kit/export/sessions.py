"""Open exported graphs in ONNX Runtime or OpenVINO, without torch."""

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from truncate_kit.core.errors import DeviceError, ModelError, first_line, require
from truncate_kit.core.hardware import is_out_of_memory, runtime_of

INPUTS = ("input_ids", "attention_mask")
OUTPUT = "sentence_embedding"
SCORE = "score"  # of pairs
STATES = "last_hidden_state"  # for loaders that pool token states themselves
Feeds = Mapping[str, NDArray[np.int64]]
Vectors = NDArray[np.float32]
_CPU, _CUDA, _TENSORRT = "CPUExecutionProvider", "CUDAExecutionProvider", "TensorrtExecutionProvider"
_INSTALL = {_CUDA: "'truncate-kit[gpu]' (CUDA 13, cuDNN 9)", _TENSORRT: "tensorrt"}
EXPORT_HINT = "Export the model again with `export_onnx()`."
_GPU_FAILURE = re.compile("CUDA failure|CUBLAS|CUDNN|allocate memory", re.IGNORECASE)
_SLOW_ON_CPU = ["SkipLayerNormFusion"]  # see graph.py


def cuda_providers(
    index: int | None, *, captured: bool = False, stream: int | None = None, tensorrt: Mapping[str, Any] | None = None
) -> list[Any]:
    """Return the execution providers for a GPU (by default 0) with their options; TF32 is off.

    captured: Allow CUDA graphs.
    tensorrt: Options of TensorRT, which is then the first provider.
    """
    # Models share the GPU: allocate memory as needed, without doubling.
    options: dict[str, Any] = {"device_id": index or 0, "use_tf32": 0, "arena_extend_strategy": "kSameAsRequested"}
    if captured:
        options["enable_cuda_graph"] = 1
    if stream is not None:
        options["user_compute_stream"] = str(stream)
    cuda: list[Any] = [(_CUDA, options)]
    return cuda if tensorrt is None else [(_TENSORRT, {"device_id": index or 0, **tensorrt}), *cuda]


def open_session(file: Path, *, threads: int, on_cuda: Sequence[Any] = ()) -> Any:
    """Open a session on `threads` CPU threads, or `on_cuda` with these `cuda_providers`.

    Raises `MissingExtraError`, `DeviceError` without CUDA, `ModelError` for a file that is no exported encoder.
    """
    runtime = require("onnxruntime", extra="gpu" if on_cuda else "cpu")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 4  # errors are raised anyway
    if on_cuda:
        runtime.set_default_logger_severity(3)  # since 1.31 each session warns of a missing plugin
        _check_active([_CUDA], runtime.get_available_providers())
    with running(f"load {file}", retried=False):
        session = runtime.InferenceSession(
            str(file), options, providers=[*on_cuda, _CPU], disabled_optimizers=None if on_cuda else _SLOW_ON_CPU
        )
    _check_active([name for name, _ in on_cuda], session.get_providers())  # these are active
    _check_names(file, *([value.name for value in some] for some in (session.get_inputs(), session.get_outputs())))
    return session


def _check_names(file: Path, inputs: Sequence[str], outputs: Sequence[str]) -> None:
    if set(inputs) != set(INPUTS) or OUTPUT not in outputs:
        names = f"inputs {', '.join(inputs)} and outputs {', '.join(outputs)}"
        raise ModelError(f"{file} is not an exported sentence encoder: it has {names}.", hint=EXPORT_HINT)


class OpenVinoSession:
    """A compiled model with ONNX Runtime's `run`; thread-safe."""

    def __init__(self, compiled: Any) -> None:
        self.compiled, self._idle = compiled, list[Any]()

    def run(self, outputs: Sequence[str], feeds: Feeds) -> list[Vectors]:
        """Return the named outputs."""
        try:
            request = self._idle.pop()
        except IndexError:
            request = self.compiled.create_infer_request()
        request.infer(feeds, share_inputs=True)
        arrays = [request.get_tensor(name).data.copy() for name in outputs]
        self._idle.append(request)
        return arrays


def open_openvino(
    file: Path, *, precision: str = "fp32", threads: int, streams: int = 1, outputs: Sequence[str] | None = None
) -> OpenVinoSession:
    """Open a graph on `threads` CPU threads, for `streams` runs at once, with `outputs` (by default all).

    Raises `MissingExtraError`, `ModelError` for another file.
    """
    openvino = require("openvino", extra="openvino")
    # The default is bfloat16 if the processor has it.
    options = {"INFERENCE_PRECISION_HINT": "bf16" if precision == "bf16" else "f32"}
    options |= {"INFERENCE_NUM_THREADS": str(threads), "NUM_STREAMS": str(streams)}
    with running(f"load {file}", retried=False, runtime="OpenVINO"):
        core = openvino.Core()
        model = core.read_model(str(file))
        _check_names(file, *([value.get_any_name() for value in some] for some in (model.inputs, model.outputs)))
        if outputs is not None:
            model = openvino.Model([model.output(name) for name in outputs], model.get_parameters())
        return OpenVinoSession(core.compile_model(model, "CPU", options))


def open_graph(file: Path, *, precision: str = "fp32", threads: int, outputs: Sequence[str] | None = None) -> Any:
    """Open a graph on the CPU in its own runtime; return a session with ONNX Runtime's `run`."""
    if runtime_of(file) == "openvino":
        return open_openvino(file, precision=precision, threads=threads, outputs=outputs)
    return open_session(file, threads=threads)


def _check_active(wanted: Sequence[str], active: Sequence[str]) -> None:
    for provider in set(wanted).difference(active):
        raise DeviceError(
            f"{provider.removesuffix('ExecutionProvider')} was asked for but is not active in ONNX Runtime: it has "
            f"{', '.join(active)}.",
            hint=f'Install it with: pip install {_INSTALL[provider]}, or use `device="cpu"`.',
        )


@contextlib.contextmanager
def running(task: str = "run the graph", *, retried: bool = True, runtime: str = "ONNX Runtime") -> Iterator[None]:
    """Convert errors to `ModelError` or `DeviceError`; `retried` leaves out-of-memory errors unchanged."""
    try:
        yield
    except Exception as error:  # the runtime's classes share no base
        if isinstance(error, ModelError) or (retried and is_out_of_memory(error)):
            raise
        message = f"{runtime} cannot {task}: {first_line(error)}."
        if _GPU_FAILURE.search(str(error)):
            raise DeviceError(message, hint="Free the GPU's memory, or see `diagnose()`.") from error
        raise ModelError(message, hint=EXPORT_HINT) from error
