"""How classifiers are fitted and evaluated in the transfer suite; importing this imports no torch."""

from dataclasses import dataclass
from math import ceil

from truncate_kit.results import Result
from truncate_kit.settings import SEED, TEXTS, Bounds, check_settings, setting

Layers = tuple[int, ...]
BASE_LAYERS = 13
"""Layers of a base model, embeddings included; a model with more is large."""
FEWEST_ROWS = 8
"""Training rows of which some are held out to choose layers by; shares that leave fewer are left out."""

_TIMES, _STEPS, _FRACTION = Bounds(1, 10_000), Bounds(1, 1_000_000), Bounds(0, 1, whole=False, above=True)
_PART, _ABOVE = Bounds(0, 0.99, whole=False, above=True), Bounds(0, 1e9, whole=False, above=True)


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
        """Number of rows to fit on in each division of a set with this number, of which a share is taken."""
        used = min(rows, self.max_rows or rows)
        return round(fraction * (used - ceil(self.test_share * used)))
