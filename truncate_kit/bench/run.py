"""One bench from end to end: two models, several runtimes, one run."""

import contextlib
import functools
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import torch

from truncate_kit.bench.backends import BACKENDS, BASE, Backend, BenchSettings, select_backends
from truncate_kit.bench.bench_report import (
    BenchedModel,
    BenchReport,
    Contestant,
    Key,
    Machine,
    QualityDifference,
    Role,
    Timing,
    costs,
    gains,
)
from truncate_kit.bench.memory import measure_memory
from truncate_kit.bench.quality import PairsEvaluator, QueriesEvaluator, quality_sentence
from truncate_kit.bench.runners import (
    AbsentError,
    ContestantError,
    Runner,
    failure_reason,
    guarded,
    make_runner,
    random_ids,
)
from truncate_kit.bench.timing import spread, time_shape, time_texts
from truncate_kit.data import PairSet, RetrievalSet, TextPair
from truncate_kit.doctor import installed_version
from truncate_kit.errors import MissingExtraError, ModelError, TruncateKitError, UsageError
from truncate_kit.export.exporting import export_graph
from truncate_kit.export.graph import GRAPH_FILE, graph_files, save_graph
from truncate_kit.export.record import check_record, export_call, graph_sentence, is_graph_of, read_exports
from truncate_kit.export.trace import build_graph
from truncate_kit.files import digest_of
from truncate_kit.hardware import QUIET, OtherWork, bf16_instructions, processor_name, select_device
from truncate_kit.models import Encoder, encoder_digest, keep, load_encoder, resolve, save_encoder
from truncate_kit.origin import read_origin, was_trained
from truncate_kit.precisions import GRAPH_FILES, Precision, Target
from truncate_kit.progress import Progress, silent

Found = TypeVar("Found")
LENGTHS = (16, 128)
_MAX_PASSES = 3  # over the real set: one pass is long enough to be steady
_DEFAULTS = BenchSettings()
_BUNDLED = (
    "These scores are of the bundled pairs, which a grammar made: they say little of your task. Pairs of your own say "
    "more."
)

_PART = (
    "Warning: the lean model is a part of another one and was not trained since: once it is, it may score otherwise."
)


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
        before = torch.get_num_threads()
        stack.callback(torch.set_num_threads, before)
        torch.set_num_threads(settings.threads or before)
        if device.type == "cuda":  # ONNX Runtime can share a stream with torch, but not torch's default one
            stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # torch leaves it untyped
            stack.enter_context(torch.cuda.stream(stream))
        if any(row.compiled for row in backends):
            from torch._dynamo import config as compiler

            # Contestants share one forward, and torch.compile gives up after eight graphs of one.
            stack.enter_context(compiler.patch(recompile_limit=64))
        blocks: dict[Role, tuple[int, ...] | None] = {"lean": settings.blocks, "full": None}
        target: Target = "cuda" if device.type == "cuda" else "cpu"
        subjects = [Subject(role, model, scratch, graphs, blocks[role], target) for role, model in models.items()]
        contestants = Contestants(subjects, backends, device=device, threads=settings.threads or before)
        report = _measure(contestants, settings, pairs, texts, progress)
    return replace(report, seconds=time.perf_counter() - begin)


