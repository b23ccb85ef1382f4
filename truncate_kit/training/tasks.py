"""What a trial is trained and scored on, drawn afresh for each one."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from truncate_kit.core.errors import DataError, UsageError
from truncate_kit.core.settings import WEIGHT, Bounds, check_number
from truncate_kit.core.wording import counted
from truncate_kit.data.pairs import splits_for
from truncate_kit.data.retrieval import FEWEST_QUERIES, RetrievalSet, find_qrels, read_retrieval, with_queries
from truncate_kit.data.types import PairSet, PairSplits, TextPair
from truncate_kit.evaluation.searching import DOCUMENT_PROMPTS, QUERY_PROMPTS, prompted_ids, side_prompt
from truncate_kit.models.encoder import Encoder
from truncate_kit.training.evaluators import (
    RetrievalEvaluator,
    VectorEvaluator,
    check_queries,
    halved,
    halves,
    metric_of,
)
from truncate_kit.training.examples import Examples, Pairs, TrainPairs
from truncate_kit.training.objectives import OBJECTIVES, find_objective


class Task(Protocol):
    """Something to fine-tune for. metric: what the main score is, in words. num_examples: of an epoch."""

    metric: str
    num_examples: int

    def trial(self, encoder: Encoder, seed: int) -> tuple[Examples, VectorEvaluator, VectorEvaluator]:
        """Return fresh examples, evaluators on dev and test for one encoder."""


@dataclass(frozen=True, slots=True)
class Teacher:
    """A model whose vectors are learned beside the labels."""

    encoder: Encoder
    weight: float = 1.0  # of the mean 1 − cosine to its vectors, against the objective's own loss

    def __post_init__(self) -> None:
        weight = check_number("teacher_weight", self.weight, Bounds(0, WEIGHT.most, whole=False, above=True))
        object.__setattr__(self, "weight", weight)

    def check_width(self, student: Encoder) -> None:
        """Raise `UsageError` where its vectors are not as wide as those that learn from them."""
        own, learning = (encoder.vector_width for encoder in (self.encoder, student))
        if own != learning:
            raise UsageError(
                f"The teacher's vectors have {own} dimensions, and those that learn {learning}.",
                hint="Use a `teacher` of the same width, such as the full model after its own fine-tuning.",
            )


@dataclass(frozen=True, slots=True)
class _Sides:
    """Token ids of the first and second texts of pairs, by text; queries and documents have prompts of their own."""

    first: dict[str, list[int]]
    second: dict[str, list[int]]

    @classmethod
    def of(cls, data: PairSplits, encoder: Encoder, *, judged: bool) -> "_Sides":
        """Take those of all splits. judged: whether the first texts are queries and the second ones documents."""
        if not judged:
            both = dict(zip(texts := data.texts(), encoder.token_ids(texts), strict=True))
            return cls(both, both)
        pairs = [pair for _, split in data.items() for pair in split]
        queries = list(dict.fromkeys(pair.first for pair in pairs))
        documents = list(dict.fromkeys(pair.second for pair in pairs))
        asked = prompted_ids(encoder, queries, side_prompt(encoder, QUERY_PROMPTS))
        searched = prompted_ids(encoder, documents, side_prompt(encoder, DOCUMENT_PROMPTS))
        return cls(dict(zip(queries, asked, strict=True)), dict(zip(documents, searched, strict=True)))

    def ids(self, pairs: PairSet) -> tuple[list[list[int]], list[list[int]]]:
        """Return those of the first and of the second text of each pair."""
        return [self.first[pair.first] for pair in pairs], [self.second[pair.second] for pair in pairs]

    def vectors(self, encoder: Encoder) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Return the vectors (d,) of both sides by text, by the encoder whose ids these are."""
        first = dict(zip(self.first, encoder.encode_ids(list(self.first.values())), strict=True))
        if self.second is self.first:
            return first, first
        return first, dict(zip(self.second, encoder.encode_ids(list(self.second.values())), strict=True))


class LabelledTask:
    """TMFT on labelled pairs, by any objective of that method.

    Args:
        retrieval: Whose queries are dev and test, half of them each, in the place of pairs; None for the pairs.

    Raises:
        UsageError: There is no such objective, or the teacher's vectors have another width.
        DataError: A split is missing or the targets do not suit the objective.
    """

    def __init__(
        self,
        full: Encoder,
        data: PairSplits,
        objective: str = "cosine",
        teacher: Teacher | None = None,
        retrieval: RetrievalSet | None = None,
    ) -> None:
        row = find_objective(objective, "tmft")
        if len(splits_for(data, seed=0).items()) < 3:
            hint = "Give a folder with train, dev and test files; complete_splits takes missing ones out of train."
            raise DataError(f"{data.name} has no train, dev and test set to fine-tune with.", hint=hint)
        row.check_targets(data, scored=retrieval is None)
        self.metric = row.metric
        self._halves: tuple[RetrievalEvaluator, RetrievalEvaluator] | None = None
        if retrieval is not None:
            self.metric, self._halves = metric_of(retrieval), halves(full, retrieval)
        self._full, self._data, self._objective = full, data, objective
        self._sides = _Sides.of(data, full, judged=row.data == "judged")
        self.num_examples = len(self._splits(0)[0])
        self._taught: tuple[dict[str, Tensor], dict[str, Tensor]] | None = None
        if teacher is not None:
            teacher.check_width(full)
            self._weight = teacher.weight
            self._taught = _Sides.of(data, teacher.encoder, judged=row.data == "judged").vectors(teacher.encoder)

    def trial(self, encoder: Encoder, seed: int) -> tuple[Examples, VectorEvaluator, VectorEvaluator]:
        """Return examples of the train split, evaluators on dev and test; they share a classifier that there is."""
        row, (train, dev, test) = OBJECTIVES[self._objective], self._splits(seed)
        assert row.examples is not None
        first, second = self._sides.ids(train)
        examples = row.examples(TrainPairs(encoder, first, second, train, seed))
        if self._taught is not None and isinstance(examples, Pairs):
            firsts, seconds = self._taught
            wanted = [firsts[pair.first] for pair in train] + [seconds[pair.second] for pair in train]
            examples.learn_vectors(torch.stack(wanted), self._weight)
        if self._halves is not None:
            return examples, *self._halves
        on_dev = row.evaluator(self._full, dev, examples, None)
        return examples, on_dev, row.evaluator(self._full, test, examples, on_dev)

    def test_texts(self, seed: int) -> list[str]:
        """Return the distinct texts of the test split that this seed has."""
        return self._splits(seed)[2].texts()

    def _splits(self, seed: int) -> tuple[PairSet, PairSet, PairSet]:
        train, dev, test = (pairs for _, pairs in splits_for(self._data, seed).items())
        return train, dev, test


