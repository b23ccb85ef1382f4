"""The machine as a report states it."""

import os
import platform
import sys
import time
from pathlib import Path

import torch

from truncate_kit.bench.bench_report import Machine
from truncate_kit.doctor.packages import installed_version
from truncate_kit.hardware import bf16_instructions, processor_name


class OtherWork:
    """How much of the processor others take from here on; Linux only."""

    def __init__(self) -> None:
        self._start = self._read()

    def share(self) -> float | None:
        """Their part of all processor time since the start, 0 … 1; None where the system does not say."""
        now = self._read()
        if self._start is None or now is None:
            return None
        wall, own, busy = (after - before for after, before in zip(now, self._start, strict=True))
        return min(1.0, max(0.0, (busy - own) / (wall * (os.cpu_count() or 1))))

    @staticmethod
    def _read() -> tuple[float, float, float] | None:
        """Seconds of wall clock, of this process, and of everything but idling on all cores together."""
        try:
            fields = Path("/proc/stat").read_text(encoding="ascii").split("\n", 1)[0].split()[1:9]
        except OSError:
            return None
        ticks = [int(field) for field in fields]
        busy = (sum(ticks) - ticks[3] - ticks[4]) / os.sysconf("SC_CLK_TCK")
        return time.perf_counter(), time.process_time(), busy


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
