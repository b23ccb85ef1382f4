"""What a trial is trained and scored on, drawn afresh for each one."""

from collections.abc import Sequence
from typing import Protocol

from truncate_kit.data import PairSet, PairSplits, splits_for
from truncate_kit.encoders import Encoder
from truncate_kit.errors import DataError
from truncate_kit.training.evaluators import Evaluator, TeacherEvaluator
from truncate_kit.training.examples import Examples, TrainPairs
from truncate_kit.training.objectives import OBJECTIVES, find_objective

HELD_OUT = 0.1
FEWEST_TEXTS = 20


class Task(Protocol):
    """Something to fine-tune for. metric: what the main score is, in words. num_examples: of an epoch."""

    metric: str
    num_examples: int

    def trial(self, encoder: Encoder, seed: int) -> tuple[Examples, Evaluator, Evaluator]:
        """Fresh examples, evaluators on dev and test for one encoder."""


class LabelledTask:
    """TMFT on labelled pairs, by any objective of that method."""

    def __init__(self, full: Encoder, data: PairSplits, objective: str = "cosine") -> None:
        """Raises `UsageError`, and `DataError` when a split is missing or the targets do not suit the objective."""
        row = find_objective(objective, "tmft")
        if len(splits_for(data, seed=0).items()) < 3:
            hint = "Give a folder with train, dev and test files, or one file to be divided."
            raise DataError(f"{data.name} has no train, dev and test set to fine-tune with.", hint=hint)
        row.check_targets(data)
        self.metric = row.metric
        self._full, self._data, self._objective = full, data, objective
        texts = data.texts()
        self._ids = dict(zip(texts, full.token_ids(texts), strict=True))
        self.num_examples = len(self._splits(0)[0])

    def trial(self, encoder: Encoder, seed: int) -> tuple[Examples, Evaluator, Evaluator]:
        """Examples of the train split, evaluators on dev and test; they share the classifier, where there is one."""
        row, (train, dev, test) = OBJECTIVES[self._objective], self._splits(seed)
        assert row.examples is not None
        first, second = [self._ids[pair.first] for pair in train], [self._ids[pair.second] for pair in train]
        examples = row.examples(TrainPairs(encoder, first, second, train, seed))
        on_dev = row.evaluator(self._full, dev, examples, None)
        return examples, on_dev, row.evaluator(self._full, test, examples, on_dev)

    def test_texts(self, seed: int) -> list[str]:
        """The distinct texts of the test split that this seed has."""
        return self._splits(seed)[2].texts()

    def _splits(self, seed: int) -> tuple[PairSet, PairSet, PairSet]:
        splits = splits_for(self._data, seed)
        assert splits.train is not None
        assert splits.dev is not None
        assert splits.test is not None
        return splits.train, splits.dev, splits.test


class DistillTask:
    """Give the full model's vectors on raw text; scored on graded pairs where there are some, else by closeness."""

    def __init__(
        self, full: Encoder, texts: Sequence[str], data: PairSplits | None, objective: str = "distill"
    ) -> None:
        """Raises `UsageError`, and `DataError` for too few texts."""
        row = find_objective(objective, "distill")
        texts = list(dict.fromkeys(texts))
        if len(texts) < FEWEST_TEXTS:
            hint = f"Give at least {FEWEST_TEXTS}; thousands are better."
            raise DataError(f"Only {len(texts)} distinct texts to distil from.", hint=hint)
        self._held = max(2, round(len(texts) * HELD_OUT))
        self._full, self._objective = full, objective
        self._ids = full.token_ids(texts)
        self._vectors = full.encode_ids(self._ids)
        self.num_examples = len(texts) - self._held
        graded = None if data is None or data.dev is None or data.test is None else (data.dev, data.test)
        self._graded = graded
        self.metric = OBJECTIVES["cosine"].metric if graded else row.metric

    def trial(self, encoder: Encoder, seed: int) -> tuple[Examples, Evaluator, Evaluator]:
        """All texts but those held out; evaluators on graded pairs, or on two halves of the held-out texts."""
        row = OBJECTIVES[self._objective]
        assert row.examples is not None
        examples = row.examples(self._ids[self._held :], self._vectors[self._held :])
        if self._graded is not None:
            dev, test = (row.evaluator(self._full, pairs, examples, None) for pairs in self._graded)
        else:
            dev, test = (
                TeacherEvaluator(self._ids[part], self._vectors[part])
                for part in (slice(self._held // 2), slice(self._held // 2, self._held))
            )
        return examples, dev, test
