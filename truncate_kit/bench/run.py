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

from truncate_kit.bench.backends import BACKENDS, Backend, BenchSettings, select_backends
from truncate_kit.bench.bench_report import (
    BenchedModel,
    BenchReport,
    Comparison,
    Contestant,
    Key,
    Machine,
    QualityDifference,
    Role,
    Timing,
)
from truncate_kit.bench.memory import measure_memory
from truncate_kit.bench.quality import PairsEvaluator, QueriesEvaluator, Score
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
from truncate_kit.core.errors import MissingExtraError, ModelError, TruncateKitError, UsageError
from truncate_kit.core.files import digest_of
from truncate_kit.core.hardware import OtherWork, bf16_instructions, processor_name, select_device
from truncate_kit.core.origin import read_origin, was_trained
from truncate_kit.core.precisions import GRAPH_FILES, Precision, Target
from truncate_kit.core.progress import Progress, silent
from truncate_kit.data.pairs import PairSet, TextPair
from truncate_kit.data.retrieval import RetrievalSet
from truncate_kit.doctor import installed_version
from truncate_kit.export.exporting import export_graph
from truncate_kit.export.graph import GRAPH_FILE, graph_files, save_graph
from truncate_kit.export.record import check_record, export_call, graph_sentence, is_graph_of, read_exports
from truncate_kit.export.trace import build_graph
from truncate_kit.models.encoder import Encoder
from truncate_kit.models.loading import load_encoder
from truncate_kit.models.model_folder import resolve
from truncate_kit.models.pipeline import encoder_digest, save_encoder
from truncate_kit.models.truncation import keep

Found = TypeVar("Found")
LENGTHS = (16, 128)
_MAX_PASSES = 3  # over the real set: one pass is long enough to be steady
_DEFAULTS = BenchSettings()


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
        target: Target = "cuda" if device.type == "cuda" else "cpu"
        subjects = [
            Subject(role, model, scratch, graphs, settings.blocks if role == "lean" else None, target)
            for role, model in models.items()
        ]
        contestants = Contestants(subjects, backends, device=device, threads=settings.threads or before)
        report = _measure(contestants, settings, pairs, tuple(texts or ()), progress)
    return replace(report, seconds=time.perf_counter() - begin)


def _measure(
    contestants: "Contestants",
    settings: BenchSettings,
    pairs: PairSet | Sequence[TextPair] | RetrievalSet | None,
    texts: Sequence[str],
    progress: Progress,
) -> BenchReport:
    subjects, encoders, rounds = contestants.subjects, contestants.encoders, settings.repeats
    random = any(encoder.tokenizer is None for encoder in encoders.values())
    limit = min(encoder.max_length for encoder in encoders.values())
    lengths = sorted(set(settings.lengths or [min(length, limit) for length in LENGTHS]))
    if lengths[-1] > limit:
        raise UsageError(
            f"A length of {lengths[-1]} tokens does not fit: these models take up to {limit}.",
            hint=f"Use `lengths` up to {limit}.",
        )
    largest = max(settings.batch_sizes), lengths[-1]
    contestants.start(largest, progress)
    scored = quality = comparison = None
    if pairs is not None and not random:
        evaluator = QueriesEvaluator(pairs) if isinstance(pairs, RetrievalSet) else PairsEvaluator(pairs)
        scored, scores = evaluator.of, _score_all(contestants, evaluator, progress)
        if len(subjects) == 2:
            comparison = compare_training(*subjects)
            quality = _difference(contestants, evaluator, scores, settings.seed) if comparison != "unfair" else None
    others = OtherWork()
    shapes = [(size, length) for size in sorted({1, *settings.batch_sizes}) for length in lengths]
    timings: list[Timing] = []
    for done, shape in enumerate(shapes, start=1):
        measure = functools.partial(
            time_shape, contestants.runners, encoders, shape, rounds=rounds, device=contestants.device
        )
        timings += contestants.surviving(f"at {shape[0]} × {shape[1]} tokens", measure)
        progress("Timing fixed shapes", done, len(shapes))
    chosen = spread(texts, settings.max_texts)
    for done, singly in enumerate((True, False) if chosen else (), start=1):
        timings += contestants.surviving(
            "at one sentence" if singly else "at the real set",
            lambda singly=singly: time_texts(  # type: ignore[misc]  # mypy cannot infer a default's type
                contestants.reading_texts(),
                encoders,
                chosen,
                random=random,
                rounds=rounds if singly else min(rounds, _MAX_PASSES),
                singly=singly,
            ),
        )
        progress("Timing real sentences", done, 2)
    busy = others.share()
    if settings.memory:
        measure_memory(contestants, largest, progress)
    return BenchReport(
        machine=describe_machine(contestants.device, contestants.threads, busy),
        models=tuple(subject.facts() for subject in subjects),
        contestants=tuple(contestants.rows.values()),
        timings=tuple(timings),
        quality=quality,
        scored=scored,
        comparison=comparison,
        num_texts=len(chosen),
        distinct_texts=len(set(texts)),
        random_ids=random,
        seconds=0.0,  # of the whole bench, loading included: `bench` knows them
        exported={subject.role: subject.exported for subject in subjects if subject.exported is not None},
        notes=tuple(contestants.notes),
    )


