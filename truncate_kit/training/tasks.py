"""Build a trial's examples and evaluators."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from truncate_kit.core.errors import DataError, UsageError
from truncate_kit.core.settings import WEIGHT, Bounds, check_number
from truncate_kit.data.pairs import PairSet, PairSplits, splits_for
from truncate_kit.evaluation.graded import measure_of
from truncate_kit.models.encoder import DOCUMENT_PROMPTS, QUERY_PROMPTS, Encoder, prompted_ids, side_prompt
from truncate_kit.training.examples import Examples, Ids, Pairs, VectorEvaluator, builder
from truncate_kit.training.settings import find_objective

if TYPE_CHECKING:
    from truncate_kit.data.retrieval import RetrievalSet
    from truncate_kit.training.queries import RetrievalEvaluator

Sides = tuple[dict[str, Ids], dict[str, Ids]]


class Task(Protocol):
    """A task to fine-tune for; metric: main score in words; num_examples: per epoch."""

    metric: str
    num_examples: int

    def trial(self, encoder: Encoder, seed: int) -> tuple[Examples, VectorEvaluator, VectorEvaluator]:
        """Return fresh examples and evaluators on dev and test."""


@dataclass(frozen=True, slots=True)
class Teacher:
    """A model that teaches its vectors beside the labels."""

    encoder: Encoder
    weight: float = 1.0  # of the mean 1 − cosine to its vectors


class LabelledTask:
    """TMFT on labelled pairs.

    Args:
        full: The full model, which gives the tokenizer.
        data: With train, dev and test.
        objective: A row of `OBJECTIVES`.
        teacher: Optional.
        retrieval: Its queries replace the dev and test pairs by halves.

    Raises:
        UsageError: There is no such objective, or the teacher has another width.
        DataError: A split is missing or its targets do not suit.
    """

    def __init__(
        self,
        full: Encoder,
        data: PairSplits,
        objective: str = "cosine",
        teacher: Teacher | None = None,
        retrieval: "RetrievalSet | None" = None,
    ) -> None:
        row = find_objective(objective, "tmft")
        if len(splits_for(data, seed=0).items()) < 3:
            hint = "Give a folder with train, dev and test files; complete_splits takes missing ones out of train."
            raise DataError(f"{data.name} has no train, dev and test set to fine-tune with.", hint=hint)
        row.check_targets(data, scored=retrieval is None)
        self.metric = row.metric
        self._halves: tuple[RetrievalEvaluator, RetrievalEvaluator] | None = None
        if retrieval is not None:
            from truncate_kit.training.queries import halves, metric_of

            self.metric, self._halves = metric_of(retrieval), halves(full, retrieval)
        self._full, self.data, self._row, judged = full, data, row, row.data == "judged"
        self._first, self._second = _sides(data, full, judged=judged)
        self.num_examples = len(self._splits(0)[0])
        self._taught: list[dict[str, Tensor]] | None = None
        if teacher is not None:
            model, allowed = teacher.encoder, Bounds(0, WEIGHT.most, whole=False, above=True)
            self._weight = check_number("teacher_weight", teacher.weight, allowed)
            if model.vector_width != full.vector_width:
                raise UsageError(
                    f"The teacher's vectors have {model.vector_width} dimensions, the student's {full.vector_width}.",
                    hint="Use a `teacher` of the same width, such as the full model after its own fine-tuning.",
                )
            self._taught = [
                dict(zip(side, model.encode_ids(list(side.values())), strict=True))
                for side in _sides(data, model, judged=judged)
            ]

    def trial(self, encoder: Encoder, seed: int) -> tuple[Examples, VectorEvaluator, VectorEvaluator]:
        """Return examples of train, and evaluators on dev and test that share their classifier."""
        train, dev, test = self._splits(seed)
        first, second = [self._first[pair.first] for pair in train], [self._second[pair.second] for pair in train]
        examples = builder(self._row.examples)(encoder, first, second, train, seed)
        if self._taught is not None and isinstance(examples, Pairs):
            firsts, seconds = self._taught
            wanted = [firsts[pair.first] for pair in train] + [seconds[pair.second] for pair in train]
            examples.learn_vectors(torch.stack(wanted), self._weight)
        if self._halves is not None:
            return examples, *self._halves
        evaluator = builder(self._row.evaluator)
        on_dev = evaluator(self._full, dev, examples, None)
        return examples, on_dev, evaluator(self._full, test, examples, on_dev)

    def test_texts(self, seed: int) -> list[str]:
        """Return the distinct texts of this seed's test split."""
        return self._splits(seed)[2].texts()

    def _splits(self, seed: int) -> tuple[PairSet, PairSet, PairSet]:
        train, dev, test = (pairs for _, pairs in splits_for(self.data, seed).items())
        return train, dev, test


def _sides(data: PairSplits, encoder: Encoder, *, judged: bool) -> Sides:
    if not judged:
        both = dict(zip(texts := data.texts(), encoder.token_ids(texts), strict=True))
        return both, both
    pairs = [pair for _, split in data.items() for pair in split]
    queries, documents = ({getattr(pair, side): None for pair in pairs} for side in ("first", "second"))
    asked = prompted_ids(encoder, list(queries), side_prompt(encoder, QUERY_PROMPTS))
    searched = prompted_ids(encoder, list(documents), side_prompt(encoder, DOCUMENT_PROMPTS))
    return dict(zip(queries, asked, strict=True)), dict(zip(documents, searched, strict=True))


def scored_as(data: object, encoder: Encoder) -> str:
    """Return how query vectors are compared: no encoder digest has it."""
    return "" if data is None or isinstance(data, PairSplits) else f" by {measure_of(encoder)}"
