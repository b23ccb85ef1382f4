"""What a bench returns: raw seconds and bytes, and as properties what follows from them."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np

from truncate_kit.core.results import Amounts, Result
from truncate_kit.core.wording import counted, place_in_words

Role = Literal["lean", "full"]
SPEARMAN = "Spearman"
Scenario = Literal["one sentence", "latency", "throughput", "real set"]
Comparison = Literal["fair", "part", "untuned", "unknown budget", "unfair"]
"""How far two scores may be compared: see `compare_training`."""
Key = tuple[Role, str]  # role and backend


def percentile(seconds: tuple[float, ...], share: float) -> float:
    """Value below which `share` (0 … 1) of the calls lie, linear between neighbours; 0.5 is the median."""
    return float(np.percentile(seconds, 100 * share))


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
    width: int  # of its vectors
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
    """One contestant in one scenario: raw seconds of every timed call."""

    role: Role
    backend: str
    scenario: Scenario
    batch_size: int | None  # None in the real set, where it varies
    length: int | None  # the same
    sentences: int  # in one timed call
    tokens: int  # in one timed call, with the special ones and without padding
    seconds: tuple[float, ...]
    # Of the GPU between two events around each timed call, launches included; empty on the CPU.
    device_seconds: tuple[float, ...] = ()

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
class BenchReport(Result):
    """Everything one bench measured."""

    machine: Machine
    models: tuple[BenchedModel, ...]
    contestants: tuple[Contestant, ...]
    timings: tuple[Timing, ...]
    quality: QualityDifference | None
    num_texts: int
    seconds: float
    scored: ScoredPairs | None = None  # None where nothing was
    comparison: Comparison | None = None  # None where two models were not both scored
    distinct_texts: int = 0  # of which `num_texts` are the real set
    random_ids: bool = False  # a model has no tokenizer: its weights and the ids of the real set are random
    # Where the graph is that was exported for the bench, by the role of its model.
    exported: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()  # what the user should know of single contestants

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

    def timing(
        self, role: str, backend: str, scenario: str, batch_size: int | None = None, length: int | None = None
    ) -> Timing | None:
        """Return the timing of one contestant in a scenario; None of a shape takes the first one."""
        for row in self.timings:
            same = (row.role, row.backend, row.scenario) == (role, backend, scenario)
            if same and batch_size in (None, row.batch_size) and length in (None, row.length):
                return row
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
            done = int(contestant.score is not None), int(contestant.peak_bytes is not None)
            yield (contestant.role, contestant.backend), done
