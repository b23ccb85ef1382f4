"""Measure speed, memory and scores of two models in many runtimes."""

import contextlib
import functools
import os
import platform
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch

from truncate_kit.bench.memory import peak_memory
from truncate_kit.bench.result import (
    BACKENDS,
    Backend,
    BenchedModel,
    BenchReport,
    BenchSettings,
    Comparison,
    Contestant,
    Key,
    Role,
    Timing,
    select_backends,
)
from truncate_kit.bench.runners import (
    AbsentError,
    Runner,
    guarded,
    make_runner,
    random_ids,
    time_shape,
    time_texts,
)
from truncate_kit.core.errors import ModelError, TruncateKitError, UsageError, counted
from truncate_kit.core.files import digest_of
from truncate_kit.core.hardware import (
    GRAPH_RUNTIMES,
    Precision,
    Target,
    bf16_instructions,
    installed_version,
    processor_name,
    runtime_of,
    select_device,
    watch_processor,
)
from truncate_kit.core.progress import Progress, silent
from truncate_kit.core.results import SEARCH_METRICS
from truncate_kit.core.vectors import LEVEL, RESAMPLES, Array, changed_queries
from truncate_kit.core.workspace import read_origin, was_trained
from truncate_kit.data.pairs import BUNDLED, PairSet, pairs_fingerprint, spread
from truncate_kit.data.retrieval import RetrievalSet
from truncate_kit.data.seen import numbers_of
from truncate_kit.evaluation.graded import evaluate, paired_difference
from truncate_kit.export.exporting import export_graph
from truncate_kit.export.record import ExportSettings, check_record, export_call, graph_sentence, graphs_in, is_graph_of
from truncate_kit.export.runtime import GraphEncoder, graph_files
from truncate_kit.models.encoder import Encoder
from truncate_kit.models.loading import load_encoder, resolve
from truncate_kit.models.pipeline import save_encoder
from truncate_kit.models.store import encoder_digest
from truncate_kit.models.truncation import keep

Value = TypeVar("Value")
Score = tuple[float, Array]
"""Score × 100, with the similarity of each pair or the score of each query."""
LENGTHS = (16, 128)
_MAX_PASSES = 3  # over the real set; long passes give stable times
_DEFAULTS = BenchSettings()


def bench(
    lean: Path | Encoder,
    full: Path | Encoder | None = None,
    settings: BenchSettings = _DEFAULTS,
    *,
    pairs: PairSet | RetrievalSet | None = None,
    texts: Sequence[str] | None = None,
    graphs: Path | None = None,
    progress: Progress = silent,
) -> BenchReport:
    """Measure the lean and the full model in each runtime, in turns.

    A runtime that is missing or fails becomes a row with the reason.

    Args:
        lean: Folder, name, or encoder with a tokenizer. The encoder is moved to the device.
        full: As `lean`. By default only `lean` is measured, with `settings.blocks` also the uncut `lean`.
        settings: Backends, shapes, rounds and device.
        pairs: Pairs to score by Spearman correlation, or a retrieval set.
        texts: Real texts to time, besides random token ids.
        graphs: Folder for newly exported graphs; by default a temporary one.
        progress: Receives steps.

    Raises:
        DeviceError: CUDA is not active.
        UsageError: A backend is unknown, a length exceeds the limit, or no runtime could be measured.
        ModelError: A model or its export.json cannot be read.
        DataError: A correlation is undefined.
    """
    begin, device = time.perf_counter(), select_device(settings.device)
    models: dict[Role, Path | Encoder] = {"lean": lean}
    if full is not None or settings.blocks is not None:
        models["full"] = lean if full is None else full
    folders = [resolve(model) for model in models.values() if isinstance(model, str | Path)]
    backends = select_backends(settings.backends, device, folders, slow_starts=settings.compile)
    with contextlib.ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="truncate-kit-bench-")))
        threads = torch.get_num_threads()
        stack.callback(torch.set_num_threads, threads)
        torch.set_num_threads(settings.threads or threads)
        if device.type == "cuda":  # ONNX Runtime cannot share torch's default stream
            stream = torch.cuda.Stream(device)
            stack.enter_context(torch.cuda.stream(stream))
        if any(row.compiled for row in backends):
            from torch._dynamo import config as compiler

            # All contestants compile the same `forward`; torch.compile gives up after eight graphs per function.
            stack.enter_context(compiler.patch(recompile_limit=64))
        target: Target = "cuda" if device.type == "cuda" else "cpu"
        subjects = [
            Subject(role, model, scratch, graphs, settings.blocks if role == "lean" else None, target)
            for role, model in models.items()
        ]
        contestants = Contestants(subjects, backends, device)
        report = _measure(contestants, settings, pairs, tuple(texts or ()), progress)
    return replace(report, seconds=time.perf_counter() - begin)


