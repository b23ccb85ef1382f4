"""What a distillation is asked for, how it learns, and what it found; importing this imports no torch."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal

from truncate_kit.core.errors import UsageError
from truncate_kit.core.precisions import TRAINING_PRECISIONS, Precision
from truncate_kit.core.results import Result
from truncate_kit.core.settings import (
    BATCH,
    DATA,
    EPOCHS,
    LAYERS,
    RATE,
    SEED,
    TEXTS,
    TRAINING,
    WEIGHT,
    Bounds,
    as_text,
    blocks_named,
    check_settings,
    setting,
)
from truncate_kit.core.wording import too_few
from truncate_kit.training.cutting import VocabularyCut
from truncate_kit.training.settings import PRECISION_HELP

Blocks = tuple[int, ...]
Scored = tuple[Blocks, float]
"""A subset of blocks and its score in points."""
BudgetKind = Literal["within", "speedup", "megabytes", "blocks"]
_KINDS: tuple[BudgetKind, ...] = ("within", "speedup", "megabytes", "blocks")
_POINTS, _TIMES = Bounds(0, 200, whole=False), Bounds(1, 1_000_000, whole=False, above=True)
LOWEST_TAUGHT = 2  # layer whose vectors are learned: a single block cannot be left out
_SIZE, _SHARE = Bounds(0, 1e9, whole=False, above=True), Bounds(0, 1, whole=False, below=True)
_HELD_OUT, _LAYER = Bounds(4, 10_000_000), Bounds(LOWEST_TAUGHT, math.inf)
MEASURED_WIDTH, MEASURED_RATE, HIGHEST_RATE = 384, 5e-4, 1e-3
NEARLY_ALL = 0.25  # of the blocks; one of six was measured, and two of six learn as well at the usual rate
NEAR = 10
"""Nearest neighbours of a text; as many texts drawn at random stand beside them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget(Result):
    """The wanted size: one of the fields, by default `within` one point.

    Attributes:
        within: Keep the fewest blocks that lose at most these points on held-out data, after learning. Without labels
            a point is three points of agreement (`distilling.AGREEMENT_PER_POINT`).
        speedup: Keep the most blocks that encode this number of times as fast as the full model.
        megabytes: Keep the most blocks with float32 weights of at most this size, in 10⁶ bytes.
        blocks: Keep this number of blocks (3 or "3"), or these blocks ([1, 4, 6], "1,4,6", "1..3,6"); stored as text.
    """

    within: float | None = setting(None, "Lose at most these points; 1 by default.", LAYERS, bounds=_POINTS, kind=float)
    speedup: float | None = setting(None, "Most blocks this many times as fast.", LAYERS, bounds=_TIMES, kind=float)
    megabytes: float | None = setting(None, "Most blocks of this size, in float32.", LAYERS, bounds=_SIZE, kind=float)
    blocks: str | None = setting(None, "How many blocks (3), or which ones (1,4,6).", LAYERS, kind=str)

    def __post_init__(self) -> None:
        asked = [name for name in _KINDS if getattr(self, name) is not None]
        if len(asked) > 1:
            hint = f"Leave out `{asked[0]}` or `{asked[1]}`."
            raise UsageError(f"`{asked[0]}` and `{asked[1]}` are two budgets.", hint=hint)
        if not asked:
            object.__setattr__(self, "within", 1.0)
        check_settings(self)
        if self.blocks is not None:
            blocks = as_text(self.blocks)
            if isinstance(self.blocks, list | tuple | range) and len(self.blocks) == 1:
                blocks = f"{blocks}..{blocks}"  # a number alone is how many
            object.__setattr__(self, "blocks", blocks)
            blocks_named(blocks)

    @property
    def kind(self) -> BudgetKind:
        """Name the field that is set."""
        return next(name for name in _KINDS if getattr(self, name) is not None)

    @property
    def named_blocks(self) -> Blocks | None:
        """Return the blocks if they are named one by one."""
        return None if self.blocks is None or self.blocks.strip().isdecimal() else blocks_named(self.blocks)

    @property
    def number(self) -> int:
        """Count the wanted blocks; 0 for other budgets."""
        return len(self.named_blocks or ()) or int(self.blocks or 0)

    def allows(self, row: "LeanModel", full: "LeanModel", needed: float | None) -> bool:
        """Tell whether a model keeps the budget. needed: the score for `within`."""
        if self.blocks is not None:
            return len(row.blocks) == self.number
        if self.speedup is not None:
            return row.texts_per_second >= self.speedup * full.texts_per_second
        if self.megabytes is not None:
            return row.megabytes <= self.megabytes
        return row.score >= (needed or 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class DistillSettings(Result):
    """How the full model's vectors are learned; defaults by the ablations in benchmarks/lean.

    Attributes:
        layer: Learn the vectors of this layer of the full model, by blocks up to it; by default the last layer. For
            models that get worse at their end.
        epochs: Passes over the texts; learning stops early when agreement stops growing.
        batch_size: Texts per step, of similar length. Targets are exact, so small batches have good gradients and
            teach more from the same texts.
        learning_rate: Peak rate; by default 5e-4 at width 384, inversely proportional to the width, at most 1e-3; a
            third of it if less than a quarter of the blocks is left out: the student then starts near the full model.
        warmup: Share of the steps.
        similarity: Weight of the mean squared error between the cosines of both models within a batch.
        states: Weight of the mean 1 − cosine between token states of both models behind each kept block; runs the full
            model at every step.
        train_embeddings: Train word and position embeddings as well.
        max_texts: Texts to learn from, by default all; all queries are added.
        held_out: Held-out texts, half to choose and half to report; at most a tenth of all texts, at least 42.
        query_weight: Weight of a query in the loss, relative to a text.
        precision: See `TrainingSettings`.
        seed: Seed of the order of the texts.
        frontier: Export and measure graphs of the full model and of all students that are still stored.
    """

    layer: int | None = setting(None, bounds=_LAYER)
    epochs: int = setting(1, "Passes over the texts; stops early when agreement settles.", TRAINING, bounds=EPOCHS)
    batch_size: int = setting(16, "Texts per step; 64 or more keep a GPU busy.", TRAINING, bounds=BATCH)
    learning_rate: float | None = setting(
        None, "Peak rate; by default by width and left-out blocks.", TRAINING, bounds=RATE, kind=float
    )
    warmup: float = setting(0.05, bounds=_SHARE)
    similarity: float = setting(0.0, "Weight of the cosines within a batch.", TRAINING, bounds=WEIGHT)
    states: float = setting(0.0, "Weight of the states behind each kept block.", TRAINING, bounds=WEIGHT)
    train_embeddings: bool = setting(
        False, "Train word and position embeddings as well.", TRAINING, name="--train-embeddings"
    )
    max_texts: int | None = setting(
        None, "Learn from the first texts, this number at most, and all queries.", DATA, bounds=TEXTS, kind=int
    )
    held_out: int = setting(2000, bounds=_HELD_OUT)
    query_weight: float = setting(1.0, "Weight of a query relative to a text.", TRAINING, bounds=WEIGHT)
    precision: Precision = setting("fp32", PRECISION_HELP, TRAINING, choices=TRAINING_PRECISIONS)
    seed: int = setting(0, bounds=SEED)
    frontier: bool = setting(
        False, "Measure graphs of what learned: precisions, dimensions, words.", LAYERS, name="--frontier"
    )

    def __post_init__(self) -> None:
        check_settings(self)

    def rate(self, width: int, left_out: float = 1.0) -> float:
        """Return the peak rate. left_out: share of the blocks that the student lacks."""
        usual = min(HIGHEST_RATE, MEASURED_RATE * MEASURED_WIDTH / width)
        return self.learning_rate or (usual / 3 if left_out < NEARLY_ALL else usual)

    @property
    def teacher(self) -> str:
        """Name the source of the vectors that are learned."""
        return "the full model" if self.layer is None else f"layer {self.layer} of the full model"

    @property
    def agreement(self) -> str:
        """Name the metric without labels."""
        return f"agreement with {self.teacher}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement(Result):
    """Agreement with the full model on held-out text; intervals are 95 %, by a bootstrap over texts.

    Attributes:
        correlation: Spearman × 100 between the cosines of both models, over each text paired with its `NEAR` nearest
            texts by the full model and as many random ones; 100 is the full model itself.
        low: Lower end of its interval.
        high: Upper end of its interval.
        overlap: Share × 100 of the `NEAR` nearest texts of each text that both models have in common.
        overlap_low: Lower end of its interval.
        overlap_high: Upper end of its interval.
        num_texts: Held-out texts.
    """

    correlation: float
    low: float
    high: float
    overlap: float
    num_texts: int
    overlap_low: float
    overlap_high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LeanModel(Result):
    """Some blocks of the full model, or all of them, and one way to serve them.

    Attributes:
        blocks: Kept blocks of the full model.
        score: In points; the score after learning if the blocks learned, else before.
        untrained: Score before learning; not of graphs.
        scores: Scores after each evaluation of learning; empty without learning.
        agreement: On the report texts; of few-text trials on the texts that choose.
        steps: Optimiser steps.
        seconds: Duration of learning and evaluation.
        precision: Precision of the weights; runs in ONNX Runtime if `dims` is set, else in torch.
        dims: Leading dimensions kept of a graph's vectors.
        words: Word pieces kept by a graph.
        texts_per_second: Timed side by side with all others.
        megabytes: Size of the graph's files or of the float32 weights, in 10⁶ bytes.
        interval: 95 % interval of the score before learning or of a graph, by a bootstrap over labels; absent
            if agreement chooses.
        speedup_interval: 95 % interval of the speed relative to the full model, by a bootstrap over rounds.
        dominated: Another one is at least as good, fast, small and short (see `frontier.mark_dominated`).
    """

    blocks: Blocks
    score: float
    untrained: float | None = None
    scores: tuple[float, ...] = ()
    agreement: Agreement | None = None
    steps: int = 0
    seconds: float = 0.0
    precision: Precision = "fp32"
    dims: int = 0
    words: int = 0
    texts_per_second: float = 0.0
    megabytes: float = 0.0
    interval: tuple[float, float] | None = None
    speedup_interval: tuple[float, float] | None = None
    dominated: bool = False

    @property
    def graph(self) -> tuple[Blocks, Precision, int]:
        """Identify the graph: its rows differ in dimensions only."""
        return self.blocks, self.precision, self.words

    @property
    def as_it_came(self) -> bool:
        """Tell whether the blocks learned and are still kept with their old weights."""
        return bool(self.scores) and self.score > max(self.scores)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured(Result):
    """Stored measurements: the models of each size, or the graphs of some of them.

    Attributes:
        rows: The full model is the last size, and the first graph.
        others_busy: Share of the machine that other processes took, if known.
        covered: Share × 100 of held-out texts with word pieces of the learned texts only.
    """

    rows: tuple[LeanModel, ...]
    others_busy: float | None = None
    covered: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SubsetSearch(Result):
    """Subsets of blocks that were scored without training.

    Attributes:
        leading: Up to `subsets.LEADING` subsets of each number of blocks, smallest number first, best first.
        baselines: Subsets that simpler rules keep, by the names of `subsets.baseline_blocks`.
        tried: Number of subsets.
        exact: All subsets that an ordinary checkpoint can hold were scored.
        seconds: Duration of the search.
        num_texts: Number of shortened texts, if all texts would have taken too long.
    """

    leading: tuple[Scored, ...]
    baselines: dict[str, tuple[Scored, ...]]
    tried: int
    exact: bool
    seconds: float
    num_texts: int | None = None

    @property
    def best(self) -> list[Scored]:
        """Return the best subset of each number of blocks, the full model last."""
        return [next(rows) for _, rows in groupby(self.leading, key=lambda one: len(one[0]))]


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOutScores(Result):
    """Scores in points on test pairs, or on the half of the queries that did not choose.

    Attributes:
        data: Name of the set.
        metric: "Spearman × 100", or a metric of search.
        lean: Score of the lean model.
        full: Score of the full model.
        mixed: Score of lean queries on the full model's document vectors; not for pairs.
        difference: lean − full.
        low: Lower end of its 95 % interval, by a paired bootstrap.
        high: Upper end of its 95 % interval.
        num_compared: Number of pairs or queries.
    """

    data: str
    metric: str
    lean: float
    full: float
    mixed: float | None
    difference: float
    low: float
    high: float
    num_compared: int | None = None

    @property
    def of_queries(self) -> bool:
        """Tell whether queries were compared, not pairs."""
        return not self.metric.startswith("Spearman")

    @property
    def too_few(self) -> str | None:
        """Return a warning if they are too few for an interval."""
        return too_few(self.num_compared, *(("query", "queries") if self.of_queries else ("pair", "pairs")))


@dataclass(frozen=True, slots=True, kw_only=True)
class DistillResult(Result):
    """A distillation.

    Attributes:
        model: The full model.
        depth: Number of its blocks.
        before: Earlier changes to it, in words.
        metric: What scores are, in words.
        full_score: Score of the teacher (the full model or its `settings.layer`); 100 for agreement.
        budget: The wanted size.
        settings: How the model learned.
        learning_rate: Peak rate.
        texts: Counts of texts (`num_texts`, of these `num_queries`; `repeated` and `excluded` ones were left out; `cut`
            ones exceed the model's length; `compared` texts of evaluation sets were searched for) and of tokens
            (`tokens` in all; `middle` and `long` are the 50 % and 95 % quantiles of a text).
        search: Subsets before learning.
        tryouts: Subsets that learned from few texts, to find the one that learns from all.
        candidates: The best model of each number of blocks, the full model last.
        chosen: Blocks of the lean model.
        holds: The chosen model keeps the budget.
        needed: Score that `within` requires.
        scores: On test pairs, or on the other half of the queries.
        frontier: Graphs of the full model, first, and of students; empty if never measured.
        covered: See `Measured`.
        unmeasured: Learned blocks without graphs in the frontier: their weights, of other runs, are gone.
        vocabulary: The cut of the vocabulary, made after learning, if any.
        all_words: Agreement of the chosen blocks with all word pieces, if they were cut.
        data: Name of the evaluation data; may be empty.
        data_tokens: 95 % quantile of the tokens of its texts.
        data_fingerprint: Fingerprint of the pairs that chose; may be empty.
        num_seen: Test pairs left out because the full model had seen them.
        others_busy: See `Measured`; while sizes were timed.
        measure: Similarity by which the full model compares vectors, if their lengths count; else `cosine`.
    """

    model: str
    depth: int
    before: str
    metric: str
    full_score: float
    budget: Budget
    settings: DistillSettings
    learning_rate: float
    texts: dict[str, int]
    search: SubsetSearch
    tryouts: tuple[LeanModel, ...]
    candidates: tuple[LeanModel, ...]
    chosen: Blocks
    holds: bool
    needed: float | None
    scores: HeldOutScores | None
    frontier: tuple[LeanModel, ...] = ()
    covered: float | None = None
    unmeasured: tuple[Blocks, ...] = ()
    vocabulary: VocabularyCut | None = None
    all_words: Agreement | None = None
    data: str = ""
    data_tokens: int | None = None
    data_fingerprint: str = ""
    num_seen: int = 0
    others_busy: float | None = None
    measure: str = "cosine"

    @property
    def student(self) -> LeanModel:
        """Return the chosen candidate."""
        return next(row for row in self.candidates if row.blocks == self.chosen)

    @property
    def speedup(self) -> float:
        """Return the speed in torch, relative to the full model."""
        return self.student.texts_per_second / self.candidates[-1].texts_per_second

    @property
    def holds_unseen(self) -> bool | None:
        """Tell whether the chosen model keeps `within` on data that did not choose, if known."""
        if self.needed is None:
            return None
        if self.metric == self.settings.agreement:
            return self.student.agreement is not None and self.student.agreement.correlation >= self.needed
        if self.scores is None or self.settings.layer is not None or self.scores.too_few is not None:
            return None  # scores are against the whole model, not a layer of it
        return self.scores.difference >= -(self.budget.within or 0.0)


def megabytes_of(parameters: int) -> float:
    """Convert a number of float32 parameters to 10⁶ bytes."""
    return parameters * 4 / 1e6


def within_limit(candidates: Sequence[LeanModel], budget: Budget) -> LeanModel:
    """Return the largest candidate that `blocks`, `speedup` or `megabytes` allow. Raises `UsageError`."""
    *lean, full = candidates
    fitting = [row for row in lean if budget.allows(row, full, None)]
    if not fitting:
        fastest = max(row.texts_per_second for row in candidates) / full.texts_per_second
        raise UsageError(
            f"No choice of blocks keeps to that: they have {len(lean[0].blocks)} to {len(lean)} blocks, are up to "
            f"{fastest:.1f} times as fast as the full model and take {candidates[0].megabytes:.1f} megabytes or more.",
            hint="Ask for less; an int8 graph makes any of them faster and a quarter as large.",
        )
    return fitting[-1]


def graph_within(rows: Sequence[LeanModel], budget: Budget, needed: float | None) -> LeanModel | None:
    """Return the graph that the budget takes: the fastest with the score `needed`, or the best one allowed.

    Returns no graph if the budget names blocks or is not met. The full model's float32 graph is the first row.
    """
    fitting = [] if budget.blocks is not None else [row for row in rows if budget.allows(row, rows[0], needed)]
    if budget.within is not None:
        return max(fitting, key=lambda row: (row.texts_per_second, -row.dims, -row.megabytes, row.score), default=None)
    return max(
        fitting, key=lambda row: (round(row.score, 2), row.texts_per_second, -row.dims, -row.megabytes), default=None
    )
