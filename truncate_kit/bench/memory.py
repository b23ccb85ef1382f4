"""Peak memory of each contestant, in processes of their own."""

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from truncate_kit.bench.backends import BACKENDS
from truncate_kit.bench.bench_report import PeakMemory
from truncate_kit.bench.contestants import Contestants
from truncate_kit.progress import Progress

_WORKER = Path(__file__).with_name("memory_worker.py")
_PATIENCE = 600  # seconds; a compiled model on a slow processor takes its time


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryRequest:
    """What one process measures. model: a saved encoder's folder, or a configuration file for random weights."""

    model: str
    runtime: str
    backend: str
    graph: str | None
    device: str
    threads: int
    batch_size: int
    length: int


def peak_memory(request: MemoryRequest) -> PeakMemory | str:
    """Measure in a process of its own; where it failed, the reason."""
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


def measure_memory(contestants: Contestants, shape: tuple[int, int], progress: Progress) -> None:
    """Write the peak memory at one batch size and length into the row of every contestant."""
    models = {subject.role: subject.for_worker() for subject in contestants.subjects}
    subjects = {subject.role: subject for subject in contestants.subjects}
    rows = {key: BACKENDS[key[1]] for key in contestants.runners}
    # It pools by the encoder, whose weights would be counted beside the graph's.
    rows = {key: row for key, row in rows.items() if row.runtime != "optimum"}
    requests = {
        key: MemoryRequest(
            model=str(models[key[0]]),
            runtime=row.runtime,
            backend=row.name,
            graph=str(subjects[key[0]].graph(row)) if row.runtime == "onnx" else None,
            device=str(contestants.device),
            threads=contestants.threads,
            batch_size=shape[0],
            length=shape[1],
        )
        for key, row in rows.items()
    }
    # Side by side on the CPU, where nothing is timed any more; a GPU counts what all its processes hold.
    at_once = 1 if contestants.device.type == "cuda" else min(4, os.cpu_count() or 1)
    with ThreadPoolExecutor(max_workers=at_once) as pool:
        results = pool.map(peak_memory, requests.values())
        for done, (key, result) in enumerate(zip(requests, results, strict=True), start=1):
            progress("Measuring memory", done, len(requests))
            if isinstance(result, PeakMemory):
                contestants.update(key, memory=result)
            else:
                contestants.notes.append(f"No peak memory for {key[0]} in {rows[key].title}: {result}.")
