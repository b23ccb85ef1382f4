"""Evaluate on tasks of the `mteb` package."""

import copy
import math
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from truncate_kit.core.errors import DataError, UsageError, errors_only, first_line, require
from truncate_kit.core.progress import Progress, ProgressOption, reporter, silent
from truncate_kit.core.vectors import TextEncoder
from truncate_kit.evaluation import Score, SuiteReport, Values, means_of, report_of
from truncate_kit.evaluation.graded import MEASURES, measure_of
from truncate_kit.evaluation.retrieval import encode_prompted
from truncate_kit.models.encoder import DOCUMENT_PROMPTS, QUERY_PROMPTS, settings_of, side_prompt

_BATCH = 256  # texts per call of mteb


class MtebEncoder:
    """Adapter of an encoder to mteb's `EncoderProtocol`, with the model's prompts and measure.

    Raises `MissingExtraError` without mteb.
    """

    def __init__(self, encoder: TextEncoder, name: str, *, progress: Progress = silent) -> None:
        self.encoder, self.progress = encoder, progress
        self.mteb_model_meta = require("mteb.models", extra="mteb").ModelMeta.create_empty({"name": name})
        self._measure = MEASURES[measure_of(encoder)]

    def encode(
        self, inputs: Iterable[Mapping[str, Sequence[str]]], *, task_metadata: Any, prompt_type: Any = None, **_: Any
    ) -> NDArray[Any]:
        """Encode all texts with the prompt of the task, as float32 (n, d)."""
        texts = [text for batch in inputs for text in batch["text"]]
        prompt = self.prompt(task_metadata.name, task_metadata.type, prompt_type and prompt_type.value)
        vectors: NDArray[Any] = encode_prompted(self.encoder, prompt, texts, self.progress).numpy()
        return vectors

    def prompt(self, task: str, kind: str, side: str | None) -> str | None:
        """Return the prompt of a task, else of its kind, else of the side; None for the default prompt.

        Tries names in mteb's order, then sentence-transformers'. side: `query`, `document` or None.
        """
        prompts = settings_of(self.encoder).get("prompts") or {}
        for name in (f"{task}-{side}", task, f"{kind}-{side}", kind):
            if name in prompts:
                return prompts[name] or ""  # null means empty
        sides = {"query": QUERY_PROMPTS, "document": DOCUMENT_PROMPTS}
        return None if side is None else side_prompt(self.encoder, sides[side])

    def similarity(self, embeddings1: ArrayLike, embeddings2: ArrayLike) -> Tensor:
        """Return the similarities (n, m) of all n vectors with all m vectors."""
        return self._measure(torch.as_tensor(embeddings1), torch.as_tensor(embeddings2))

    def similarity_pairwise(self, embeddings1: ArrayLike, embeddings2: ArrayLike) -> Tensor:
        """Return the similarity of the two vectors in each row, (n,)."""
        sides = zip(torch.as_tensor(embeddings1), torch.as_tensor(embeddings2), strict=True)
        return torch.cat([self._measure(first[None], second[None])[0] for first, second in sides])


def find_tasks(tasks: Sequence[Any]) -> list[Any]:
    """Return distinct `mteb` tasks, given by name or as task objects. Raises the errors of `evaluate_mteb`."""
    package = require("mteb", extra="mteb")
    distinct = {task if isinstance(task, str) else id(task): task for task in tasks}.values()
    try:
        with _quiet():
            loaded = [package.get_task(task) if isinstance(task, str) else task for task in distinct]
    except KeyError as error:  # from mteb, which also proposes names
        problem = str(error.args[0]).removeprefix("KeyError: ").rstrip(".")
        raise UsageError(f"MTEB task {problem}", hint="List the tasks with mteb available-tasks.") from error
    for task in loaded:
        if others := sorted(set(task.metadata.modalities) - {"text"}):
            raise UsageError(
                f"The MTEB task {task.metadata.name} needs a model for {', '.join(others)}; this model encodes text.",
                hint="Name text tasks, such as STSBenchmark.",
            )
    return loaded