def _measure(
    contestants: "Contestants",
    settings: BenchSettings,
    pairs: PairSet | Sequence[TextPair] | RetrievalSet | None,
    texts: Sequence[str] | None,
    progress: Progress,
) -> BenchReport:
    notes, encoders, rounds = contestants.notes, contestants.encoders, settings.repeats
    lengths = _fitting_lengths(list(encoders.values()), settings.lengths)
    largest = max(settings.batch_sizes), max(lengths)
    contestants.start(largest, progress)
    scored = quality = None
    if pairs is not None:
        evaluator = QueriesEvaluator(pairs) if isinstance(pairs, RetrievalSet) else PairsEvaluator(pairs)
        if contestants.random:
            notes.append(f"Random weights have no quality: no {evaluator.of.metric}.")
        else:
            scored, quality = evaluator.of, _score_all(contestants, evaluator, seed=settings.seed, progress=progress)
    others = OtherWork()
    shapes = [(size, length) for size in sorted({1, *settings.batch_sizes}) for length in lengths]
    timings: list[Timing] = []
    for done, shape in enumerate(shapes, start=1):
        measure = functools.partial(
            time_shape, contestants.runners, encoders, shape, rounds=rounds, device=contestants.device
        )
        timings += contestants.surviving(f"at {shape[0]} × {shape[1]} tokens", measure)
        progress("Timing fixed shapes", done, len(shapes))
    chosen, random = _real_set(texts or (), settings.max_texts, contestants), contestants.random
    if chosen:
        real = functools.partial(time_texts, encoders=encoders, texts=chosen, random=random)
        timings += contestants.surviving(
            "at one sentence", lambda: real(contestants.reading_texts(), rounds=rounds, singly=True)
        )
        progress("Timing real sentences", 1, 2)
        passes = min(rounds, _MAX_PASSES)
        timings += contestants.surviving(
            "at the real set", lambda: real(contestants.reading_texts(), rounds=passes, singly=False)
        )
        progress("Timing real sentences", 2, 2)
    busy = others.share()
    if busy is not None and busy > QUIET:
        notes.append(
            f"Warning: other processes took {busy:.0%} of this machine while it was timed, which slows some runtimes "
            "more than others: measure again when it is quiet."
        )
    if settings.memory:
        measure_memory(contestants, largest, progress)
    here = select_backends(["all"], contestants.device)
    left_out = [row.title for row in here if row not in contestants.backends and row.compiled and not row.rival]
    if left_out:
        notes.append(
            f"Left out: {' and '.join(left_out)}, compiling takes a minute or more per model; "
            "they are measured where they or all backends are asked for."
        )
    return BenchReport(
        machine=describe_machine(contestants.device, contestants.threads, busy),
        models=tuple(subject.facts() for subject in contestants.subjects),
        contestants=tuple(contestants.rows.values()),
        timings=tuple(timings),
        gains=gains(timings, BASE),
        quality=quality,
        scored=scored,
        num_texts=len(chosen),
        seconds=0.0,  # of the whole bench, loading included: `bench` knows them
        notes=tuple(notes),
        costs=costs(timings, {role: encoder.vector_width for role, encoder in encoders.items()}),
    )


def _fitting_lengths(encoders: Sequence[Encoder], wanted: Sequence[int] | None) -> tuple[int, ...]:
    """The wanted lengths, or the usual ones cut to what both models take. Raises `UsageError` where one is too long."""
    limit = min(encoder.max_length for encoder in encoders)
    if not wanted:
        return tuple(sorted({min(length, limit) for length in LENGTHS}))
    if max(wanted) > limit:
        raise UsageError(
            f"A length of {max(wanted)} tokens does not fit: these models take up to {limit}.",
            hint=f"Use `lengths` up to {limit}.",
        )
    return tuple(sorted(set(wanted)))


def _score_all(
    contestants: "Contestants", evaluator: PairsEvaluator | QueriesEvaluator, *, seed: int, progress: Progress
) -> QualityDifference | None:
    """Write its score into every contestant's row; lean − full in the first runtime that both share."""
    of = evaluator.of

    def score_each() -> dict[Key, Any]:
        scores, readers = {}, contestants.reading_texts()
        for done, (key, runner) in enumerate(readers.items(), start=1):
            score = guarded(key, BACKENDS[key[1]], evaluator.score)
            scores[key] = score(runner, contestants.encoders[key[0]])
            progress(f"Scoring the {of.unit[1]}", done, len(readers))
        return scores

    found = contestants.surviving("while scoring", score_each)
    for key, score in found.items():
        contestants.update(key, **{of.field: score.value})
    if of.bundled:
        contestants.notes.append(_BUNDLED)
    if len(contestants.subjects) < 2:
        return None
    comparable, warnings = check_comparable(*contestants.subjects)
    contestants.notes += warnings
    for backend in contestants.backends:
        ours, theirs = found.get(("lean", backend.name)), found.get(("full", backend.name))
        if comparable and ours is not None and theirs is not None:
            quality = evaluator.difference(backend.name, ours, theirs, seed=seed)
            contestants.notes.append(quality_sentence(quality, of))
            return quality
    return None


