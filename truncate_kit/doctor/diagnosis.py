"""From a wish to a diagnosis."""

import os
import platform

from truncate_kit.doctor.judging import judge
from truncate_kit.doctor.packages import onnxruntime_wheels, requirements
from truncate_kit.doctor.providers import cuda_versions, probe_providers, probe_torch_cuda
from truncate_kit.doctor.results import Diagnosis, Facts, Processor, Wish


def diagnose(wish: Wish | None = None) -> Diagnosis:
    """Look at this machine and say what of `wish` cannot run; None asks for what truncate-kit always needs.

    Each provider is started in a process of its own, so this takes some seconds.
    """
    wish = wish or Wish()
    facts = gather()
    return Diagnosis(wish=wish, facts=facts, findings=tuple(judge(facts, wish)))


def gather() -> Facts:
    """The facts about this machine."""
    problem = _torch_problem()
    torch_cuda = probe_torch_cuda()
    return Facts(
        python=platform.python_version(),
        torch_problem=problem,
        requirements=tuple(requirements()),
        wheels=onnxruntime_wheels(),
        providers=(*probe_providers(), *([torch_cuda] if torch_cuda else [])),
        cuda=cuda_versions(),
        processor=_processor(torch_works=problem is None),
    )


def _torch_problem() -> str | None:
    try:
        import torch  # noqa: F401  # importing is the test
    except (ImportError, OSError) as error:
        return str(error).strip().splitlines()[0].rstrip(".")
    return None


def _processor(*, torch_works: bool) -> Processor:
    cores = os.cpu_count() or 1
    name, threads, bf16, int8 = platform.processor() or platform.machine(), None, None, None
    usable, quota = cores, None
    if torch_works:
        import torch

        from truncate_kit import hardware

        name, threads = hardware.processor_name(), torch.get_num_threads()
        usable, quota = hardware.usable_cores(), hardware.core_quota()
        bf16, int8 = hardware.bf16_instructions(torch.device("cpu")), hardware.int8_instructions()
    return Processor(
        name=name,
        cores=cores,
        usable=usable,
        quota=quota,
        torch_threads=threads,
        omp_num_threads=os.environ.get("OMP_NUM_THREADS"),
        bf16=bf16,
        int8=int8,
    )