def _measure(
    contestants: "Contestants",
    settings: BenchSettings,
    pairs: PairSet | RetrievalSet | None,
    texts: Sequence[str],
    progress: Progress,
) -> BenchReport:
    encoders, rounds, device = contestants.encoders, settings.repeats, contestants.device
    limit = min(encoder.max_length for encoder in encoders.values())
    lengths = sorted(set(settings.lengths or [min(length, limit) for length in LENGTHS]))
    if lengths[-1] > limit:
        raise UsageError(
            f"A length of {lengths[-1]} tokens does not fit: these models take up to {limit}.",
            hint=f"Use `lengths` up to {limit}.",
        )
    largest = max(settings.batch_sizes), lengths[-1]
    contestants.start(largest, progress)
    scores = {} if pairs is None else score_all(contestants, pairs, progress)
    others = watch_processor()
    chosen, timings = spread(texts, settings.max_texts), list[Timing]()

    def time_set(singly: bool) -> list[Timing]:
        passes, readers = rounds if singly else min(rounds, _MAX_PASSES), contestants.reading_texts()
        return time_texts(readers, encoders, chosen, rounds=passes, singly=singly)

    scenarios: dict[str, Callable[[], list[Timing]]] = {
        f"at {size} × {length} tokens": functools.partial(
            time_shape, contestants.runners, encoders, (size, length), rounds=rounds, device=device
        )
        for size in sorted({1, *settings.batch_sizes})
        for length in lengths
    }
    if chosen:
        scenarios["at one sentence"] = functools.partial(time_set, True)
        scenarios["at the real set"] = functools.partial(time_set, False)
    for done, (name, measure) in enumerate(scenarios.items(), start=1):
        timings += contestants.surviving(name, measure)
        progress("Timing", done, len(scenarios))
    busy = others()
    if settings.memory:
        contestants.measure_memory(largest, progress)
    report = BenchReport(
        **describe_machine(device, torch.get_num_threads(), busy),
        models=tuple(subject.facts for subject in contestants.subjects),
        contestants=tuple(contestants.rows.values()),
        timings=tuple(timings),
        num_texts=len(chosen),
        distinct_texts=len(set(texts)),
        seconds=0.0,  # set by `bench`
        exported={subject.role: subject.exported for subject in contestants.subjects if subject.exported is not None},
        notes=tuple(contestants.notes),
        **({} if pairs is None else scored_fields(pairs)),
        comparison=compare_training(*contestants.subjects)
        if pairs is not None and len(contestants.subjects) > 1
        else None,
    )
    if pairs is None or report.comparison == "unfair":
        return report
    return replace(report, **compare_scores(report, pairs, scores, settings.seed))


def describe_machine(device: torch.device, threads: int, others_busy: float | None) -> dict[str, Any]:
    """Return report fields on the machine."""
    packages = ("torch", "transformers", "onnxruntime", "onnxruntime-gpu", "openvino")
    installed = {name: version for name in packages if (version := installed_version(name)) is not None}
    return {
        "processor": processor_name(),
        "cores": os.cpu_count() or 1,
        "threads": threads,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "bf16_instructions": bf16_instructions(device),
        "others_busy": others_busy,
        "versions": {"python": platform.python_version()} | installed,
    }


# Scores


def score_all(contestants: "Contestants", data: PairSet | RetrievalSet, progress: Progress) -> dict[Key, Score]:
    """Score every model in every runtime."""

    def score_each() -> dict[Key, Score]:
        scores, readers = {}, contestants.reading_texts()
        for done, (key, runner) in enumerate(readers.items(), start=1):
            scores[key] = guarded(key, score_with)(data, runner, contestants.encoders[key[0]])
            progress("Scoring the models", done, len(readers))
        return scores

    scores = contestants.surviving("while scoring", score_each)
    for key, (mean, _) in scores.items():
        contestants.update(key, score=mean)
    return scores


