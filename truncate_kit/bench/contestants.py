"""Who takes part in a bench: every model in every runtime."""

import contextlib
import functools
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import torch

from truncate_kit.bench.backends import BACKENDS, Backend
from truncate_kit.bench.bench_report import Contestant, Key
from truncate_kit.bench.guarding import ContestantError, Guarded, failure_reason
from truncate_kit.bench.optimum_runner import OPTIMUM_GRAPH
from truncate_kit.bench.runners import make_runner
from truncate_kit.bench.running import AbsentError, Runner, first_calls, random_ids
from truncate_kit.bench.subjects import Subject
from truncate_kit.errors import TruncateKitError, UsageError
from truncate_kit.export.graph_files import graph_files
from truncate_kit.progress import Progress

Found = TypeVar("Found")


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
            first_calls([runner.prepare(random_ids([width] * size, vocabulary)) for size, width in shapes])
        except TruncateKitError:
            raise
        except Exception as error:
            raise AbsentError(failure_reason(backend, error)) from error
        self.runners[key] = Guarded(key, backend, runner)
        files = graph_files(graph()) if backend.runtime == "onnx" else []
        if backend.runtime == "optimum":
            files = [subject.for_worker() / OPTIMUM_GRAPH]
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
