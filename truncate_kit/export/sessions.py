"""ONNX Runtime sessions that run what was asked for, or say why they cannot."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from truncate_kit.errors import DeviceError, ModelError
from truncate_kit.export.tracing import INPUTS, OUTPUT
from truncate_kit.extras import require

_CUDA = "CUDAExecutionProvider"
_EXPORT_HINT = "Export the model again with: truncate-kit export MODEL --onnx"
# Slower on the CPU than the Add and LayerNormalization it stands for; see tracing.py.
_SLOW_ON_CPU = ["SkipLayerNormFusion"]


def open_session(file: Path, *, device: torch.device, threads: int) -> Any:
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
        _check_active(runtime, runtime.get_available_providers())
        providers.insert(0, (_CUDA, {"device_id": device.index or 0, "use_tf32": 0}))
    try:
        session = runtime.InferenceSession(
            str(file), options, providers=providers, disabled_optimizers=None if cuda else _SLOW_ON_CPU
        )
    except Exception as error:  # the runtime has a class of its own for each status, all plain exceptions
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ModelError(f"ONNX Runtime cannot load {file}: {reason}", hint=_EXPORT_HINT) from error
    if cuda:
        _check_active(runtime, session.get_providers())  # what runs, not what the build could run
    inputs, outputs = ([value.name for value in values] for values in (session.get_inputs(), session.get_outputs()))
    if set(inputs) != set(INPUTS) or OUTPUT not in outputs:
        raise ModelError(
            f"{file} is not an exported sentence encoder: it has inputs {', '.join(inputs)} and outputs "
            f"{', '.join(outputs)}.",
            hint=_EXPORT_HINT,
        )
    return session


def run_bound(session: Any, feeds: Mapping[str, NDArray[np.int64]], *, device: torch.device) -> NDArray[np.float32]:
    """Sentence vectors (b, out) of one batch by IO binding: ids go to the device once, only the vectors come back."""
    runtime = require("onnxruntime", extra="cpu")
    binding, place = session.io_binding(), (device.type, device.index or 0)
    for name, value in feeds.items():
        binding.bind_ortvalue_input(name, runtime.OrtValue.ortvalue_from_numpy(value, *place))
    binding.bind_output(OUTPUT, *place)
    session.run_with_iobinding(binding)
    vectors: NDArray[np.float32] = binding.get_outputs()[0].numpy()
    return vectors


def _check_active(runtime: Any, providers: Sequence[str]) -> None:
    """Raise `DeviceError` unless CUDA is among the given providers."""
    if _CUDA not in providers:
        raise DeviceError(
            f"CUDA was asked for but is not active in ONNX Runtime {runtime.__version__}: it has "
            f"{', '.join(providers)}.",
            hint="Install it with: pip install 'truncate-kit[gpu]' (CUDA 13, cuDNN 9), or use --device cpu.",
        )