def compare_scores(
    report: BenchReport, data: PairSet | RetrievalSet, scores: dict[Key, Score], seed: int
) -> dict[str, Any]:
    """Return `quality` of the recommended run against today's; if untimed, of the first runtime of both models."""
    ends = [*report.steps().values()][:: max(1, len(report.steps()) - 1)]
    if len(ends) < 2 or not scores.keys() >= {*ends}:
        ends = [("full", name) for role, name in scores if role == "lean" and ("full", name) in scores][:1]
        ends += [("lean", name) for _, name in ends]
    if len(ends) < 2:
        return {}
    (full, theirs), (lean, ours) = (scores[key] for key in ends)
    changed = dict[str, int]()
    if isinstance(data, PairSet):
        numbers = numbers_of((pair.first, pair.second) for pair in data)
        _, (low, high), resamples, num_pairs = paired_difference(
            ours.tolist(), theirs.tolist(), data.scores(), numbers=numbers, seed=seed
        )
    else:
        from truncate_kit.evaluation.retrieval import estimated

        (_, (low, high)), resamples, num_pairs = estimated(ours - theirs, seed=seed), RESAMPLES, len(ours)
        higher, lower = changed_queries(ours - theirs)
        changed = {"num_higher": higher, "num_lower": lower}
    quality = {"lean": lean, "full": full, "difference": lean - full, "low": low, "high": high, "level": LEVEL}
    quality |= {"resamples": resamples, "num_pairs": num_pairs, **changed}
    return {"quality": quality, "quality_of": (ends[1][1], ends[0][1])}


def scored_fields(data: PairSet | RetrievalSet) -> dict[str, Any]:
    """Return report fields on the scored data."""
    if isinstance(data, RetrievalSet):
        fields = {"fingerprint": data.fingerprint(), "num_scored": len(data.queries)}
        return {"scored_on": data.name, "metric": SEARCH_METRICS[data.metric], **fields}
    bundled, fingerprint = data.name.startswith(f"{BUNDLED}/"), pairs_fingerprint(data)
    return {"scored_on": data.name, "fingerprint": fingerprint, "num_scored": len(data), "bundled": bundled}


def score_with(data: PairSet | RetrievalSet, runner: Runner, encoder: Encoder) -> Score:
    """Return the score × 100 of a runner, and the value of each pair or query.

    Queries get the prompts of `encoder`. Raises `DataError` if the score is undefined.
    """
    if isinstance(data, PairSet):
        evaluation = evaluate(runner, data.pairs)
        return evaluation.spearman, np.array(evaluation.cosines)
    from truncate_kit.training.queries import RetrievalEvaluator

    evaluator = RetrievalEvaluator(encoder, data, np.arange(len(data.queries)))
    vectors = runner.encode_ids(evaluator.texts()).float().cpu()
    if bad := int((~vectors.isfinite().all(dim=1)).sum()):  # a search would not fail on NaN
        raise ValueError(f"NaN or infinity in the vectors of {bad:,} of {counted(len(vectors), 'text')}")
    per_query = evaluator.scores(vectors, vectors)
    return float(per_query.mean()), per_query


def compare_training(lean: "Subject", full: "Subject") -> Comparison:
    """Return how comparable both scores are, given the training of the models.

    `fair`: lean was made from full, or both had the same training budget. `unfair`: only one was fine-tuned. `part`:
    lean was cut and not trained since. `untuned`: neither was fine-tuned. `unknown budget`: their budgets may differ.
    """
    ours, theirs = lean.origin, full.origin
    made_of_full = ours is not None and (ours.source_digest == full.digest or ours.model == full.encoder.name)
    if not made_of_full and lean.fine_tuned != full.fine_tuned and None not in (lean.fine_tuned, full.fine_tuned):
        return "unfair"
    if lean.blocks is not None or (ours is not None and ours.method == "cut"):
        return "part"
    if made_of_full:
        return "fair"
    if lean.fine_tuned is False:
        return "untuned"
    return "fair" if ours is not None and theirs is not None and ours.has_budget_of(theirs) else "unknown budget"


