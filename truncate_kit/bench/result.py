"""Runtimes, settings and report of a bench; values are seconds and bytes."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np

from truncate_kit.core.errors import counted, known_name
from truncate_kit.core.hardware import PRECISIONS, Precision, check_threads
from truncate_kit.core.results import (
    MACHINE,
    SEED,
    TEXTS,
    Amounts,
    Bounds,
    Result,
    check_settings,
    names,
    setting,
    whole_numbers,
)
from truncate_kit.core.workspace import place_in_words
from truncate_kit.export.record import graphs_in

if TYPE_CHECKING:
    import torch

Runtime = Literal["torch", "onnx", "sentence-transformers"]
Role = Literal["lean", "full"]
Scenario = Literal["one sentence", "latency", "throughput", "real set"]
Comparison = Literal["fair", "part", "untuned", "unknown budget", "unfair"]
"""See `compare_training`."""
Key = tuple[Role, str]  # role and backend
SPEARMAN = "Spearman"


# Runtimes


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """One runtime at one precision."""

    name: str
    title: str
    runtime: Runtime
    precision: Precision
    marker: str  # in figures
    compiled: bool = False  # by torch.compile
    static: bool = False  # recompiled for each shape
    captured: bool = False  # as a CUDA graph for each shape
    attention: str | None = None  # kernel, as transformers names it
    tensorrt: bool = False  # in ONNX Runtime, from an unfused graph

    @property
    def on_cuda(self) -> bool:
        """Return whether the backend needs a GPU."""
        in_torch = self.runtime != "onnx" and PRECISIONS[self.precision].cuda_only
        return in_torch or self.captured or self.tensorrt

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
GRAPH = "onnx-fp32"


def select_backends(
    names: Sequence[str] | None, device: "torch.device", folders: Sequence[Path] = (), *, slow_starts: bool = True
) -> tuple[Backend, ...]:
    """Return backends by name; "all" selects each that runs on `device`.

    The default excludes rivals; it includes compilers only on CUDA with `slow_starts`, and fp16 or int8 graphs only if
    `folders` contain one for the device. Raises `UsageError` for an unknown name.
    """
    cuda, held = device.type == "cuda", {precision for folder in folders for precision in graphs_in(folder)}
    sensible = tuple(row for row in BACKENDS.values() if cuda or not row.on_cuda)

    def usual(row: Backend) -> bool:
        if row.rival or (row.compiled and not (cuda and slow_starts)):
            return False
        if row.runtime != "onnx" or row.precision == "fp32":
            return True
        return row.precision in held and device.type in PRECISIONS[row.precision].preference

    if names is None:
        return tuple(row for row in sensible if usual(row))
    for name in names:
        known_name("backend", name, ("all", *BACKENDS))
    return sensible if "all" in names else tuple(row for row in BACKENDS.values() if row.name in names)


# Settings

_ROUNDS = Bounds(1, 10_000)
_TOKENS = Bounds(1, 1_000_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchSettings(Result):
    """Settings of one bench.

    Attributes:
        batch_sizes: Texts per batch; 1 is always timed.
        lengths: Tokens per text, by default 16 and 128 or the models' limit.
        backends: See `select_backends`.
        compile: Include torch.compile on a GPU (starts in minutes).
        repeats: Rounds over all models; each makes ten latency calls.
        threads: CPU threads; by default torch's choice.
        device: `cpu` (by default) or `cuda[:i]`.
        memory: Measure peak memory, in new processes.
        max_texts: Texts timed from the real set, evenly spread.
        seed: Seed of the bootstrap.
        blocks: Blocks kept in the lean model; without `full`, compare with all.

    Raises `UsageError` for a number out of bounds.
    """

    batch_sizes: tuple[int, ...] = setting(
        (1, 32), "Texts per batch; batch 1 is always timed.", MACHINE,
        bounds=_TOKENS, parse=whole_numbers, default="1,32",
    )  # fmt: skip
    lengths: tuple[int, ...] | None = setting(
        None, "Tokens per text; by default 16,128 or the models' limit.", MACHINE, bounds=_TOKENS, parse=whole_numbers
    )
    backends: tuple[str, ...] | None = setting(
        None, f"all, or some of {', '.join(BACKENDS)}; by default torch, ONNX Runtime and, on CUDA, torch.compile.",
        MACHINE, parse=names,
    )  # fmt: skip
    compile: bool = True
    repeats: int = setting(
        5, "Rounds over all models; by default 5, 3 with --quick.", MACHINE,
        bounds=_ROUNDS, default=None,
    )  # fmt: skip
    threads: int | None = None
    device: str | None = None
    memory: bool = True
    max_texts: int = setting(1000, bounds=TEXTS)
    seed: int = setting(0, bounds=SEED)
    blocks: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        check_settings(self)
        object.__setattr__(self, "threads", check_threads(self.threads))


QUICK = BenchSettings(repeats=3, memory=False, max_texts=256, compile=False)
"""Settings of `--quick`."""


# Results


def percentile(seconds: tuple[float, ...], share: float) -> float:
    """Return the quantile at `share` (0 … 1)."""
    return float(np.percentile(seconds, 100 * share))


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchedModel(Result):
    """The lean or full model."""

    role: Role
    name: str
    layer: int  # last layer
    width: int
    parameters: int  # pooler excluded
    weights_bytes: int | None  # on disk
    blocks: tuple[int, ...] | None = None  # unless all
    weights_sha256: str | None = None

    @property
    def title(self) -> str:
        """Return a title such as `lean: mini-bert, layer 3`."""
        name, place = Path(self.name).name, place_in_words(self.layer, self.blocks)
        return f"{self.role}: {place}" if name == self.role else f"{self.role}: {name}, {place}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Contestant(Result):
    """One model in one runtime."""

    role: Role
    backend: str
    absent: str | None  # why it was not measured
    prepare_seconds: float | None = None  # compiling, opening and first calls
    file_bytes: int | None = None  # loaded
    score: float | None = None  # × 100
    peak_bytes: int | None = None  # encoding the largest batch in a new process


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing(Result):
    """One contestant in one scenario."""

    role: Role
    backend: str
    scenario: Scenario
    batch_size: int | None  # absent if it varies
    length: int | None  # absent if it varies
    sentences: int  # per call
    tokens: int  # per call, without padding
    seconds: tuple[float, ...]  # per call
    device_seconds: tuple[float, ...] = ()  # between GPU events

    @property
    def p50_seconds(self) -> float:
        """Return the median seconds."""
        return percentile(self.seconds, 0.5)

    @property
    def p95_seconds(self) -> float:
        """Return the 95th percentile."""
        return percentile(self.seconds, 0.95)

    @property
    def sentences_per_second(self) -> float:
        """Divide sentences by the median seconds."""
        return self.sentences / self.p50_seconds

    @property
    def tokens_per_second(self) -> float:
        """Divide tokens by the median seconds."""
        return self.tokens / self.p50_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchReport(Result):
    """Result of one bench."""

    processor: str
    cores: int  # logical ones
    threads: int
    device: str  # `cpu`, or the GPU's name
    bf16_instructions: str | None
    others_busy: float | None  # processor time of other processes, 0 … 1
    versions: dict[str, str]
    models: tuple[BenchedModel, ...]
    contestants: tuple[Contestant, ...]
    timings: tuple[Timing, ...]
    num_texts: int
    seconds: float
    scored_on: str | None = None  # pairs or queries
    fingerprint: str = ""
    num_scored: int = 0
    bundled: bool = False  # synthetic pairs
    metric: str = SPEARMAN
    # Scores × 100 of `lean` and `full`, paired `difference`, bootstrap interval (`low`, `high`) at `level`; number of
    # defined `resamples` and distinct `num_pairs`.
    quality: dict[str, float] | None = None
    quality_backend: str | None = None
    comparison: Comparison | None = None
    distinct_texts: int = 0  # `num_texts` of them are timed
    exported: dict[str, str] = field(default_factory=dict)  # new graphs by role
    notes: tuple[str, ...] = ()

    @property
    def unit(self) -> tuple[str, str]:
        """Return singular and plural of the scored unit."""
        return ("pair", "pairs") if self.metric == SPEARMAN else ("query", "queries")

    @property
    def scored(self) -> str:
        """Return words such as `1,379 pairs of stsb/en/test`."""
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
        """Return a contestant's timing in a scenario, by default of the first shape."""
        for row in self.timings:
            same = (row.role, row.backend, row.scenario) == (role, backend, scenario)
            if same and batch_size in (None, row.batch_size) and length in (None, row.length):
                return row
        return None

    def amounts(self) -> Iterator[Amounts]:
        """Yield amounts of timings, contestants, model and user's pairs."""
        yield ("lean model", Path(self.lean.name).name), (1,)
        if self.scored_on is not None and not self.bundled:
            yield ("pairs of the user",), (1,)
        for row in self.timings:
            place = row.role, row.backend, row.scenario, row.batch_size, row.length
            yield place, (len(row.seconds), row.sentences)
        for contestant in self.measured():
            done = int(contestant.score is not None), int(contestant.peak_bytes is not None)
            yield (contestant.role, contestant.backend), done
