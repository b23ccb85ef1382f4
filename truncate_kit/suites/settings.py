"""How classifiers are fitted and evaluated in the transfer suite; importing this imports no torch."""

from dataclasses import dataclass

from truncate_kit.errors import UsageError
from truncate_kit.results import Result

Layers = tuple[int, ...]


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
        if self.splits < 1 or self.folds < 2 or self.finalists < 1 or self.max_layers < 1:
            raise UsageError(
                "Splits, finalists and layers take at least 1, folds at least 2.", hint="Leave them at their defaults."
            )
