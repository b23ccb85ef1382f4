"""Define the runtimes, settings and report of `bench`; times are in seconds, sizes in bytes."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np

from truncate_kit.core.errors import counted, known_name
from truncate_kit.core.hardware import GRAPH_RUNTIMES, PRECISIONS, Precision, check_threads, installed_version
from truncate_kit.core.results import (
    COUNT,
    MACHINE,
    SEED,
    Amounts,
    Result,
    names,
    setting,
    whole_numbers,
)
from truncate_kit.core.vectors import too_few
from truncate_kit.core.workspace import place_in_words
from truncate_kit.export.record import graphs_in

if TYPE_CHECKING:
    import torch

Runtime = Literal["torch", "onnx", "openvino", "sentence-transformers"]
Role = Literal["lean", "full"]
Scenario = Literal["one sentence", "latency", "throughput", "real set"]
Comparison = Literal["fair", "part", "untuned", "unknown budget", "unfair"]
"""Values of `compare_training`."""
Key = tuple[Role, str]  # role and backend
SPEARMAN = "Spearman"


# Runtimes


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """One way to run a model: a runtime, a precision, and options."""

    name: str
    title: str
    runtime: Runtime
    precision: Precision
    marker: str  # of matplotlib
    compiled: bool = False  # with torch.compile
    static: bool = False  # recompiled for each shape
    captured: bool = False  # one CUDA graph for each shape
    attention: str | None = None  # kernel, by transformers' name
    tensorrt: bool = False  # in ONNX Runtime, from an unfused graph

    @property
    def on_cuda(self) -> bool:
        """Return whether the backend needs a GPU."""
        return (self.runtime != "onnx" and PRECISIONS[self.precision].cuda_only) or self.captured or self.tensorrt

    @property
    def on_cpu(self) -> bool:
        """Return whether the backend needs the CPU."""
        return self.runtime == "openvino"

    @property
    def rival(self) -> bool:
        """Return whether the backend is measured only on request."""
        return self.runtime == _PEER or self.tensorrt or self.static or self.captured or self.attention is not None


_FLASH = "flash_attention_2"
_PEER: Final = "sentence-transformers"
_KINDS: tuple[tuple[str, tuple[Precision, ...], str, Runtime, str, dict[str, Any]], ...] = (
    ("torch", ("fp32", "tf32", "bf16", "fp16"), "torch {}", "torch", "o", {}),
    ("flash", ("fp16",), "torch {}, variable-length flash attention", "torch", "<", {"attention": _FLASH}),
    ("compile", ("fp32", "bf16", "fp16"), "torch.compile {}", "torch", "s", {"compiled": True}),
    ("compile-static", ("fp16",), "torch.compile {}, static shapes", "torch", "h", {"compiled": True, "static": True}),
    ("compile-graphs", ("fp16",), "torch.compile {}, CUDA graphs", "torch", "^",
     {"compiled": True, "static": True, "captured": True}),
    ("st", ("fp32", "bf16", "fp16"), f"{_PEER} {{}}", _PEER, "P", {}),
    ("st-flash", ("fp16",), f"{_PEER} {{}}, flash attention without padding", _PEER, "*", {"attention": _FLASH}),
    ("onnx", ("fp32", "fp16", "int8"), "ONNX Runtime {}", "onnx", "D", {}),
    ("openvino", ("fp32", "bf16", "int8"), "OpenVINO {}", "openvino", ">", {}),
    ("onnx-graphs", ("fp16",), "ONNX Runtime {}, CUDA graphs", "onnx", "v", {"captured": True}),
    ("tensorrt", ("fp16",), "ONNX Runtime TensorRT {}", "onnx", "X", {"tensorrt": True}),
)  # fmt: skip
BACKENDS: dict[str, Backend] = {
    f"{kind}-{precision}": Backend(
        name=f"{kind}-{precision}",
        title=title.format(precision),
        runtime=runtime,
        precision=precision,
        marker=marker,
        **traits,
    )
    for kind, precisions, title, runtime, marker, traits in _KINDS
    for precision in precisions
}
BASE = "torch-fp32"
HELD = 0.3  # points that a faster run may score less; the default budget of int8


def select_backends(
    names: Sequence[str] | None, device: "torch.device", folders: Sequence[Path] = (), *, slow_starts: bool = True
) -> tuple[Backend, ...]:
    """Return the named backends; "all" selects every backend that runs on `device`.

    Without names, rivals are excluded, torch.compile is included only on CUDA with `slow_starts`, OpenVINO only if
    installed, and fp16 and int8 graphs only if one of `folders` contains such a graph for this device. Raises
    `UsageError` for an unknown name.
    """
    cuda = device.type == "cuda"
    exported = {(one, name) for one in GRAPH_RUNTIMES for folder in folders for name in graphs_in(folder, one)}
    runnable = tuple(row for row in BACKENDS.values() if not (row.on_cpu if cuda else row.on_cuda))

    def is_default(row: Backend) -> bool:
        if row.rival or (row.compiled and not (cuda and slow_starts)):
            return False
        if row.runtime == "openvino" and installed_version("openvino") is None:
            return False
        if row.runtime not in GRAPH_RUNTIMES or row.precision in ("fp32", "bf16"):
            return True
        return (row.runtime, row.precision) in exported and device.type in PRECISIONS[row.precision].preference

    if names is None:
        return tuple(row for row in runnable if is_default(row))
    for name in names:
        known_name("backend", name, ("all", *BACKENDS))
    return runnable if "all" in names else tuple(row for row in BACKENDS.values() if row.name in names)


# Settings


class BenchSettings(Result):
    """Settings of `bench`; others have a help text below.

    Attributes:
        compile: Include torch.compile on a GPU; compiling takes minutes.
        threads: CPU threads; by default torch's choice.
        device: `cpu` (by default) or `cuda[:i]`.
        memory: Measure peak memory, in new processes.
        max_texts: Maximum of texts to time, spread evenly over the real set.
        seed: For the bootstrap.
        blocks: Blocks kept in the lean model; without `full`, the uncut model is the full one.

    Raises `UsageError` for a number out of bounds.
    """

    batch_sizes: tuple[int, ...] = setting(
        (1, 32), "Texts per batch; batch 1 is always timed.", MACHINE,
        bounds=COUNT, parse=whole_numbers, default="1,32",
    )  # fmt: skip
    lengths: tuple[int, ...] | None = setting(
        None, "Tokens per text; by default 16,128 within the limit.", MACHINE, bounds=COUNT, parse=whole_numbers
    )
    backends: tuple[str, ...] | None = setting(
        None, f"all, or some of {', '.join(BACKENDS)}; by default torch, ONNX Runtime, OpenVINO if installed, and on "
        "CUDA torch.compile.", MACHINE, parse=names,
    )  # fmt: skip
    compile: bool = True
    repeats: int = setting(
        5, "Timing rounds over all models; by default 5, with --quick 3.", MACHINE,
        bounds=COUNT, default=None,
    )  # fmt: skip
    threads: int | None = None
    device: str | None = None
    memory: bool = True
    max_texts: int = setting(1000, bounds=COUNT)
    seed: int = setting(0, bounds=SEED)
    blocks: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "threads", check_threads(self.threads))


QUICK = BenchSettings(repeats=3, memory=False, max_texts=256, compile=False)
"""Settings of `--quick`."""


# Results


def percentile(seconds: tuple[float, ...], share: float) -> float:
    """Return a quantile; `share` is from 0 to 1."""
    return float(np.percentile(seconds, 100 * share))


class BenchedModel(Result):
    """The lean or the full model of a bench."""

    role: Role
    name: str
    layer: int  # last layer
    width: int
    parameters: int  # pooler excluded
    weights_bytes: int | None  # on disk
    blocks: tuple[int, ...] | None = None  # kept blocks, if not the first ones
    weights_sha256: str | None = None

    @property
    def title(self) -> str:
        """Return, for example, `lean: mini-bert, layer 3`."""
        name, place = Path(self.name).name, place_in_words(self.layer, self.blocks)
        return f"{self.role}: {place}" if name == self.role else f"{self.role}: {name}, {place}"


class Contestant(Result):
    """One model in one runtime, a row of the report."""

    role: Role
    backend: str
    absent: str | None  # reason if not measured
    prepare_seconds: float | None = None  # loading, compiling and first calls
    file_bytes: int | None = None  # of the loaded files
    score: float | None = None  # × 100
    peak_bytes: int | None = None  # while encoding the largest batch


class Timing(Result):
    """Times of one contestant in one scenario."""

    role: Role
    backend: str
    scenario: Scenario
    batch_size: int | None  # if constant
    length: int | None  # if constant
    sentences: int  # per call
    tokens: int  # per call, without padding
    seconds: tuple[float, ...]  # per call
    device_seconds: tuple[float, ...] = ()  # per call, between GPU events

    @property
    def p50_seconds(self) -> float:
        """Return the median seconds per call."""
        return percentile(self.seconds, 0.5)

    @property
    def p95_seconds(self) -> float:
        """Return the 95th percentile per call."""
        return percentile(self.seconds, 0.95)

    @property
    def sentences_per_second(self) -> float:
        """Return sentences per second at the median time."""
        return self.sentences / self.p50_seconds

    @property
    def tokens_per_second(self) -> float:
        """Return tokens per second, without padding, at the median time."""
        return self.tokens / self.p50_seconds


class BenchReport(Result):
    """Result of `bench`."""

    processor: str
    cores: int  # logical
    threads: int
    device: str  # `cpu`, or the GPU's name
    bf16_instructions: str | None
    others_busy: float | None  # processor share of other processes, 0 … 1
    versions: dict[str, str]
    models: tuple[BenchedModel, ...]
    contestants: tuple[Contestant, ...]
    timings: tuple[Timing, ...]
    num_texts: int
    seconds: float
    scored_on: str | None = None  # pairs or retrieval set
    fingerprint: str = ""
    num_scored: int = 0
    bundled: bool = False  # synthetic pairs
    metric: str = SPEARMAN
    # Scores × 100 (`lean`, `full`); their paired `difference` and its bootstrap interval (`low`, `high`) at confidence
    # `level`; the numbers of `resamples` with a defined score and of distinct pairs or queries
    # (`num_pairs`); of queries also those that score higher and lower with the lean model (`num_higher`, `num_lower`).
    quality: dict[str, float] | None = None
    quality_of: tuple[str, ...] = ()  # backends of lean and full in `quality`
    comparison: Comparison | None = None
    distinct_texts: int = 0  # `num_texts` of these are timed
    exported: dict[str, str] = field(default_factory=dict)  # paths of newly exported graphs, by role
    notes: tuple[str, ...] = ()

    @property
    def too_few(self) -> str | None:
        """Return the text shown instead of the interval of `quality`, if pairs or queries are too few."""
        if (quality := self.quality) is None:
            return None
        changed = (int(quality["num_higher"]), int(quality["num_lower"])) if "num_higher" in quality else None
        return too_few(int(quality["num_pairs"]), *self.unit, changed)

    @property
    def unit(self) -> tuple[str, str]:
        """Name the scored items, singular and plural."""
        return ("pair", "pairs") if self.metric == SPEARMAN else ("query", "queries")

    @property
    def scored(self) -> str:
        """Describe the scored data, such as `1,379 pairs of stsb/en/test`."""
        return f"{counted(self.num_scored, *self.unit)} of {self.scored_on}{', synthetic' if self.bundled else ''}"

    @property
    def lean(self) -> BenchedModel:
        """Return the lean model."""
        return next(row for row in self.models if row.role == "lean")

    def measured(self) -> tuple[Contestant, ...]:
        """Return the measured contestants."""
        return tuple(row for row in self.contestants if row.absent is None)

    def timing(
        self, role: str, backend: str, scenario: str, batch_size: int | None = None, length: int | None = None
    ) -> Timing | None:
        """Return a contestant's timing, by default for its first shape."""
        for row in self.timings:
            same = (row.role, row.backend, row.scenario) == (role, backend, scenario)
            if same and batch_size in (None, row.batch_size) and length in (None, row.length):
                return row
        return None

    def contestant(self, role: str, backend: str) -> Contestant:
        """Return the row of a model in a backend."""
        return next(row for row in self.contestants if (row.role, row.backend) == (role, backend))

    def rate(self, role: str, backend: str) -> float | None:
        """Return sentences per second on real texts, if timed."""
        timing = self.timing(role, backend, "real set")
        return None if timing is None else timing.sentences_per_second

    def shared(self) -> str | None:
        """Return lean's fastest backend that timed all models, if possible in float32."""

        def rank(backend: str) -> tuple[bool, float]:
            return BACKENDS[backend].precision == "fp32", self.rate("lean", backend) or 0.0

        timed = sorted({row.backend for row in self.timings})
        return max(
            (one for one in timed if all(self.rate(row.role, one) for row in self.models)), key=rank, default=None
        )

    def steps(self) -> dict[str, Key]:
        """Return the runs from today's to the recommended one, by what each changes.

        Today's is the full (else the lean) model in `BASE`, if timed. Recommended is lean's fastest run, or within 5 %
        the smallest, that loses at most `HELD` points to lean in today's runtime; without scores, in its precision.
        """
        first: Role = "full" if len(self.models) > 1 else "lean"
        if (plain := self.shared()) is None:
            return {}
        plain = BASE if all(self.rate(row.role, BASE) for row in self.models) else plain
        least = self.contestant("lean", plain).score

        def holds(row: Contestant) -> bool:
            if row.role != "lean" or not self.rate("lean", row.backend) or BACKENDS[row.backend].runtime == _PEER:
                return False
            if least is None or row.score is None:
                return BACKENDS[row.backend].precision == BACKENDS[plain].precision
            return row.score >= least - HELD

        rates = {row.backend: self.rate("lean", row.backend) or 0.0 for row in self.measured() if holds(row)}
        near = [backend for backend, rate in rates.items() if rate >= 0.95 * max(rates.values())]
        fast = min(near, key=lambda name: (self.contestant("lean", name).file_bytes or math.inf, -rates[name]))
        steps: dict[str, Key] = {"": (first, plain)} | ({} if first == "lean" else {"depth": ("lean", plain)})
        if BACKENDS[fast].runtime != BACKENDS[plain].runtime:
            exact = f"{BACKENDS[fast].runtime}-fp32"
            steps["runtime"] = "lean", exact if self.rate("lean", exact) else fast
        return steps if ("lean", fast) in steps.values() else steps | {"precision": ("lean", fast)}

    @property
    def fastest(self) -> str | None:
        """Name the recommended runtime and its speed, if timed."""
        if not (steps := self.steps()):
            return None
        role, backend = [*steps.values()][-1]
        return f"{BACKENDS[backend].title}, {self.rate(role, backend):,.0f} sentences/s"

    def measured_model(self) -> tuple[str, str | None]:
        """Return the lean model's name and digest."""
        return self.lean.name, self.lean.weights_sha256

    def amounts(self) -> Iterator[Amounts]:
        """Yield amounts of the lean model, the user's pairs, each timing, and each contestant."""
        yield ("lean model", Path(self.lean.name).name), (1,)
        if self.scored_on is not None and not self.bundled:
            yield ("pairs of the user",), (1,)
        for row in self.timings:
            place = row.role, row.backend, row.scenario, row.batch_size, row.length
            yield place, (len(row.seconds), row.sentences)
        for contestant in self.measured():
            done = int(contestant.score is not None), int(contestant.peak_bytes is not None)
            yield (contestant.role, contestant.backend), done
