"""How classifiers are fitted and evaluated in the transfer suite; importing this imports no torch."""

from dataclasses import dataclass
from math import ceil

from truncate_kit.bounds import SEED, TEXTS, Bounds, check_numbers
from truncate_kit.errors import UsageError
from truncate_kit.results import Result

Layers = tuple[int, ...]
BASE_LAYERS = 13
"""Layers of a base model, embeddings included; a model with more is large."""
FEWEST_ROWS = 8
"""Training rows of which some are held out to choose layers by; shares that leave fewer are left out."""

_TIMES, _STEPS = Bounds(1, 10_000), Bounds(1, 1_000_000)
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

    splits: int = 10
    test_share: float = 0.15
    inner_splits: int = 10
    inner_share: float = 0.18
    max_layers: int | None = None
    finalists: int = 3
    fractions: tuple[float, ...] = (1.0,)
    penalty: float = 10.0
    tolerance: float = 0.01
    iterations: int = 200
    head: bool = False
    max_rows: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.fractions or not all(0 < fraction <= 1 for fraction in self.fractions):
            raise UsageError(
                "Fractions of the training data lie between 0 and 1.", hint="Give `fractions`, such as 0.1, 0.5 and 1."
            )
        check_numbers(self, splits=_TIMES, inner_splits=_TIMES, finalists=_TIMES, max_layers=_TIMES, iterations=_STEPS)
        check_numbers(self, test_share=_PART, inner_share=_PART, penalty=_ABOVE, tolerance=_ABOVE)
        check_numbers(self, max_rows=TEXTS, seed=SEED)

    def largest_subset(self, num_layers: int) -> int:
        """Largest number of layers in a subset of a model with this number of layers, embeddings included."""
        return min(num_layers, self.max_layers or (4 if num_layers <= BASE_LAYERS else 3))

    def train_rows(self, rows: int, fraction: float) -> int:
        """Number of rows to fit on in each division of a set with this number, of which a share is taken."""
        used = min(rows, self.max_rows or rows)
        return round(fraction * (used - ceil(self.test_share * used)))
