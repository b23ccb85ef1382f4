"""How classifiers are fitted and evaluated in the transfer suite; importing this imports no torch."""

from dataclasses import dataclass

from truncate_kit.bounds import SEED, TEXTS, Bounds, check_numbers
from truncate_kit.errors import UsageError
from truncate_kit.results import Result

Layers = tuple[int, ...]
_TIMES, _FOLDS, _STEPS = Bounds(1, 10_000), Bounds(2, 1000), Bounds(1, 1_000_000)
_PART, _ABOVE = Bounds(0, 0.99, whole=False, above=True), Bounds(0, 1e9, whole=False, above=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferSettings(Result):
    """The protocol of the transfer suite; the defaults are BERT-LC's where the paper states them.

    Attributes:
        splits: Number of random divisions.
        test_share: Part of the rows that each division tests on, 0 … 1.
        folds: Number of folds of the inner cross-validation.
        max_layers: Largest number of layers in a subset.
        finalists: Number of subsets that are fitted exactly.
        fractions: Parts of the training rows to go through the whole protocol with, 0 … 1 each.
        penalty: scikit-learn's C.
        tolerance: scikit-learn's tol.
        iterations: scikit-learn's max_iter.
        max_rows: Largest number of rows of a set, drawn by class; None for all.
        seed: Of the divisions and of what is drawn.

    Raises:
        UsageError: The protocol cannot be run so.
    """

    splits: int = 10
    test_share: float = 0.15
    folds: int = 5
    max_layers: int = 4
    finalists: int = 3
    fractions: tuple[float, ...] = (1.0,)
    penalty: float = 10.0
    tolerance: float = 0.01
    iterations: int = 200
    max_rows: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.fractions or not all(0 < fraction <= 1 for fraction in self.fractions):
            raise UsageError("Fractions of the training data lie between 0 and 1.", hint="Write them as 0.1,0.5,1.")
        check_numbers(self, splits=_TIMES, folds=_FOLDS, finalists=_TIMES, max_layers=_TIMES, iterations=_STEPS)
        check_numbers(self, test_share=_PART, penalty=_ABOVE, tolerance=_ABOVE, max_rows=TEXTS, seed=SEED)
