"""Check what this machine can run; suggest a remedy for each problem."""

import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from importlib import metadata
from typing import Literal

from packaging.requirements import Requirement

from truncate_kit.core import hardware
from truncate_kit.core.errors import TruncateKitError, first_line, harmless, known_name
from truncate_kit.core.hardware import (
    GRAPH_RUNTIMES,
    PRECISIONS,
    RUNTIMES,
    TRAINING_PRECISIONS,
    installed_version,
    other_graph,
)
from truncate_kit.core.results import Result

PACKAGE = "truncate-kit"
CPU, CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"
_REMOTE = "AzureExecutionProvider"
_GPU_WHEEL = "onnxruntime-gpu"
_GPU_HINT = (
    "Install driver 580 or newer for CUDA 13, 525 for CUDA 12, and torch and onnxruntime-gpu built for the same CUDA "
    '(in a container: start it with the GPUs), or use `device="cpu"`'
)
# Runs in its own process, because a provider may hang or crash. Importing torch first loads the CUDA libraries.
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
_OPENVINO = """
import json, numpy, openvino
value = openvino.op.Parameter(openvino.Type.f32, openvino.Shape([1]))
openvino.Core().compile_model(openvino.Model([value], [value]), "CPU")([numpy.ones(1, numpy.float32)])
print(json.dumps(["openvino"]))
"""


class MachineCheck(Result, kw_only=False):
    """Result of one check.

    Attributes:
        verdict: `problem`: a requested part cannot run; `warning`: a part could run better; `optional`: a part that
            was not requested is missing.
    """

    name: str
    found: str
    verdict: Literal["ok", "optional", "warning", "problem"] = "ok"
    hint: str = ""


class Diagnosis(Result):
    """Requested parts and results. Raises `UsageError`.

    Attributes:
        device: `cpu` or `cuda`, for torch and ONNX graphs.
        precision: fp16 and int8 need graphs; fp16 also needs CUDA unless `device` is `cpu`.
        runtime: `torch`, `onnx` or `openvino`; by default torch and ONNX.
    """

    device: str | None = None
    extras: tuple[str, ...] = ()
    precision: str | None = None
    runtime: str | None = None
    checks: tuple[MachineCheck, ...] = ()

    def __post_init__(self) -> None:
        usable = {"torch": TRAINING_PRECISIONS} | {name: tuple(row.files) for name, row in GRAPH_RUNTIMES.items()}
        either = dict.fromkeys([*usable["onnx"], *usable["torch"]])
        precisions = usable.get(self.runtime or "", tuple(either))
        for name, value, known in (
            ("device", self.device, ("cpu", "cuda")),
            ("runtime", self.runtime, RUNTIMES),
            *(("extras", extra, known_extras()) for extra in self.extras),
            ("precision", self.precision, precisions),
        ):
            if value is not None:
                known_name(name, value, known)

    @property
    def able(self) -> bool:
        """Tell if everything requested can run."""
        return all(row.verdict != "problem" for row in self.checks)

    @property
    def cuda(self) -> bool:
        """Tell if CUDA is needed."""
        return self.device == "cuda" or "gpu" in self.extras or (self.precision == "fp16" and self.device is None)

    @property
    def graphs(self) -> bool:
        """Tell if ONNX graphs must run."""
        in_graphs_only = self.precision is not None and self.precision not in TRAINING_PRECISIONS
        unnamed = self.runtime is None and (in_graphs_only or self.device is not None)
        return self.runtime == "onnx" or unnamed

    @property
    def openvino(self) -> bool:
        """Tell if OpenVINO must run."""
        return self.runtime == "openvino" or "openvino" in self.extras

    @property
    def cuda_graphs(self) -> bool:
        """Tell if ONNX graphs must run on CUDA."""
        return "gpu" in self.extras or (self.cuda and self.graphs)


