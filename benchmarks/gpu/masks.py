"""Which form of the mask runs which attention kernel, and how fast."""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import median

import torch

from benchmarks.common import machine
from benchmarks.gpu.mask_forms import FORMS, masked
from truncate_kit.bench.backends import BACKENDS, Backend
from truncate_kit.bench.guarding import ContestantError, Guarded
from truncate_kit.bench.runners import make_runner
from truncate_kit.bench.running import Runner, random_ids
from truncate_kit.bench.timing import interleaved
from truncate_kit.encoders import Encoder
from truncate_kit.export.graph_files import save_graph
from truncate_kit.precisions import GRAPH_FILES

MASK_SHAPES = ((1, 16), (1, 128), (32, 128), (32, 512), (256, 32))


def time_masks(encoder: Encoder, work: Path, device: torch.device, repeats: int) -> dict[str, object]:
    """Seconds of the encoder's graph with the mask in every form, with and without padding; graphs go to `work`."""
    runners, absent = mask_runners(encoder, work, device)
    found = []
    for size, length, padded in [(*shape, padded) for shape in MASK_SHAPES for padded in (False, True)]:
        if padded and size == 1:
            continue
        longest = min(length, encoder.max_length)
        ids = random_ids([longest - place * (longest // 2) // size * padded for place in range(size)], 8000)
        calls, seconds = time_forms(runners, absent, ids, repeats)
        for form, times in seconds.items():
            row = {"mask": form, "batch_size": size, "length": length, "padded": padded, "seconds": list(times)}
            found.append(row | {"kernels": kernels(calls[form], device)})
            what = f"{size} × {length}{', a quarter padding' if padded else ''}, {form}"
            print(f"{what}: {median(times) * 1e3:.3f} ms; {', '.join(row_names(found[-1]))}", flush=True)
    for form, reason in absent.items():
        print(f"{form}: {reason}")
    return {"machine": machine(device=str(device)), "rows": found, "absent": absent}


def mask_runners(encoder: Encoder, work: Path, device: torch.device) -> tuple[dict[str, Runner], dict[str, str]]:
    """The encoder's graph with the mask in every form, and why the others do not start."""
    backend = mask_backend(device.type)
    runners: dict[str, Runner] = {}
    absent = {}
    for form in FORMS:
        try:
            file = mask_graph(encoder, work, form, device.type)
            made = make_runner(
                backend,
                encoder,
                graph=partial(Path, file),
                folder=partial(Path, file.parent),
                device=device,
                threads=torch.get_num_threads(),
            )
        except Exception as error:  # packed attention has no kernel on the CPU; a fault of one form is not the others'
            absent[form] = f"does not start: {error}"
        else:
            runners[form] = Guarded(("lean", form), backend, made)
    return runners, absent


def mask_backend(device: str) -> Backend:
    """What runs these graphs on `cpu` or `cuda`."""
    return BACKENDS["onnx-fp16" if device.startswith("cuda") else "onnx-fp32"]


def mask_graph(encoder: Encoder, work: Path, form: str, device: str) -> Path:
    """The file of the encoder's graph with the mask in that form, made where it is missing."""
    file = work / f"masks-{form}" / GRAPH_FILES[mask_backend(device).precision]
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        save_graph(masked(encoder, form, device.partition(":")[0]), file)
    return file


def time_forms(
    runners: dict[str, Runner], absent: dict[str, str], ids: Sequence[Sequence[int]], repeats: int
) -> tuple[Mapping[str, Callable[[], object]], dict[str, tuple[float, ...]]]:
    """A call of each form and its seconds; a form that fails goes from `runners` to `absent`."""
    while True:
        try:
            calls = {form: runner.prepare(ids) for form, runner in runners.items()}
            return calls, interleaved(calls, rounds=repeats, calls_per_round=5)
        except ContestantError as error:
            form = error.key[1]
            del runners[form]
            absent[form] = f"fails at {len(ids)} × {max(map(len, ids))}: {error}"


def kernels(call: Callable[[], object], device: torch.device) -> dict[str, float]:
    """Microseconds of each kernel on the GPU in one call; empty on the CPU."""
    if device.type != "cuda":
        return {}
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        call()
    return {event.key: event.self_device_time_total for event in profiler.key_averages()}


def row_names(row: dict[str, object]) -> list[str]:
    """The kernels of a row that have to do with attention."""
    names = row["kernels"]
    assert isinstance(names, dict)
    return [name[:60] for name in names if re.search("fmha|flash|attention|sdpa|softmax", name, re.IGNORECASE)]
