"""From what has to run to a diagnosis."""

import os
import platform

from truncate_kit import hardware
from truncate_kit.doctor.facts import Diagnosis, Facts, Processor, Request
from truncate_kit.doctor.findings import find_problems
from truncate_kit.doctor.packages import onnxruntime_wheels, requirements
from truncate_kit.doctor.providers import cuda_versions, probe_providers, probe_torch_cuda
from truncate_kit.errors import first_line


def diagnose(request: Request | None = None) -> Diagnosis:
    """Look at this machine and say what of `request` cannot run; None asks for what truncate-kit always needs.

    Each provider is started in a process of its own, so this takes some seconds.
    """
    request = request or Request()
    facts = gather()
    return Diagnosis(request=request, facts=facts, findings=tuple(find_problems(facts, request)))


def gather() -> Facts:
    """The facts about this machine."""
    problem = _torch_problem()
    torch_works = problem is None
    torch_cuda = probe_torch_cuda() if torch_works else None
    return Facts(
        python=platform.python_version(),
        torch_problem=problem,
        requirements=tuple(requirements()),
        wheels=onnxruntime_wheels(),
        providers=(*probe_providers(), *([torch_cuda] if torch_cuda else [])),
        cuda=cuda_versions(torch_works=torch_works),
        processor=_processor(torch_works=torch_works),
    )


def _torch_problem() -> str | None:
    try:
        import torch
    except Exception as error:  # a broken package raises whatever it likes
        return first_line(error)
    # An installation that was broken off, or removed in part, leaves a folder that can be imported.
    lacking = next((name for name in ("__version__", "Tensor") if not hasattr(torch, name)), None)
    return None if lacking is None else f"a part of it is missing, such as `{lacking}`"


def _processor(*, torch_works: bool) -> Processor:
    threads = bf16 = None
    if torch_works:
        import torch

        threads, bf16 = torch.get_num_threads(), hardware.bf16_instructions(torch.device("cpu"))
    return Processor(
        name=hardware.processor_name(),
        cores=os.cpu_count() or 1,
        usable=hardware.usable_cores(),
        quota=hardware.core_quota(),
        torch_threads=threads,
        omp_num_threads=os.environ.get("OMP_NUM_THREADS"),
        bf16=bf16,
        int8=hardware.int8_instructions(),
    )
