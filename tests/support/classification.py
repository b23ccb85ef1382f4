"""Sentences to classify, and plain classification of vectors by scikit-learn."""

import warnings
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedShuffleSplit

from tests.support.families import WORDS
from truncate_kit.evaluation.transfer import TransferSettings

Places = NDArray[np.int64]
SMALL = TransferSettings(splits=2, inner_splits=3, max_layers=3, finalists=2)


def sentences(count: int, seed: int = 0) -> list[str]:
    drawn = np.random.default_rng(seed)
    return [" ".join(drawn.choice(WORDS, size=6)) for _ in range(count)]


def fit_and_score(values: NDArray[np.floating], labels: Places, train: Places, test: Places) -> float:
    """Accuracy in per cent of logistic regression as BERT-LC set it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = LogisticRegression(solver="saga", C=10, tol=0.01, max_iter=200, random_state=0)
        return 100 * float(model.fit(values[train], labels[train]).score(values[test], labels[test]))


def plain_divisions(labels: Places, splits: int) -> Iterator[tuple[Places, Places]]:
    """Rows to train and to test on, drawn anew for each split."""
    return StratifiedShuffleSplit(splits, test_size=0.15, random_state=0).split(labels, labels)  # type: ignore[no-any-return]  # untyped