def _real_set(texts: Sequence[str], limit: int, contestants: "Contestants") -> tuple[str, ...]:
    """At most `limit` of the texts; notes say what they stand for."""
    chosen, distinct, notes = spread(texts, limit), len(set(texts)), contestants.notes
    if not chosen:
        notes.append("No sentences given: nothing was timed on a real set.")
    elif contestants.random:
        notes.append(
            "Without a tokenizer the real set is random ids, as many per text as it has words, plus two; "
            "no tokeniser is timed."
        )
    if len(chosen) < distinct:
        notes.append(f"The real set is {len(chosen):,} of {distinct:,} distinct texts, evenly spread.")
    return chosen


def describe_machine(device: torch.device, threads: int, others_busy: float | None) -> Machine:
    """Say what the figures depend on; no name of the machine itself."""
    loaded = sys.modules.get("onnxruntime")  # two distributions install it
    wheel = installed_version("onnxruntime") or installed_version("onnxruntime-gpu")
    return Machine(
        processor=processor_name(),
        cores=os.cpu_count() or 1,
        threads=threads,
        device=torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        bf16_instructions=bf16_instructions(device),
        python=platform.python_version(),
        torch=str(torch.__version__),  # a subclass of str
        transformers=str(installed_version("transformers")),
        onnxruntime=wheel if loaded is None else str(loaded.__version__),
        others_busy=others_busy,
    )


def check_comparable(lean: "Subject", full: "Subject") -> tuple[bool, list[str]]:
    """Return whether the difference in quality may be stated, and the warnings that belong to it.

    A model that was not fine-tuned is never the yardstick for one that was, unless that was made from it. Both had the
    same budget for certain only where one call of `finetune` made them.
    """
    ours, theirs = lean.origin, full.origin
    made_of_full = ours is not None and (ours.source_digest == full.digest or ours.model == full.encoder.name)
    if not made_of_full and lean.fine_tuned != full.fine_tuned and None not in (lean.fine_tuned, full.fine_tuned):
        raw, tuned = ("lean", "full") if full.fine_tuned else ("full", "lean")
        return False, [
            f"Warning: the {raw} model was not fine-tuned and the {tuned} one was: their scores cannot be compared, "
            "so no difference is stated."
        ]
    if lean.blocks is not None or (ours is not None and ours.method == "cut"):
        return True, [_PART]
    if made_of_full:  # by a combination of its layers, or by learning its vectors: there is no budget to differ in
        return True, []
    if lean.fine_tuned is False:
        return True, ["Warning: neither model was fine-tuned: their scores say little about fine-tuned ones."]
    if ours is not None and theirs is not None and ours.has_budget_of(theirs):
        return True, []
    return True, [
        "Warning: nothing says that both models had the same fine-tuning budget; `finetune()` makes such a pair."
    ]