COLUMNS = ("query", "document", "grade")
_INSTEAD = "give graded pairs as `data` and this folder as `retrieval`"


def read_judged(path: str | Path, *, metric: str = "ndcg") -> tuple[PairSplits, RetrievalSet]:
    """Read pairs of a query and a document that answers it, to learn from, and the queries that choose and report.

    Where there is a qrels/train.tsv its queries teach, and those of dev, else test, choose and report by halves. Else
    the queries of the one file that would choose are divided: a half teaches, a quarter chooses, a quarter reports. No
    query that chooses, reports or belongs to another split but train teaches; documents may answer queries of several.

    Args:
        path: A folder in BEIR's layout, see `read_retrieval`.
        metric: What is chosen by: ndcg, mrr or recall.

    Returns:
        Train pairs of the queries that teach, dev and test pairs of those that choose and report, with their grades;
        and the set of the latter two for `finetune(retrieval=…)`, with the objective `search`.

    Raises:
        DataError: As `read_retrieval`, and where too few queries are judged.
        UsageError: There is no such metric.
    """
    asked = read_retrieval(path, metric=metric, chooses=True)
    whole = asked.name
    if "train" in find_qrels(Path(path)) and not asked.name.endswith("/train"):
        taught = read_retrieval(path, split="train")
        kept = [place for place, query in enumerate(taught.queries) if query not in asked.asked]
        if len(kept) < len(taught.queries):
            taught = with_queries(taught, kept, "that neither choose nor report")
        check_queries(asked)
        named, of = taught.name, f" of {whole}"
    else:
        taught, asked = _divided(asked)
        named, of = whole, ""
    if len(set(taught.queries)) < FEWEST_QUERIES:
        known = counted(len(set(taught.queries)), "judged query", "judged queries")
        raise DataError(
            f"{taught.name} has {known} to learn from: too few.",
            hint=f"Judge at least {FEWEST_QUERIES} that neither choose nor report, or {_INSTEAD}.",
        )
    choosing, reporting = (with_queries(asked, places.tolist()) for places in halved(asked))
    sets = {"train": taught, "dev": choosing, "test": reporting}
    train, dev, test = (_pairs(one, split, str(path)) for split, one in sets.items())
    numbers = [len(set(one.queries)) for one in sets.values()]
    note = (
        f"{named}: {numbers[0]:,} queries teach, with {counted(len(train), 'document')} that answer them;{of} "
        f"{numbers[1]:,} choose and {numbers[2]:,} report."
    )
    notes = (note, *filter(None, [asked.note]))
    splits = PairSplits(name=taught.name, train=train, dev=dev, test=test, notes=notes)
    return splits.without_texts(asked.asked), asked  # a query that reports may stand among the documents


def _divided(data: RetrievalSet) -> tuple[RetrievalSet, RetrievalSet]:
    """Return the half that teaches and the one that chooses and reports. Raises `DataError` where that is too few."""
    number, needed = len(set(data.queries)), 4 * FEWEST_QUERIES
    if number < needed:
        raise DataError(
            f"{data.name} has {number} judged queries: too few to learn from half of them, choose by a quarter and "
            "report the last one.",
            hint=f"Give at least {needed}, or a qrels/train.tsv of others to learn from, or {_INSTEAD}.",
        )
    teaching, others = halved(data)  # the half that would choose by itself, so that the one that would report still may
    held = with_queries(data, others.tolist(), "that taught nothing")
    return with_queries(data, teaching.tolist(), "that teach"), held


def _pairs(data: RetrievalSet, split: str, path: str) -> PairSet:
    """Pair each query with each document that answers it and is not empty."""
    judged: Sequence[TextPair] = [
        TextPair(query, data.documents[place], float(grade))
        for query, grades in zip(data.queries, data.relevance, strict=True)
        for place, grade in grades.items()
        if data.documents[place]
    ]
    highest = max((pair.target for pair in judged), default=1.0)
    return PairSet(
        name=f"{data.name}/{split}", pairs=tuple(judged), scale=(0.0, max(1.0, highest)), path=path, columns=COLUMNS
    )