# Models and runtimes


class Subject:
    """The lean or the full model; its newly exported graphs are saved in `graphs`."""

    def __init__(
        self,
        role: Role,
        source: Path | Encoder,
        scratch: Path,
        graphs: Path | None = None,
        blocks: tuple[int, ...] | None = None,
        target: Target = "cpu",
    ) -> None:
        self.role, self.target, self.blocks, self.scratch = role, target, blocks, scratch / role
        self.folder = None if isinstance(source, Encoder) else resolve(source)
        self.fine_tuned = None if self.folder is None else was_trained(self.folder)  # unknown if in memory
        self.origin = None if self.folder is None else read_origin(self.folder)
        self.encoder = source if isinstance(source, Encoder) else load_encoder(source)
        if blocks is not None:  # the folder's files describe the uncut model
            self.folder, self.origin, self.encoder = None, None, keep(self.encoder, blocks)
        self.exported: str | None = None  # path of a new, kept graph
        self.notes: dict[str, None] = {}  # each note once
        self._kept = graphs

    @cached_property
    def digest(self) -> str:
        """Return the encoder's digest."""
        return encoder_digest(self.encoder)

    @cached_property
    def facts(self) -> BenchedModel:
        """Describe this model."""
        weights = list(self.folder.rglob("*.safetensors")) if self.folder else []
        kept = None if self.origin is None else self.origin.blocks
        main = self.folder and self.folder / "model.safetensors"
        return BenchedModel(
            role=self.role,
            name=self.encoder.name,
            layer=self.encoder.depth,
            width=self.encoder.vector_width,
            parameters=self.encoder.num_parameters,
            weights_bytes=sum(file.stat().st_size for file in weights) or None,
            blocks=self.blocks or (None if kept is None or kept == tuple(range(1, len(kept) + 1)) else kept),
            weights_sha256=digest_of(main) if main and main.is_file() else None,
        )

    def graph(self, backend: Backend) -> Path:
        """Return a backend's graph from the model's folder, else from `graphs`, else from a new export.

        Raises `AbsentError` if the graph is missing and cannot be exported here, `ModelError` if it is damaged or
        belongs to another model.
        """
        fused, target = not backend.tensorrt, self.target  # TensorRT has no kernels for fused nodes
        precision: Precision = backend.precision if fused else "fp32"
        name = GRAPH_RUNTIMES[backend.runtime].files[precision]
        runtime = runtime_of(name)
        if fused and self.folder is not None and precision in graphs_in(self.folder, runtime):
            graph = self.folder / name
            report = check_record(graph, precision)
            if report.encoder != self.digest:
                raise ModelError(
                    f"{graph} was exported from a model other than the one in {self.folder}.",
                    hint="Export the model again with `export_onnx()`.",
                )
            if report.target != target:
                self.notes[f"The {self.role} model: {graph_sentence(graph, report, target)}"] = None
            return graph
        if precision not in ("fp32", "bf16"):  # int8 needs pairs, fp16 a GPU's kernels
            where = "" if self.folder is None else f" in {self.folder}"
            raise AbsentError(f"no checked {name}{where}: make it with {export_call(precision, runtime)}")
        place = self.digest[:16] + ("" if target == "cpu" else f"-{target}") + ("" if fused else "-unfused")
        graph = (self._kept or self.scratch) / (place + ("" if runtime == "onnx" else f"-{runtime}")) / name
        if not is_graph_of(graph, self.digest, precision):
            try:
                settings = ExportSettings(runtime=runtime, precision=precision, target=target)
                export_graph(self.encoder, graph.parents[1], settings, fused=fused)
            except TruncateKitError as error:
                raise AbsentError(error) from error
            if self._kept is not None and fused:
                self.exported = str(graph)
        return graph

    def for_worker(self) -> Path:
        """Return a folder with the model, saved if needed."""
        return self.folder or save_encoder(self.encoder, self.scratch / "saved")