class Subject:
    """One of the two models, from its folder or in memory; nothing is written into its own folder.

    scratch: folder for what is made only for this bench. graphs: folder in which an exported graph is kept under the
    digest of its model; None keeps none, and neither are those of random weights. blocks: those that are kept of the
    source; None for all. target: what graphs are made for.
    """

    def __init__(
        self,
        role: Role,
        source: Path | Encoder,
        scratch: Path,
        graphs: Path | None = None,
        blocks: tuple[int, ...] | None = None,
        target: Target = "cpu",
    ) -> None:
        self.role, self.target = role, target
        self.blocks = blocks
        self.folder = None if isinstance(source, Encoder) else resolve(source)
        self.fine_tuned = None if self.folder is None else was_trained(self.folder)  # unknown of one in memory
        self.origin = None if self.folder is None else read_origin(self.folder)
        self.encoder = source if isinstance(source, Encoder) else load_encoder(source)
        if blocks is not None:  # what else the folder holds is not of these blocks
            self.folder, self.origin, self.encoder = None, None, keep(self.encoder, blocks)
        self.scratch = scratch / role
        self.notes: list[str] = []
        self._kept = None if self.encoder.tokenizer is None else graphs
        self._graphs: dict[str, Path] = {}

    @cached_property
    def digest(self) -> str:
        """Of the model, see `encoder_digest`."""
        return encoder_digest(self.encoder)

    def facts(self) -> BenchedModel:
        """What the report says about this model."""
        weights = list(self.folder.rglob("*.safetensors")) if self.folder else []
        kept = None if self.origin is None else self.origin.blocks
        main = self.folder and self.folder / "model.safetensors"
        return BenchedModel(
            role=self.role,
            name=self.encoder.name,
            layer=self.encoder.depth,
            width=self.encoder.width,
            parameters=self.encoder.num_parameters,
            max_length=self.encoder.max_length,
            weights_bytes=sum(file.stat().st_size for file in weights) or None,
            fine_tuned=self.fine_tuned,
            blocks=self.blocks or (None if kept is None or kept == tuple(range(1, len(kept) + 1)) else kept),
            weights_sha256=digest_of(main) if main and main.is_file() else None,
        )

    def graph(self, backend: Backend) -> Path:
        """The ONNX graph that a backend runs; one in fp32 is exported where the model's folder has none.

        Raises `AbsentError`, and `ModelError` where the folder's export.json is damaged or describes another model.
        """
        name = "plain" if backend.tensorrt else backend.precision
        if name not in self._graphs:
            self._graphs[name] = self._trace() if backend.tensorrt else self._find_or_export(backend.precision)
        return self._graphs[name]

    def _trace(self) -> Path:
        """The float32 graph as traced, without ONNX Runtime's own operators, for other runtimes."""
        folder = self.scratch / "plain"
        folder.mkdir(parents=True)
        try:
            save_graph(build_graph(self.encoder, fused=False), folder / GRAPH_FILE)
        except TruncateKitError as error:
            raise AbsentError(f"not traced: {str(error).rstrip('.')}") from error
        return folder / GRAPH_FILE

    def _find_or_export(self, precision: Precision) -> Path:
        if self.folder is not None:
            read_exports(self.folder)  # raises where it is damaged: that is no trait of this machine
            graph = self.folder / GRAPH_FILES[precision]
            if graph.is_file():
                report = check_record(graph)
                if report is not None and report.encoder != self.digest:
                    raise ModelError(
                        f"{graph} was made from another model than the one beside it.",
                        hint="Export the model again with `export_onnx()`.",
                    )
                if report is not None and report.target != self.target:
                    self.notes.append(f"The {self.role} model: {graph_sentence(graph, report, self.target)}")
                return graph
        if precision != "fp32":
            name = GRAPH_FILES[precision]
            where = "" if self.folder is None or self.role == "lean" else f" in {self.folder}"
            raise AbsentError(f"no {name}{where}: make it with {export_call(precision)}")
        return self._export()

    def _export(self) -> Path:
        """The graph that was kept under the digest of this model, else a new one."""
        name = self.digest[:16] + ("" if self.target == "cpu" else f"-{self.target}")
        folder = (self._kept or self.scratch) / name
        graph, begin = folder / GRAPH_FILE, time.perf_counter()
        if is_graph_of(graph, self.digest):  # else it is made again
            return graph
        try:
            export_graph(self.encoder, folder, self.target)
        except MissingExtraError as error:
            raise AbsentError(f"{error} {error.hint}") from error
        except TruncateKitError as error:
            raise AbsentError(f"not exported: {error}") from error
        if self._kept is not None:
            seconds = time.perf_counter() - begin
            self.notes.append(
                f"The {self.role} model has no {graph.name}: one was exported to {graph} in {seconds:.0f} s."
            )
        return graph

    def for_worker(self) -> Path:
        """What a process of its own loads: the folder, or a configuration where the weights are random anyway."""
        if self.folder is not None:
            return self.folder
        if self.encoder.tokenizer is not None:
            return save_encoder(self.encoder, self.scratch / "saved")
        self.scratch.mkdir(parents=True, exist_ok=True)
        path = self.scratch / "config.json"
        self.encoder.backbone.config.to_json_file(path, use_diff=False)
        return path


