"""Query processor instructions, devices, precisions, cores, memory and load."""

import contextlib
import ctypes
import logging
import os
import platform
import re
import runpy
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args

from truncate_kit.core.errors import DeviceError, UsageError, known_name
from truncate_kit.core.results import Bounds, check_number

if TYPE_CHECKING:
    import torch

_logger = logging.getLogger(__name__)
Item = TypeVar("Item")
Made = TypeVar("Made")
_MOST_THREADS = 256  # thousands crash the runtime
INSTRUCTIONS = "TRUNCATE_KIT_INSTRUCTIONS"
_INT8_FLAGS = ("amx_int8", "avx512_vnni", "avx_vnni", "avx10_2", "i8mm", "asimddp")  # the last two: Arm
_BF16_FLAGS = ("amx_bf16", "avx512_bf16", "avx10_2", "bf16")  # the last one: Arm
_AVX512_FLAGS = ("avx512f", "avx512bw", "avx512dq", "avx512vl")  # needed by torch's AVX-512 kernels

# Errors of torch, ONNX Runtime, C++ and oneDNN for a lack of memory.
_LACK_OF_MEMORY = (
    "DefaultCPUAllocator", "Failed to allocate memory", "CUDA error: out of memory", "failure 2: out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED", "CUDNN_STATUS_ALLOC_FAILED", "bad_alloc", "could not create a memory",
)  # fmt: skip
_ONEDNN = "could not create a primitive"  # alone, it means lack of memory
QUIET = 0.1
"""Processor share that other processes may use without a note."""


def instructions() -> frozenset[str]:
    """Return the processor's instruction sets by Linux name, such as `avx512_vnni`.

    For tests, the environment variable TRUNCATE_KIT_INSTRUCTIONS (comma-separated) overrides them.
    """
    fields = _cpuinfo()
    return _parts(os.environ.get(INSTRUCTIONS, fields.get("flags", fields.get("features", ""))))


@cache  # every linear layer calls it in training
def _parts(names: str) -> frozenset[str]:
    return frozenset(names.replace(",", " ").split())


def bf16_instructions(device: "torch.device") -> str | None:
    """Return the bfloat16 matrix instructions of `device`, if any."""
    if device.type == "cuda":
        import torch

        with torch.cuda.device(device):
            return "tensor cores" if torch.cuda.is_bf16_supported(including_emulation=False) else None
    return _first_of(_BF16_FLAGS)


def int8_instructions() -> str | None:
    """Return the processor's int8 dot-product instructions (VNNI or similar), if any."""
    return _first_of(_INT8_FLAGS)


def has_avx512() -> bool:
    """Tell if the processor has AVX-512."""
    return instructions().issuperset(_AVX512_FLAGS)


def multiplies_narrow() -> bool:
    """Tell if int8 products accumulate in 16 bits (x86 without VNNI), which overflow unless weights have 7 bits."""
    return platform.machine().lower() in ("x86_64", "amd64", "i686") and int8_instructions() is None


def check_device(name: str | None) -> None:
    """Check a device's name and torch's build, without importing torch. Raises as `select_device`."""
    if not re.fullmatch(r"cpu|cuda(:\d+)?", name or "cpu"):
        raise UsageError(f"There is no device {name!r}.", hint='Use `device="cpu"` or `device="cuda"`.')
    if (name or "cpu") != "cpu" and (torch := find_spec("torch")) is not None and torch.origin:
        built = runpy.run_path(str(Path(torch.origin).with_name("version.py")))
        if not (built["cuda"] or built.get("hip")):
            raise _without_cuda(str(name), built["__version__"], "without CUDA")


def select_device(name: str | None) -> "torch.device":
    """Return the torch device `cpu` (default) or `cuda[:i]`. Raises `UsageError`, `DeviceError`."""
    import torch

    check_device(name)
    device, count = torch.device(name or "cpu"), torch.cuda.device_count()
    if device.type == "cuda" and (device.index or 0) >= count:
        raise _without_cuda(str(device), torch.__version__, f"for CUDA {torch.version.cuda}", count)
    return device


def _without_cuda(device: str, version: str, built: str, count: int = 0) -> DeviceError:
    return DeviceError(
        f"CUDA was asked for but is not active: torch {version}, built {built}, finds {count} GPUs, not {device}.",
        hint='Install a torch build that fits the driver, name another GPU, or use `device="cpu"`.',
    )


def check_precision(precision: str, device: "torch.device") -> None:
    """Raise `DeviceError` if `device` has no bf16 instructions for `precision`."""
    if precision == "bf16" and bf16_instructions(device) is None:
        name = "GPU" if device.type == "cuda" else "processor"
        raise DeviceError(f"This {name} has no bf16 instructions.", hint='Use `precision="fp32"`.')


def processor_name() -> str:
    """Return the processor's name."""
    return _cpuinfo().get("model name") or platform.processor() or platform.machine()


