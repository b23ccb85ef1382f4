"""What a trial is trained and judged on, drawn afresh for each one."""

from collections.abc import Sequence
from typing import Protocol

import torch

from truncate_kit.data import PairSet, PairSplits, splits_for
from truncate_kit.encoders import Encoder
from truncate_kit.errors import DataError
from truncate_kit.training import (
    ClassifiedPairs,
    ClassJudge,
    GradedPairs,
    Judge,
    PairClassifier,
    PairJudge,
    ParaphraseJudge,
    ParaphrasePairs,
    TaughtTexts,
    TeacherJudge,
)
from truncate_kit.training.configuration import ObjectiveName
from truncate_kit.training.examples import Examples, Ids

HELD_OUT = 0.1
FEWEST_TEXTS = 20
METRICS = {"cosine": "Spearman × 100", "paraphrase": "F1 × 100", "entailment": "macro F1 × 100"}


class Task(Protocol):
    """Something to fine-tune for. metric: what the main score is, in words. num_examples: of an epoch."""

    metric: str
    num_examples: int

    def trial(self, encoder: Encoder, seed: int) -> tuple[Examples, Judge, Judge]:
        """Fresh examples, dev judge and test judge for one encoder; the loop renumbers the ids of the examples."""


class LabelledTask:
    """TMFT on pairs: graded (Spearman), paraphrase or not (F1), or classes (macro F1)."""

    def __init__(self, full: Encoder, data: PairSplits, objective: ObjectiveName = "cosine") -> None:
        """Raises `DataError` when a split is missing or the targets do not suit the objective."""
        if len(splits_for(data, seed=0).items()) < 3:
            raise DataError(
                f"{data.name} has no train, dev and test set to fine-tune with.",
                hint="Give a folder with train, dev and test files, or one file to be divided.",
            )
        check_targets(data, objective)
        self.metric = METRICS[objective]
        self._full, self._data, self._objective = full, data, objective
        texts = list(dict.fromkeys(text for _, pairs in data.items() for text in pairs.texts()))
        self._ids = dict(zip(texts, full.token_ids(texts), strict=True))
        self.num_examples = len(self._splits(0)[0])

    def trial(self, encoder: Encoder, seed: int) -> tuple[Examples, Judge, Judge]:
        """Examples of the train split, judges on dev and test; a classifier, where there is one, is shared by them."""
        train, dev, test = self._splits(seed)
        first, second = [self._ids[pair.first] for pair in train], [self._ids[pair.second] for pair in train]
        if self._objective == "entailment":
            torch.manual_seed(seed)
            width = encoder.encode_ids(first[:1]).shape[-1]
            classifier = PairClassifier(width, len(train.classes)).to(encoder.device)
            return (
                ClassifiedPairs(first, second, train.scores(), classifier),
                ClassJudge(self._full, dev, classifier),
                ClassJudge(self._full, test, classifier),
            )
        if self._objective == "paraphrase":
            judge = ParaphraseJudge(self._full, dev)
            examples: Examples = ParaphrasePairs(first, second, train.scores01())
            return examples, judge, ParaphraseJudge(self._full, test, judge)
        examples = GradedPairs(first, second, train.scores01())
        return examples, PairJudge(self._full, dev), PairJudge(self._full, test)

    def test_texts(self, seed: int) -> list[str]:
        """The distinct texts of the test split that this seed has."""
        return self._splits(seed)[2].texts()

    def _splits(self, seed: int) -> tuple[PairSet, PairSet, PairSet]:
        splits = splits_for(self._data, seed)
        assert splits.train is not None
        assert splits.dev is not None
        assert splits.test is not None
        return splits.train, splits.dev, splits.test


def check_targets(data: PairSplits, objective: ObjectiveName) -> None:
    """Raise `DataError` where the targets of a split do not suit an objective for labelled pairs."""
    for _, pairs in data.items():
        if objective == "entailment" and not pairs.classes:
            raise DataError(f"{pairs.name} holds scores, not classes.", hint="Load it with classes=True.")
        if objective != "entailment" and pairs.classes:
            raise DataError(f"{pairs.name} holds classes, not scores.", hint="Use --objective entailment.")
        if objective == "paraphrase":
            other = next((pair.target for pair in pairs if pair.target not in (0.0, 1.0)), None)
            if other is not None or pairs.scale != (0.0, 1.0):
                found = f"the score {other:g}" if other is not None else f"a scale from {pairs.scale_sentence()}"
                raise DataError(
                    f"{pairs.name} holds {found}; paraphrase pairs are labelled 0 or 1.",
                    hint="Name the column of labels with --columns FIRST,SECOND,LABEL, or use --objective cosine.",
                )


class DistillTask:
    """Give the full model's vectors on raw text; judged on graded pairs where there are some, else by closeness."""

    def __init__(self, full: Encoder, texts: Sequence[str], data: PairSplits | None) -> None:
        texts = list(dict.fromkeys(texts))
        if len(texts) < FEWEST_TEXTS:
            raise DataError(
                f"Only {len(texts)} distinct texts to distil from.",
                hint=f"Give at least {FEWEST_TEXTS}; thousands are better.",
            )
        held = max(2, round(len(texts) * HELD_OUT))
        self._full, self._data = full, data
        self._ids = full.token_ids(texts)
        self._vectors = full.encode_ids(self._ids)
        self._held = held
        self.num_examples = len(texts) - held
        labelled = data is not None and data.dev is not None and data.test is not None
        self.metric = METRICS["cosine"] if labelled else "mean cosine to the full model × 100"
        self._labelled = labelled

    def trial(self, encoder: Encoder, seed: int) -> tuple[Examples, Judge, Judge]:
        """All texts but those held out; judges on graded pairs, or on two halves of the held-out texts."""
        examples = TaughtTexts(list(self._ids[self._held :]), self._vectors[self._held :])
        if self._labelled and self._data is not None and self._data.dev is not None and self._data.test is not None:
            return examples, PairJudge(self._full, self._data.dev), PairJudge(self._full, self._data.test)
        middle = self._held // 2
        dev: list[Ids] = list(self._ids[:middle])
        test: list[Ids] = list(self._ids[middle : self._held])
        return (
            examples,
            TeacherJudge(dev, self._vectors[:middle]),
            TeacherJudge(test, self._vectors[middle : self._held]),
        )
