"""Running MTEB tasks on an encoder or its graph."""

import copy
import difflib
import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from truncate_kit.errors import DataError, TruncateKitError, UsageError, first_line
from truncate_kit.evaluation.adapter import MtebEncoder
from truncate_kit.evaluation.graded import TextEncoder
from truncate_kit.evaluation.mteb_report import MtebReport, MtebScore
from truncate_kit.extras import errors_only, require
from truncate_kit.progress import ProgressOption, reporter

_NEAR = 5  # names of tasks in a hint
_BATCH = 256  # texts that mteb hands over at a time; they are put together again


def find_tasks(tasks: Sequence[Any]) -> list[Any]:
    """Tasks of `mteb`, by name or as they are, each once.

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
    encoder: TextEncoder,
    tasks: Sequence[Any],
    *,
    model: str,
    runtime: str = "torch",
    progress: ProgressOption = False,
) -> MtebReport:
    """Main scores of MTEB tasks, computed by the `mteb` package; it keeps no results of its own.

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
        except TruncateKitError:
            raise
        except Exception as error:  # of the hub, of its connection, of whatever reads the files
            raise DataError(
                f"The data of the MTEB task {about.name} cannot be loaded: {first_line(error)}.",
                hint=f"They are the hub's set {about.dataset['path']}. Check the connection (HF_HUB_OFFLINE must not "
                "be set), or load them where there is one and copy the hub's cache.",
            ) from error


@contextmanager
def _quiet() -> Iterator[None]:
    """No warnings and bars of mteb, datasets and the hub in the block; the report says what matters of them."""
    import datasets

    bars = not datasets.are_progress_bars_disabled()
    datasets.disable_progress_bars()
    try:
        with warnings.catch_warnings(action="ignore"), errors_only("mteb", "huggingface_hub"):
            yield
    finally:
        if bars:
            datasets.enable_progress_bars()
