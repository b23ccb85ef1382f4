"""Which execution providers of ONNX Runtime really start, and which CUDA is there for them."""

import ctypes
import json
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from truncate_kit.doctor.facts import CudaVersions, Provider
from truncate_kit.doctor.packages import onnxruntime_wheels
from truncate_kit.errors import first_line

CPU, CUDA, TORCH_CUDA = "CPUExecutionProvider", "CUDAExecutionProvider", "torch on CUDA"
_REMOTE = "AzureExecutionProvider"  # sends the texts to a service: nothing this package would ever start
_PROBE = Path(__file__).with_name("probe.py")
_PATIENCE = 120  # seconds
_LOG_DRESS = re.compile(r"(\x1b\[[\d;]*m)+(\S+ \S+ \[\w:\w+:.*?\] )?")  # colours; time, severity and source file


def probe_providers() -> tuple[Provider, ...]:
    """Start each provider that the installed ONNX Runtime was built with; nothing where none is installed."""
    if not onnxruntime_wheels():
        return ()
    try:
        import onnxruntime

        names = [name for name in onnxruntime.get_available_providers() if name != _REMOTE]
    except Exception as error:  # a broken package, as a folder that two wheels left in pieces, raises whatever it likes
        return (Provider(name=CPU, starts=False, reason=f"onnxruntime cannot be imported: {first_line(error)}"),)
    return tuple(start_provider(name) for name in names)


def start_provider(name: str) -> Provider:
    """Start one provider in a process of its own and read what is active in the session, not what could be."""
    try:
        done = subprocess.run(
            [sys.executable, "-P", str(_PROBE), name], capture_output=True, text=True, check=False, timeout=_PATIENCE
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return Provider(name=name, starts=False, reason=f"its process did not end: {error}")
    # The runtime prints to stdout as well where it falls back: the answer is the last line.
    active: Sequence[str] = json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else ()
    if name in active:
        return Provider(name=name, starts=True)
    return Provider(name=name, starts=False, reason=_reason(done.stderr, done.returncode))


def _reason(stderr: str, code: int) -> str:
    """The most informative line of what a failed start wrote: a missing library where there is one, else the last."""
    lines = [text for line in stderr.splitlines() if (text := _LOG_DRESS.sub("", line).strip())]
    for line in lines:
        if " with error: " in line:
            return line.rpartition(" with error: ")[2].rstrip(". ")
    return lines[-1].rstrip(". ") if lines else f"its process ended with {code}"


def probe_torch_cuda() -> Provider | None:
    """Whether torch, which can be imported, computes on the GPU; None for a build without CUDA."""
    import torch

    if torch.version.cuda is None:
        return None
    try:
        torch.ones(2, 2, device="cuda").matmul(torch.ones(2, 2, device="cuda")).sum().item()
    except (RuntimeError, AssertionError) as error:
        return Provider(name=TORCH_CUDA, starts=False, reason=first_line(error))
    return Provider(name=TORCH_CUDA, starts=True)


def cuda_versions(*, torch_works: bool) -> CudaVersions:
    """What is there of CUDA, each part asked by itself; torch only where it can be imported."""
    torch_cuda, cudnn = _torch_versions() if torch_works else (None, None)
    return CudaVersions(driver=driver_cuda(), torch=torch_cuda, cudnn=cudnn, onnxruntime=_onnxruntime_cuda())


def _torch_versions() -> tuple[str | None, str | None]:
    """The CUDA that torch is built for, and the cuDNN that it loads."""
    import torch

    try:
        number = torch.backends.cudnn.version()  # type: ignore[no-untyped-call]  # torch leaves it untyped
    except (ImportError, OSError, RuntimeError):  # a cuDNN that cannot be loaded is said elsewhere
        number = None
    return torch.version.cuda, None if number is None else cudnn_version(number)


def cudnn_version(number: int) -> str:
    """cuDNN's number as "major.minor": 8907 is 8.9, 91900 is 9.19 (cudnn_version.h)."""
    return f"{number // 10000}.{number // 100 % 100}" if number >= 10000 else f"{number // 1000}.{number // 100 % 10}"


def driver_cuda() -> str | None:
    """The newest CUDA that the driver runs, "13.0"; None where no driver answers."""
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    number = ctypes.c_int()
    if library.cuDriverGetVersion(ctypes.byref(number)) != 0 or number.value == 0:
        return None
    return f"{number.value // 1000}.{number.value % 1000 // 10}"


def _onnxruntime_cuda() -> str | None:
    """The CUDA that the wheel says it is built for."""
    try:
        import onnxruntime
    except Exception:  # said by `probe_providers`
        return None
    version = getattr(onnxruntime, "cuda_version", "")
    return ".".join(str(version).split(".")[:2]) or None