def evaluate_mteb(
    encoder: TextEncoder, tasks: Sequence[Any], *, model: str, progress: ProgressOption = False
) -> SuiteReport:
    """Compute the main scores of MTEB tasks by the `mteb` package, with the model's prompts.

    Scores are means over splits and subsets, as in MTEB; seconds exclude data loading.

    tasks: Names such as STSBenchmark, or task objects.
    model: Name in the report.

    Raises:
        UsageError: A task is unknown or not on text.
        DataError: Data cannot be loaded, or a score is undefined.
        MissingExtraError: `mteb` is not installed.
    """
    progress = reporter(progress)
    distinct = find_tasks(tasks)
    adapter = MtebEncoder(encoder, model, progress=progress)
    rows, notes = list[Score](), list[str]()
    with _quiet():
        for number, task in enumerate(distinct):
            progress("MTEB tasks", number, len(distinct))
            rows.append(_scored(adapter, task))
            name, (subsets,) = rows[-1].task, rows[-1].size
            if subsets > 1:
                notes.append(f"{name}: the mean over {subsets} subsets, mostly languages.")
    progress("MTEB tasks", len(distinct), len(distinct))
    return report_of("mteb", encoder, model, _measured(), rows, notes)


def compare_mteb(full: SuiteReport, lean: SuiteReport) -> SuiteReport:
    """Compare the reports of two models on the same tasks."""
    rows = list[Score]()
    for row, lean_row in zip(full.rows, lean.rows, strict=True):
        scores = row.values["score"] or 0.0, lean_row.values["score"] or 0.0
        values: Values = {"full": scores[0], "lean": scores[1], "lean less full": scores[1] - scores[0]}
        rows.append(replace(lean_row, values=values))
    models = f"{full.model} in {full.runtime} (full) and {lean.model} in {lean.runtime} (lean)"
    title = f"{models}: {_measured()}"
    return replace(lean, suite="mteb-comparison", title=title, rows=tuple(rows), means=means_of(rows))


def _measured() -> str:
    return f"main scores of MTEB {require('mteb', extra='mteb').__version__} × 100"


def _scored(adapter: MtebEncoder, task: Any) -> Score:
    task = copy.deepcopy(task)  # some tasks hold a random generator: both models get a copy
    task.metadata = copy.deepcopy(task.metadata)
    parts = getattr(task.metadata, "tasks", [task])  # the tasks of an aggregate hold the data
    for part in parts:
        try:
            if not part.data_loaded:
                part.load_data()
        except Exception as error:  # from the hub, the connection or a file reader
            name, place = part.metadata.name, part.metadata.dataset["path"]
            raise DataError(
                f"The data of the MTEB task {name} cannot be loaded: {first_line(error)}.",
                hint=f"Check the connection to the hub's set {place}: HF_HUB_OFFLINE must not be set. Or load it on "
                "another machine and copy the hub's cache.",
            ) from error
    options = {"batch_size": _BATCH, "show_progress_bar": False}
    results = require("mteb", extra="mteb").evaluate(
        adapter, task, co2_tracker=False, encode_kwargs=options, cache=None, show_progress_bar=False
    )
    for part in parts:
        if part.data_loaded:
            part.unload_data()
    (result,) = results.task_results
    about, score = task.metadata, 100 * float(result.get_score())
    if not math.isfinite(score):
        raise DataError(
            f"The model's {about.main_score} on the MTEB task {about.name} is not a number.",
            hint="Check the model: it may give every text the same vector.",
        )
    return Score(
        task=about.name,
        labels={"metric": about.main_score, "split": ", ".join(result.scores)},
        values={"score": score, "seconds": float(result.evaluation_time)},
        size=(len(result.hf_subsets),),
    )


@contextmanager
def _quiet() -> Iterator[None]:
    import datasets

    datasets.disable_progress_bars()
    with warnings.catch_warnings(action="ignore"), errors_only("mteb", "huggingface_hub"):
        yield
