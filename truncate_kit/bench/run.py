"""One bench from end to end: two models, several runtimes, one run."""

import contextlib
import functools
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import torch

from truncate_kit.bench.backends import (
    BACKENDS,
    BASE,
    AbsentError,
    Backend,
    Runner,
    first_calls,
    make_runner,
    random_ids,
    select_backends,
)
from truncate_kit.bench.costs import costs
from truncate_kit.bench.energy import EnergyMeter
from truncate_kit.bench.gains import gains
from truncate_kit.bench.guarding import ContestantError, Guarded, failure_reason
from truncate_kit.bench.machine import OtherWork, describe_machine
from truncate_kit.bench.memory import MemoryRequest, peak_memories
from truncate_kit.bench.onnx_runner import onnx_bytes
from truncate_kit.bench.preparing import check_counts, fitting_lengths, roomy_compiler, torch_threads
from truncate_kit.bench.quality import quality_difference
from truncate_kit.bench.results import (
    BenchReport,
    Ceiling,
    Contestant,
    PeakMemory,
    QualityDifference,
    Timing,
)
from truncate_kit.bench.scenarios import (
    Key,
    Sentences,
    spread,
    time_one_sentence,
    time_real_set,
    time_shape,
    with_shares,
)
from truncate_kit.bench.subjects import Subject, judge_yardstick, quality_sentence
from truncate_kit.data import TextPair
from truncate_kit.encoders import Encoder, select_device
from truncate_kit.errors import TruncateKitError, UsageError
from truncate_kit.progress import Progress, silent
from truncate_kit.training.evaluation import Evaluation, evaluate

BATCH_SIZES = (1, 32)
REPEATS = 5
MAX_TEXTS = 1000
QUIET = 0.1  # share of the processor that others may take before it is worth a warning
MAX_PASSES = 3  # over the real set: one pass is long enough to be steady
Shape = tuple[int, int]
Found = TypeVar("Found")


def bench(
    lean: Path | Encoder,
    full: Path | Encoder | None = None,
    *,
    pairs: Sequence[TextPair] | None = None,
    texts: Sequence[str] | None = None,
    batch_sizes: Sequence[int] = BATCH_SIZES,
    lengths: Sequence[int] | None = None,
    backends: Sequence[str] | None = None,
    repeats: int = REPEATS,
    threads: int | None = None,
    device: str | None = None,
    memory: bool = True,
    max_texts: int = MAX_TEXTS,
    seed: int = 0,
    progress: Progress = silent,
) -> BenchReport:
    """Measure the lean model against the full one in every runtime, in turns, so that drift hits all alike.

    lean, full: folders or encoders in memory (those go to `device` and stay there); full None measures lean alone.
    A folder without `model.onnx` gets one. pairs: for Spearman and the paired bootstrap interval (`seed`). texts: the
    real set, at most `max_texts` of them, evenly spread; None leaves it out. Latency is timed at batch 1 for every
    length, throughput at the other batch sizes; lengths None: 16 and 128, or what the models can take. backends: names
    of `BACKENDS`, `["all"]`, or None for those that start at once on this device. repeats: rounds; latency has ten
    calls in each. threads: of torch and ONNX Runtime, None for torch's own choice. memory: also measure peak memory,
    one fresh process per contestant.

    What this machine lacks is a row with its reason, and so is what fails while it runs. Raises `DeviceError` where
    CUDA was asked for and is not active, `UsageError`, `ModelError`, `DataError`.
    """
    begin = time.perf_counter()
    target = select_device(device)
    folders = [Path(model) for model in (lean, full) if isinstance(model, str | Path)]
    rows = select_backends(backends, target, folders)
    check_counts(batch_sizes=batch_sizes, lengths=lengths or (), repeats=[repeats], threads=[threads or 1])
    with contextlib.ExitStack() as stack:
        scratch = stack.enter_context(tempfile.TemporaryDirectory(prefix="truncate-kit-bench-"))
        used = stack.enter_context(torch_threads(threads))
        subjects = [Subject("lean", lean, Path(scratch))]
        if full is not None:
            subjects.append(Subject("full", full, Path(scratch)))
        sizes = fitting_lengths([subject.encoder for subject in subjects], lengths)
        if target.type == "cuda":  # ONNX Runtime can share a stream with torch, but not torch's default one
            stream = torch.cuda.Stream(target)  # type: ignore[no-untyped-call]  # torch leaves it untyped
            stack.enter_context(torch.cuda.stream(stream))
        run = _Bench(subjects, rows, device=target, threads=used, rounds=repeats, progress=progress)
        if any(row.compiled for row in rows):
            stack.enter_context(roomy_compiler())
        run.start(max(batch_sizes), max(sizes))
        quality = run.judge(tuple(pairs) if pairs is not None else None, seed)
        others = OtherWork()
        run.time([(size, length) for size in sorted({1, *batch_sizes}) for length in sizes])
        run.time_texts(texts, max_texts)
        run.judge_quiet(others)
        if memory:
            run.measure_memory(max(batch_sizes), max(sizes))
        return run.report(quality, time.perf_counter() - begin)