class Contestants:
    """The runners of all models, and what is known of each; one that cannot start or fails leaves with its reason."""

    def __init__(
        self, subjects: Sequence[Subject], backends: Sequence[Backend], *, device: torch.device, threads: int
    ) -> None:
        self.subjects = subjects
        self.encoders = {subject.role: subject.encoder for subject in subjects}
        self.backends = backends
        self.device = device
        self.threads = threads
        self.runners: dict[Key, Runner] = {}  # those that take part
        self.rows: dict[Key, Contestant] = {}  # for the report, with those that left
        self.notes: list[str] = []  # for the user

    @property
    def random(self) -> bool:
        """Whether a model has no tokenizer: its weights are random, and texts are random ids."""
        return any(encoder.tokenizer is None for encoder in self.encoders.values())

    def reading_texts(self) -> dict[Key, Runner]:
        """The runners that take texts of any length."""
        return {key: runner for key, runner in self.runners.items() if not BACKENDS[key[1]].fixed_shapes}

    def update(self, key: Key, **values: Any) -> None:
        """Change fields of a row."""
        self.rows[key] = replace(self.rows[key], **values)

    def start(self, shape: tuple[int, int], progress: Progress) -> None:
        """Bring every model up in every runtime, first calls up to this batch size and length included.

        Raises `UsageError` where none can start, `ModelError` for a damaged model.
        """
        pairs = [(subject, backend) for backend in self.backends for subject in self.subjects]
        for done, (subject, backend) in enumerate(pairs, start=1):
            key: Key = (subject.role, backend.name)
            try:
                self.rows[key] = self._start(key, subject, backend, shape)
            except AbsentError as error:
                self.rows[key] = Contestant(role=key[0], backend=key[1], absent=str(error))
            progress("Starting the runtimes", done, len(pairs))
        self.notes += [note for subject in self.subjects for note in subject.notes]
        self._require_some()

    def _start(self, key: Key, subject: Subject, backend: Backend, shape: tuple[int, int]) -> Contestant:
        graph = functools.partial(subject.graph, backend)
        if backend.runtime == "onnx":
            graph()  # exporting is no part of starting
        begin = time.perf_counter()
        vocabulary, (batch_size, length) = subject.encoder.backbone.config.vocab_size, shape
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
            for call in [runner.prepare(random_ids([width] * size, vocabulary)) for size, width in shapes]:
                for _ in range(2):  # whatever compiles or tunes itself has done so afterwards
                    call()
        except TruncateKitError:
            raise
        except Exception as error:
            raise AbsentError(failure_reason(backend, error)) from error
        self.runners[key] = runner
        files = graph_files(graph()) if backend.runtime == "onnx" else []
        return Contestant(
            role=key[0],
            backend=key[1],
            absent=None,
            detail=runner.detail,
            prepare_seconds=time.perf_counter() - begin,
            file_bytes=sum(file.stat().st_size for file in files) if files else subject.facts().weights_bytes,
        )

    def _require_some(self) -> None:
        if not self.runners:
            found = (f"{BACKENDS[row.backend].title}: {row.absent}" for row in self.rows.values())
            reasons = "; ".join(dict.fromkeys(found))
            raise UsageError(f"No runtime could be measured: {reasons}.", hint="Add torch-fp32 to `backends`.")

    def surviving(self, what: str, measure: Callable[[], Found]) -> Found:
        """What `measure` returns once no contestant fails in it; one that does leaves, and the others measure again."""
        while True:
            try:
                return measure()
            except ContestantError as error:
                del self.runners[error.key]
                self.update(error.key, absent=f"{what}: {error}")
                self._require_some()
            with contextlib.suppress(RuntimeError):  # what a GPU says again after a fault of its own
                torch.cuda.empty_cache()  # once the error and what its frames hold are gone; nothing without a GPU
