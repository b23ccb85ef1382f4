"""What the machine can do, as far as results depend on it: instructions, cores, memory, and who else uses it."""

import contextlib
import ctypes
import logging
import os
import platform
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from truncate_kit.core.errors import DeviceError, UsageError
from truncate_kit.core.settings import Bounds, check_number

if TYPE_CHECKING:
    import torch

_logger = logging.getLogger(__name__)
Item = TypeVar("Item")
Found = TypeVar("Found")
_MOST_THREADS = 256  # thousands end in a segmentation fault of the runtime that starts them
INSTRUCTIONS = "TRUNCATE_KIT_INSTRUCTIONS"
_INT8_FLAGS = ("amx_int8", "avx512_vnni", "avx_vnni", "avx10_2", "i8mm", "asimddp")  # the last two are Arm's
_BF16_FLAGS = ("amx_bf16", "avx512_bf16", "avx10_2", "bf16")  # the last one is Arm's
_AVX512_FLAGS = ("avx512f", "avx512bw", "avx512dq", "avx512vl")  # what torch's own AVX-512 kernels need

# How the allocators of torch, ONNX Runtime, C++ and oneDNN report a lack of memory where they raise plain errors.
_LACK_OF_MEMORY = (
    "DefaultCPUAllocator", "Failed to allocate memory", "CUDA error: out of memory", "failure 2: out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED", "CUDNN_STATUS_ALLOC_FAILED", "bad_alloc", "could not create a memory",
)  # fmt: skip
_ONEDNN = "could not create a primitive"  # all that oneDNN says; of another lack it says more
QUIET = 0.1
"""Share of the processor that others may take before it is worth a word."""


def instructions() -> frozenset[str]:
    """Instruction sets of the processor under Linux's names, such as `avx2` and `avx512_vnni`.

    The environment variable TRUNCATE_KIT_INSTRUCTIONS (names separated by commas) replaces what the processor reports,
    in child processes as well: so decisions of both kinds of processor can be tested on one machine.
    """
    return _instructions(os.environ.get(INSTRUCTIONS))


@cache
def _instructions(override: str | None) -> frozenset[str]:
    if override is not None:
        return frozenset(override.replace(",", " ").split())
    fields = _cpuinfo()
    flags = set(fields.get("flags", fields.get("features", "")).split())
    with contextlib.suppress(Exception):  # torch is older than 2.12, or broken: it then raises whatever it likes
        import torch

        flags |= {name for name, able in torch.cpu.get_capabilities().items() if able}
    return frozenset(flags)


def bf16_instructions(device: "torch.device") -> str | None:
    """The matrix instructions in bfloat16 that `device` has, by name; None where it has none or none is known."""
    if device.type == "cuda":
        import torch

        with torch.cuda.device(device):
            return "tensor cores" if torch.cuda.is_bf16_supported(including_emulation=False) else None
    return _first_of(_BF16_FLAGS)


def int8_instructions() -> str | None:
    """The processor's dot products of bytes (VNNI and its kin), by name; None where it has none or none is known."""
    return _first_of(_INT8_FLAGS)


def has_avx512() -> bool:
    """Whether vectors of 512 bits are computed at once."""
    return instructions().issuperset(_AVX512_FLAGS)


def multiplies_narrow() -> bool:
    """Whether 8-bit products are added in pairs in 16 bits, which overflow unless weights keep to 7 bits: x86 only."""
    return platform.machine().lower() in ("x86_64", "amd64", "i686") and int8_instructions() is None


def select_device(name: str | None) -> "torch.device":
    """`cpu` or `cuda[:i]`; None is the CPU. Raises `DeviceError` when CUDA was asked for and is not active."""
    import torch

    if not re.fullmatch(r"cpu|cuda(:\d+)?", name or "cpu"):
        raise UsageError(f"There is no device {name!r}.", hint='Use `device="cpu"` or `device="cuda"`.')
    device = torch.device(name or "cpu")
    if device.type == "cuda" and not torch.cuda.is_available():
        reason = f"is built for CUDA {torch.version.cuda}" if torch.version.cuda else "has no CUDA"
        raise DeviceError(
            f"CUDA was asked for but is not active: torch {torch.__version__} {reason}, and no GPU answers.",
            hint='Install a torch build that fits the driver, or use `device="cpu"`.',
        )
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise DeviceError(
            f"There is no GPU {device.index}: this machine has {torch.cuda.device_count()}.",
            hint='Use `device="cuda:0"`.',
        )
    return device


def check_precision(precision: str, device: "torch.device") -> None:
    """Raise `DeviceError` where `device` has no instructions for `precision` (only bf16 needs its own)."""
    if precision == "bf16" and bf16_instructions(device) is None:
        name = "GPU" if device.type == "cuda" else "processor"
        raise DeviceError(f"This {name} has no bf16 instructions.", hint='Use `precision="fp32"`.')