def diagnose(
    *, device: str | None = None, extras: tuple[str, ...] = (), precision: str | None = None, runtime: str | None = None
) -> Diagnosis:
    """Check what this machine can run, in some seconds."""
    asked = Diagnosis(device=device, extras=extras, precision=precision, runtime=runtime)
    checks = [MachineCheck("Python", platform.python_version()), *_check_packages(asked), *_check_onnxruntime(asked)]
    if installed_version("openvino") is not None:
        reason = start_provider("openvino")
        hint = "pip install --force-reinstall 'truncate-kit[openvino]'"
        found = f"does not start: {reason}" if reason else "starts"
        checks.append(_unless(not reason, "OpenVINO", found, asked.openvino, "warning", hint))
    try:
        checks += _check_machine(asked)
    except Exception as error:  # a broken torch may raise anything
        remedy = "pip install --force-reinstall torch"
        checks.append(MachineCheck("torch", f"cannot be used: {first_line(error)}", "problem", remedy))
    target = device or ("cuda" if asked.cuda else "cpu")
    for name, row in PRECISIONS.items():
        if name == precision and name in GRAPH_RUNTIMES["onnx"].files and target not in row.preference:
            found, hint = f"not made for {target}: {row.elsewhere}", other_graph(name, target)
            checks.append(_unless(False, f"graph in {name}", found, not row.runs_elsewhere, "warning", hint))
    return replace(asked, checks=tuple(checks))


def _unless(fits: object, name: str, found: str, needed: object, otherwise: str, hint: str) -> MachineCheck:
    verdict = "ok" if fits else "problem" if needed else otherwise
    return MachineCheck(name, found, verdict, "" if fits else hint)  # type: ignore[arg-type]  # names of verdicts


def known_extras() -> tuple[str, ...]:
    """List the extras. Raises `TruncateKitError` if this package is not installed."""
    try:
        return tuple(metadata.metadata(PACKAGE).get_all("Provides-Extra") or ())
    except metadata.PackageNotFoundError as error:
        raise TruncateKitError(
            "truncate-kit runs from a folder and is not installed, so its dependencies are unknown.",
            hint="Install it with: pip install -e .",
        ) from error


def _required(extra: str) -> Iterator[Requirement]:
    for row in map(Requirement, metadata.requires(PACKAGE) or ()):
        always = row.marker is None or row.marker.evaluate({"extra": ""})
        if always if not extra else not always and row.marker and row.marker.evaluate({"extra": extra}):
            if row.name == PACKAGE:
                for other in sorted(row.extras):
                    yield from _required(other)
            else:
                yield row


def _check_packages(asked: Diagnosis) -> Iterator[MachineCheck]:
    runs_graphs = {
        "onnxruntime": asked.graphs and not asked.cuda,
        _GPU_WHEEL: asked.cuda_graphs,
        "openvino": asked.openvino,
    }
    for extra in ("", *(extra for extra in known_extras() if extra != "test" or extra in asked.extras)):
        for row in _required(extra):
            version = installed_version(row.name)
            if version is None and row.name == "onnxruntime":  # the GPU build also runs on the CPU
                version = installed_version(_GPU_WHEEL)
            found = f"{version or 'not installed'}; {f'extra {extra}' if extra else PACKAGE} needs "
            hint = _reinstall("gpu") if row.name == _GPU_WHEEL else f"pip install '{row.name}{row.specifier}'"
            fits = version is not None and row.specifier.contains(version, prereleases=True)
            needed = not extra or extra in asked.extras or runs_graphs.get(row.name)
            yield _unless(fits, row.name, f"{found}{row.specifier or 'any version'}", needed, "optional", hint)


def _reinstall(extra: str) -> str:
    return f"pip uninstall -y onnxruntime {_GPU_WHEEL} && pip install 'truncate-kit[{extra}]'"


