"""What the splits of a set share: a model that has seen a test pair in training is not tested by it."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from truncate_kit.results import Result

TextTuple = tuple[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedPairs(Result):
    """Distinct pairs found in two splits: with both texts in the same order, and in either order."""

    same_order: int
    either_order: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlap(Result):
    """Pairs and sentences that splits share; None where a split is missing."""

    train_dev: SharedPairs | None
    train_test: SharedPairs | None
    dev_test: SharedPairs | None
    test_sentences: int | None  # distinct texts of test
    test_sentences_in_train: int | None  # how many of them train holds as well

    def warning(self) -> str | None:
        """One sentence that says what test shares with train, or None when it shares nothing."""
        if self.train_test is None or not self.test_sentences_in_train:
            return None
        return (
            f"Overlap: {self.train_test.either_order:,} test pairs ({self.train_test.same_order:,} in the same order) "
            f"and {self.test_sentences_in_train:,} of the {self.test_sentences:,} distinct test sentences are also in "
            "train; the test score may flatter the model."
        )


def overlap_of(
    train: Sequence[TextTuple] | None, dev: Sequence[TextTuple] | None, test: Sequence[TextTuple] | None
) -> Overlap:
    """Count what the splits share. Texts are compared as they are, character by character."""
    test_texts = None if test is None else _texts(test)
    return Overlap(
        train_dev=_shared(train, dev),
        train_test=_shared(train, test),
        dev_test=_shared(dev, test),
        test_sentences=None if test_texts is None else len(test_texts),
        test_sentences_in_train=None if test_texts is None or train is None else len(test_texts & _texts(train)),
    )


def _shared(left: Sequence[TextTuple] | None, right: Sequence[TextTuple] | None) -> SharedPairs | None:
    if left is None or right is None:
        return None
    return SharedPairs(
        same_order=len(set(left) & set(right)),
        either_order=len({frozenset(pair) for pair in left} & {frozenset(pair) for pair in right}),
    )


def _texts(pairs: Iterable[TextTuple]) -> set[str]:
    return {text for pair in pairs for text in pair}
