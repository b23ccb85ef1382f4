"""Check what runs on this machine, with a remedy for each problem."""

import ctypes
import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from typing import Literal

from packaging.requirements import Requirement

from truncate_kit.core import hardware
from truncate_kit.core.errors import TruncateKitError, first_line, known_name
from truncate_kit.core.hardware import GRAPH_FILES, PRECISIONS, TRAINING_PRECISIONS, installed_version, other_graph
from truncate_kit.core.results import Result

PACKAGE = "truncate-kit"
RUNTIMES = ("torch", "onnx")
CPU, CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"
_REMOTE = "AzureExecutionProvider"
_GPU_WHEEL = "onnxruntime-gpu"
# All install the module `onnxruntime` into the same folder.
_WHEELS = (
    "onnxruntime", _GPU_WHEEL, "onnxruntime-directml", "onnxruntime-openvino", "onnxruntime-rocm",
    "onnxruntime-training", "ort-nightly", "ort-nightly-gpu",
)  # fmt: skip
# Oldest Linux drivers for each CUDA (NVIDIA's release notes).
_DRIVER_HINT = (
    "Install driver 580 or newer for CUDA 13, 525 for CUDA 12, and torch and onnxruntime-gpu built for the same CUDA "
    '(in a container: start it with the GPUs), or use `device="cpu"`'
)
_LOG_DRESS = re.compile(r"(\x1b\[[\d;]*m)+(\S+ \S+ \[\w:\w+:.*?\] )?")  # colours; time, severity, source file
# A provider may hang or crash, hence its own process; torch first, which loads the libraries it uses.
_PROBE = """
import contextlib, json, sys
name = sys.argv[1]
if name != "CPUExecutionProvider":
    with contextlib.suppress(ImportError):
        import torch
import numpy, onnxruntime
from onnxruntime import datasets
session = onnxruntime.InferenceSession(datasets.get_example("mul_1.onnx"), providers=[name, "CPUExecutionProvider"])
(value,) = session.get_inputs()
session.run(None, {value.name: numpy.ones(value.shape, numpy.float32)})
print(json.dumps(session.get_providers()))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request(Result):
    """What has to run. Raises `UsageError`.

    Attributes:
        device: `cpu` or `cuda`, for torch and graphs.
        extras: Extras that have to be installed.
        precision: fp16 and int8 need graphs, fp16 also CUDA unless `device` is the CPU.
        runtime: `torch` or `onnx`; by default both.
    """

    device: str | None = None
    extras: tuple[str, ...] = ()
    precision: str | None = None
    runtime: str | None = None

    def __post_init__(self) -> None:
        usable = {"torch": TRAINING_PRECISIONS, "onnx": tuple(GRAPH_FILES)}
        precisions = usable.get(self.runtime or "", tuple(dict.fromkeys([*GRAPH_FILES, *TRAINING_PRECISIONS])))
        for name, value, known in (
            ("device", self.device, ("cpu", "cuda")),
            ("runtime", self.runtime, RUNTIMES),
            *(("extras", extra, known_extras()) for extra in self.extras),
            ("precision", self.precision, precisions),
        ):
            if value is not None:
                known_name(name, value, known)

    @property
    def cuda(self) -> bool:
        """Tell if CUDA is needed."""
        return self.device == "cuda" or "gpu" in self.extras or (self.precision == "fp16" and self.device is None)

    @property
    def graphs(self) -> bool:
        """Tell if graphs have to run."""
        in_graphs_only = self.precision is not None and self.precision not in TRAINING_PRECISIONS
        return self.runtime == "onnx" or in_graphs_only or (self.runtime is None and self.device is not None)

    @property
    def cuda_graphs(self) -> bool:
        """Tell if graphs have to run on CUDA."""
        return "gpu" in self.extras or (self.cuda and self.graphs)


@dataclass(frozen=True, slots=True)
class MachineCheck(Result):
    """One check.

    Attributes:
        verdict: `problem`: a requested part cannot run; `warning`: it could run better; `optional`: a part that was not
            requested is missing.
        hint: The remedy, if any.
    """

    name: str
    found: str
    verdict: Literal["ok", "optional", "warning", "problem"] = "ok"
    hint: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis(Result):
    """A request, and what was found."""

    request: Request
    checks: tuple[MachineCheck, ...]

    @property
    def able(self) -> bool:
        """Tell if everything requested can run."""
        return all(row.verdict != "problem" for row in self.checks)


def diagnose(request: Request | None = None) -> Diagnosis:
    """Check `request` on this machine, by default what every use needs. Takes some seconds."""
    request = request or Request()
    checks = [MachineCheck("Python", platform.python_version()), *_check_packages(request)]
    broken = _torch_problem()
    if broken is not None:
        remedy = "pip install --force-reinstall torch"
        checks.append(MachineCheck("torch", f"cannot be imported: {broken}", "problem", remedy))
    checks += _check_onnxruntime(request)
    if broken is None:
        checks += [*_check_cuda(request), *_check_processor(request)]
    return Diagnosis(request=request, checks=(*checks, *_check_graph_device(request)))


def _unless(fits: object, name: str, found: str, needed: object, otherwise: str, hint: str) -> MachineCheck:
    """Make a check: ok if it `fits`, else a problem if `needed`, else the other verdict."""
    verdict = "ok" if fits else "problem" if needed else otherwise
    return MachineCheck(name, found, verdict, "" if fits else hint)  # type: ignore[arg-type]  # names of verdicts


def known_extras() -> tuple[str, ...]:
    """List the extras. Raises `TruncateKitError` if this package is not installed."""
    try:
        return tuple(metadata.metadata(PACKAGE).get_all("Provides-Extra") or ())
    except metadata.PackageNotFoundError as error:
        raise TruncateKitError(
            "truncate-kit runs from a folder and is not installed, so what it needs is not known.",
            hint="Install it with: pip install -e .",
        ) from error


def _required(extra: str) -> Iterator[Requirement]:
    """Yield the packages of an extra, also through other extras; "" for those always needed."""
    for row in map(Requirement, metadata.requires(PACKAGE) or ()):
        always = row.marker is None or row.marker.evaluate({"extra": ""})
        if always if not extra else not always and row.marker and row.marker.evaluate({"extra": extra}):
            if row.name == PACKAGE:
                for other in sorted(row.extras):
                    yield from _required(other)
            else:
                yield row


def _check_packages(request: Request) -> Iterator[MachineCheck]:
    runs_graphs = {"onnxruntime": request.graphs and not request.cuda, _GPU_WHEEL: request.cuda_graphs}
    for extra in ("", *(extra for extra in known_extras() if extra != "test" or extra in request.extras)):
        for row in _required(extra):
            version = installed_version(row.name)
            if version is None and row.name == "onnxruntime":  # the GPU build also runs on the CPU
                version = installed_version(_GPU_WHEEL)
            found = f"{version or 'not installed'}; {f'extra {extra}' if extra else PACKAGE} needs "
            hint = f"pip install '{row.name}{row.specifier}'"
            if row.name == _GPU_WHEEL:
                hint = f'{_reinstall("gpu")}; where no graph has to run, ask for `runtime="torch"`'
            fits = version is not None and row.specifier.contains(version, prereleases=True)
            needed = not extra or extra in request.extras or runs_graphs.get(row.name)
            yield _unless(fits, row.name, f"{found}{row.specifier or 'any version'}", needed, "optional", hint)


def _wheels() -> dict[str, str]:
    """Return the versions of installed ONNX Runtimes; several conflict."""
    return {name: version for name in _WHEELS if (version := installed_version(name)) is not None}


def _reinstall(extra: str) -> str:
    uninstall = f"pip uninstall -y {' '.join(_wheels())} && " if _wheels() else ""
    return f"{uninstall}pip install 'truncate-kit[{extra}]'"


def _check_onnxruntime(request: Request) -> Iterator[MachineCheck]:
    wheels = _wheels()
    if not wheels:  # `_check_packages` reports it
        return
    on_gpu = _GPU_WHEEL in wheels
    again = _reinstall("gpu" if on_gpu else "cpu")
    asked = {CPU: True, CUDA: request.cuda_graphs}
    reasons = {CUDA: "this build does not have it"} if on_gpu else {}
    try:
        import onnxruntime

        reasons |= {name: start_provider(name) for name in onnxruntime.get_available_providers() if name != _REMOTE}
    except Exception as error:  # a broken package may raise anything
        reasons = {CPU: f"onnxruntime cannot be imported: {first_line(error)}"}
    if len(wheels) > 1:  # the last one installed wins
        found = f"{' and '.join(f'{name} {version}' for name, version in wheels.items())} overwrite each other's files"
        broken = any(asked.get(name) and reason for name, reason in reasons.items())
        yield _unless(False, "ONNX Runtime", found, broken, "warning", again)
    for name, reason in reasons.items():
        found = f"does not start: {reason}" if reason else "starts"
        yield _unless(not reason, name, found, asked.get(name), "warning", again)


def start_provider(name: str) -> str:
    """Run a tiny graph on a provider in its own process; return any reason of failure."""
    command = [sys.executable, "-P", "-c", _PROBE, name]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"its process did not end: {error}"
    # The runtime may print to stdout too; the answer comes last.
    if done.returncode == 0 and name in json.loads(done.stdout.splitlines()[-1]):
        return ""
    lines = [text for line in done.stderr.splitlines() if (text := _LOG_DRESS.sub("", line).strip())]
    libraries = [line.rpartition(" with error: ")[2] for line in lines if " with error: " in line]
    return (libraries or lines[-1:] or [f"its process ended with {done.returncode}"])[0].rstrip(". ")


def _torch_problem() -> str | None:
    try:
        import torch
    except Exception as error:  # a broken package may raise anything
        return first_line(error)
    # A broken installation may leave a folder that can be imported.
    lacking = next((name for name in ("__version__", "Tensor") if not hasattr(torch, name)), None)
    return None if lacking is None else f"a part of it is missing, such as `{lacking}`"


def _check_cuda(request: Request) -> Iterator[MachineCheck]:
    driver = driver_cuda()
    found = "none answers: libcuda.so.1 is missing or sees no GPU" if driver is None else f"for CUDA {driver}"
    yield _unless(driver, "CUDA driver", found, request.cuda, "optional", _DRIVER_HINT)
    if driver is None and not request.cuda:
        return
    built, gpu, reason = torch_on_gpu()
    if not reason or driver is not None or built is None:
        found = f"does not start: {reason}" if reason else f"starts on {gpu}, built for CUDA {built}"
        hint = "Install a build of torch for the driver's CUDA: https://pytorch.org/get-started"
        yield _unless(not reason, "torch on CUDA", found, request.cuda, "warning", hint)
    wheel = onnxruntime_cuda()
    if wheel is not None:  # a newer driver runs older builds, but one process needs one CUDA
        major = {name: int(name.partition(".")[0]) for name in (wheel, built, driver) if name is not None}
        fits = major.get(built or wheel) == major[wheel] <= major[driver or wheel]
        found = f"built for CUDA {wheel}, torch for {built}, the driver for {driver}"
        yield _unless(fits, "CUDA of ONNX Runtime", found, False, "warning", _DRIVER_HINT)


def driver_cuda() -> str | None:
    """Return the newest CUDA of the driver, such as "13.0", if any."""
    number = ctypes.c_int()
    try:
        status = ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(number))
    except OSError:
        return None
    return f"{number.value // 1000}.{number.value % 1000 // 10}" if status == 0 and number.value else None


def torch_on_gpu() -> tuple[str | None, str, str]:
    """Compute on the GPU in torch; return its CUDA, the GPU's name, and the reason of a failure."""
    import torch

    built = torch.version.cuda
    try:
        torch.ones(2, 2, device="cuda").matmul(torch.ones(2, 2, device="cuda")).sum().item()
    except (RuntimeError, AssertionError) as error:
        return built, "", first_line(error) if built else "it is built without CUDA"
    gibibytes = torch.cuda.get_device_properties(0).total_memory / 2**30
    return built, f"{torch.cuda.get_device_name()} ({gibibytes:.0f} GiB)", ""


