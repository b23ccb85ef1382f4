"""What distillation does: the budget, what is learned, and how; importing this imports no torch."""

import math
from dataclasses import dataclass
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
from truncate_kit.training.settings import PRECISION_HELP

BudgetKind = Literal["within", "speedup", "megabytes", "blocks"]
_POINTS, _TIMES = Bounds(0, 200, whole=False), Bounds(1, 1_000_000, whole=False, above=True)
LOWEST_TAUGHT = 2  # layer whose vectors are learned: of a single block none can be left out
_SIZE, _SHARE = Bounds(0, 1e9, whole=False, above=True), Bounds(0, 1, whole=False, below=True)
_HELD_OUT, _LAYER = Bounds(4, 10_000_000), Bounds(LOWEST_TAUGHT, math.inf)
MEASURED_WIDTH, MEASURED_RATE, HIGHEST_RATE = 384, 5e-4, 1e-3
NEARLY_ALL = 0.25  # of the blocks; one of six was measured, and two of six learn as well at the usual rate


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget(Result):
    """Which size is wanted; one of the fields, or none, which is `within` one point.

    Attributes:
        within: The fewest blocks that lose no more than these points against the full model on held-out data, after
            learning. Without labels a point is three points of agreement (`distilling.AGREEMENT_PER_POINT`).
        speedup: The most blocks with which texts are encoded that number of times as fast as by the full model.
        megabytes: The most blocks whose weights take no more than that in float32, 10⁶ bytes each.
        blocks: A number of blocks (3 or "3"), or which ones ([1, 4, 6], "1,4,6", "1..3,6"); kept as text.
    """

    within: float | None = setting(
        None,
        "The fewest blocks that lose at most these points; 1 by default. Without --data a point is three points of "
        "agreement with the full model.",
        LAYERS,
        bounds=_POINTS,
        kind=float,
    )
    speedup: float | None = setting(
        None, "The most blocks that are this number of times as fast.", LAYERS, bounds=_TIMES, kind=float
    )
    megabytes: float | None = setting(
        None, "The most blocks that fit in this size, in float32.", LAYERS, bounds=_SIZE, kind=float
    )
    # A number or a list of them may be given, and becomes text.
    blocks: str | None = setting(None, "How many blocks (3), or which ones (1,4,6).", LAYERS, kind=str)

    def __post_init__(self) -> None:
        if self.blocks is not None:
            object.__setattr__(self, "blocks", _named(self.blocks))
        named = [name for name in ("within", "speedup", "megabytes", "blocks") if getattr(self, name) is not None]
        if len(named) > 1:
            raise UsageError(
                f"`{named[0]}` and `{named[1]}` are two budgets.", hint=f"Leave out `{named[0]}` or `{named[1]}`."
            )
        check_settings(self)
        if self.blocks is not None:
            blocks_named(self.blocks)

    @property
    def kind(self) -> BudgetKind:
        """Which field counts."""
        for name in ("speedup", "megabytes", "blocks"):
            if getattr(self, name) is not None:
                return name
        return "within"

    @property
    def points(self) -> float:
        """Points that may be lost."""
        return 1.0 if self.within is None else self.within

    @property
    def number(self) -> int:
        """How many blocks are named; 0 where none are."""
        return len(self.named_blocks or ()) or int(self.blocks or 0)

    @property
    def named_blocks(self) -> tuple[int, ...] | None:
        """The blocks that were named one by one; None where a number or no blocks were given."""
        return None if self.blocks is None or self.blocks.strip().isdecimal() else blocks_named(self.blocks)


def _named(blocks: object) -> str:
    """As text, in which a number alone is how many, and a list of one block is written as a range."""
    one = blocks if isinstance(blocks, list | tuple | range) and len(blocks) == 1 else None
    return as_text(blocks) if one is None else f"{one[0]}..{one[0]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class DistillSettings(Result):
    """How the full model's vectors are learned; defaults by the ablations in benchmarks/lean.

    Attributes:
        layer: The vectors of this layer of the full model are learned, by blocks up to it; None is the last one. For
            models with a drop at their end: what lies behind the layer makes their vectors worse.
        epochs: Passes over the texts; learning ends earlier where agreement stops growing.
        batch_size: Texts of a step, of like length. What is to be met is exact, so gradients of few texts point well,
            and small steps learn more from the same texts than large ones.
        learning_rate: Peak rate, None is 5e-4 at width 384, in inverse proportion to the width, at most 1e-3; a third
            of that where less than a quarter of the blocks is left out: such a student starts near the full model, and
            smaller steps keep what it has (benchmarks/lean).
        warmup: Share of the steps.
        similarity: Weight of the mean squared error between the cosines of both models within a batch, beside the
            cosine to the full model's vector.
        states: Weight of the mean 1 − cosine between the tokens behind each kept block and behind the same block of the
            full model, which then runs at every step as well.
        train_embeddings: Whether word and position embeddings learn as well.
        max_texts: Texts that are learned from, None takes all; queries come on top, all of them.
        held_out: Texts that are kept back, half for choosing and half for the report; no more than a tenth of all, but
            42 at least.
        query_weight: Weight of a query's loss against a text's, where there are queries.
        precision: As in `TrainingSettings`.
        seed: Of the order of the texts.
        frontier: Whether graphs of the full model and of all that learned are made and measured at the end; what an
            earlier run with the same budget has measured stays.
    """

    layer: int | None = setting(None, bounds=_LAYER)
    epochs: int = setting(
        1, "Passes over the texts; ends earlier where agreement stops growing.", TRAINING, bounds=EPOCHS
    )
    batch_size: int = setting(
        16, "Texts per step; 64 and more keep a GPU busy, few teach more.", TRAINING, bounds=BATCH
    )
    learning_rate: float | None = setting(
        None,
        "Peak rate; by default 5e-4 at width 384, up to 1e-3 below, less above; a third where few blocks go.",
        TRAINING,
        bounds=RATE,
        kind=float,
    )
    warmup: float = setting(0.05, bounds=_SHARE)
    similarity: float = setting(
        0.0, "Weight of the cosines within a batch beside the vectors themselves.", TRAINING, bounds=WEIGHT
    )
    states: float = setting(
        0.0,
        "Weight of the states behind each kept block; runs the full model at every step.",
        TRAINING,
        bounds=WEIGHT,
    )
    train_embeddings: bool = setting(
        False, "Let word and position embeddings learn as well.", TRAINING, name="--train-embeddings"
    )
    max_texts: int | None = setting(
        None,
        "Learn from the first texts, this number at most, and from all queries.",
        DATA,
        bounds=TEXTS,
        kind=int,
    )
    held_out: int = setting(2000, bounds=_HELD_OUT)
    query_weight: float = setting(1.0, "Weight of a query against a text.", TRAINING, bounds=WEIGHT)
    precision: Precision = setting("fp32", PRECISION_HELP, TRAINING, choices=TRAINING_PRECISIONS)
    seed: int = setting(0, bounds=SEED)
    frontier: bool = setting(
        False,
        "Measure graphs of what learned as well, with --blocks of one size: precisions, dimensions, words.",
        LAYERS,
        name="--frontier",
    )

    def __post_init__(self) -> None:
        check_settings(self)

    def rate(self, width: int, left_out: float = 1.0) -> float:
        """The peak rate for a model of that width.

        Args:
            width: Of the model.
            left_out: Share of the full model's blocks that it lacks.
        """
        usual = min(HIGHEST_RATE, MEASURED_RATE * MEASURED_WIDTH / width)
        return self.learning_rate or (usual / 3 if left_out < NEARLY_ALL else usual)
