"""Budgets, settings and results of a distillation, without torch."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import fields, replace
from itertools import groupby
from operator import ge

import numpy as np

from truncate_kit.core.errors import UsageError, counted
from truncate_kit.core.hardware import TRAINING_PRECISIONS, Precision
from truncate_kit.core.results import (
    COUNT,
    DATA,
    LAYERS,
    RATE,
    SEED,
    WEIGHT,
    Bounds,
    Result,
    as_text,
    blocks_named,
    setting,
)
from truncate_kit.core.vectors import too_few
from truncate_kit.core.workspace import VocabularyCut
from truncate_kit.training.settings import LEARNING, PRECISION_HELP

Blocks = tuple[int, ...]
Scored = tuple[Blocks, float]  # score in points
_POINTS, _TIMES = Bounds(0, whole=False), Bounds(1, whole=False, above=True)
LOWEST_TAUGHT = 2  # lowest target layer: a student has fewer blocks
_SIZE, _SHARE = Bounds(0, whole=False, above=True), Bounds(0, 1, whole=False, below=True)
_HELD_OUT, _LAYER = Bounds(4), Bounds(LOWEST_TAUGHT)
MEASURED_WIDTH, MEASURED_RATE, HIGHEST_RATE = 384, 5e-4, 1e-3
NEARLY_ALL = 0.25  # share of removed blocks
EVALUATIONS = 20  # per epoch
LEADING = 4  # subsets of each size that training compares
ENOUGH_TEXTS = 2000  # between evaluations, to compare subsets at the first one
BEAM, SEARCHED_TEXTS = 24, 100  # subsets of each size that a search scores, and texts that it scores them on
TIMING_SECONDS, STARTING_SECONDS, GRAPHS_SECONDS = 10.0, 20.0, 90.0
NO_LOSS, PER_POINT = 5.0, 2.9
"""Missing agreement that loses nothing, and more that loses a point (benchmarks/lean)."""
FEW, MANY, MOST = 4000, 120_000, 330_000
MISSING = {1: (19.0, 10.0), 2: (12.1, 7.2), 3: (9.0, 4.5), 4: (6.0, 2.9), 6: (0.0, 0.0)}
"""Agreement that all-MiniLM-L6-v2 misses, by blocks, after `FEW` and `MANY` texts."""
AMONG, NEAR = 41, 4
"""A tenth of 40 other texts; fixed, as agreement grows with this number."""


class Budget(Result):
    """Target size of the lean model, set by one field; by default `within` is one point.

    Attributes:
        within: Keep the fewest blocks that lose at most this many points after training, without labels by
            `needed_agreement`.
        speedup: Keep the most blocks with at least this speedup over the full model, by operations.
        megabytes: Keep the most blocks with at most this many 10⁶ bytes of float32 weights.
        blocks: Number of blocks (3 or "3") or the blocks themselves ([1, 4, 6], "1..3,6"); stored as text.
    """

    within: float | None = setting(
        None, "Largest score loss in points (default 1); keeps the fewest blocks.", LAYERS, bounds=_POINTS
    )
    speedup: float | None = setting(
        None, "Minimum speedup over the full model; keeps the most blocks.", LAYERS, bounds=_TIMES
    )
    megabytes: float | None = setting(
        None, "Largest float32 size in megabytes; keeps as many blocks as possible.", LAYERS, bounds=_SIZE
    )
    blocks: str | None = setting(None, "Number of blocks (3), or block numbers (1,4,6).", LAYERS)

    def __post_init__(self) -> None:
        asked = [field.name for field in fields(self) if getattr(self, field.name) is not None]
        if len(asked) > 1:
            hint = f"Leave out `{asked[0]}` or `{asked[1]}`."
            raise UsageError(f"`{asked[0]}` and `{asked[1]}` are two budgets.", hint=hint)
        if not asked:
            object.__setattr__(self, "within", 1.0)
        super().__post_init__()
        if self.blocks is not None:
            blocks = as_text(self.blocks)
            if isinstance(self.blocks, list | tuple | range) and len(self.blocks) == 1:
                blocks = f"{blocks}..{blocks}"  # a plain number is a count
            object.__setattr__(self, "blocks", blocks)
            blocks_named(blocks)

    @property
    def kind(self) -> str:
        """Name the budget."""
        return next(field.name for field in fields(self) if getattr(self, field.name) is not None)

    @property
    def named_blocks(self) -> Blocks | None:
        """Return the blocks if the budget names them."""
        return None if self.blocks is None or self.blocks.strip().isdecimal() else blocks_named(self.blocks)

    @property
    def number(self) -> int:
        """Return the wanted number of blocks; 0 for other budgets."""
        return len(self.named_blocks or ()) or int(self.blocks or 0)

    def check(self, depth: int, layer: int | None = None) -> None:
        """Raise `UsageError` if no model below `depth` blocks can meet the budget; layer: of the target."""
        most = min(depth - 1, layer or depth)
        if self.blocks is not None and not 0 < self.number <= most:
            hint = f"Give `blocks` from 1 to {most}."
            raise UsageError(f"No lean model has {counted(self.number, 'block')}.", hint=hint)
        if self.speedup is not None and self.speedup >= depth:
            hint = "Give a smaller `speedup`; an int8 graph makes the lean model faster again."
            problem = f"{self.speedup:g} is out of reach: one of {depth} blocks is not {depth} times as fast."
            raise UsageError(problem, hint=hint)

    def allows(self, row: "LeanModel", full: "LeanModel", needed: float | None) -> bool:
        """Return whether a model is within the budget; `needed`: lowest score for `within`."""
        if self.blocks is not None:
            return len(row.blocks) == self.number
        if self.speedup is not None:
            return round(row.pace / full.pace, 1) >= self.speedup  # as it is shown
        if self.megabytes is not None:
            return row.megabytes <= self.megabytes
        return row.score >= (needed or 0.0)


class DistillSettings(Result):
    """Settings of the training of students; defaults from the ablations in benchmarks/lean.

    Attributes:
        layer: Target layer of the full model, if its last layers score worse; by default the last.
        epochs: Passes over the texts; training stops early when scores stop growing.
        batch_size: Texts per step, of similar length.
        learning_rate: Peak rate; by default 5e-4 · 384 / width, at most 1e-3, and a third if less than a quarter of
            the blocks is removed.
        warmup: Share of warmup steps.
        similarity: Weight of the squared error between both models' cosines within a batch.
        states: Weight of 1 − cosine between both models' token states after each kept block.
        max_texts: Maximum number of training texts, not counting queries; by default all.
        held_out: Held-out texts, half for selection, half for the report; at most a tenth of all texts, at least 82.
        precision: See `TrainingSettings`.
        seed: For the order of texts.
        frontier: Export and measure graphs of the full model and all stored students.
    """

    layer: int | None = setting(None, bounds=_LAYER)
    epochs: int = setting(1, "Passes over the texts; stops early when scores stop growing.", bounds=COUNT)
    batch_size: int = setting(16, "Texts per step; 64 or more keep a GPU busy.", bounds=COUNT)
    learning_rate: float | None = setting(
        None, "Peak learning rate; by default from width and removed blocks.", bounds=RATE
    )
    warmup: float = setting(0.05, bounds=_SHARE)
    similarity: float = setting(0.0, "Weight of the loss on cosines within a batch.", bounds=WEIGHT)
    states: float = setting(0.0, "Weight of the loss on states after each kept block.", bounds=WEIGHT)
    train_embeddings: bool = setting(False, "Train word and position embeddings as well.", name="--train-embeddings")
    max_texts: int | None = setting(None, "Train on at most this many texts, and all queries.", DATA, bounds=COUNT)
    held_out: int = setting(2000, bounds=_HELD_OUT)
    query_weight: float = setting(1.0, "Weight of a query relative to a text.", bounds=WEIGHT)
    precision: Precision = setting(
        "fp32", PRECISION_HELP.replace("training", "training and of the full model"), choices=TRAINING_PRECISIONS
    )
    seed: int = setting(0, bounds=SEED)
    frontier: bool = setting(
        False,
        "Measure graphs of trained models by precision, dimensions and vocabulary size.",
        LAYERS,
        name="--frontier",
    )

    def rate(self, width: int, left_out: float = 1.0) -> float:
        """Return the peak learning rate; `left_out` is the share of removed blocks."""
        usual = min(HIGHEST_RATE, MEASURED_RATE * MEASURED_WIDTH / width)
        return self.learning_rate or (usual / 3 if left_out < NEARLY_ALL else usual)

    @property
    def teacher(self) -> str:
        """Return the teacher in words."""
        return "the full model" if self.layer is None else f"layer {self.layer} of the full model"

    @property
    def agreement(self) -> str:
        """Return the name of the metric without labels."""
        return f"agreement with {self.teacher}"


class Agreement(Result):
    """Agreement with the full model on held-out texts; 95 % intervals by a bootstrap over texts.

    correlation: Spearman × 100 between both models' cosines, of each text with the full model's `NEAR` nearest of
    `AMONG` − 1 other texts and `NEAR` random texts. overlap: percentage of these nearest texts that both models share.
    """

    correlation: float
    low: float
    high: float
    overlap: float
    num_texts: int
    overlap_low: float
    overlap_high: float


class LeanModel(Result):
    """Measurements of a model with some or all blocks, in torch or as an exported graph."""

    blocks: Blocks
    score: float  # points; after training, if trained; in the search, if only searched
    untrained: float | None = None  # score before training; not for graphs
    scores: tuple[float, ...] = ()  # at each evaluation in training
    agreement: Agreement | None = None  # on the report texts
    steps: int = 0
    seconds: float = 0.0  # training and evaluation
    precision: Precision = "fp32"  # in ONNX Runtime if `dims` is set, else in torch
    dims: int = 0  # leading dimensions of a graph's vectors
    words: int = 0  # vocabulary size of a graph
    texts_per_second: float = 0.0  # timed side by side; 0 if not timed
    pace: float = 0.0  # decides: texts per 10⁹ operations (an estimate), of a graph per processor second
    megabytes: float = 0.0  # graph files or float32 weights, 10⁶ bytes
    interval: tuple[float, float] | None = None  # 95 %, over labels, of the untrained model or graph
    speedup_interval: tuple[float, float] | None = None  # 95 %, relative to the full model, over timing rounds
    dominated: bool = False

    @property
    def graph(self) -> tuple[Blocks, Precision, int]:
        """Return the graph's key; rows with equal keys differ only in dimensions."""
        return self.blocks, self.precision, self.words

    @property
    def as_it_came(self) -> bool:
        """Return whether the untrained weights are kept, as training lowered the score."""
        return bool(self.scores) and self.score > max(self.scores)


