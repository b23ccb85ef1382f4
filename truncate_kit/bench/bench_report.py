"""What a bench returns: raw seconds and bytes with what follows from them, and the sentences a reader has to see."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from truncate_kit.naming import place_in_words
from truncate_kit.results import Amounts, Measurement, Result
from truncate_kit.vectors import PRECISIONS, VectorFormat
from truncate_kit.wording import counted

Role = Literal["lean", "full"]
SPEARMAN = "Spearman"
BILLION = 1_000_000_000
Scenario = Literal["one sentence", "latency", "throughput", "real set"]
Key = tuple[Role, str]  # role and backend


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine(Result):
    """Where it was measured."""

    processor: str
    cores: int  # logical ones
    threads: int  # of torch and of ONNX Runtime alike
    device: str  # `cpu`, or the name of the GPU
    bf16_instructions: str | None  # None where the device has none
    python: str
    torch: str
    transformers: str
    onnxruntime: str | None  # version, None where it is not installed
    # Share (0 … 1) of the processor time that other processes took during the timing, None where unknown.
    others_busy: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchedModel(Result):
    """One of the two models."""

    role: Role
    name: str
    layer: int  # its last one
    width: int
    parameters: int  # their number, pooler excluded
    max_length: int
    weights_bytes: int | None  # of the safetensors on disk, None where none are saved
    # Whether it, or what it was cut or combined from, is a sentence encoder at all; None where nothing says so.
    fine_tuned: bool | None
    blocks: tuple[int, ...] | None = None  # those it has of the model that was named; None for all
    weights_sha256: str | None = None  # of model.safetensors; None where there is none

    @property
    def title(self) -> str:
        """Role, name and size: `lean: mini-bert, layer 3`, or `lean: blocks 1, 4, 6` of a folder called `lean`."""
        name, place = Path(self.name).name, place_in_words(self.layer, self.blocks)
        return f"{self.role}: {place}" if name == self.role else f"{self.role}: {name}, {place}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Contestant(Result):
    """One model in one runtime."""

    role: Role
    backend: str
    absent: str | None  # why it was not measured, or at what it failed; None where it was measured
    detail: str = ""  # what ran, in words
    # Compiling or opening the session and the first calls, left out of every timing.
    prepare_seconds: float | None = None
    file_bytes: int | None = None  # what this runtime loads
    spearman: float | None = None  # × 100, None without pairs
    # Highest memory while a fresh process that has loaded the model encodes the largest batch: on the CPU that of the
    # process, on CUDA all that the GPU hands out. None where it was not measured.
    peak_bytes: int | None = None
    search: float | None = None  # × 100, by the metric of a retrieval set, None without one

    @property
    def score(self) -> float | None:
        """On what was scored: pairs or queries."""
        return self.spearman if self.search is None else self.search


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing(Result):
    """One contestant in one scenario: raw seconds of every timed call and what follows from their median."""

    role: Role
    backend: str
    scenario: Scenario
    batch_size: int | None  # None in the real set, where it varies
    length: int | None  # the same
    sentences: int  # in one timed call
    tokens: int  # in one timed call, with the special ones and without padding
    seconds: tuple[float, ...]
    p50_seconds: float
    p95_seconds: float
    sentences_per_second: float
    tokens_per_second: float
    # Of the GPU between two events around each timed call, launches included; empty on the CPU.
    device_seconds: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Gain(Result):
    """How much faster the lean model in `backend` is than the full one in `base`, as the product of two factors."""

    scenario: Scenario
    batch_size: int | None
    length: int | None
    base: str
    backend: str
    depth: float  # full → lean, both in `base`
    runtime: float  # `base` → `backend`, both lean
    total: float  # depth × runtime


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost(Result):
    """What a billion sentences like those of the real set cost with one model in one runtime on this machine."""

    role: Role
    backend: str
    # Of the machine as it was used (its GPU, or its processor with that number of threads), from the median
    # throughput, tokeniser included.
    hours_per_billion: float
    dimensions: int
    gigabytes_per_billion: dict[str, float]  # 10⁹ bytes each, all dimensions, by precision of the vectors


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredPairs(Result):
    """The pairs that scores are of, or the queries.

    Attributes:
        name: Of the set; empty where the pairs came without one.
        fingerprint: See `pairs_fingerprint`, or that of the retrieval set.
        num_pairs: Their number, or that of the queries.
        bundled: Whether these are the pairs that come with the package: a grammar made them, and what a model scores on
            them says little of any task.
        metric: What the scores are.
    """

    name: str
    fingerprint: str
    num_pairs: int
    bundled: bool
    metric: str = SPEARMAN

    @property
    def unit(self) -> tuple[str, str]:
        """What there is a number of, one and several."""
        return ("pair", "pairs") if self.metric == SPEARMAN else ("query", "queries")

    @property
    def field(self) -> Literal["spearman", "search"]:
        """Where a contestant has its score."""
        return "spearman" if self.metric == SPEARMAN else "search"

    @property
    def words(self) -> str:
        """Number and name: `1,379 pairs of stsb/en/test`."""
        number = counted(self.num_pairs, *self.unit)
        return number + (f" of {self.name}" if self.name else "") + (", synthetic" if self.bundled else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class QualityDifference(Result):
    """Score (× 100) of lean minus full on the same pairs or queries, with a paired bootstrap interval."""

    backend: str
    lean: float
    full: float
    difference: float
    low: float
    high: float
    level: float
    resamples: int  # those in which both correlations are defined (all but a few on tiny sets)
    seed: int
    num_pairs: int  # that are different, or queries


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchReport(Measurement):
    """Everything one bench measured. notes: sentences the user has to see."""

    machine: Machine
    models: tuple[BenchedModel, ...]
    contestants: tuple[Contestant, ...]
    timings: tuple[Timing, ...]
    gains: tuple[Gain, ...]
    quality: QualityDifference | None
    num_texts: int
    seconds: float
    notes: tuple[str, ...]
    costs: tuple[Cost, ...] = ()
    scored: ScoredPairs | None = None  # None where nothing was

    def __post_init__(self) -> None:
        if all(row.role != "lean" for row in self.models):  # a file may say anything
            raise ValueError("it has no lean model")

    @property
    def metric(self) -> str:
        """What the scores are."""
        return SPEARMAN if self.scored is None else self.scored.metric

    @property
    def lean(self) -> BenchedModel:
        """The model that is measured, against a full one where there is one."""
        return next(row for row in self.models if row.role == "lean")

    @property
    def lean_folder(self) -> str:
        """The last part of the lean model's name, by which benches of one model are known."""
        return Path(self.lean.name).name

    def measured(self) -> tuple[Contestant, ...]:
        """The contestants that took part."""
        return tuple(row for row in self.contestants if row.absent is None)

    def timing(self, role: str, backend: str, scenario: str, **shape: int) -> Timing | None:
        """The timing of one contestant in a scenario, None where there is none.

        Args:
            role: Of the contestant.
            backend: Of the contestant.
            scenario: In which it was timed.
            **shape: `batch_size`, `length`.
        """
        for timing in self.timings:
            if (timing.role, timing.backend, timing.scenario) == (role, backend, scenario) and all(
                getattr(timing, name) == value for name, value in shape.items()
            ):
                return timing
        return None

    def amounts(self) -> Iterator[Amounts]:
        """Timings by their rounds and sentences, contestants by score and memory; pairs that are not the bundled ones.

        Scores of those are never replaced by scores that say little, nor those of one model by those of another one.
        """
        yield ("lean model", self.lean_folder), (1,)
        if self.scored is not None and not self.scored.bundled:
            yield ("pairs of the user",), (1,)
        for row in self.timings:
            place = row.role, row.backend, row.scenario, row.batch_size, row.length
            yield place, (len(row.seconds), row.sentences)
        for contestant in self.measured():
            done = contestant.score is not None, contestant.peak_bytes is not None
            yield (contestant.role, contestant.backend), (int(done[0]), int(done[1]))


