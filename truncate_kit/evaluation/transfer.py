"""Transfer to classification as BERT-LC does it: logistic regression on frozen vectors, over random divisions.

Each set is divided at random, by class, into 85 % to train and 15 % to test, ten times. For a model with layers, the
subset whose mean is used is chosen inside the training part only: all subsets are ranked by a closed-form screening
over random divisions of it into 82 % and 18 % (`screening`), and the finalists by exact logistic regressions over the
same ones. Where a class is too small to be divided in its share, rows are divided at random. A share of the training
rows that is too small to choose layers on is left out of its set.

All of it can take hours: a division that is finished is kept, and not gone through again.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from torch import Tensor

from truncate_kit.data import LabelledSet, find_transfer
from truncate_kit.errors import ModelError
from truncate_kit.evaluation.fitting import Rows, accuracies, by_class, divisions, drawn_rows
from truncate_kit.evaluation.graded import TextEncoder
from truncate_kit.evaluation.registry import SuiteRun
from truncate_kit.evaluation.settings import TransferSettings
from truncate_kit.evaluation.transfer_checks import check_rows, seen_rows, too_few_rows
from truncate_kit.evaluation.transfer_report import TransferPoint, TransferReport, TransferScore, TransferSplit
from truncate_kit.evaluation.transfer_task import (
    LayeredTask,
    Task,
    baselines,
    choose_layers,
    layered_task,
    prepare_task,
)
from truncate_kit.extras import require
from truncate_kit.models import Encoder, find_pooler_head, load_pooler_head
from truncate_kit.models.digest import Digest
from truncate_kit.models.tail import Dense
from truncate_kit.progress import Progress, ProgressOption, reporter
from truncate_kit.settings import given_or
from truncate_kit.training.store import RunStore

QUICK: dict[str, Any] = {"splits": 3, "max_rows": 2000}
"""Settings of a first look."""
Value = TypeVar("Value")


def run_transfer(run: SuiteRun) -> TransferReport:
    """The sets of a folder; options: `fractions` of the training rows, `head`, `quick` for a first look."""
    settings, sets = _chosen(**run.options), find_transfer(run.data)
    check_rows(sets, settings)
    for one in sets:
        for few in too_few_rows(one, settings):
            run.note(f"{one.name} leaves {few.train_rows} rows to train on at {few.fraction:g} of them: left out.")
    for said in seen_rows(sets, run):
        run.note(said)
    if settings.max_rows is None:
        run.note("This takes minutes to hours, mostly for logistic regressions; `quick` is a first look.")
    named = load_pooler_head if settings.head else find_pooler_head  # without `head` a baseline alone
    return score_transfer(
        run.encoder,
        sets,
        model=run.model,
        runtime=run.runtime,
        settings=settings,
        pooler=named(run.model) if isinstance(run.encoder, Encoder) else None,
        work=run.work,
        progress=run.progress,
    )


def _chosen(
    fractions: tuple[float, ...] | None = None, *, quick: bool = False, head: bool = False, **_: object
) -> TransferSettings:
    given: dict[str, Any] = {"fractions": fractions} if fractions else {}
    return TransferSettings(head=head, **given | (QUICK if quick else {}))


def score_transfer(
    encoder: TextEncoder,
    sets: Sequence[LabelledSet],
    *,
    model: str,
    runtime: str = "torch",
    settings: TransferSettings | None = None,
    pooler: Dense | None = None,
    work: Path | None = None,
    progress: ProgressOption = False,
) -> TransferReport:
    """Accuracy of logistic regression on each set. An `Encoder` is also evaluated by its best mean of layers.

    Whatever else has `.encode(texts)` gives one vector, and there is nothing to choose.

    Args:
        encoder: What is scored.
        sets: On what.
        model: Its name in the report.
        runtime: What encodes, for the report.
        settings: The protocol.
        pooler: The model's trained pooler where it has one, a baseline over the last layer's first token; `head` of
            the settings needs it.
        work: Folder that keeps finished divisions: the same call goes on there. None keeps nothing.
        progress: Called after each part of the work.

    Raises:
        ModelError: The settings ask for a head, and there is no pooler or there are no layers.
        DataError: A set has one class alone, no share leaves any set enough rows, or the vectors are no numbers.
        MissingExtraError: scikit-learn is not installed.
        FileProblemError: The folder cannot be written, or another process works there.
    """
    progress = reporter(progress)
    settings, begin = given_or(TransferSettings, settings), time.perf_counter()
    require("sklearn", extra="suites")
    check_rows(sets, settings)
    if settings.head and (pooler is None or not isinstance(encoder, Encoder)):
        raise ModelError(f"{model} comes without a pooler head.", hint="Leave out `head`.")
    scores, subsets = [], 0
    for one in sets:
        task = prepare_task(encoder, one, settings, progress, pooler)
        layered = layered_task(task, pooler if settings.head else None)
        if layered:
            settings = replace(settings, max_layers=settings.largest_subset(len(layered.states)))
            subsets = len(layered.subsets(settings))
        store = None if work is None else RunStore(work, _key(task, settings), {"model": model, "transfer": one.name})
        with store.open() if store else nullcontext():
            scores.append(_score(one, task, layered, settings, store, progress))
    return _report(scores, model, runtime, settings, subsets, time.perf_counter() - begin)


def _report(
    scores: Sequence[TransferScore],
    model: str,
    runtime: str,
    settings: TransferSettings,
    subsets: int,
    seconds: float,
) -> TransferReport:
    points = [score.whole for score in scores if score.curve]
    return TransferReport(
        model=model,
        runtime=runtime,
        settings=settings,
        num_subsets=subsets,
        sets=tuple(scores),
        mean_as_is=_mean([point.mean_as_is for point in points]) or 0.0,
        mean_cls=_mean([point.mean_cls for point in points]),
        mean_last=_mean([point.mean_last for point in points]),
        mean_last_four=_mean([point.mean_last_four for point in points]),
        mean_random=_mean([point.mean_random for point in points]),
        mean_combined=_mean([point.mean_combined for point in points]),
        mean_relative_error_reduction=_mean([point.relative_error_reduction for point in points]),
        seconds=seconds,
    )


def _key(task: Task, settings: TransferSettings) -> str:
    """SHA-256 of all that the scores of a division depend on but the number of its rows and its own."""
    digest = Digest()
    found = {"labels": task.labels, "as_is": task.as_is, "states": task.states, "cls": task.cls}
    places = {"first": task.first, "second": task.second}
    digest.add_weights({name: one for name, one in (found | places).items() if one is not None})
    digest.add_values(replace(settings, fractions=(1.0,), splits=1).to_dict())
    return digest.hexdigest()


def _score(
    one: LabelledSet,
    task: Task,
    layered: LayeredTask | None,
    settings: TransferSettings,
    store: RunStore | None,
    progress: Progress,
) -> TransferScore:
    labels, too_few = task.labels.numpy(), too_few_rows(one, settings)
    shares = sorted(settings.fractions)[len(too_few) :]  # those with too few rows are the smallest
    done, total = 0, settings.splits * len(shares)

    def tick() -> None:
        nonlocal done
        done += 1
        progress(f"{one.name}: splits", done, total)

    rows = list(zip(task.first.tolist(), (task.first if task.second is None else task.second).tolist(), strict=True))
    return TransferScore(
        name=one.name,
        num_rows=len(labels),
        num_classes=len(one.classes),
        majority=100 * float(np.bincount(labels).max() / len(labels)),
        repeated_rows=len(rows) - len(set(rows)),
        curve=tuple(_point(task, layered, share, settings, store, tick) for share in shares),
        too_few=too_few,
    )


def _point(
    task: Task,
    layered: LayeredTask | None,
    fraction: float,
    settings: TransferSettings,
    store: RunStore | None,
    tick: Callable[[], None],
) -> TransferPoint:
    """One share of the training rows through all splits."""
    labels = task.labels.numpy()
    found: list[TransferSplit] = []
    stratified = True
    for number, (train, test) in enumerate(divisions(labels, settings)):
        rows = drawn_rows(train, labels, round(fraction * len(train)), settings.seed + number)
        stratified &= len(np.unique(labels[rows])) == len(np.unique(labels))
        stratified &= by_class(labels[rows], int(np.ceil(settings.inner_share * len(rows))))
        name = f"rows{len(rows)}-split{number}"
        split = store.read(name, TransferSplit) if store else None
        if split is None:
            split = _split(task, layered, (rows, test), settings, settings.seed + number)
            if store:
                store.write(name, split)
        found.append(split)
        tick()
    cls = _known([split.cls for split in found])
    last = _known([split.last for split in found])
    last_four = _known([split.last_four for split in found])
    random = _known([split.random for split in found])
    combined = _known([split.combined for split in found])
    before, after = _mean(last), _mean(combined)
    return TransferPoint(
        fraction=fraction,
        train_rows=len(rows),
        test_rows=len(test),
        as_is=tuple(split.as_is for split in found),
        cls=cls,
        last=last,
        last_four=last_four,
        random=random,
        combined=combined,
        chosen=_known([split.chosen for split in found]),
        mean_as_is=float(np.mean([split.as_is for split in found])),
        mean_cls=_mean(cls),
        mean_last=before,
        mean_last_four=_mean(last_four),
        mean_random=_mean(random),
        mean_combined=after,
        relative_error_reduction=None if before is None or after is None else error_reduction(before, after),
        by_class=stratified,
    )


def _split(
    task: Task, layered: LayeredTask | None, places: tuple[Rows, Rows], settings: TransferSettings, seed: int
) -> TransferSplit:
    """One division into rows to train on and to test on."""

    def scored(*features: Tensor) -> list[float]:
        fits = [(values, *places) for values in features]
        return [100 * share for share in accuracies(fits, task.labels.numpy(), settings)]

    if layered is None:
        return TransferSplit(as_is=scored(task.as_is)[0])
    chosen = choose_layers(layered, places[0], settings, seed)
    subsets = (*baselines(layered, settings, seed), chosen)
    as_is, last, last_four, random, combined, *cls = scored(
        task.as_is, *map(layered.features, subsets), *([] if task.cls is None else [task.cls])
    )
    return TransferSplit(
        as_is=as_is,
        cls=cls[0] if cls else None,
        last=last,
        last_four=last_four,
        random=random,
        combined=combined,
        chosen=chosen,
    )


def error_reduction(before: float, after: float) -> float:
    """By how many percent the errors fall from accuracy `before` to `after`, both in points; 0 without errors."""
    return 100 * (after - before) / (100 - before) if before < 100 else 0.0


def _known(values: Sequence[Value | None]) -> tuple[Value, ...] | None:
    """None where any value is missing."""
    found = tuple(value for value in values if value is not None)
    return found if len(found) == len(values) else None


def _mean(values: Sequence[float | None] | None) -> float | None:
    """None where any value is missing."""
    found = _known(values or ())
    return float(np.mean(found)) if found else None
