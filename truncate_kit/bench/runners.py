"""From a backend and a model to what runs it."""

from collections.abc import Callable
from pathlib import Path

import torch

from truncate_kit.bench.backends import Backend
from truncate_kit.bench.onnx_runner import OnnxRunner
from truncate_kit.bench.optimum_runner import OptimumRunner
from truncate_kit.bench.peer_runner import PeerRunner
from truncate_kit.bench.running import AbsentError, Runner
from truncate_kit.bench.torch_runner import TorchRunner
from truncate_kit.errors import DeviceError
from truncate_kit.hardware import check_precision
from truncate_kit.models import Encoder


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
        backend: What runs it.
        encoder: The encoder that is run.
        graph: Gives its ONNX graph, exporting it where needed.
        folder: Gives its folder.
        device: On which it runs.
        threads: CPU cores that it takes.

    Raises:
        AbsentError: This machine or this environment cannot.
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
    if backend.runtime == "optimum":
        return OptimumRunner(encoder, folder(), device=device, threads=threads)
    return TorchRunner(backend, encoder, device=device)
