"""One bench from end to end: two models, several runtimes, one run."""

import contextlib
import functools
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from truncate_kit.bench.backends import BASE, select_backends
from truncate_kit.bench.bench_report import BenchReport, Ceiling, Role, Timing
from truncate_kit.bench.contestants import Contestants
from truncate_kit.bench.energy import EnergyMeter
from truncate_kit.bench.evaluators import evaluator_of
from truncate_kit.bench.gains import costs, gains
from truncate_kit.bench.machine import describe_machine
from truncate_kit.bench.memory import measure_memory
from truncate_kit.bench.preparing import fitting_lengths, roomy_compiler, torch_threads
from truncate_kit.bench.scenarios import Sentences, spread, time_one_sentence, time_real_set, time_shape, with_shares
from truncate_kit.bench.scoring import score_all
from truncate_kit.bench.settings import BenchSettings
from truncate_kit.bench.subjects import Subject
from truncate_kit.data import PairSet, RetrievalSet, TextPair
from truncate_kit.hardware import select_device
from truncate_kit.models import Encoder, resolve
from truncate_kit.other_work import QUIET, OtherWork
from truncate_kit.precisions import Target
from truncate_kit.progress import Progress, silent

_MAX_PASSES = 3  # over the real set: one pass is long enough to be steady
_DEFAULTS = BenchSettings()
Shape = tuple[int, int]


def bench(
    lean: Path | Encoder,
    full: Path | Encoder | None = None,
    settings: BenchSettings = _DEFAULTS,
    *,
    pairs: PairSet | Sequence[TextPair] | RetrievalSet | None = None,
    texts: Sequence[str] | None = None,
    graphs: Path | None = None,
    progress: Progress = silent,
) -> BenchReport:
    """Measure the lean model against the full one in every runtime, in turns, so that drift affects all alike.

    What this machine lacks is a row with its reason, and so is what fails while it runs. Nothing is written into the
    folders of the models.

    Args:
        lean: a folder or a name, or an encoder in memory, which goes to the device and stays there.
        full: the same for the model to compare with; None measures lean alone, with `settings.blocks` beside its whole.
        settings: what is measured, and how often.
        pairs: for Spearman and the paired bootstrap interval; a `PairSet` says in the report what it is called. Or a
            retrieval set, for nDCG@10 (or the metric that it names) by query.
        texts: the real set; None leaves it out.
        graphs: folder in which the graphs that models lack are kept for the next bench; None keeps none.
        progress: is called as the work goes on.

    Raises:
        DeviceError: CUDA was asked for and is not active.
        UsageError: an unknown backend, a length that the models cannot take, or no runtime that could be measured.
        ModelError: a model that cannot be loaded, whose export.json is damaged, or that has no such blocks.
        DataError: pairs whose correlation is not defined.
    """
    begin, device = time.perf_counter(), select_device(settings.device)
    models: dict[Role, Path | Encoder] = {"lean": lean}
    if full is not None or settings.blocks is not None:
        models["full"] = lean if full is None else full
    folders = [resolve(model) for model in models.values() if isinstance(model, str | Path)]
    backends = select_backends(settings.backends, device, folders, slow_starts=settings.compile)
    with contextlib.ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="truncate-kit-bench-")))
        threads = stack.enter_context(torch_threads(settings.threads))
        if device.type == "cuda":  # ONNX Runtime can share a stream with torch, but not torch's default one
            stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # torch leaves it untyped
            stack.enter_context(torch.cuda.stream(stream))
        if any(row.compiled for row in backends):
            stack.enter_context(roomy_compiler())
        blocks: dict[Role, tuple[int, ...] | None] = {"lean": settings.blocks, "full": None}
        target: Target = "cuda" if device.type == "cuda" else "cpu"
        subjects = [Subject(role, model, scratch, graphs, blocks[role], target) for role, model in models.items()]
        contestants = Contestants(subjects, backends, device=device, threads=threads)
        report = _measure(contestants, settings, pairs, texts, progress)
    return replace(report, seconds=time.perf_counter() - begin)


