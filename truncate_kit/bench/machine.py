"""The machine as a report states it."""

import os
import platform
import sys

import torch

from truncate_kit.bench.bench_report import Machine
from truncate_kit.doctor import installed_version
from truncate_kit.hardware import bf16_instructions, processor_name


def describe_machine(device: torch.device, threads: int, others_busy: float | None) -> Machine:
    """What the figures depend on; no name of the machine itself."""
    return Machine(
        processor=processor_name(),
        cores=os.cpu_count() or 1,
        threads=threads,
        device=torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        bf16_instructions=bf16_instructions(device),
        python=platform.python_version(),
        torch=str(torch.__version__),  # a subclass of str
        transformers=str(installed_version("transformers")),
        onnxruntime=_onnxruntime_version(),
        others_busy=others_busy,
    )


def _onnxruntime_version() -> str | None:
    """Of what is loaded, since two distributions install it; None where neither is there."""
    loaded = sys.modules.get("onnxruntime")
    if loaded is not None:
        return str(loaded.__version__)
    return installed_version("onnxruntime") or installed_version("onnxruntime-gpu")