def _check_onnxruntime(asked: Diagnosis) -> Iterator[MachineCheck]:
    wheels = [name for name in ("onnxruntime", _GPU_WHEEL) if installed_version(name) is not None]
    if not wheels:  # `_check_packages` reports this
        return
    again = _reinstall("gpu" if _GPU_WHEEL in wheels else "cpu")
    needed = {CPU: True, CUDA: asked.cuda_graphs}
    reasons = {CUDA: "this build does not have it"} if _GPU_WHEEL in wheels else {}
    try:
        import onnxruntime

        reasons |= {name: start_provider(name) for name in onnxruntime.get_available_providers() if name != _REMOTE}
    except Exception as error:  # a broken package may raise anything
        reasons = {CPU: f"onnxruntime cannot be imported: {first_line(error)}"}
    if len(wheels) > 1:  # the last one installed wins
        found = f"{' and '.join(wheels)} overwrite each other's files"
        broken = any(needed.get(name) and reason for name, reason in reasons.items())
        yield _unless(False, "ONNX Runtime", found, broken, "warning", again)
    for name, reason in reasons.items():
        found = f"does not start: {reason}" if reason else "starts"
        yield _unless(not reason, name, found, needed.get(name), "warning", again)


def start_provider(name: str) -> str:
    """Run a tiny graph on a provider or OpenVINO; return the error, or an empty string."""
    command = [sys.executable, "-P", "-c", _OPENVINO if name == "openvino" else _PROBE, name]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"its test process failed: {error}"
    # The runtime may print to stdout too; the last line is the answer.
    if done.returncode == 0 and name in json.loads(done.stdout.splitlines()[-1]):
        return ""
    errors = re.sub(r"\x1b\[[\d;]*m", "", done.stderr).strip()  # the runtime colours its log
    found = re.search(" with error: (.+)", errors) or re.search(r"(.+)\Z", errors)
    return harmless(found[1] if found else f"its test process ended with exit code {done.returncode}").rstrip(". ")


def torch_on_gpu() -> tuple[str, str]:
    """Run torch on the GPU; return (description, "") or ("", error)."""
    import torch

    if torch.version.cuda is None:
        return "", "it is built without CUDA"
    try:
        torch.ones(2, 2, device="cuda").matmul(torch.ones(2, 2, device="cuda")).sum().item()
    except (RuntimeError, AssertionError) as error:
        return "", f"{first_line(error)} (built for CUDA {torch.version.cuda})"
    gibibytes = torch.cuda.get_device_properties(0).total_memory / 2**30
    return f"{torch.cuda.get_device_name()} ({gibibytes:.0f} GiB), built for CUDA {torch.version.cuda}", ""


def _check_machine(asked: Diagnosis) -> Iterator[MachineCheck]:
    import torch

    gpu, reason = torch_on_gpu()
    found = f"does not start: {reason}" if reason else f"starts on {gpu}"
    yield _unless(not reason, "torch on CUDA", found, asked.cuda, "optional", _GPU_HINT)
    cores, usable, quota = os.cpu_count() or 1, hardware.usable_cores(), hardware.core_quota()
    granted = "" if quota is None else f", a quota of {quota:g}"
    yield MachineCheck("processor", f"{hardware.processor_name()}, {cores} cores, {usable} usable{granted}")
    yield MachineCheck("memory", f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.1f} GiB")
    bf16, int8 = hardware.bf16_instructions(torch.device("cpu")), hardware.int8_instructions()
    fits, needed = bf16 or asked.cuda, asked.precision == "bf16"
    yield _unless(fits, "bf16 instructions", bf16 or "none", needed, "warning", 'Use `precision="fp32"`')
    hint = "Export int8 as usual: on this machine, weights get 7 bits, so that products cannot overflow"
    yield _unless(int8 or asked.cuda, "VNNI", int8 or "none", False, "warning", hint)
    threads, wanted = torch.get_num_threads(), os.environ.get("OMP_NUM_THREADS")
    fits = threads <= usable and (wanted is None or threads >= usable // 2)
    found = f"{threads} for {usable} cores" + (f", OMP_NUM_THREADS is {wanted}" if wanted else "")
    hint = f"Use `threads={usable}`, or set OMP_NUM_THREADS={usable}"
    yield _unless(fits, "torch threads", found, False, "warning", hint)
