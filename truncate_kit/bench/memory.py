"""Peak memory of each contestant, in processes of their own."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from truncate_kit.bench.results import PeakMemory

_WORKER = Path(__file__).with_name("memory_worker.py")
_PATIENCE = 600  # seconds; a compiled model on a slow processor takes its time


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryRequest:
    """What one process shall do. model: a saved encoder's folder, or a configuration file for random weights."""

    model: str
    runtime: str
    backend: str
    graph: str | None
    device: str
    threads: int
    batch_size: int
    length: int


def peak_memory(request: MemoryRequest) -> PeakMemory | str:
    """Measure in a process of its own; what went wrong in its stead where it failed."""
    try:
        done = subprocess.run(
            [sys.executable, "-P", str(_WORKER)],
            input=json.dumps(asdict(request)),
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "TOKENIZERS_PARALLELISM": "false", "PYTHONWARNINGS": "ignore"},
            timeout=_PATIENCE,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"its process failed: {error}"
    if done.returncode == 0:
        return PeakMemory.from_dict(json.loads(done.stdout))
    lines = done.stderr.strip().splitlines()
    return lines[-1] if lines else f"its process ended with {done.returncode}"


def peak_memories(requests: Sequence[MemoryRequest], *, at_once: int) -> Iterator[PeakMemory | str]:
    """`peak_memory` of each in order, `at_once` processes side by side: none counts what another holds."""
    with ThreadPoolExecutor(max_workers=at_once) as pool:
        yield from pool.map(peak_memory, requests)