class _Bench:
    """The state of one bench: who takes part, what was measured, what has to be said."""

    def __init__(
        self,
        subjects: list[Subject],
        backends: Sequence[Backend],
        *,
        device: torch.device,
        threads: int,
        rounds: int,
        progress: Progress,
    ) -> None:
        self.subjects = subjects
        self.encoders = {subject.role: subject.encoder for subject in subjects}
        self.backends = backends
        self.device = device
        self.threads = threads
        self.rounds = rounds
        self.progress = progress
        self.runners: dict[Key, Runner] = {}
        self.rows: dict[Key, Contestant] = {}
        self.timings: list[Timing] = []
        self.ceilings: list[Ceiling] = []
        self.notes: list[str] = []
        self.num_texts = 0
        self.others_busy: float | None = None

    def start(self, batch_size: int, length: int) -> None:
        """Bring every model up in every runtime, first calls included; who cannot start gets a row that says why."""
        keys = [(subject, backend) for backend in self.backends for subject in self.subjects]
        for done, (subject, backend) in enumerate(keys, start=1):
            key: Key = (subject.role, backend.name)
            try:
                self.rows[key] = self._start(key, subject, backend, batch_size, length)
            except AbsentError as error:
                self.rows[key] = Contestant(role=key[0], backend=key[1], absent=str(error))
            self.progress("Starting the runtimes", done, len(keys))
        self.notes += [note for subject in self.subjects for note in subject.notes]
        self._require_some()

    def _require_some(self) -> None:
        """Raise `UsageError` where no contestant is left."""
        if not self.runners:
            told = (f"{BACKENDS[row.backend].title}: {row.absent}" for row in self.rows.values())
            reasons = "; ".join(dict.fromkeys(told))
            raise UsageError(f"No runtime could be measured: {reasons}.", hint="Add torch-fp32 to --backends.")

    def _start(self, key: Key, subject: Subject, backend: Backend, batch_size: int, length: int) -> Contestant:
        graph = functools.partial(subject.graph, _graph_kind(backend))
        if backend.runtime == "onnx":
            graph()  # exporting is no part of starting
        begin = time.perf_counter()
        vocabulary = subject.encoder.backbone.config.vocab_size
        shapes = sorted({(1, min(length, 16)), (1, length), (batch_size, length)})
        try:
            runner = make_runner(
                backend,
                subject.encoder,
                graph=graph,
                folder=subject.for_worker,
                device=self.device,
                threads=self.threads,
            )
            first_calls([runner.prepare(random_ids([width] * size, vocabulary)) for size, width in shapes])
        except TruncateKitError:
            raise
        except Exception as error:
            raise AbsentError(failure_reason(backend, error)) from error
        self.runners[key] = Guarded(key, backend, runner)
        weights = subject.facts().weights_bytes
        return Contestant(
            role=key[0],
            backend=key[1],
            absent=None,
            detail=runner.detail,
            prepare_seconds=time.perf_counter() - begin,
            file_bytes=onnx_bytes(graph()) if backend.runtime == "onnx" else weights,
        )

    def _surviving(self, what: str, measure: Callable[[], Found]) -> Found:
        """What `measure` returns once no contestant fails in it; one that does leaves the bench, its reason in its row.

        It is measured again without that one. What was timed of it before stays in the report.
        """
        while True:
            try:
                return measure()
            except ContestantError as error:
                del self.runners[error.key]
                self.rows[error.key] = replace(self.rows[error.key], absent=f"{what}: {error}")
                self._require_some()
            with contextlib.suppress(RuntimeError):  # what a GPU says again after a fault of its own
                torch.cuda.empty_cache()  # once the error and what its frames hold are gone; nothing without a GPU

    def judge(self, pairs: Sequence[TextPair] | None, seed: int) -> QualityDifference | None:
        """Spearman of every contestant, and lean − full in the first runtime that both share."""
        if pairs is None:
            return None
        if any(encoder.tokenizer is None for encoder in self.encoders.values()):
            self.notes.append("Random weights have no quality: no Spearman.")
            return None
        found = self._surviving("while scoring", lambda: self._score(pairs))
        for key, score in found.items():
            self.rows[key] = replace(self.rows[key], spearman=score.spearman)
        if len(self.subjects) < 2:
            return None
        comparable, warnings = judge_yardstick(*self.subjects)
        self.notes += warnings
        for backend in self.backends:
            ours, theirs = found.get(("lean", backend.name)), found.get(("full", backend.name))
            if comparable and ours is not None and theirs is not None:
                targets = [pair.target for pair in pairs]
                quality = quality_difference(backend.name, ours.cosines, theirs.cosines, targets, seed=seed)
                self.notes.append(quality_sentence(quality))
                return quality
        return None

    def _score(self, pairs: Sequence[TextPair]) -> dict[Key, Evaluation]:
        found: dict[Key, Evaluation] = {}
        readers = self._reading_texts()
        for done, (key, runner) in enumerate(readers.items(), start=1):
            found[key] = evaluate(runner, pairs)
            self.progress("Scoring the pairs", done, len(readers))
        return found

    def _reading_texts(self) -> dict[Key, Runner]:
        """The runners that take texts of any length."""
        return {key: runner for key, runner in self.runners.items() if not BACKENDS[key[1]].fixed_shapes}

    def time(self, shapes: Sequence[Shape]) -> None:
        """Latency and throughput at fixed shapes; the machine's ceiling among the largest one."""
        largest = max(shapes, key=lambda shape: shape[0] * shape[1])
        for done, shape in enumerate(shapes, start=1):
            measure = functools.partial(
                time_shape,
                self.runners,
                self.encoders,
                shape,
                rounds=self.rounds,
                device=self.device,
                with_ceiling=shape == largest,
            )
            timings, ceilings = self._surviving(f"at {shape[0]} × {shape[1]} tokens", measure)
            self.timings += timings
            self.ceilings += ceilings
            self.progress("Timing fixed shapes", done, len(shapes))
        if any(row.gflops is None for row in self.timings):
            self.notes.append("No share of the ceiling for this attention: the work formula does not cover it.")

    def time_texts(self, texts: Sequence[str] | None, limit: int) -> None:
        """The real set, as a whole and one sentence at a time."""
        if not texts:
            self.notes.append("No sentences given: nothing was timed on a real set.")
            return
        random = any(encoder.tokenizer is None for encoder in self.encoders.values())
        sentences = Sentences(texts=spread(texts, limit), random=random)
        self.num_texts, distinct = len(sentences.texts), len(set(texts))
        if random:
            self.notes.append(
                "Without a tokenizer the real set is random ids, as many per text as it has words, plus two; "
                "no tokeniser is timed."
            )
        if self.num_texts < distinct:
            self.notes.append(f"The real set is {self.num_texts:,} of {distinct:,} distinct texts, evenly spread.")
        encoders, meter = self.encoders, EnergyMeter(self.device)
        self.timings += self._surviving(
            "at one sentence",
            lambda: time_one_sentence(self._reading_texts(), encoders, sentences, rounds=self.rounds),
        )
        self.progress("Timing real sentences", 1, 2)
        rounds = min(self.rounds, MAX_PASSES)
        self.timings += self._surviving(
            "at the real set",
            lambda: time_real_set(self._reading_texts(), encoders, sentences, rounds=rounds, meter=meter),
        )
        self.progress("Timing real sentences", 2, 2)

    def judge_quiet(self, others: OtherWork) -> None:
        """Say so where other processes disturbed the timing."""
        self.others_busy = others.share()
        if self.others_busy is not None and self.others_busy > QUIET:
            self.notes.append(
                f"Warning: other processes took {self.others_busy:.0%} of this machine while it was timed, which slows "
                "some runtimes more than others: measure again when it is quiet."
            )

    def measure_memory(self, batch_size: int, length: int) -> None:
        """Peak memory at the largest shape, each contestant in a process of its own."""
        models = {subject.role: subject.for_worker() for subject in self.subjects}
        graphs = {subject.role: subject for subject in self.subjects}
        requests = {
            key: MemoryRequest(
                model=str(models[key[0]]),
                runtime=row.runtime,
                backend=key[1],
                graph=str(graphs[key[0]].graph(_graph_kind(row))) if row.runtime == "onnx" else None,
                device=str(self.device),
                threads=self.threads,
                batch_size=batch_size,
                length=length,
            )
            for key, row in ((key, BACKENDS[key[1]]) for key in self.runners)
        }
        # Side by side on the CPU, where nothing is timed any more; a GPU counts what all its processes hold.
        at_once = 1 if self.device.type == "cuda" else min(4, os.cpu_count() or 1)
        results = peak_memories(list(requests.values()), at_once=at_once)
        for done, (key, result) in enumerate(zip(requests, results, strict=True), start=1):
            self.progress("Measuring memory", done, len(requests))
            if isinstance(result, PeakMemory):
                self.rows[key] = replace(self.rows[key], memory=result)
            else:
                self.notes.append(f"No peak memory for {key[0]} in {BACKENDS[key[1]].title}: {result}.")

    def report(self, quality: QualityDifference | None, seconds: float) -> BenchReport:
        """Everything measured, with what follows from it."""
        here = select_backends(["all"], self.device)
        left_out = [row.title for row in here if row not in self.backends and row.slow_start and not row.rival]
        if left_out:
            self.notes.append(
                f"Left out: {' and '.join(left_out)}, compiling takes up to a minute per model; "
                "--backends all measures them too."
            )
        timings = with_shares(self.timings, self.ceilings)
        return BenchReport(
            machine=describe_machine(self.device, self.threads, self.others_busy),
            models=tuple(subject.facts() for subject in self.subjects),
            contestants=tuple(self.rows.values()),
            timings=timings,
            ceilings=tuple(self.ceilings),
            gains=gains(timings, BASE),
            quality=quality,
            num_texts=self.num_texts,
            seconds=seconds,
            notes=tuple(self.notes),
            costs=costs(timings, self.encoders),
        )


def _graph_kind(backend: Backend) -> str:
    """What `Subject.graph` is asked for."""
    return "plain" if backend.tensorrt else backend.precision
