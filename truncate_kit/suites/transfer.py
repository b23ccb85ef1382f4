"""Transfer to classification as BERT-LC does it: logistic regression on frozen vectors, over random divisions.

Each set is divided at random, by class, into 85 % to train and 15 % to test, ten times. For a model with layers, the
subset whose mean is used is chosen inside the training part only: all subsets are ranked by a closed-form screening
over random divisions of it into 82 % and 18 % (`screening`), and the finalists by exact logistic regressions over the
same ones. Where a class is too small to be divided in its share, rows are divided at random.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from truncate_kit.data import LabelledSet, find_transfer
from truncate_kit.errors import DataError
from truncate_kit.evaluation import TextEncoder
from truncate_kit.extras import require
from truncate_kit.progress import Progress, ProgressOption, reporter
from truncate_kit.suites.encoding import text_features
from truncate_kit.suites.fitting import Rows, accuracies, by_class, divisions, drawn_rows, inner_divisions
from truncate_kit.suites.registry import SuiteRun
from truncate_kit.suites.screening import few_coordinates, layer_subsets, projected, screen_features, screen_means
from truncate_kit.suites.settings import Layers, TransferSettings
from truncate_kit.suites.transfer_report import TransferPoint, TransferReport, TransferScore

FEWEST_ROWS = 8
"""Training rows of which some are held out to choose layers by."""
QUICK: dict[str, Any] = {"splits": 3, "max_rows": 2000}
"""Settings of a first look."""


@dataclass(frozen=True, slots=True)
class Task:
    """One set in numbers."""

    labels: Tensor  # from 0 on, (n,)
    as_is: Tensor  # features of the model's own vectors, (n, p)
    states: Tensor | None  # of the distinct texts, (L', m, d); None for a model of one vector
    first: Tensor  # row in `states` of the first text of each row of the set, (n,)
    second: Tensor | None  # the same of the second text; None for single texts


@dataclass(frozen=True, slots=True)
class LayeredTask:
    """A task whose model has layers."""

    task: Task
    states: Tensor
    small: Tensor  # the states as the screening takes them

    def subsets(self, settings: TransferSettings) -> list[Layers]:
        """All subsets of layers to choose from."""
        return layer_subsets(len(self.states), settings.largest_subset(len(self.states)))

    def features(self, subset: Layers) -> Tensor:
        """Features (n, p) of the mean of these layers."""
        return _features(self.states[list(subset)].mean(dim=0), self.task.first, self.task.second)

    def screen(self, rows: Tensor, folds: Sequence[tuple[Tensor, Tensor]], subsets: Sequence[Layers]) -> list[float]:
        """Screened accuracy of each subset on these rows."""
        labels, first = self.task.labels[rows], self.task.first[rows]
        if self.task.second is None:
            return screen_means(self.small[:, first], labels, folds, subsets)
        second = self.task.second[rows]

        def features(subset: Layers) -> Tensor:
            return _features(self.small[list(subset)].mean(dim=0), first, second)

        return screen_features(features, labels, folds, subsets)


def run_transfer(run: SuiteRun) -> TransferReport:
    """The sets of a folder; options: `fractions` of the training rows, `quick` for a first look."""
    settings, sets = _chosen(**run.options), find_transfer(run.data)
    if settings.max_rows is None:
        run.note("This takes minutes to hours, mostly for logistic regressions; `quick` is a first look.")
    return score_transfer(
        run.encoder, sets, model=run.model, runtime=run.runtime, settings=settings, progress=run.progress
    )


def _chosen(fractions: tuple[float, ...] | None = None, *, quick: bool = False, **_: object) -> TransferSettings:
    given: dict[str, Any] = {"fractions": fractions} if fractions else {}
    return TransferSettings(**given | (QUICK if quick else {}))


def score_transfer(
    encoder: TextEncoder,
    sets: Sequence[LabelledSet],
    *,
    model: str,
    runtime: str = "torch",
    settings: TransferSettings | None = None,
    progress: ProgressOption = False,
) -> TransferReport:
    """Accuracy of logistic regression on each set. An `Encoder` is also evaluated by its best mean of layers.

    Whatever else has `.encode(texts)` gives one vector, and there is nothing to choose. Raises `DataError` for a set
    with too few rows of a class, `MissingExtraError` without scikit-learn.
    """
    progress = reporter(progress)
    settings, begin = settings or TransferSettings(), time.perf_counter()
    require("sklearn", extra="suites")
    for one in sets:
        _check_rows(one, settings)
    scores, subsets = [], 0
    for one in sets:
        task = prepare_task(encoder, one, settings, progress)
        layered = layered_task(task)
        if layered:
            settings = replace(settings, max_layers=settings.largest_subset(len(layered.states)))
            subsets = len(layered.subsets(settings))
        scores.append(_score(one, task, layered, settings, progress))
    return TransferReport(
        model=model,
        runtime=runtime,
        settings=settings,
        num_subsets=subsets,
        sets=tuple(scores),
        mean_as_is=_mean([score.whole.mean_as_is for score in scores]) or 0.0,
        mean_last=_mean([score.whole.mean_last for score in scores]),
        mean_combined=_mean([score.whole.mean_combined for score in scores]),
        mean_relative_error_reduction=_mean([score.whole.relative_error_reduction for score in scores]),
        seconds=time.perf_counter() - begin,
    )


def _check_rows(one: LabelledSet, settings: TransferSettings) -> None:
    """There are two classes, and the smallest training share is enough to fit and to choose on."""
    if len(one.classes) < 2:
        raise DataError(f"{one.name} has one class alone.", hint="Give a set with at least two classes.")
    rows = min(len(one), settings.max_rows or len(one))
    fewest = round(min(settings.fractions) * (1 - settings.test_share) * rows)
    if fewest < FEWEST_ROWS:
        hint = f"Take more rows, or a larger share: {FEWEST_ROWS} are the fewest that can be fitted on."
        raise DataError(f"{one.name} leaves {fewest} rows to train on.", hint=hint)


def prepare_task(encoder: TextEncoder, one: LabelledSet, settings: TransferSettings, progress: Progress) -> Task:
    """Draw the rows, encode each distinct text once, and build the features. Raises `ModelError`."""
    labels = np.asarray(one.labels)
    rows = drawn_rows(np.arange(len(one)), labels, settings.max_rows, settings.seed)
    first = [one.first[row] for row in rows]
    second = None if one.second is None else [one.second[row] for row in rows]
    texts = list(dict.fromkeys((*first, *(second or ()))))
    place = {text: index for index, text in enumerate(texts)}

    def named(task: str, done: int, total: int) -> None:
        progress(f"{one.name}: {task}", done, total)

    found = text_features(encoder, texts, named)
    left = torch.tensor([place[text] for text in first])
    right = None if second is None else torch.tensor([place[text] for text in second])
    return Task(torch.from_numpy(labels[rows]), _features(found.vectors, left, right), found.states, left, right)


def layered_task(task: Task) -> LayeredTask | None:
    """The task with what the screening needs; None for a model of one vector."""
    if task.states is None:
        return None
    small = projected(task.states) if task.second is None else few_coordinates(task.states)
    return LayeredTask(task, task.states, small)


def _features(vectors: Tensor, first: Tensor, second: Tensor | None) -> Tensor:
    """The vectors, or for pairs |u − v| and the products by coordinate, side by side (SentEval, arXiv:1803.05449)."""
    left = vectors[first]
    if second is None:
        return left
    right = vectors[second]
    return torch.cat([(left - right).abs(), left * right], dim=1)


def _score(
    one: LabelledSet, task: Task, layered: LayeredTask | None, settings: TransferSettings, progress: Progress
) -> TransferScore:
    labels = task.labels.numpy()
    done, total = 0, settings.splits * len(settings.fractions)

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
        curve=tuple(_point(task, layered, fraction, settings, tick) for fraction in sorted(settings.fractions)),
    )


def _point(
    task: Task, layered: LayeredTask | None, fraction: float, settings: TransferSettings, tick: Callable[[], None]
) -> TransferPoint:
    """One share of the training rows through all splits."""
    labels = task.labels.numpy()
    found: list[list[float]] = []
    chosen: list[Layers] = []
    stratified = True
    for number, (train, test) in enumerate(divisions(labels, settings)):
        rows = drawn_rows(train, labels, round(fraction * len(train)), settings.seed + number)
        stratified &= len(np.unique(labels[rows])) == len(np.unique(labels))
        stratified &= by_class(labels[rows], int(np.ceil(settings.inner_share * len(rows))))
        features = [task.as_is]
        if layered is not None:
            chosen.append(choose_layers(layered, rows, settings, settings.seed + number))
            features += [layered.features((len(layered.states) - 1,)), layered.features(chosen[-1])]
        found.append([100 * one for one in accuracies([(one, rows, test) for one in features], labels, settings)])
        tick()
    as_is, last, combined = (
        [tuple(column) for column in zip(*found, strict=True)]
        if layered
        else (tuple(row[0] for row in found), None, None)
    )
    before, after = _mean(last), _mean(combined)
    return TransferPoint(
        fraction=fraction,
        train_rows=len(rows),
        test_rows=len(test),
        as_is=as_is,
        last=last,
        combined=combined,
        chosen=tuple(chosen) or None,
        mean_as_is=float(np.mean(as_is)),
        mean_last=before,
        mean_combined=after,
        relative_error_reduction=None if before is None or after is None else error_reduction(before, after),
        by_class=stratified,
    )


def error_reduction(before: float, after: float) -> float:
    """By how many percent the errors fall from accuracy `before` to `after`, both in points; 0 without errors."""
    return 100 * (after - before) / (100 - before) if before < 100 else 0.0


def choose_layers(layered: LayeredTask, rows: Rows, settings: TransferSettings, seed: int) -> Layers:
    """The subset with the best mean accuracy over divisions of `rows`: screened, then exact fits of the finalists."""
    subsets, labels = layered.subsets(settings), layered.task.labels.numpy()
    folds = inner_divisions(labels[rows], settings, seed)
    places = [(torch.from_numpy(fitted), torch.from_numpy(held_out)) for fitted, held_out in folds]
    screened = layered.screen(torch.from_numpy(rows), places, subsets)
    order = sorted(range(len(subsets)), key=lambda place: (-screened[place], len(subsets[place]), subsets[place]))
    finalists = [subsets[place] for place in order[: settings.finalists]]
    features = [layered.features(subset) for subset in finalists]
    fits = [(values, rows[fitted], rows[held_out]) for values in features for fitted, held_out in folds]
    exact = np.reshape(accuracies(fits, labels, settings), (len(finalists), len(folds))).mean(axis=1)
    # Of equally good ones that with fewer layers, then the one that was screened better.
    best = max(range(len(finalists)), key=lambda place: (exact[place], -len(finalists[place]), -place))
    return finalists[best]


def _mean(values: Sequence[float | None] | None) -> float | None:
    """None where any value is missing."""
    found = [value for value in values or () if value is not None]
    return float(np.mean(found)) if found and len(found) == len(values or ()) else None
