"""What distillation does: the budget, what is learned, and how; importing this imports no torch."""

import math
from dataclasses import dataclass
from typing import Literal

from truncate_kit.bounds import BATCH, EPOCHS, SEED, TEXTS, WEIGHT, Bounds, check_numbers, check_rate
from truncate_kit.errors import UsageError
from truncate_kit.naming import as_text, blocks_named
from truncate_kit.precisions import Precision, check_training_precision
from truncate_kit.results import Result

BudgetKind = Literal["within", "speedup", "megabytes", "blocks"]
_POINTS, _TIMES = Bounds(0, 200, whole=False), Bounds(1, 1_000_000, whole=False, above=True)
LOWEST_TAUGHT = 2  # layer whose vectors are learned: of a single block none can be left out
_SIZE, _HELD_OUT, _LAYER = (
    Bounds(0, 1e9, whole=False, above=True),
    Bounds(4, 10_000_000),
    Bounds(LOWEST_TAUGHT, math.inf),
)
MEASURED_WIDTH, MEASURED_RATE, HIGHEST_RATE = 384, 5e-4, 1e-3
NEARLY_ALL = 0.25  # of the blocks; one of six was measured, and two of six learn as well at the usual rate


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget(Result):
    """Which size is wanted; one of the fields, or none, which is `within` one point.

    Attributes:
        within: The fewest blocks that lose no more than these points against the full model on held-out data, after
            learning. Without labels a point is three points of agreement (`choosing.AGREEMENT_PER_POINT`).
        speedup: The most blocks with which texts are encoded that number of times as fast as by the full model.
        megabytes: The most blocks whose weights take no more than that in float32, 10⁶ bytes each.
        blocks: A number of blocks (3 or "3"), or which ones ([1, 4, 6], "1,4,6", "1..3,6"); kept as text.
    """

    within: float | None = None
    speedup: float | None = None
    megabytes: float | None = None
    blocks: str | None = None  # a number or a list of them may be given, and becomes text

    def __post_init__(self) -> None:
        if self.blocks is not None:
            object.__setattr__(self, "blocks", _named(self.blocks))
        named = [name for name in ("within", "speedup", "megabytes", "blocks") if getattr(self, name) is not None]
        if len(named) > 1:
            raise UsageError(
                f"`{named[0]}` and `{named[1]}` are two budgets.", hint=f"Leave out `{named[0]}` or `{named[1]}`."
            )
        check_numbers(self, within=_POINTS, speedup=_TIMES, megabytes=_SIZE)
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

    layer: int | None = None
    epochs: int = 1
    batch_size: int = 16
    learning_rate: float | None = None
    warmup: float = 0.05
    similarity: float = 0.0
    states: float = 0.0
    train_embeddings: bool = False
    max_texts: int | None = None
    held_out: int = 2000
    query_weight: float = 1.0
    precision: Precision = "fp32"
    seed: int = 0
    frontier: bool = False

    def __post_init__(self) -> None:
        check_numbers(self, epochs=EPOCHS, batch_size=BATCH, max_texts=TEXTS, held_out=_HELD_OUT, seed=SEED)
        check_numbers(self, layer=_LAYER, similarity=WEIGHT, states=WEIGHT, query_weight=WEIGHT)
        if not 0 <= self.warmup < 1:
            raise UsageError(f"{self.warmup:g} is no share of the steps.", hint="Give a `warmup` from 0 to below 1.")
        object.__setattr__(self, "learning_rate", check_rate(self.learning_rate, "5e-4"))
        check_training_precision(self.precision)

    def rate(self, width: int, left_out: float = 1.0) -> float:
        """The peak rate for a model of that width.

        Args:
            width: Of the model.
            left_out: Share of the full model's blocks that it lacks.
        """
        usual = min(HIGHEST_RATE, MEASURED_RATE * MEASURED_WIDTH / width)
        return self.learning_rate or (usual / 3 if left_out < NEARLY_ALL else usual)
