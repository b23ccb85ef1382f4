"""Tasks of the `mteb` package, answered by an encoder in torch or by its graph. Importing this loads no torch."""

import copy
import difflib
import math
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from truncate_kit.core.errors import DataError, UsageError, errors_only, first_line, require
from truncate_kit.core.progress import Progress, ProgressOption, reporter, silent
from truncate_kit.core.results import Amounts, Result
from truncate_kit.evaluation.suite import SuiteReport

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray
    from torch import Tensor

    from truncate_kit.evaluation.suite import TextEncoder

_BLOCK = 256  # pairs compared at a time, all with all
_NEAR = 5  # names of tasks in a hint
_BATCH = 256  # texts that mteb hands over at a time; they are put together again


@dataclass(frozen=True, slots=True, kw_only=True)
class MtebScore(Result):
    """The main score of one task, in points: the mean over its splits and subsets, as MTEB reports it."""

    task: str
    kind: str  # MTEB's type of task, such as STS or Retrieval
    metric: str  # MTEB's name for the main score, such as cosine_spearman or ndcg_at_10
    splits: tuple[str, ...]
    num_subsets: int  # parts of a split that are scored each alone, mostly languages
    score: float
    revision: str  # of the data
    successor: str | None  # the task that MTEB recommends instead
    seconds: float  # to encode and score, without loading the data


@dataclass(frozen=True, slots=True, kw_only=True)
class MtebReport(SuiteReport):
    """One model on some tasks."""

    runtime: str  # `torch`, `onnx`, or what else encoded
    version: str  # of the `mteb` package
    scores: tuple[MtebScore, ...]  # in the order of the tasks
    mean: float  # plain mean over the tasks
    seconds: float

    def amounts(self) -> Iterator[Amounts]:
        """Yield splits of tasks by their subsets."""
        for row in self.scores:
            for split in row.splits:
                yield (row.task, split), (row.num_subsets,)


@dataclass(frozen=True, slots=True, kw_only=True)
class MtebComparison(SuiteReport):
    """Two models on the same tasks: before and after."""

    full: MtebReport
    lean: MtebReport

    def amounts(self) -> Iterator[Amounts]:
        """Yield those of either report: both are of the same tasks."""
        return self.lean.amounts()


class MtebEncoder:
    """An encoder under mteb's `EncoderProtocol`: with its own prompts and its own measure.

    Args:
        encoder: Whatever has `.encode(texts)`.
        name: As mteb calls it.
        progress: Called after each part of the texts.

    Raises:
        ModelError: The model's measure is not known.
        MissingExtraError: mteb is not installed.
    """

    def __init__(self, encoder: "TextEncoder", name: str, *, progress: Progress = silent) -> None:
        from truncate_kit.evaluation.searching import MEASURES, measure_of

        self.encoder = encoder
        self.progress = progress
        self.mteb_model_meta = require("mteb.models", extra="mteb").ModelMeta.create_empty({"name": name})
        self._measure = MEASURES[measure_of(encoder)]

    def encode(
        self,
        inputs: Iterable[Mapping[str, Sequence[str]]],
        *,
        task_metadata: Any,
        prompt_type: Any = None,
        **_: Any,
    ) -> "NDArray[Any]":
        """Vectors (n, out) in float32 of the texts of all batches, after the prompt that fits the task."""
        from truncate_kit.evaluation.searching import encode_prompted

        texts = [text for batch in inputs for text in batch["text"]]
        prompt = self.prompt(task_metadata.name, task_metadata.type, prompt_type and prompt_type.value)
        vectors: NDArray[Any] = encode_prompted(self.encoder, prompt, texts, self.progress).numpy()
        return vectors

    def prompt(self, task: str, kind: str, side: str | None) -> str | None:
        """Return the prompt for a task, else for its kind, else for the side; None is the model's default one.

        mteb's order of names, then the names of sentence-transformers.

        Args:
            task: Whose prompt comes first.
            kind: Of the task, whose prompt comes next.
            side: `query`, `document`, or None for texts that are neither.
        """
        from truncate_kit.evaluation.searching import DOCUMENT_PROMPTS, QUERY_PROMPTS, settings_of, side_prompt

        prompts = settings_of(self.encoder).get("prompts") or {}
        for name in (f"{task}-{side}", task, f"{kind}-{side}", kind):
            if name in prompts:
                return prompts[name] or ""  # null is none, as everywhere
        sides = {"query": QUERY_PROMPTS, "document": DOCUMENT_PROMPTS}
        return None if side is None else side_prompt(self.encoder, sides[side])

    def similarity(self, embeddings1: "ArrayLike", embeddings2: "ArrayLike") -> "Tensor":
        """Return how alike each vector of the one side is to each of the other, (n, m)."""
        import torch

        return self._measure(torch.as_tensor(embeddings1), torch.as_tensor(embeddings2))

    def similarity_pairwise(self, embeddings1: "ArrayLike", embeddings2: "ArrayLike") -> "Tensor":
        """Return how alike the vectors of each row are, (n,)."""
        import torch

        first, second = torch.as_tensor(embeddings1), torch.as_tensor(embeddings2)
        blocks = (slice(start, start + _BLOCK) for start in range(0, len(first), _BLOCK))
        return torch.cat([self._measure(first[block], second[block]).diagonal() for block in blocks])