class Contestants:
    """All runners and their report rows; a failing runner is removed, and its row states the reason."""

    def __init__(self, subjects: Sequence[Subject], backends: Sequence[Backend], device: torch.device) -> None:
        self.subjects, self.backends, self.device = subjects, backends, device
        self.encoders = {subject.role: subject.encoder for subject in subjects}
        self.runners: dict[Key, Runner] = {}
        self.rows: dict[Key, Contestant] = {}  # also failed ones
        self.notes: list[str] = []

    def reading_texts(self) -> dict[Key, Runner]:
        """Return the runners that accept texts of any length."""
        return {key: runner for key, runner in self.runners.items() if not BACKENDS[key[1]].static}

    def update(self, key: Key, **values: Any) -> None:
        """Change a contestant's row."""
        self.rows[key] = replace(self.rows[key], **values)

    def start(self, shape: tuple[int, int], progress: Progress) -> None:
        """Start all runners with batches up to this shape (batch size, length). Raises `UsageError` if all fail."""
        places = [(subject, backend) for backend in self.backends for subject in self.subjects]
        for done, (subject, backend) in enumerate(places, start=1):
            try:
                fields = self._start(subject, backend, shape)
            except AbsentError as error:
                fields = {"absent": str(error)}
            self.rows[subject.role, backend.name] = Contestant(role=subject.role, backend=backend.name, **fields)
            progress("Starting the runtimes", done, len(places))
        self.notes += [note for subject in self.subjects for note in subject.notes]
        self._require_some()

    def _start(self, subject: Subject, backend: Backend, shape: tuple[int, int]) -> dict[str, Any]:
        key, (batch_size, length) = (subject.role, backend.name), shape
        graph = subject.graph(backend) if backend.runtime in GRAPH_RUNTIMES else None  # exporting is not timed
        begin = time.perf_counter()
        runner = guarded(key, make_runner)(
            backend, subject.encoder, graph=graph, folder=subject.for_worker, device=self.device
        )
        vocabulary = subject.encoder.backbone.config.vocab_size
        for size, width in sorted({(1, min(length, 16)), (1, length), (batch_size, length)}):
            call = guarded(key, guarded(key, runner.prepare)(random_ids([width] * size, vocabulary)))
            for _ in range(2):  # to compile and tune
                call()
        seconds, self.runners[key] = time.perf_counter() - begin, runner
        files = [] if graph is None else graph_files(graph)
        loaded = sum(file.stat().st_size for file in files) or subject.facts.weights_bytes
        return {"absent": None, "prepare_seconds": seconds, "file_bytes": loaded}

    def _require_some(self) -> None:
        if not self.runners:
            reasons = dict.fromkeys(f"{BACKENDS[row.backend].title}: {row.absent}" for row in self.rows.values())
            raise UsageError(
                f"No runtime could be measured: {'; '.join(reasons)}.", hint="Add torch-fp32 to `backends`."
            )

    def surviving(self, task: str, measure: Callable[[], Value]) -> Value:
        """Call `measure` until it succeeds; remove each contestant that fails."""
        while True:
            try:
                return measure()
            except AbsentError as error:
                if error.key is None:
                    raise
                del self.runners[error.key]
                self.update(error.key, absent=f"{task}: {error}")
                self._require_some()
            with contextlib.suppress(RuntimeError):  # a GPU fault is raised again
                torch.cuda.empty_cache()  # now that the error's frames are freed

    def measure_memory(self, shape: tuple[int, int], progress: Progress) -> None:
        """Measure each contestant's peak memory at one shape (batch size, length)."""
        models = {subject.role: str(subject.for_worker()) for subject in self.subjects}
        common = {"device": str(self.device), "threads": torch.get_num_threads()}
        common |= {"batch_size": shape[0], "length": shape[1]}
        requests = []
        for (role, name), runner in self.runners.items():
            graph = str(runner.file) if isinstance(runner, GraphEncoder) else None
            requests.append({"model": models[role], "backend": name, "graph": graph, **common})
        # On a GPU one at a time: the driver counts the memory of all processes.
        with ThreadPoolExecutor(1 if self.device.type == "cuda" else min(4, os.cpu_count() or 1)) as pool:
            for done, (key, result) in enumerate(zip(self.runners, pool.map(peak_memory, requests), strict=True), 1):
                progress("Measuring memory", done, len(requests))
                if isinstance(result, int):
                    self.update(key, peak_bytes=result)
                else:
                    title = BACKENDS[key[1]].title
                    self.notes.append(f"Peak memory of the {key[0]} model in {title} was not measured: {result}.")
