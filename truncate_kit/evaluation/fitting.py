"""The classifiers of the transfer suite and the divisions they are evaluated on, by scikit-learn."""

import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from truncate_kit.evaluation.settings import TransferSettings
from truncate_kit.extras import require

Rows = NDArray[np.int64]


def accuracies(
    fits: Sequence[tuple[Tensor, Rows, Rows]], labels: NDArray[np.int64], settings: TransferSettings
) -> list[float]:
    """Accuracy (0 … 1) of a logistic regression for each (features, rows to fit, rows to score), side by side."""
    linear = require("sklearn.linear_model", extra="suites")

    def accuracy(fit: tuple[Tensor, Rows, Rows]) -> float:
        features, train, test = fit
        values = features.numpy()
        if (labels[train] == labels[train[0]]).all():  # few rows may hold one class alone, which is then the answer
            return float((labels[test] == labels[train[0]]).mean())
        model: Any = linear.LogisticRegression(
            solver="saga",
            C=settings.penalty,
            tol=settings.tolerance,
            max_iter=settings.iterations,
            random_state=settings.seed,
        )
        model.fit(values[train], labels[train])
        return float(model.score(values[test], labels[test]))

    with warnings.catch_warnings(), ThreadPoolExecutor(torch.get_num_threads()) as pool:
        warnings.simplefilter("ignore")  # the protocol stops at a number of iterations, converged or not
        return list(pool.map(accuracy, fits))


def divisions(labels: NDArray[np.int64], settings: TransferSettings) -> list[tuple[Rows, Rows]]:
    """Rows to train on and to test on for each random division of a set."""
    return _divisions(labels, settings.splits, settings.test_share, settings.seed)


def inner_divisions(labels: NDArray[np.int64], settings: TransferSettings, seed: int) -> list[tuple[Rows, Rows]]:
    """Rows to fit on and to hold out for each random division of a training part."""
    return _divisions(labels, settings.inner_splits, settings.inner_share, seed)


def _divisions(labels: NDArray[np.int64], number: int, share: float, seed: int) -> list[tuple[Rows, Rows]]:
    """Each class in its share; where one is too small for that, rows at random."""
    selection = require("sklearn.model_selection", extra="suites")
    held_out = int(np.ceil(share * len(labels)))
    kind = selection.StratifiedShuffleSplit if by_class(labels, held_out) else selection.ShuffleSplit
    return list(kind(number, test_size=held_out, random_state=seed).split(labels, labels))


def by_class(labels: NDArray[np.int64], part: int) -> bool:
    """Whether `part` of the rows, and the rest, can hold each class in its share."""
    counts = np.unique(labels, return_counts=True)[1]
    return bool(counts.min() >= 2 and len(counts) <= part <= len(labels) - len(counts))


def drawn_rows(rows: Rows, labels: NDArray[np.int64], count: int | None, seed: int) -> Rows:
    """`count` of the rows, each class in its share where it is large enough; all where there are no more."""
    if count is None or count >= len(rows):
        return rows
    selection = require("sklearn.model_selection", extra="suites")
    stratify = labels[rows] if by_class(labels[rows], count) else None
    kept: Rows = selection.train_test_split(rows, train_size=count, stratify=stratify, random_state=seed)[0]
    return kept