def find_tasks(tasks: Sequence[Any]) -> list[Any]:
    """Find tasks of `mteb`, by name or as they are, each once.

    Raises `UsageError` for none, an unknown name, and a task on anything but text; `MissingExtraError` without `mteb`.
    """
    package = require("mteb", extra="mteb")
    if not tasks:
        raise UsageError("No MTEB task is named.", hint="Name one, such as STSBenchmark.")
    distinct = {task if isinstance(task, str) else id(task): task for task in tasks}
    with _quiet():
        found = [_task(package, task) if isinstance(task, str) else task for task in distinct.values()]
    for task in found:
        if others := sorted(set(task.metadata.modalities) - {"text"}):
            raise UsageError(
                f"The MTEB task {task.metadata.name} needs a model of {', '.join(others)}; this one encodes texts.",
                hint="Name tasks on texts, such as STSBenchmark.",
            )
    return found


def _task(package: Any, name: str) -> Any:
    try:
        return package.get_task(name)
    except KeyError as error:
        every = (one.metadata.name for one in require("mteb.get_tasks", extra="mteb").TASK_LIST)
        names = {one.lower(): one for one in every}
        near = [names[low] for low in difflib.get_close_matches(name.lower(), names, n=_NEAR, cutoff=0.5)]
        hint = f"Names like it: {', '.join(near)}." if near else "List them with mteb available-tasks."
        raise UsageError(f"MTEB {package.__version__} has no task {name!r}.", hint=hint) from error


def evaluate_mteb(
    encoder: "TextEncoder",
    tasks: Sequence[Any],
    *,
    model: str,
    runtime: str = "torch",
    progress: ProgressOption = False,
) -> MtebReport:
    """Compute the main scores of MTEB tasks by the `mteb` package, which keeps no results of its own.

    Texts get the model's prompts, see `MtebEncoder.prompt`. The data come from the hub or its cache on this machine.

    Args:
        encoder: Whatever has `.encode(texts)`.
        tasks: Names such as STSBenchmark, or task objects of `mteb`, which stay as they are.
        model: Its name in the report.
        runtime: What encodes, for the report.
        progress: True draws bars and logs; else what is called after each task and each part of its texts.

    Raises:
        UsageError: No task, an unknown one, or one on anything but text.
        DataError: The data of a task cannot be loaded, or a score is not defined.
        ModelError: The model's measure is not known.
        MissingExtraError: `mteb` is not installed.
    """
    progress = reporter(progress)
    found = find_tasks(tasks)
    adapter = MtebEncoder(encoder, model, progress=progress)
    scores: list[MtebScore] = []
    with _quiet():
        for number, task in enumerate(found):
            progress("MTEB tasks", number, len(found))
            scores.append(_scored(adapter, task))
    progress("MTEB tasks", len(found), len(found))
    return MtebReport(
        model=model,
        runtime=runtime,
        version=require("mteb", extra="mteb").__version__,
        scores=tuple(scores),
        mean=sum(row.score for row in scores) / len(scores),
        seconds=sum(row.seconds for row in scores),
    )


def _scored(adapter: MtebEncoder, task: Any) -> MtebScore:
    task = copy.deepcopy(task)  # some draw from a generator of their own: each model is to get the same draws
    task.metadata = copy.deepcopy(task.metadata)
    parts = getattr(task.metadata, "tasks", [task])  # of an aggregate task: those that have data
    _load(parts)
    results = require("mteb", extra="mteb").evaluate(
        adapter,
        task,
        co2_tracker=False,
        encode_kwargs={"batch_size": _BATCH, "show_progress_bar": False},
        cache=None,
        show_progress_bar=False,
    )
    for part in parts:
        if part.data_loaded:
            part.unload_data()
    (result,) = results.task_results
    about, score = task.metadata, 100 * float(result.get_score())
    if not math.isfinite(score):
        raise DataError(
            f"The model has no {about.main_score} on the MTEB task {about.name}: it is not a number.",
            hint="Check the model: it may give every text the same vector.",
        )
    return MtebScore(
        task=about.name,
        kind=about.type,
        metric=about.main_score,
        splits=tuple(result.scores),
        num_subsets=len(result.hf_subsets),
        score=score,
        revision=result.dataset_revision,
        successor=task.superseded_by,
        seconds=float(result.evaluation_time),
    )


def _load(tasks: Sequence[Any]) -> None:
    for task in tasks:
        if task.data_loaded:
            continue
        about = task.metadata
        try:
            task.load_data()
        except Exception as error:  # of the hub, of its connection, of whatever reads the files
            raise DataError(
                f"The data of the MTEB task {about.name} cannot be loaded: {first_line(error)}.",
                hint=f"They are the hub's set {about.dataset['path']}. Check the connection (HF_HUB_OFFLINE must not "
                "be set), or load them where there is one and copy the hub's cache.",
            ) from error


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence warnings and bars of mteb, datasets and the hub in the block."""
    import datasets

    bars = not datasets.are_progress_bars_disabled()
    datasets.disable_progress_bars()
    try:
        with warnings.catch_warnings(action="ignore"), errors_only("mteb", "huggingface_hub"):
            yield
    finally:
        if bars:
            datasets.enable_progress_bars()