def processor_maker() -> str | None:
    """Return `GenuineIntel`, `AuthenticAMD` or similar, if known."""
    return _cpuinfo().get("vendor_id")


def usable_cores() -> int:
    """Count the CPU cores that this process may use."""
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:  # only Linux knows
        cores = os.cpu_count() or 1
    quota = core_quota()
    return cores if quota is None else min(cores, max(1, int(quota)))


def check_threads(threads: int | None, name: str = "threads") -> Any:
    """Return a checked number of threads or processes. Raises `UsageError`."""
    return check_number(name, threads, Bounds(1, max(_MOST_THREADS, 4 * (os.cpu_count() or 1))))


def core_quota(file: Path = Path("/sys/fs/cgroup/cpu.max")) -> float | None:
    """Return the container's CPU quota in cores, if limited."""
    try:  # "quota period" in microseconds (cgroups v2)
        quota, period = file.read_text(encoding="ascii").split()
        return float(quota) / float(period)
    except (OSError, ValueError):  # "max": no limit
        return None


def _first_of(flags: tuple[str, ...]) -> str | None:
    return next((name for name in flags if name in instructions()), None)


@cache
def _cpuinfo() -> dict[str, str]:
    try:
        first = Path("/proc/cpuinfo").read_text(encoding="utf-8").strip().split("\n\n")[0]
    except OSError:
        return {}
    fields = (line.partition(":") for line in first.splitlines())
    return {name.strip().lower(): value.strip() for name, _, value in fields}


# Precisions

Precision = Literal["fp32", "tf32", "bf16", "fp16", "int8"]
Target = Literal["cpu", "cuda"]
TARGETS: tuple[Target, ...] = get_args(Target)
GraphPrecision = Literal["fp32", "bf16", "fp16", "int8"]  # those of graphs
GraphRuntime = Literal["onnx", "openvino"]
Runtime = Literal["torch", "onnx", "openvino"]
RUNTIMES: tuple[Runtime, ...] = get_args(Runtime)


@dataclass(frozen=True, slots=True, kw_only=True)
class PrecisionRow:
    """Training, export and figure settings of one precision."""

    trains: bool = False
    # Torch dtype of weights and products; unset: not in torch.
    weights: str | None = "float32"
    products: Literal["highest", "high"] = "highest"  # of float32 matrices; `high` is TF32
    cuda_only: bool = False
    # Targets of a graph; per target, the precision with the lowest number is the default.
    preference: Mapping[Target, int] = field(default_factory=dict)
    elsewhere: str = ""  # effect on the other target
    runs_elsewhere: bool = True
    # Largest difference from the encoder's vectors; unset if only the score is checked.
    vector_limit: float | None = None
    # Largest change of Spearman and Pearson, points; unset if only reported.
    score_limit: float | None = None
    color: str  # from Okabe and Ito's colour-blind palette


PRECISIONS: dict[Precision, PrecisionRow] = {
    "fp32": PrecisionRow(trains=True, preference={"cpu": 0, "cuda": 1}, vector_limit=1e-4,
                         score_limit=0.01, color="#0072B2"),
    "tf32": PrecisionRow(products="high", cuda_only=True, color="#56B4E9"),
    "bf16": PrecisionRow(trains=True, weights="bfloat16", preference={"cpu": 1}, vector_limit=2e-2, score_limit=0.1,
                         color="#009E73"),
    "fp16": PrecisionRow(weights="float16", cuda_only=True, preference={"cuda": 0},
                         elsewhere="on the CPU, float16 is converted to float32 and back, which takes longer",
                         vector_limit=2e-2, score_limit=0.1, color="#D55E00"),
    "int8": PrecisionRow(weights=None, preference={"cpu": 2},
                         elsewhere="ONNX Runtime has no int8 kernels on CUDA, so its nodes would run on the CPU",
                         runs_elsewhere=False, color="#CC79A7"),
}  # fmt: skip
TRAINING_PRECISIONS = tuple(name for name, row in PRECISIONS.items() if row.trains)


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphRuntimeRow:
    """A runtime of exported graphs, with the file of each precision in the model's folder."""

    title: str
    targets: tuple[Target, ...]
    suffix: str
    files: dict[Precision, str]


# The hub's names of files, read by transformers.js, Optimum, sentence-transformers and others.
GRAPH_RUNTIMES: dict[str, GraphRuntimeRow] = {
    "onnx": GraphRuntimeRow(
        title="ONNX Runtime",
        targets=("cpu", "cuda"),
        suffix=".onnx",
        files={"fp32": "onnx/model.onnx", "fp16": "onnx/model_fp16.onnx", "int8": "onnx/model_quantized.onnx"},
    ),
    "openvino": GraphRuntimeRow(
        title="OpenVINO",
        targets=("cpu",),
        suffix=".xml",
        files={  # bf16 runs the float32 file
            **dict.fromkeys(("fp32", "bf16"), "openvino/openvino_model.xml"),
            "int8": "openvino/openvino_model_qint8_quantized.xml",
        },
    ),
}
GRAPH_SUFFIXES = tuple(row.suffix for row in GRAPH_RUNTIMES.values())
GRAPH_FILES = frozenset(file for row in GRAPH_RUNTIMES.values() for file in row.files.values())
EXPORT_RECORD = "export.json"
"""Record of the exports, in the model's folder."""