def _score_all(
    contestants: "Contestants", evaluator: PairsEvaluator | QueriesEvaluator, progress: Progress
) -> dict[Key, Score]:
    """Write its score into every contestant's row, and return the scores."""

    def score_each() -> dict[Key, Score]:
        scores, readers = {}, contestants.reading_texts()
        for done, (key, runner) in enumerate(readers.items(), start=1):
            scores[key] = guarded(key, evaluator.score)(runner, contestants.encoders[key[0]])
            progress(f"Scoring the {evaluator.of.unit[1]}", done, len(readers))
        return scores

    found = contestants.surviving("while scoring", score_each)
    for key, score in found.items():
        contestants.update(key, **{evaluator.of.field: score[0]})
    return found


def _difference(
    contestants: "Contestants", evaluator: PairsEvaluator | QueriesEvaluator, scores: dict[Key, Score], seed: int
) -> QualityDifference | None:
    """Compare both models in the first runtime that scored both."""
    for backend in contestants.backends:
        ours, theirs = scores.get(("lean", backend.name)), scores.get(("full", backend.name))
        if ours is not None and theirs is not None:
            return evaluator.difference(backend.name, ours, theirs, seed=seed)
    return None


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


def compare_training(lean: "Subject", full: "Subject") -> Comparison:
    """Say how far the scores of two models may be compared, by how they were trained.

    `unfair`: one was fine-tuned, the other one was not nor was it made of that one. `part`: lean is a part of another
    model and was not trained since. `untuned`: neither was fine-tuned. `unknown budget`: only one call of `finetune`
    gives two models the same budget for certain. `fair`: nothing to add.
    """
    ours, theirs = lean.origin, full.origin
    made_of_full = ours is not None and (ours.source_digest == full.digest or ours.model == full.encoder.name)
    if not made_of_full and lean.fine_tuned != full.fine_tuned and None not in (lean.fine_tuned, full.fine_tuned):
        return "unfair"
    if lean.blocks is not None or (ours is not None and ours.method == "cut"):
        return "part"
    if made_of_full:  # by a combination of its layers, or by learning its vectors: there is no budget to differ in
        return "fair"
    if lean.fine_tuned is False:
        return "untuned"
    return "fair" if ours is not None and theirs is not None and ours.has_budget_of(theirs) else "unknown budget"


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
        self.exported: str | None = None  # the graph that was made here and stays
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
            width=self.encoder.vector_width,
            parameters=self.encoder.num_parameters,
            max_length=self.encoder.max_length,
            weights_bytes=sum(file.stat().st_size for file in weights) or None,
            fine_tuned=self.fine_tuned,
            blocks=self.blocks or (None if kept is None or kept == tuple(range(1, len(kept) + 1)) else kept),
            weights_sha256=digest_of(main) if main and main.is_file() else None,
        )

    def graph(self, backend: Backend) -> Path:
        """Return the ONNX graph that a backend runs; one in fp32 is exported where the model's folder has none.

        Raises `AbsentError`, and `ModelError` where the folder's export.json is damaged or describes another model.
        """
        name = "plain" if backend.tensorrt else backend.precision
        if name not in self._graphs:
            make = self._trace if backend.tensorrt else functools.partial(self._find_or_export, backend.precision)
            self._graphs[name] = make()
        return self._graphs[name]

    def _trace(self) -> Path:
        """Write the float32 graph as traced, without ONNX Runtime's own operators, for other runtimes."""
        folder = self.scratch / "plain"
        folder.mkdir(parents=True)
        try:
            save_graph(build_graph(self.encoder, fused=False), folder / GRAPH_FILE)
        except TruncateKitError as error:
            raise AbsentError(f"not traced: {str(error).rstrip('.')}") from error
        return folder / GRAPH_FILE

    def _find_or_export(self, precision: Precision) -> Path:
        """Return the graph of the model's folder, else the one kept under the model's digest, else a new one."""
        name = GRAPH_FILES[precision]
        if self.folder is not None:
            read_exports(self.folder)  # raises where it is damaged: that is no trait of this machine
            graph = self.folder / name
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
            where = "" if self.folder is None or self.role == "lean" else f" in {self.folder}"
            raise AbsentError(f"no {name}{where}: make it with {export_call(precision)}")
        place = self.digest[:16] + ("" if self.target == "cpu" else f"-{self.target}")
        graph = (self._kept or self.scratch) / place / name
        if not is_graph_of(graph, self.digest):
            try:
                export_graph(self.encoder, graph.parent, self.target)
            except TruncateKitError as error:
                lacking = isinstance(error, MissingExtraError)
                raise AbsentError(error if lacking else f"not exported: {error}") from error
            self.exported = None if self._kept is None else str(graph)
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
            try:
                row = self._start(subject, backend, shape)
            except AbsentError as error:
                row = Contestant(role=subject.role, backend=backend.name, absent=str(error))
            self.rows[row.role, row.backend] = row
            progress("Starting the runtimes", done, len(pairs))
        self.notes += [note for subject in self.subjects for note in subject.notes]
        self._require_some()

    def _start(self, subject: Subject, backend: Backend, shape: tuple[int, int]) -> Contestant:
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
        self.runners[subject.role, backend.name] = runner
        files = graph_files(graph()) if backend.runtime == "onnx" else []
        return Contestant(
            role=subject.role,
            backend=backend.name,
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