def _measure(
    contestants: Contestants,
    settings: BenchSettings,
    pairs: PairSet | Sequence[TextPair] | RetrievalSet | None,
    texts: Sequence[str] | None,
    progress: Progress,
) -> BenchReport:
    notes = contestants.notes
    lengths = fitting_lengths(list(contestants.encoders.values()), settings.lengths)
    largest = max(settings.batch_sizes), max(lengths)
    contestants.start(largest, progress)
    found = None
    if pairs is not None:
        found = score_all(contestants, evaluator_of(pairs), seed=settings.seed, progress=progress)
    others = OtherWork()
    shapes = [(size, length) for size in sorted({1, *settings.batch_sizes}) for length in lengths]
    timings, ceilings = _time_shapes(contestants, shapes, settings.repeats, progress)
    sentences = _real_set(texts or (), settings.max_texts, contestants)
    if sentences.texts:
        timings += _time_sentences(contestants, sentences, settings.repeats, progress)
    busy = others.share()
    if busy is not None and busy > QUIET:
        notes.append(
            f"Warning: other processes took {busy:.0%} of this machine while it was timed, which slows some runtimes "
            "more than others: measure again when it is quiet."
        )
    if settings.memory:
        measure_memory(contestants, largest, progress)
    here = select_backends(["all"], contestants.device)
    left_out = [row.title for row in here if row not in contestants.backends and row.slow_start and not row.rival]
    if left_out:
        notes.append(
            f"Left out: {' and '.join(left_out)}, compiling takes a minute or more per model; "
            "they are measured where they or all backends are asked for."
        )
    shared = with_shares(timings, ceilings)
    return BenchReport(
        machine=describe_machine(contestants.device, contestants.threads, busy),
        models=tuple(subject.facts() for subject in contestants.subjects),
        contestants=tuple(contestants.rows.values()),
        timings=shared,
        ceilings=tuple(ceilings),
        gains=gains(shared, BASE),
        quality=None if found is None else found.quality,
        scored=None if found is None else found.pairs,
        num_texts=len(sentences.texts),
        seconds=0.0,  # of the whole bench, loading included: `bench` knows them
        notes=tuple(notes),
        costs=costs(shared, contestants.encoders),
    )


def _time_shapes(
    contestants: Contestants, shapes: Sequence[Shape], rounds: int, progress: Progress
) -> tuple[list[Timing], list[Ceiling]]:
    """Latency and throughput at fixed shapes; the machine's ceiling among the largest one."""
    largest = max(shapes, key=lambda shape: shape[0] * shape[1])
    timings: list[Timing] = []
    ceilings: list[Ceiling] = []
    for done, shape in enumerate(shapes, start=1):
        measure = functools.partial(
            time_shape,
            contestants.runners,
            contestants.encoders,
            shape,
            rounds=rounds,
            device=contestants.device,
            with_ceiling=shape == largest,
        )
        timed, products = contestants.surviving(f"at {shape[0]} × {shape[1]} tokens", measure)
        timings += timed
        ceilings += products
        progress("Timing fixed shapes", done, len(shapes))
    if any(row.gflops is None for row in timings):
        contestants.notes.append("No share of the ceiling for this attention: the work formula does not cover it.")
    return timings, ceilings


def _real_set(texts: Sequence[str], limit: int, contestants: Contestants) -> Sentences:
    """At most `limit` of the texts; notes say what they stand for."""
    sentences = Sentences(texts=spread(texts, limit), random=contestants.random)
    number, distinct, notes = len(sentences.texts), len(set(texts)), contestants.notes
    if not number:
        notes.append("No sentences given: nothing was timed on a real set.")
    elif sentences.random:
        notes.append(
            "Without a tokenizer the real set is random ids, as many per text as it has words, plus two; "
            "no tokeniser is timed."
        )
    if number < distinct:
        notes.append(f"The real set is {number:,} of {distinct:,} distinct texts, evenly spread.")
    return sentences


def _time_sentences(contestants: Contestants, sentences: Sentences, rounds: int, progress: Progress) -> list[Timing]:
    """The real set, one sentence at a time and as a whole."""
    encoders, readers = contestants.encoders, contestants.reading_texts
    timings = contestants.surviving(
        "at one sentence", lambda: time_one_sentence(readers(), encoders, sentences, rounds=rounds)
    )
    progress("Timing real sentences", 1, 2)
    passes, meter = min(rounds, _MAX_PASSES), EnergyMeter(contestants.device)
    timings += contestants.surviving(
        "at the real set", lambda: time_real_set(readers(), encoders, sentences, rounds=passes, meter=meter)
    )
    progress("Timing real sentences", 2, 2)
    return timings
