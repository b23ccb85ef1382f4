"""One model in one runtime in a process of its own, to see what it really needs.

Started by file name, not as a module: importing the package's other modules first would load torch into the process
that shows what ONNX Runtime needs without it. Not forked from a process that has imported everything either: a fork
does not count the pages of libraries that its parent touched. Reads one JSON request from stdin, writes one JSON answer
to stdout.
"""

import gc
import json
import resource
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

Request = dict[str, Any]


def held(field: str) -> int:
    """Bytes of memory this process holds now (VmRSS), or held at most since `forget_highest` (VmHWM).

    From Linux; elsewhere the highest value there is, which also counts what loading needed.
    """
    status = Path("/proc/self/status")
    if not status.exists():
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    line = next(line for line in status.read_text(encoding="utf-8").splitlines() if line.startswith(f"{field}:"))
    return int(line.split()[1]) * 1024


def forget_highest() -> None:
    """Let the peak start anew, so that a copy made only while loading does not count as use."""
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    except OSError:
        return  # not Linux, or not allowed: the peak then counts loading as well


def answer(request: Request) -> dict[str, Any]:
    """Load, encode the batch, and say what was held before and at most."""
    on_device = request["device"] != "cpu"
    load = _load_torch
    if request["runtime"] == "onnx":
        load = _load_onnx_on_device if on_device else _load_onnx
    prepare = load(request)  # imports everything, loads nothing
    before, peak_of = (0, _device_meter(request)) if on_device else (held("VmRSS"), lambda: held("VmHWM"))
    call = prepare()
    call()  # whatever compiles does it here
    gc.collect()
    forget_highest()
    for _ in range(3):
        call()
    return {
        "kind": "device" if on_device else "resident",
        "baseline_bytes": before,
        "peak_bytes": peak_of(),
        "batch_size": request["batch_size"],
        "length": request["length"],
    }


def _load_torch(request: Request) -> Callable[[], Callable[[], object]]:
    import torch

    from truncate_kit.bench.backends import BACKENDS
    from truncate_kit.bench.runners import make_runner
    from truncate_kit.bench.running import random_ids
    from truncate_kit.models import load_config, load_encoder, random_encoder

    if request["runtime"] == "sentence-transformers":
        import sentence_transformers  # noqa: F401  # counted with the libraries, before the model
    torch.set_num_threads(request["threads"])

    def prepare() -> Callable[[], object]:
        model = Path(request["model"])
        encoder = load_encoder(model) if model.is_dir() else random_encoder(load_config(model))
        runner = make_runner(
            BACKENDS[request["backend"]],
            encoder,
            graph=lambda: model,
            folder=lambda: model,
            device=torch.device(request["device"]),
            threads=request["threads"],
        )
        vocabulary = encoder.backbone.config.vocab_size
        return runner.prepare(random_ids([request["length"]] * request["batch_size"], vocabulary))

    return prepare


def _load_onnx(request: Request) -> Callable[[], Callable[[], object]]:
    import numpy as np
    import onnxruntime as ort

    def prepare() -> Callable[[], object]:
        options = ort.SessionOptions()
        options.intra_op_num_threads = request["threads"]
        options.log_severity_level = 3
        session = ort.InferenceSession(
            request["graph"],
            options,
            providers=["CPUExecutionProvider"],
            disabled_optimizers=["SkipLayerNormFusion"],  # as `export.open_session`, whose module would bring torch
        )
        shape = (request["batch_size"], request["length"])
        feeds = {entry.name: np.ones(shape, dtype=np.int64) for entry in session.get_inputs()}
        return lambda: session.run(["sentence_embedding"], feeds)

    return prepare


def _load_onnx_on_device(request: Request) -> Callable[[], Callable[[], object]]:
    import numpy as np
    import torch

    from truncate_kit.bench.backends import BACKENDS
    from truncate_kit.bench.onnx_runner import cuda_options
    from truncate_kit.export.graph_files import INPUTS, OUTPUT
    from truncate_kit.export.sessions import FixedShapes, open_session, run_bound

    def prepare() -> Callable[[], object]:
        device, backend = torch.device(request["device"]), BACKENDS[request["backend"]]
        options = cuda_options(backend, device)
        session = open_session(Path(request["graph"]), device=device, threads=request["threads"], cuda_options=options)
        feeds = dict.fromkeys(INPUTS, np.ones((request["batch_size"], request["length"]), np.int64))
        if not backend.captured:
            return lambda: run_bound(session, feeds, device=device)
        width = next(int(value.shape[-1]) for value in session.get_outputs() if value.name == OUTPUT)
        shapes = FixedShapes(session, device, width)
        return lambda: shapes.run(feeds)

    return prepare


def _device_meter(request: Request) -> Callable[[], int]:
    """A reader of the bytes that the GPU handed out since this call, to whomever: all others have to rest meanwhile."""
    # Allocators keep what they took, so the end is the peak, and torch is seen as ONNX Runtime is.
    import torch

    def used() -> int:
        free, total = torch.cuda.mem_get_info(request["device"])
        return total - free

    before = used()  # with the context of this process, which the first reading makes
    return lambda: used() - before


if __name__ == "__main__":
    sys.stdout.write(json.dumps(answer(json.load(sys.stdin))))
