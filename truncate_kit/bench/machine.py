"""The machine as a report states it."""

import contextlib
import os
import platform
from importlib import metadata
from pathlib import Path

import torch

from truncate_kit.bench.backends import bf16_instructions
from truncate_kit.bench.results import Machine


def describe_machine(device: torch.device, threads: int) -> Machine:
    """What the figures hang on; no name of the machine itself."""

    def version(*names: str) -> str | None:
        for name in names:
            with contextlib.suppress(metadata.PackageNotFoundError):
                return metadata.version(name)
        return None

    return Machine(
        processor=_processor(),
        cores=os.cpu_count() or 1,
        threads=threads,
        device=torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        bf16_instructions=bf16_instructions(),
        python=platform.python_version(),
        torch=torch.__version__,
        transformers=str(version("transformers")),
        onnxruntime=version("onnxruntime", "onnxruntime-gpu"),
    )


def _processor() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
