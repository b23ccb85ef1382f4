"""From facts to findings: what does not fit, and the exact pins that would.

Which CUDA a wheel wants is what its metadata says (onnxruntime-gpu 1.19 to 1.26: CUDA 12; from 1.27: CUDA 13; cuDNN 9
in both), or what it says of itself once imported. torch from PyPI is built for CUDA 13 from 2.11 on.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from packaging.version import Version

from truncate_kit.doctor.facts import Facts, Finding, Request, Requirement
from truncate_kit.doctor.providers import CPU, CUDA, TORCH_CUDA
from truncate_kit.precisions import PRECISIONS, other_graph

_GPU_WHEEL, _CPU_WHEEL = "onnxruntime-gpu", "onnxruntime"
_NEEDED_CUDNN = 9
_FIRST_CUDA_13_WHEEL = (1, 27)
_FIRST_SOUND_FP16 = (1, 28)
_DRIVERS = {12: "525", 13: "580"}  # the oldest Linux driver for each CUDA, as NVIDIA's release notes list them


@dataclass(frozen=True, slots=True)
class Pins:
    """Versions that were seen to want the same CUDA. runtime: a requirement that brings CUDA's libraries along."""

    runtime: str
    torch: str
    float32_only: bool = False


PINS = {
    13: Pins("onnxruntime-gpu[cuda,cudnn]==1.31.1", "torch==2.13.0"),
    # The last wheel for CUDA 12; before 1.28 float16 skip-layer-norms overflow on large activations.
    12: Pins("onnxruntime-gpu[cuda,cudnn]==1.26.0", "a build of torch==2.11.0 for CUDA 12", float32_only=True),
}


def find_problems(facts: Facts, request: Request) -> Iterator[Finding]:
    """All findings, those about packages first."""
    yield from _packages(facts, request)
    yield from _wheels(facts, request)
    if facts.torch_problem is None and (request.cuda or facts.cuda.driver is not None):
        yield from _cuda(facts, request)
    yield from _cpu_provider(facts, request)
    yield from _precision(facts, request)
    yield from _processor(facts, request)


def _found(problem: bool, text: str, remedy: str) -> Finding:
    return Finding(severity="problem" if problem else "warning", text=text, remedy=remedy)


def _packages(facts: Facts, request: Request) -> Iterator[Finding]:
    if facts.torch_problem is not None:
        text = f"torch cannot be imported: {facts.torch_problem}."
        yield _found(True, text, "Install it anew: pip install --force-reinstall torch")
    for row in facts.requirements:
        if row.fits or not (row.extra is None or row.extra in request.extras or _runs_graphs(row, facts, request)):
            continue
        whose = f"extra {row.extra}" if row.extra else "truncate-kit"
        state = f"{row.name} {row.installed} is installed" if row.installed else f"{row.name} is not installed"
        remedy = f"pip install '{row.name}{row.wanted}'"
        if row.name == _GPU_WHEEL:
            remedy = _one_wheel(facts, _pins(facts).runtime)
        yield _found(True, f"{state}; {whose} needs {row.name}{row.wanted}.", remedy)


def _runs_graphs(row: Requirement, facts: Facts, request: Request) -> bool:
    """Whether graphs that have to run on the CPU run in this wheel; that none is installed is said elsewhere."""
    on_cpu = request.graphs and not request.cuda
    return on_cpu and (row.name, row.extra) == (_CPU_WHEEL, "cpu") and _CPU_WHEEL in facts.wheels


def _wheels(facts: Facts, request: Request) -> Iterator[Finding]:
    """Two wheels write into one folder, and the last one installed wins, whichever pip lists."""
    if len(facts.wheels) < 2:
        return
    names = " and ".join(f"{name} {version}" for name, version in facts.wheels.items())
    cpu, cuda = facts.provider(CPU), facts.provider(CUDA)
    broken = (request.cuda_graphs and not (cuda and cuda.starts)) or not (cpu and cpu.starts)
    wanted = _pins(facts).runtime if _GPU_WHEEL in facts.wheels else f"{_CPU_WHEEL}=={facts.wheels[_CPU_WHEEL]}"
    yield _found(
        broken,
        f"{names} are installed at once: they overwrite each other's files, so CUDA may be missing or broken.",
        _one_wheel(facts, wanted),
    )


def _one_wheel(facts: Facts, wanted: str) -> str:
    install = f"pip install '{wanted}'"
    return f"pip uninstall -y {' '.join(facts.wheels)} && {install}" if facts.wheels else install


def _cuda(facts: Facts, request: Request) -> Iterator[Finding]:
    versions, torch_row = facts.cuda, facts.provider(TORCH_CUDA)
    torch_again = _reinstall(_pins(facts).torch)
    if versions.driver is None:
        yield _found(
            True,
            "No NVIDIA driver answers on this machine: libcuda.so.1 is missing or sees no GPU.",
            f'Install driver {_DRIVERS[13]} or newer (in a container: start it with the GPUs), or use `device="cpu"`; '
            "no Python package stands in for it.",
        )
    if versions.torch is None:
        version = next((row.installed for row in facts.requirements if row.name == "torch"), None)
        yield _found(request.cuda, f"torch {version} is built without CUDA.", torch_again)
    elif torch_row is not None and not torch_row.starts and versions.driver is not None:
        text = f"torch, built for CUDA {versions.torch}, does not start on the GPU: {torch_row.reason}."
        yield _found(request.cuda, text, torch_again)
    if versions.cudnn is not None and _major(versions.cudnn) != _NEEDED_CUDNN:
        text = f"torch loads cuDNN {versions.cudnn}, and ONNX Runtime needs cuDNN {_NEEDED_CUDNN}."
        yield _found(request.cuda, text, torch_again)
    yield from _cuda_runtime(facts, request)


