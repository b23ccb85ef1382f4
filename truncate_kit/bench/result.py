"""Runtimes, settings and the report of a bench: raw seconds and bytes."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np

from truncate_kit.core.errors import UsageError
from truncate_kit.core.hardware import check_threads
from truncate_kit.core.precisions import GRAPH_FILES, PRECISIONS, Precision
from truncate_kit.core.results import Amounts, Result
from truncate_kit.core.settings import MACHINE, SEED, TEXTS, Bounds, check_settings, names, setting, whole_numbers
from truncate_kit.core.wording import counted, place_in_words

if TYPE_CHECKING:
    import torch

Runtime = Literal["torch", "onnx", "sentence-transformers"]
Role = Literal["lean", "full"]
Scenario = Literal["one sentence", "latency", "throughput", "real set"]
Comparison = Literal["fair", "part", "untuned", "unknown budget", "unfair"]
"""How far two scores may be compared: see `compare_training`."""
Key = tuple[Role, str]  # role and backend
SPEARMAN = "Spearman"


# Runtimes


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """One runtime at one precision."""

    name: str
    title: str  # in tables and figures
    runtime: Runtime
    precision: Precision
    marker: str  # in figures
    compiled: bool = False  # by torch.compile, for any shape
    static: bool = False  # compiled for each shape anew
    captured: bool = False  # as CUDA graphs, one for each shape
    attention: str | None = None  # the name that transformers gives a kernel, by default its own choice
    tensorrt: bool = False  # inside ONNX Runtime, from a graph without ONNX Runtime's own operators

    @property
    def on_cuda(self) -> bool:
        """Tell whether it makes sense, or has kernels, on a GPU only."""
        in_torch = self.runtime != "onnx" and PRECISIONS[self.precision].cuda_only
        return in_torch or self.captured or self.tensorrt

    @property
    def rival(self) -> bool:
        """Tell whether it is measured only when asked for."""
        other = self.runtime == "sentence-transformers" or self.tensorrt
        return other or self.static or self.captured or self.attention is not None

    @property
    def fixed_shapes(self) -> bool:
        """Tell whether it cannot run texts of all lengths: each new shape would be compiled."""
        return self.runtime == "torch" and (self.static or self.captured)


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
    """Return the rows of these names in the order of `BACKENDS`; `["all"]` gives all that make sense on `device`.

    By default no rivals, on the CPU or without `slow_starts` no compilers, and fp16 and int8 graphs only if one of
    `folders` holds one for the device. Raises `UsageError` for an unknown name.
    """
    cuda = device.type == "cuda"
    sensible = tuple(row for row in BACKENDS.values() if cuda or not row.on_cuda)

    def usual(row: Backend) -> bool:
        if row.rival or (row.compiled and not (cuda and slow_starts)):
            return False
        if row.runtime != "onnx" or row.precision == "fp32":
            return True
        kernels = device.type in PRECISIONS[row.precision].preference
        return kernels and any((folder / GRAPH_FILES[row.precision]).is_file() for folder in folders)

    if names is None or list(names) == ["all"]:
        return tuple(row for row in sensible if names is not None or usual(row))
    unknown = [name for name in names if name not in BACKENDS]
    if unknown or not names:
        raise UsageError(
            f"There is no backend {', '.join(map(repr, unknown))}.",
            hint=f'Use `backends=["all"]`, or some of: {", ".join(BACKENDS)}.',
        )
    return tuple(row for row in BACKENDS.values() if row.name in names)


# Settings

_ROUNDS = Bounds(1, 10_000)
_TOKENS = Bounds(1, 1_000_000)  # of a text, and texts of a batch


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchSettings(Result):
    """One bench.

    Attributes:
        batch_sizes: Texts per batch; latency is timed at batch 1 in any case.
        lengths: Tokens per text, by default 16 and 128, or the limit of the models.
        backends: Names of `BACKENDS` or `("all",)`, see `select_backends`.
        compile: Include torch.compile on a GPU, which takes minutes to start.
        repeats: Rounds, each of which times every model; latency has ten calls in each.
        threads: Of torch and ONNX Runtime, by default torch's own choice.
        device: `cpu` (by default) or `cuda[:i]`.
        memory: Measure peak memory in a fresh process per contestant.
        max_texts: Most texts of the real set, evenly spread.
        seed: Of the bootstrap.
        blocks: Keep these of the lean model, and compare with all of it.

    Raises:
        UsageError: A number out of its bounds.
    """

    batch_sizes: tuple[int, ...] = setting(
        (1, 32), "Texts per batch; latency is always timed.", MACHINE,
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
        5, "Rounds, each of which times every model; by default 5, 3 with --quick.", MACHINE,
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
    """Return the value below which `share` (0 … 1) of the calls lie."""
    return float(np.percentile(seconds, 100 * share))


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchedModel(Result):
    """One of the two models."""

    role: Role
    name: str
    layer: int  # its last one
    width: int  # of its vectors
    parameters: int  # their number, pooler excluded
    weights_bytes: int | None  # of the safetensors on disk
    blocks: tuple[int, ...] | None = None  # those it has of the model that was named, unless all
    weights_sha256: str | None = None  # of model.safetensors

    @property
    def title(self) -> str:
        """Return role, name and size: `lean: mini-bert, layer 3`, or `lean: blocks 1, 4, 6` of the folder `lean`."""
        name, place = Path(self.name).name, place_in_words(self.layer, self.blocks)
        return f"{self.role}: {place}" if name == self.role else f"{self.role}: {name}, {place}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Contestant(Result):
    """One model in one runtime."""

    role: Role
    backend: str
    absent: str | None  # why it was not measured, or at what it failed
    prepare_seconds: float | None = None  # of compiling, opening and first calls
    file_bytes: int | None = None  # what this runtime loads
    score: float | None = None  # × 100, by the report's metric
    peak_bytes: int | None = None  # highest memory of a fresh process, or GPU, that encodes the largest batch


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing(Result):
    """One contestant in one scenario: raw seconds of every timed call."""

    role: Role
    backend: str
    scenario: Scenario
    batch_size: int | None  # varies in the real set
    length: int | None  # the same
    sentences: int  # in one timed call
    tokens: int  # in one timed call, without padding
    seconds: tuple[float, ...]
    device_seconds: tuple[float, ...] = ()  # between two events of the GPU

    @property
    def p50_seconds(self) -> float:
        """Return the median of the calls."""
        return percentile(self.seconds, 0.5)

    @property
    def p95_seconds(self) -> float:
        """Return the 95th percentile of the calls."""
        return percentile(self.seconds, 0.95)

    @property
    def sentences_per_second(self) -> float:
        """Return the sentences of a call over the median."""
        return self.sentences / self.p50_seconds

    @property
    def tokens_per_second(self) -> float:
        """Return the tokens of a call over the median."""
        return self.tokens / self.p50_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchReport(Result):
    """Everything one bench measured."""

    processor: str
    cores: int  # logical ones
    threads: int  # of torch and of ONNX Runtime alike
    device: str  # `cpu`, or the name of the GPU
    bf16_instructions: str | None
    others_busy: float | None  # share (0 … 1) of the processor time of other processes
    versions: dict[str, str]
    models: tuple[BenchedModel, ...]
    contestants: tuple[Contestant, ...]
    timings: tuple[Timing, ...]
    num_texts: int
    seconds: float
    scored_on: str | None = None  # name of the pairs or queries, which may be empty
    fingerprint: str = ""  # of them
    num_scored: int = 0
    bundled: bool = False  # synthetic pairs: scores on them are no evidence for a task
    metric: str = SPEARMAN
    # Scores × 100 of both models in one backend, and a paired bootstrap interval of lean minus full: `lean`, `full`,
    # `difference`, `low`, `high`, `level`, `resamples` with a defined difference, `num_pairs` that are distinct.
    quality: dict[str, float] | None = None
    quality_backend: str | None = None
    comparison: Comparison | None = None  # of two models that were both scored
    distinct_texts: int = 0  # `num_texts` of them are the real set
    random_ids: bool = False  # a model has no tokenizer, and random weights
    exported: dict[str, str] = field(default_factory=dict)  # graphs exported for the bench, by the role of the model
    notes: tuple[str, ...] = ()  # what the user should know of single contestants

    def __post_init__(self) -> None:
        if all(row.role != "lean" for row in self.models):  # a file may hold anything
            raise ValueError("it has no lean model")

    @property
    def unit(self) -> tuple[str, str]:
        """Name what was scored, one and several."""
        return ("pair", "pairs") if self.metric == SPEARMAN else ("query", "queries")

    @property
    def scored(self) -> str:
        """Return number and name of what was scored: `1,379 pairs of stsb/en/test`."""
        number = counted(self.num_scored, *self.unit)
        return number + (f" of {self.scored_on}" if self.scored_on else "") + (", synthetic" if self.bundled else "")

    @property
    def lean(self) -> BenchedModel:
        """Return the model that is measured, against a full one if there is one."""
        return next(row for row in self.models if row.role == "lean")

    @property
    def lean_folder(self) -> str:
        """Return the last part of the lean model's name, which benches of one model share."""
        return Path(self.lean.name).name

    def measured(self) -> tuple[Contestant, ...]:
        """Return the contestants that took part."""
        return tuple(row for row in self.contestants if row.absent is None)

    def timing(
        self, role: str, backend: str, scenario: str, batch_size: int | None = None, length: int | None = None
    ) -> Timing | None:
        """Return the timing of one contestant in a scenario, by default of the first shape."""
        for row in self.timings:
            same = (row.role, row.backend, row.scenario) == (role, backend, scenario)
            if same and batch_size in (None, row.batch_size) and length in (None, row.length):
                return row
        return None

    def amounts(self) -> Iterator[Amounts]:
        """Yield timings by rounds and sentences, contestants by score and memory, the model and pairs of the user."""
        yield ("lean model", self.lean_folder), (1,)
        if self.scored_on is not None and not self.bundled:
            yield ("pairs of the user",), (1,)
        for row in self.timings:
            place = row.role, row.backend, row.scenario, row.batch_size, row.length
            yield place, (len(row.seconds), row.sentences)
        for contestant in self.measured():
            done = int(contestant.score is not None), int(contestant.peak_bytes is not None)
            yield (contestant.role, contestant.backend), done