def runtime_of(graph: str | Path) -> GraphRuntime:
    """Return the runtime of a graph file."""
    names: tuple[GraphRuntime, ...] = get_args(GraphRuntime)
    return next((name for name in names if str(graph).endswith(GRAPH_RUNTIMES[name].suffix)), "onnx")


def precisions_for(device: str, runtime: str = "onnx") -> list[Precision]:
    """Return the precisions for graphs on `cpu` or `cuda`, the default first."""
    places = {name: PRECISIONS[name].preference[target] for name in GRAPH_RUNTIMES[runtime].files
              for target in PRECISIONS[name].preference if target == device}  # fmt: skip
    return sorted(places, key=places.__getitem__)


def other_graph(precision: Precision, device: str, parameter: str = "device") -> str:
    """Return a hint for a precision that `device` cannot run."""
    own = next(iter(PRECISIONS[precision].preference))
    return f'Use {" or ".join(precisions_for(device))} as `precision`, or `{parameter}="{own}"`.'


def check_target(name: str, target: str | None = None, runtime: str = "onnx") -> tuple[Precision, Target]:
    """Return the checked precision and target (default: the precision's first). Raises `UsageError`."""
    place = GRAPH_RUNTIMES[known_name("graph runtime", runtime, GRAPH_RUNTIMES)]
    precision = known_name("export precision", name, place.files)
    row = PRECISIONS[precision]
    known = next(iter(row.preference)) if target is None else known_name("export target", target, TARGETS)
    if known not in place.targets:
        raise UsageError(f"{place.title} runs on the CPU here.", hint='Use `target="cpu"`, or `runtime="onnx"`.')
    if known not in row.preference:
        raise UsageError(
            f"A graph in {precision} is not made for {known}: {row.elsewhere}.",
            hint=other_graph(precision, known, "target"),
        )
    return precision, known


# Memory


def is_out_of_memory(error: BaseException) -> bool:
    """Tell if `error` means out of memory."""
    # A broken torch may lack the class.
    of_torch = getattr(sys.modules.get("torch"), "OutOfMemoryError", MemoryError)
    if isinstance(error, (MemoryError, of_torch)):
        return True
    message = str(error)
    return message == _ONEDNN or any(words in message for words in _LACK_OF_MEMORY)


def in_halves(compute: Callable[[Sequence[Item]], Made], batch: Sequence[Item]) -> Iterator[Made]:
    """Yield the results of a batch's parts, halved until each fits in memory."""
    try:
        made = compute(batch)
    except Exception as error:
        if len(batch) < 2 or not is_out_of_memory(error):
            raise
    else:
        yield made
        return
    half = (len(batch) + 1) // 2
    give_back()  # memory is freed only after the `except`
    say_halved(len(batch), half)
    for part in (batch[:half], batch[half:]):
        yield from in_halves(compute, part)


def give_back() -> None:
    """Return freed memory, which the C library keeps, to the system."""
    with contextlib.suppress(AttributeError, OSError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)


@cache
def say_halved(size: int, half: int) -> None:
    """Warn once for each halved batch size."""
    _logger.warning("Out of memory for a batch of %d: using parts of %d.", size, half)


# Other processes and packages


def watch_processor() -> Callable[[], float | None]:
    """Return a function that measures other processes' CPU share since now, 0 … 1 (Linux only)."""
    start = _processor_seconds()

    def others() -> float | None:
        now = _processor_seconds()
        if start is None or now is None:
            return None
        wall, own, busy = (end - begin for end, begin in zip(now, start, strict=True))
        return min(1.0, max(0.0, (busy - own) / (wall * (os.cpu_count() or 1))))

    return others


def _processor_seconds() -> tuple[float, float, float] | None:
    """Return seconds of the wall clock, and CPU seconds of this and of all processes."""
    try:
        fields = Path("/proc/stat").read_text(encoding="ascii").split("\n", 1)[0].split()[1:9]
    except OSError:
        return None
    ticks = [int(field) for field in fields]
    busy = (sum(ticks) - ticks[3] - ticks[4]) / os.sysconf("SC_CLK_TCK")
    return time.perf_counter(), time.process_time(), busy


@contextlib.contextmanager
def without_autocast() -> Iterator[None]:
    """Turn autocast off in the block."""
    import torch

    with torch.autocast("cpu", enabled=False), torch.autocast("cuda", enabled=False):
        yield


def installed_version(name: str) -> str | None:
    """Return the version of a distribution, if it is installed."""
    with contextlib.suppress(metadata.PackageNotFoundError):
        return metadata.version(name)
    return None
