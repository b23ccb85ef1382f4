"""What a GPU draws, by its own meter."""

import time
from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch

LONG_ENOUGH = 1.5  # seconds; the meter moves some ten times a second


class EnergyMeter:
    """NVML's energy counter of one GPU (extra `energy`); without GPU or counter it measures nothing."""

    def __init__(self, device: torch.device) -> None:
        self._library: Any = None
        if device.type != "cuda":
            return
        try:
            library: Any = import_module("pynvml")
            library.nvmlInit()
            identity = f"GPU-{torch.cuda.get_device_properties(device).uuid}"
            self._handle = library.nvmlDeviceGetHandleByUUID(identity)
            library.nvmlDeviceGetTotalEnergyConsumption(self._handle)
        except Exception:  # not installed, no permission, no such counter: NVML has an error of its own for each
            return
        self._library = library

    def joules_per_call(self, call: Callable[[], object]) -> float | None:
        """Energy of the whole GPU for one call, idle power included, over `LONG_ENOUGH` seconds of calls in a row."""
        if self._library is None:
            return None
        begin, before, calls = time.perf_counter(), self._read(), 0
        while time.perf_counter() - begin < LONG_ENOUGH:
            call()
            calls += 1
        return (self._read() - before) / calls

    def _read(self) -> float:
        """Joules since the driver was loaded."""
        return float(self._library.nvmlDeviceGetTotalEnergyConsumption(self._handle)) / 1000
