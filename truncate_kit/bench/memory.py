"""Measure the peak memory of encoding, in a new process that runs this module.

A fork would not count the pages of its parent. On the CPU, graphs run without torch, so that
its memory does not count.
"""

import contextlib
import gc
import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from truncate_kit.bench.result import BACKENDS
from truncate_kit.core.hardware import GRAPH_RUNTIMES

_PATIENCE = 600  # seconds, for slow compilers


def peak_memory(request: Mapping[str, Any]) -> int | str:
    """Encode in a new process; return its peak memory in bytes, or the reason if it failed."""
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-m", __spec__.name],
            input=json.dumps(request),
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "TOKENIZERS_PARALLELISM": "false", "PYTHONWARNINGS": "ignore"},
            timeout=_PATIENCE,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"the measuring process failed: {error}"
    if done.returncode == 0:
        return int(done.stdout)
    return (done.stderr.strip().splitlines() or [f"the measuring process ended with exit code {done.returncode}"])[-1]


def measure_here(request: Mapping[str, Any]) -> int:
    """Load the model; return the peak memory of encoding, in bytes."""
    on_cpu = request["device"] == "cpu"
    without_torch = on_cpu and BACKENDS[request["backend"]].runtime in GRAPH_RUNTIMES
    call, free = (_prepare_graph(request), 0) if without_torch else _prepare_runner(request)
    call()  # the first call compiles
    gc.collect()
    with contextlib.suppress(OSError):  # reset the peak, to exclude loading
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    for _ in range(3):
        call()
    return _process_peak() if on_cpu else free - _free_on_gpu(request["device"])


def _free_on_gpu(device: str) -> int:
    """Return the GPU's free bytes by the driver, because allocators keep freed memory."""
    import torch

    return int(torch.cuda.mem_get_info(device)[0])


def _process_peak() -> int:
    """Return the peak memory in bytes since `clear_refs` (outside Linux: since the start)."""
    status = Path("/proc/self/status")
    if not status.exists():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    line = next(line for line in status.read_text(encoding="utf-8").splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024


def _prepare_runner(request: Mapping[str, Any]) -> tuple[Callable[[], object], int]:
    """Return a function that encodes the batch, and the GPU's free bytes before loading."""
    import torch

    from truncate_kit.bench.runners import make_runner, random_ids
    from truncate_kit.models.loading import load_encoder

    torch.set_num_threads(request["threads"])
    device = torch.device(request["device"])
    free = _free_on_gpu(request["device"]) if device.type == "cuda" else 0  # creates the context
    model = Path(request["model"])
    encoder = load_encoder(model)
    graph = None if request["graph"] is None else Path(request["graph"])
    runner = make_runner(BACKENDS[request["backend"]], encoder, graph=graph, folder=lambda: model, device=device)
    ids = random_ids([request["length"]] * request["batch_size"], encoder.backbone.config.vocab_size)
    return runner.prepare(ids), free


def _prepare_graph(request: Mapping[str, Any]) -> Callable[[], object]:
    import numpy as np

    from truncate_kit.export.sessions import INPUTS, OUTPUT, open_graph

    precision, threads = BACKENDS[request["backend"]].precision, request["threads"]
    session = open_graph(Path(request["graph"]), precision=precision, threads=threads, outputs=[OUTPUT])
    ids = np.ones((request["batch_size"], request["length"]), np.int64)
    return lambda: session.run([OUTPUT], dict.fromkeys(INPUTS, ids))


if __name__ == "__main__":
    sys.stdout.write(str(measure_here(json.load(sys.stdin))))