def processor_name() -> str:
    """The processor as it names itself."""
    return _cpuinfo().get("model name") or platform.processor() or platform.machine()


def processor_maker() -> str | None:
    """`GenuineIntel`, `AuthenticAMD` and the like; None where the system does not say."""
    return _cpuinfo().get("vendor_id")


def usable_cores() -> int:
    """CPU cores this process may keep busy: those it may run on, and no more than the container grants."""
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:  # only Linux knows
        cores = os.cpu_count() or 1
    quota = core_quota()
    return cores if quota is None else min(cores, max(1, int(quota)))


def check_threads(threads: int | None, name: str = "threads") -> Any:
    """The number of threads or processes; raises `UsageError` for none, or more than this machine can be asked to run.

    None is allowed.
    """
    return check_number(name, threads, Bounds(1, max(_MOST_THREADS, 4 * (os.cpu_count() or 1))))


def core_quota(file: Path = Path("/sys/fs/cgroup/cpu.max")) -> float | None:
    """CPU time that the container grants, in cores; None where it is not limited or not known."""
    try:  # "quota period" in microseconds, as the kernel writes it (control groups, version 2)
        quota, period = file.read_text(encoding="ascii").split()
        return float(quota) / float(period)
    except (OSError, ValueError):  # a quota of "max" is no number
        return None


def _first_of(flags: tuple[str, ...]) -> str | None:
    found = instructions()
    return next((name for name in flags if name in found), None)


@cache
def _cpuinfo() -> dict[str, str]:
    """What Linux says of the first core, by field; empty elsewhere."""
    try:
        first = Path("/proc/cpuinfo").read_text(encoding="utf-8").strip().split("\n\n")[0]
    except OSError:
        return {}
    fields = (line.partition(":") for line in first.splitlines())
    return {name.strip().lower(): value.strip() for name, _, value in fields}


# Memory


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error says that memory ran out; torch is asked only if it was loaded."""
    # A broken torch, whose error this may be, need not have the class.
    of_torch = getattr(sys.modules.get("torch"), "OutOfMemoryError", MemoryError)
    if isinstance(error, (MemoryError, of_torch)):
        return True
    said = str(error) if isinstance(error, RuntimeError) else ""
    return said == _ONEDNN or any(word in said for word in _LACK_OF_MEMORY)


def in_halves(compute: Callable[[Sequence[Item]], Found], batch: Sequence[Item]) -> Iterator[Found]:
    """Yield what `compute` makes of a batch: of all of it, or of its halves in turn, as far down as memory asks for.

    Numbers are those of the whole batch but for rounding, if they do not depend on what else is in a batch. A lack of
    memory for a single item is raised as it is.
    """
    waiting = [batch]
    while waiting:
        part = waiting.pop()
        try:
            found = compute(part)
        except Exception as error:
            if len(part) < 2 or not is_out_of_memory(error):
                raise
        else:
            yield found
            continue
        half = (len(part) + 1) // 2
        give_back()  # what the attempt held is free behind the `except`
        say_halved(len(part), half)
        waiting += [part[half:], part[:half]]


def give_back() -> None:
    """Hand freed memory back to the system: in pieces that the C library keeps, a smaller batch may not fit either."""
    with contextlib.suppress(AttributeError, OSError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)


@cache
def say_halved(size: int, half: int) -> None:
    """Log once for each size that batches of it do not fit."""
    _logger.warning("There is not enough memory for a batch of %d: it is computed in parts of %d.", size, half)


# Others


class OtherWork:
    """Measures the share of the processor that others take from here on; Linux only."""

    def __init__(self) -> None:
        self._start = self._read()

    def share(self) -> float | None:
        """Return their part of all processor time since the start, 0 … 1; None if the system does not say."""
        now = self._read()
        if self._start is None or now is None:
            return None
        wall, own, busy = (after - before for after, before in zip(now, self._start, strict=True))
        return min(1.0, max(0.0, (busy - own) / (wall * (os.cpu_count() or 1))))

    @staticmethod
    def _read() -> tuple[float, float, float] | None:
        """Return seconds of wall clock, of this process, and of everything but idling on all cores together."""
        try:
            fields = Path("/proc/stat").read_text(encoding="ascii").split("\n", 1)[0].split()[1:9]
        except OSError:
            return None
        ticks = [int(field) for field in fields]
        busy = (sum(ticks) - ticks[3] - ticks[4]) / os.sysconf("SC_CLK_TCK")
        return time.perf_counter(), time.process_time(), busy


@contextlib.contextmanager
def without_autocast() -> Iterator[None]:
    """Compute every product in the type of its factors, whatever the caller asked for."""
    import torch

    with contextlib.ExitStack() as stack:
        for device in ("cpu", "cuda"):
            if torch.is_autocast_enabled(device):
                stack.enter_context(torch.autocast(device, enabled=False))
        yield