def percentile(seconds: tuple[float, ...], share: float) -> float:
    """Value below which `share` (0 … 1) of the calls lie, linear between neighbours; 0.5 is the median."""
    return float(np.percentile(seconds, 100 * share))


def gains(timings: Sequence[Timing], base: str) -> tuple[Gain, ...]:
    """Compute a `Gain` per scenario, shape and runtime (`base` too: there the runtime gave nothing), from the medians.

    None where one of the three timings was not measured.
    """

    def key(role: str, backend: str, row: Timing) -> tuple[object, ...]:
        return role, backend, row.scenario, row.batch_size, row.length

    median = {key(row.role, row.backend, row): row.p50_seconds for row in timings}
    found = []
    for row in timings:
        full, lean = median.get(key("full", base, row)), median.get(key("lean", base, row))
        if row.role == "lean" and full is not None and lean is not None:
            found.append(
                Gain(
                    scenario=row.scenario,
                    batch_size=row.batch_size,
                    length=row.length,
                    base=base,
                    backend=row.backend,
                    depth=full / lean,
                    runtime=lean / row.p50_seconds,
                    total=full / row.p50_seconds,
                )
            )
    return tuple(found)


def costs(timings: Iterable[Timing], widths: Mapping[Role, int]) -> tuple[Cost, ...]:
    """Price a billion sentences for every model and runtime that was timed on the real set; widths: of vectors."""
    forms = [VectorFormat(precision=name) for name in PRECISIONS]
    return tuple(
        Cost(
            role=row.role,
            backend=row.backend,
            hours_per_billion=BILLION / row.sentences_per_second / 3600,
            dimensions=widths[row.role],
            gigabytes_per_billion={
                form.precision: BILLION * form.bytes_per_vector(widths[row.role]) / 1e9 for form in forms
            },
        )
        for row in timings
        if row.scenario == "real set"
    )