def onnxruntime_cuda() -> str | None:
    """Return the CUDA of ONNX Runtime, if any."""
    try:
        import onnxruntime
    except Exception:  # `_check_onnxruntime` reports it
        return None
    return ".".join(str(getattr(onnxruntime, "cuda_version", "")).split(".")[:2]) or None


def _check_processor(request: Request) -> Iterator[MachineCheck]:
    import torch

    cores, usable, quota = os.cpu_count() or 1, hardware.usable_cores(), hardware.core_quota()
    granted = "" if quota is None else f", a quota of {quota:g}"
    yield MachineCheck("processor", f"{hardware.processor_name()}, {cores} cores, {usable} usable{granted}")
    yield MachineCheck("memory", f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.1f} GiB")
    bf16, int8 = hardware.bf16_instructions(torch.device("cpu")), hardware.int8_instructions()
    fits, needed = bf16 or request.cuda, request.precision == "bf16"
    yield _unless(fits, "bf16 instructions", bf16 or "none", needed, "warning", 'Use `precision="fp32"`')
    hint = "Export int8 as usual: its weights get 7 bits here, which cannot overflow"
    yield _unless(int8 or request.cuda, "VNNI", int8 or "none", False, "warning", hint)
    threads, wanted = torch.get_num_threads(), os.environ.get("OMP_NUM_THREADS")
    fits = threads <= usable and (wanted is None or threads >= usable // 2)
    found = f"{threads} for {usable} cores" + (f", OMP_NUM_THREADS is {wanted}" if wanted else "")
    hint = f"Use `threads={usable}`, or set OMP_NUM_THREADS={usable}"
    yield _unless(fits, "torch threads", found, False, "warning", hint)


def _check_graph_device(request: Request) -> Iterator[MachineCheck]:
    device = request.device or ("cuda" if request.cuda else "cpu")
    for name, row in PRECISIONS.items():
        if name == request.precision and row.graph_file is not None and device not in row.preference:
            found, hint = f"not made for {device}: {row.elsewhere}", other_graph(name, device)
            yield _unless(False, f"graph in {name}", found, not row.runs_elsewhere, "warning", hint)