class Measured(Result):
    """Stored measurements: speeds of the chosen and the full model; or graphs, the full model's first."""

    rows: tuple[LeanModel, ...]
    covered: float | None = None  # percentage of held-out texts with only word pieces of training texts


class SubsetSearch(Result):
    """Scores of subsets of blocks without training."""

    leading: tuple[Scored, ...]  # `subsets.LEADING` of each size, best first; smallest size first
    baselines: dict[str, tuple[Scored, ...]]  # by name in `subsets.baseline_blocks`; empty for named blocks
    tried: int
    exact: bool  # True if all possible subsets were scored
    seconds: float
    num_texts: int | None = None  # short texts; all, if None

    @property
    def best(self) -> list[Scored]:
        """Return the best subset of each size, the full model last."""
        return [next(rows) for _, rows in groupby(self.leading, key=lambda one: len(one[0]))]


class HeldOutScores(Result):
    """Scores in points on test pairs or report queries; 95 % interval by a paired bootstrap."""

    data: str
    metric: str  # "Spearman × 100", or a retrieval metric
    lean: float
    full: float
    mixed: float | None  # lean query vectors with the full model's document vectors
    difference: float  # lean − full
    low: float
    high: float
    num_compared: int | None = None
    changed: tuple[int, int] | None = None  # queries with a higher and with a lower score

    @property
    def of_queries(self) -> bool:
        """Return whether queries were compared."""
        return not self.metric.startswith("Spearman")

    @property
    def too_few(self) -> str | None:
        """Return a warning if pairs or queries are too few for an interval."""
        names = ("query", "queries") if self.of_queries else ("pair", "pairs")
        return too_few(self.num_compared, *names, self.changed)


