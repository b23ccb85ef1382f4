"""The transfer suite's protocol and results: scores in points (× 100) and seconds. Importing this loads no torch."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil
from statistics import fmean
from typing import Literal, get_args

from truncate_kit.core.results import Amounts, Result
from truncate_kit.core.settings import SEED, TEXTS, Bounds, check_settings, setting
from truncate_kit.evaluation.suite import SuiteReport

Layers = tuple[int, ...]
Kind = Literal["as_is", "cls", "last", "last_four", "random", "combined"]
KINDS: tuple[Kind, ...] = get_args(Kind)
"""The vectors that are compared."""
BASE_LAYERS = 13
"""Layers of a base model, embeddings included; a model with more is large."""
FEWEST_ROWS = 8
"""Training rows of which some are held out to choose layers by; shares that leave fewer are left out."""

_TIMES, _STEPS, _FRACTION = Bounds(1, 10_000), Bounds(1, 1_000_000), Bounds(0, 1, whole=False, above=True)
_PART, _ABOVE = Bounds(0, 0.99, whole=False, above=True), Bounds(0, 1e9, whole=False, above=True)


def mean_of(values: Sequence[float | None]) -> float | None:
    """Return the mean; None where any value is missing, or all are."""
    present = [value for value in values if value is not None]
    return fmean(present) if present and len(present) == len(values) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferSettings(Result):
    """The protocol of the transfer suite; the defaults are BERT-LC's where the paper states them.

    Ours: the features of pairs, |u − v| and u · v; divisions that keep the share of each class; `finalists`, where the
    paper fits every subset.

    Attributes:
        splits: Number of random divisions.
        test_share: Part of the rows that each division tests on, 0 … 1.
        inner_splits: Number of random divisions of the training part that layers are chosen by.
        inner_share: Part of the training rows that each of these holds out, 0 … 1.
        max_layers: Largest number of layers in a subset; None is four, and three of a large model's 25.
        finalists: Number of subsets that are fitted exactly, the best of all by a ridge classifier.
        fractions: Parts of the training rows to go through the whole protocol with, 0 … 1 each; one that leaves a set
            fewer than `FEWEST_ROWS` is left out of it.
        penalty: scikit-learn's C; the paper has 10 as "regularization parameter", which we read as that.
        tolerance: scikit-learn's tol.
        iterations: scikit-learn's max_iter.
        head: Feed means of layers through the model's trained pooler, as BERT-LC does for SimCSE.
        max_rows: Largest number of rows of a set, drawn by class; None for all.
        seed: Of the divisions and of what is drawn.

    Raises:
        UsageError: The protocol cannot be run so.
    """

    splits: int = setting(10, bounds=_TIMES)
    test_share: float = setting(0.15, bounds=_PART)
    inner_splits: int = setting(10, bounds=_TIMES)
    inner_share: float = setting(0.18, bounds=_PART)
    max_layers: int | None = setting(None, bounds=_TIMES)
    finalists: int = setting(3, bounds=_TIMES)
    fractions: tuple[float, ...] = setting((1.0,), bounds=_FRACTION)
    penalty: float = setting(10.0, bounds=_ABOVE)
    tolerance: float = setting(0.01, bounds=_ABOVE)
    iterations: int = setting(200, bounds=_STEPS)
    head: bool = False
    max_rows: int | None = setting(None, bounds=TEXTS)
    seed: int = setting(0, bounds=SEED)

    def __post_init__(self) -> None:
        check_settings(self)

    def largest_subset(self, num_layers: int) -> int:
        """Largest number of layers in a subset of a model with this number of layers, embeddings included."""
        return min(num_layers, self.max_layers or (4 if num_layers <= BASE_LAYERS else 3))

    def train_rows(self, rows: int, fraction: float) -> int:
        """Return the number of rows to fit on in each division of a set with this number, of which a share is taken."""
        used = min(rows, self.max_rows or rows)
        return round(fraction * (used - ceil(self.test_share * used)))

    def left_out(self, rows: int) -> list[tuple[float, int]]:
        """Return the shares of the training rows of a set that are too few to choose layers on, and their rows."""
        counts = [(share, self.train_rows(rows, share)) for share in sorted(self.fractions)]
        return [(share, number) for share, number in counts if number < FEWEST_ROWS]


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferSplit(Result):
    """Accuracies in one division, in points; None where a model has no such vectors.

    Attributes:
        as_is: Of the model's own vectors.
        cls: Of the last layer's first token through the trained pooler.
        last: Of the states of the last layer.
        last_four: Of the mean of the last four layers.
        random: Of the mean of layers drawn evenly from the subsets, anew in each division.
        combined: Of the mean of the layers that the inner cross-validation chose.
        chosen: These layers.
    """

    as_is: float
    cls: float | None = None
    last: float | None = None
    last_four: float | None = None
    random: float | None = None
    combined: float | None = None
    chosen: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferPoint(Result):
    """Accuracies on one set with one part of the training rows."""

    fraction: float  # part of the training rows, 0 … 1
    train_rows: int  # number of rows fitted on in each division
    test_rows: int  # number of rows tested on in each division
    by_class: bool = True  # whether the rows were enough for every class to keep its share of each division
    splits: tuple[TransferSplit, ...]

    def mean(self, kind: Kind) -> float | None:
        """Return the mean accuracy over the divisions, in points; None where a division has none."""
        return mean_of([getattr(split, kind) for split in self.splits])

    @property
    def relative_error_reduction(self) -> float | None:
        """Return by how many percent the errors fall from the last layer to the combination; 0 without errors."""
        before, after = self.mean("last"), self.mean("combined")
        if before is None or after is None:
            return None
        return 100 * (after - before) / (100 - before) if before < 100 else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferScore(Result):
    """One set."""

    name: str
    num_rows: int
    num_classes: int
    majority: float  # accuracy of always naming the most frequent class, in points
    repeated_rows: int  # number of rows whose text is in an earlier row too; random splits put some on both sides
    curve: tuple[TransferPoint, ...]  # by part of the training rows, rising; empty where all have too few rows

    @property
    def whole(self) -> TransferPoint:
        """Return the point with the largest share of the training rows. Raises ValueError if there is none."""
        return max(self.curve, key=lambda point: point.fraction)


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferReport(SuiteReport):
    """The sets that were found, and plain means over those that were scored (None where one of these has none)."""

    runtime: str
    settings: TransferSettings
    num_subsets: int  # subsets of layers that were screened; 0 for a model of one vector
    sets: tuple[TransferScore, ...]
    mean_as_is: float
    mean_cls: float | None = None
    mean_last: float | None
    mean_last_four: float | None = None
    mean_random: float | None = None
    mean_combined: float | None
    mean_relative_error_reduction: float | None
    seconds: float

    def amounts(self) -> Iterator[Amounts]:
        """Yield each share of the training rows of each set: splits, rows, and which vectors were compared."""
        for score in self.sets:
            for point in score.curve:
                compared = sum(point.mean(kind) is not None for kind in KINDS)
                yield (score.name, point.fraction), (len(point.splits), point.train_rows, point.test_rows, compared)
