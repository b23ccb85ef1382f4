"""What the machine can do, as far as results hang on it."""

from pathlib import Path

import torch

_BF16_FLAGS = ("amx_bf16", "avx512_bf16", "avx10_2", "bf16")  # the last one is Arm's


def bf16_instructions(device: torch.device) -> str | None:
    """The matrix instructions in bfloat16 that `device` has, by name; None where it has none or no reader knows."""
    if device.type == "cuda":
        return "tensor cores" if torch.cuda.is_bf16_supported(including_emulation=False) else None
    try:
        able = torch.cpu.get_capabilities()
    except AttributeError:  # torch < 2.12
        able = dict.fromkeys(_linux_flags(), True)
    return next((name for name in _BF16_FLAGS if able.get(name)), None)


def _linux_flags() -> set[str]:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return set()
    return {flag for line in lines if line.lower().startswith(("flags", "features")) for flag in line.split()}
