"""What the machine can do, as far as results hang on it."""

import contextlib
import os
import platform
from pathlib import Path

import torch

_INT8_FLAGS = ("amx_int8", "avx512_vnni", "avx_vnni", "avx10_2", "i8mm", "asimddp")  # the last two are Arm's
_BF16_FLAGS = ("amx_bf16", "avx512_bf16", "avx10_2", "bf16")  # the last one is Arm's


def bf16_instructions(device: torch.device) -> str | None:
    """The matrix instructions in bfloat16 that `device` has, by name; None where it has none or no reader knows."""
    if device.type == "cuda":
        return "tensor cores" if torch.cuda.is_bf16_supported(including_emulation=False) else None
    return _first_of(_BF16_FLAGS)


def int8_instructions() -> str | None:
    """The processor's dot products of bytes (VNNI and its kin), by name; None where it has none or no reader knows.

    Without them int8 products go through 16-bit sums that can overflow, and gain little.
    """
    return _first_of(_INT8_FLAGS)


def processor_name() -> str:
    """The processor as it names itself."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def processor_maker() -> str | None:
    """`GenuineIntel`, `AuthenticAMD` and the like; None where the system does not say."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("vendor_id"):
                return line.partition(":")[2].strip()
    return None


def usable_cores() -> int:
    """CPU cores this process may keep busy: those it may run on, and no more than the container grants."""
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:  # only Linux knows
        cores = os.cpu_count() or 1
    quota = core_quota()
    return cores if quota is None else min(cores, max(1, int(quota)))


def core_quota(file: Path = Path("/sys/fs/cgroup/cpu.max")) -> float | None:
    """CPU time that the container grants, in cores; None where it is not limited or not known.

    file: "quota period" in microseconds, as the kernel writes it (control groups, version 2).
    """
    try:
        quota, period = file.read_text(encoding="ascii").split()
        return float(quota) / float(period)
    except (OSError, ValueError):  # a quota of "max" is no number
        return None


def multiplies_narrow() -> bool:
    """Whether 8-bit products are added in pairs in 16 bits, which overflow unless weights keep to 7 bits: x86 only."""
    return platform.machine().lower() in ("x86_64", "amd64", "i686") and int8_instructions() is None


def _first_of(flags: tuple[str, ...]) -> str | None:
    able = dict.fromkeys(_linux_flags(), True)
    with contextlib.suppress(AttributeError):  # torch < 2.12
        able |= torch.cpu.get_capabilities()
    return next((name for name in flags if able.get(name)), None)


def _linux_flags() -> set[str]:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return set()
    return {flag for line in lines if line.lower().startswith(("flags", "features")) for flag in line.split()}
