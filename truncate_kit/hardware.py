"""What the machine can do, as far as results hang on it."""

import contextlib
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
    """The processor's dot products of 8-bit integers into 32 bits, by name; None where none is known."""
    return _first_of(_INT8_FLAGS)


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