def _cuda_runtime(facts: Facts, request: Request) -> Iterator[Finding]:
    pins, row = _pins(facts), facts.provider(CUDA)
    asked = request.cuda_graphs
    built = _runtime_cuda(facts)
    if _GPU_WHEEL not in facts.wheels:
        if "gpu" not in request.extras:  # else its requirement has been said to be missing
            torch_alone = asked and request.runtime is None and request.precision in (None, "fp32", "bf16")
            yield _found(
                asked,
                "Exported graphs cannot run on CUDA: there is no onnxruntime-gpu.",
                _one_wheel(facts, pins.runtime)
                + ('; or ask for `runtime="torch"`, where no graph has to run there' if torch_alone else ""),
            )
        return
    started = row is not None and row.starts
    if not started:
        reason = row.reason if row is not None else "this build does not have it"
        yield _found(
            asked,
            f"CUDA does not start in onnxruntime-gpu {facts.wheels[_GPU_WHEEL]}"
            f"{f', built for CUDA {built}' if built else ''}: {reason}.",
            _one_wheel(facts, pins.runtime),
        )
    others = (("torch is built", facts.cuda.torch, False), ("the driver is made", facts.cuda.driver, True))
    for what, version, newer_fits in others:
        if built is None or version is None or _major(version) == built:
            continue
        if not (newer_fits and _major(version) > built):
            note = " (float32 only: before 1.28 float16 can overflow)" if pins.float32_only else ""
            yield _found(
                asked and not started,
                f"onnxruntime-gpu {facts.wheels[_GPU_WHEEL]} is built for CUDA {built}, and {what} for CUDA {version}.",
                f"{_one_wheel(facts, pins.runtime)}, with {pins.torch}{note}; CUDA 13 needs driver {_DRIVERS[13]}.",
            )


def _cpu_provider(facts: Facts, request: Request) -> Iterator[Finding]:
    row = facts.provider(CPU)
    if row is not None and not row.starts:
        wanted = _pins(facts).runtime if _GPU_WHEEL in facts.wheels else _CPU_WHEEL
        yield _found(True, f"ONNX Runtime does not start: {row.reason}.", _one_wheel(facts, wanted))
    elif (
        row is None and not request.cuda and "cpu" not in request.extras and (request.graphs or request.device == "cpu")
    ):
        text = "ONNX Runtime is not installed: models run in torch, and there is no export."
        yield _found(request.graphs, text, "pip install 'truncate-kit[cpu]'")


def _precision(facts: Facts, request: Request) -> Iterator[Finding]:
    """Graphs in fewer bits, each made for one device."""
    version, device = facts.wheels.get(_GPU_WHEEL), request.device or ("cuda" if request.cuda else "cpu")
    for name, row in PRECISIONS.items():
        if name == request.precision and row.graph_file is not None and device not in row.preference:
            text = f"A graph in {name} is not made for {device}: {row.elsewhere}."
            yield _found(not row.runs_elsewhere, text, other_graph(name, device))
            return
    if request.precision == "fp16" and version is not None and _numbers(version) < _FIRST_SOUND_FP16:
        yield _found(
            True,
            f"onnxruntime-gpu {version} can overflow in fp16: before 1.28 its skip-layer-norms add in float16.",
            'Use `precision="fp32"`.' if _pins(facts).float32_only else _one_wheel(facts, _pins(facts).runtime),
        )


def _processor(facts: Facts, request: Request) -> Iterator[Finding]:
    processor = facts.processor
    if facts.torch_problem is not None:
        return
    if processor.bf16 is None and not request.cuda:
        text = f"{processor.name} has no bf16 instructions: that precision is refused."
        yield _found(request.precision == "bf16", text, 'Use `precision="fp32"`.')
    if processor.int8 is None and not request.cuda:
        text = f"{processor.name} has no VNNI: int8 products can overflow in 16-bit sums, and gain little."
        yield _found(False, text, "Export int8 as usual: its weights get 7 bits here, which cannot overflow.")
    granted, threads = processor.usable, processor.torch_threads
    if threads is not None and threads > granted:
        text = f"torch uses {threads} threads where {granted} of {processor.cores} cores are granted."
        yield _found(False, text, f"Use `threads={granted}`, or set OMP_NUM_THREADS={granted}.")
    elif threads is not None and processor.omp_num_threads is not None and threads < granted // 2:
        text = f"torch uses {threads} of {granted} cores, because OMP_NUM_THREADS is {processor.omp_num_threads}."
        yield _found(False, text, f"Use `threads={granted}`, or unset OMP_NUM_THREADS.")


def _pins(facts: Facts) -> Pins:
    """The pins for the newest CUDA that the driver runs; those for CUDA 13 where there is no driver."""
    driver = facts.cuda.driver
    return PINS[12] if driver is not None and _major(driver) < 13 else PINS[13]


def _reinstall(torch: str) -> str:
    if torch.startswith("torch=="):
        return f"pip install --force-reinstall {torch}"
    return f"Install {torch}, or a driver from {_DRIVERS[13]} on and pip install --force-reinstall {PINS[13].torch}"


def _runtime_cuda(facts: Facts) -> int | None:
    """The CUDA that the GPU wheel wants: its own word, else by its version."""
    if facts.cuda.onnxruntime is not None:
        return _major(facts.cuda.onnxruntime)
    version = facts.wheels.get(_GPU_WHEEL)
    if version is None:
        return None
    return 13 if _numbers(version) >= _FIRST_CUDA_13_WHEEL else 12


def _numbers(version: str) -> tuple[int, ...]:
    """Major and minor."""
    return Version(version).release[:2]


def _major(version: str) -> int:
    return int(version.partition(".")[0])
