"""The classifiers of the transfer suite and the divisions they are evaluated on, by scikit-learn."""

import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from truncate_kit.extras import require
from truncate_kit.suites.settings import TransferSettings

Rows = NDArray[np.int64]


def accuracies(
    fits: Sequence[tuple[Tensor, Rows, Rows]], labels: NDArray[np.int64], settings: TransferSettings
) -> list[float]:
    """Accuracy (0 … 1) of a logistic regression for each (features, rows to fit, rows to score), side by side."""
    linear = require("sklearn.linear_model", extra="suites")

    def accuracy(fit: tuple[Tensor, Rows, Rows]) -> float:
        features, train, test = fit
        values = features.numpy()
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
    """Rows to train on and to test on for each random division, each class in its share."""
    selection = require("sklearn.model_selection", extra="suites")
    splitter = selection.StratifiedShuffleSplit(
        settings.splits, test_size=settings.test_share, random_state=settings.seed
    )
    return list(splitter.split(labels, labels))


def inner_folds(labels: NDArray[np.int64], folds: int, seed: int) -> list[tuple[Rows, Rows]]:
    """Rows to fit on and to score for each fold of a cross-validation, each class in its share."""
    selection = require("sklearn.model_selection", extra="suites")
    return list(selection.StratifiedKFold(folds, shuffle=True, random_state=seed).split(labels, labels))


def drawn_rows(rows: Rows, labels: NDArray[np.int64], count: int | None, seed: int) -> Rows:
    """`count` of the rows, each class in its share; all of them where there are no more."""
    if count is None or count >= len(rows):
        return rows
    selection = require("sklearn.model_selection", extra="suites")
    kept: Rows = selection.train_test_split(rows, train_size=count, stratify=labels[rows], random_state=seed)[0]
    return kept