class DistillResult(Result):
    """Result of `distill`.

    texts: `num_texts`: stored texts, including `num_queries`; `cut`: texts longer than the model's limit;
    `repeated`, `excluded`: texts not stored; `compared`: `exclude` texts; `tokens`: all tokens; `middle`, `long`: 50 %
    and 95 % quantiles of tokens per text.
    """

    model: str
    depth: int
    before: str  # earlier changes to the model, in words
    metric: str
    full_score: float  # of the teacher; 100 for agreement
    budget: Budget
    settings: DistillSettings
    learning_rate: float  # peak
    texts: dict[str, int]
    search: SubsetSearch
    tryouts: tuple[LeanModel, ...]  # the leading subsets at both stages of `races`
    candidates: tuple[LeanModel, ...]  # best of each number of blocks, the full model last
    chosen: Blocks
    holds: bool
    needed: float | None  # score that `within` requires
    scores: HeldOutScores | None
    frontier: tuple[LeanModel, ...] = ()  # graphs of the full model, first, and of students
    covered: float | None = None  # see `Measured`
    vocabulary: VocabularyCut | None = None  # cut after training
    all_words: Agreement | None = None  # before the vocabulary cut
    data: str = ""
    data_tokens: int | None = None  # 95 % quantile of tokens per text of `data`
    data_fingerprint: str = ""  # of the pairs used for selection
    num_seen: int = 0  # excluded test pairs, which the full model has seen
    measure: str = "cosine"  # full model's similarity; cosine for normalised vectors

    @property
    def student(self) -> LeanModel:
        """Return the chosen candidate."""
        return next(row for row in self.candidates if row.blocks == self.chosen)

    @property
    def speedup(self) -> float:
        """Return the speed in torch, relative to the full model."""
        return self.student.texts_per_second / self.candidates[-1].texts_per_second

    @property
    def expected_speedup(self) -> float:
        """Return the speedup by operations."""
        return self.student.pace / self.candidates[-1].pace

    @property
    def holds_unseen(self) -> bool | None:
        """Return whether the chosen model also keeps `within` on report data, if known."""
        if self.needed is None:
            return None
        if self.metric == self.settings.agreement:
            return self.student.agreement is not None and self.student.agreement.correlation >= self.needed
        if self.scores is None or self.settings.layer is not None or self.scores.too_few is not None:
            return None  # scores compare with the full model, not the target layer
        return self.scores.difference >= -(self.budget.within or 0.0)


def held_out_number(texts: int, settings: DistillSettings) -> int:
    """Count held-out texts."""
    return max(2 * AMONG, min(settings.held_out, texts // 10))


def races(texts: int) -> tuple[int, int]:
    """Return after how many evaluations half of the leading subsets go on, and then the best one.

    A tenth and a fifth of an epoch; half of it with many texts. Successive halving (arXiv:1502.07943).
    """
    first = 1 if texts >= EVALUATIONS * ENOUGH_TEXTS else 2
    return first, 2 * first


def numbers_scored(depth: int, smallest: int, beam: int = BEAM) -> dict[int, int]:
    """Count the subsets of each size that a search scores."""
    return {
        size: min(math.comb(depth, size), max(beam, depth * (size == depth - 1))) for size in range(smallest, depth + 1)
    }


def needed_agreement(points: float) -> float:
    """Return the agreement that should lose these points of similarity."""
    return 100 - NO_LOSS - PER_POINT * points


def _missing(share: float) -> tuple[float, float]:
    """Interpolate `MISSING` by the share of blocks."""
    few, many = (float(np.interp(6 * share, [*MISSING], column)) for column in zip(*MISSING.values(), strict=True))
    return few, many


def expected_loss(share: float, texts: int) -> float:
    """Estimate the points of similarity that this share of the blocks loses."""
    few, many = _missing(share)
    missing = few + (many - few) * math.log(texts / FEW, MANY / FEW)
    return max(0.0, missing - NO_LOSS) / PER_POINT


def more_texts(depth: int, blocks: int, texts: int, points: float) -> str | None:
    """Tell how many texts one block fewer needs, if more and as many as were measured."""
    few, many = _missing((blocks - 1) / depth)
    if 6 * (blocks - 1) < depth or few == many:
        return None
    needed = FEW * (MANY / FEW) ** ((few - (NO_LOSS + PER_POINT * points)) / (few - many))
    rounded = float(f"{needed:.1e}")
    if not texts < rounded <= MOST:
        return None
    return f"With {rounded:,.0f} texts, {counted(blocks - 1, 'block')} should do, as measured on all-MiniLM-L6-v2."


def expected_seconds(
    budget: Budget, settings: DistillSettings, depth: int, texts: int, block: float
) -> dict[str, float]:
    """Estimate each part of a distillation; block: seconds of one block for one text."""
    held = held_out_number(texts, settings)
    learned, judged = texts - held, held / 2
    sizes, smallest = [depth / 2] * (depth - 1).bit_length(), 1  # of a binary search
    if budget.within is None:
        smallest = budget.number or (depth - 1 if budget.speedup is None else max(1, int(depth / budget.speedup)))
        sizes = [smallest]
    named = budget.named_blocks is not None
    searched = (
        judged * depth
        if named
        else SEARCHED_TEXTS * sum(n * (size + 1) / 2 for size, n in numbers_scored(depth, smallest).items())
    )
    lost = 0 if named else LEADING * races(learned)[0] / EVALUATIONS
    taught = (settings.epochs + lost) * (LEARNING * learned + EVALUATIONS * judged)
    return {
        "starting and saving": STARTING_SECONDS,
        "encoding": block * texts * depth,
        "searching": block * searched,
        "learning": block * sum(sizes) * taught,
        "timing": TIMING_SECONDS,
        **({"measuring graphs": GRAPHS_SECONDS} if settings.frontier else {}),
    }


def megabytes_of(parameters: int) -> float:
    """Convert a number of float32 parameters to 10⁶ bytes."""
    return parameters * 4 / 1e6


def within_limit(candidates: Sequence[LeanModel], budget: Budget) -> LeanModel:
    """Return the largest candidate that the budget allows, or raise `UsageError`."""
    *lean, full = candidates
    fitting = [row for row in lean if budget.allows(row, full, None)]
    if not fitting:
        fastest = max(row.pace for row in candidates) / full.pace
        raise UsageError(
            f"No lean model is within the budget: lean models have {len(lean[0].blocks)} to {len(lean)} blocks, "
            f"are up to {fastest:.1f} times as fast as the full model and take "
            f"{candidates[0].megabytes:.1f} megabytes or more.",
            hint="Relax the budget; an int8 graph is faster and a quarter as large.",
        )
    return fitting[-1]


def graph_within(rows: Sequence[LeanModel], budget: Budget, needed: float | None) -> LeanModel | None:
    """Return the best graph in the budget: the fastest for `within`; none for blocks.

    rows: the full model's float32 graph comes first.
    """
    fitting = [] if budget.blocks is not None else [row for row in rows if budget.allows(row, rows[0], needed)]
    if budget.within is not None:
        return max(fitting, key=lambda row: (row.pace, -row.dims, -row.megabytes, row.score), default=None)
    return max(fitting, key=lambda row: (round(row.score, 2), row.pace, -row.dims, -row.megabytes), default=None)


def merged_graphs(measured: Sequence[Measured]) -> tuple[LeanModel, ...]:
    """Merge measurements, from most to fewest blocks; scale earlier speeds to the latest run."""
    latest = measured[-1].rows
    rows = {(row.graph, row.dims): row for row in latest}
    for earlier in measured[:-1]:
        first, now = earlier.rows[0], latest[0]
        for row in earlier.rows:
            speed = row.texts_per_second * now.texts_per_second / first.texts_per_second
            scaled = replace(row, texts_per_second=speed, pace=row.pace * now.pace / first.pace)
            rows.setdefault((row.graph, row.dims), scaled)
    full, *rest = rows.values()
    return mark_dominated([full, *sorted(rest, key=lambda row: -len(row.blocks))])


def mark_dominated(rows: Iterable[LeanModel]) -> tuple[LeanModel, ...]:
    """Mark rows off the Pareto front of score, speed, size and dimensions.

    Trained and untrained rows are not compared, except with the full model.
    """
    rows = list(rows)
    most = max(len(row.blocks) for row in rows)

    def values(row: LeanModel) -> tuple[float, ...]:
        return round(row.score, 2), row.pace, -row.megabytes, -row.dims

    def is_beaten(row: LeanModel) -> bool:
        return any(
            values(other) != values(row) and all(map(ge, values(other), values(row)))
            for other in rows
            if most in (len(row.blocks), len(other.blocks)) or bool(row.scores) == bool(other.scores)
        )

    return tuple(replace(row, dominated=is_beaten(row)) for row in rows)
