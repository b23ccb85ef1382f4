"""What a training run is, validated once."""

import math
from dataclasses import dataclass, replace

from truncate_kit import bounds
from truncate_kit.errors import known_name
from truncate_kit.precisions import Precision, check_training_precision
from truncate_kit.results import Result
from truncate_kit.training.objectives import BATCH_SIZE, EPOCHS, OBJECTIVES, Objective

WORD_EPOCHS, WORD_BATCH_SIZE = 50, 128  # of the TMFT paper, for single words: short, few and cheap
_NORM = bounds.Bounds(0, math.inf, whole=False, above=True)
BASE_WIDTH, BASE_RATE = 768, 2e-5
NARROW_WIDTH, NARROW_RATE = 128, 5e-4
HIGHEST_SCALED_RATE = 1e-4


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSettings(Result):
    """One training run, by default as in the TMFT paper.

    From its released code, not in the paper: warm-up, linear decay, no weight decay of biases and norms. Ours: the
    learning rate of models narrower than 768, and batches of texts of like length (`buckets`).

    Attributes:
        objective: A row of `objectives`.
        epochs: The best of them on dev is kept.
        batch_size: Examples of a step.
        learning_rate: Peak rate, None follows the width (`rate`).
        weight_decay: Of AdamW; none on biases and norms.
        warmup: Share of the steps.
        max_gradient_norm: Gradients are scaled down to it.
        precision: `bf16` computes products under autocast; weights stay float32.
        buckets: Whether batches hold texts of like length.
        compact_vocabulary: Whether word embeddings that no text uses are kept out of the optimiser; the result is the
            same but for rounding.
    """

    objective: str = "cosine"
    epochs: int = EPOCHS
    batch_size: int = BATCH_SIZE
    learning_rate: float | None = None
    weight_decay: float = 0.01
    warmup: float = 0.1
    max_gradient_norm: float = 1.0
    precision: Precision = "fp32"
    buckets: bool = True
    compact_vocabulary: bool = True

    @property
    def row(self) -> Objective:
        """The row of the objective."""
        return OBJECTIVES[self.objective]

    def __post_init__(self) -> None:
        known_name("objective", self.objective, OBJECTIVES)
        check_training_precision(self.precision)
        bounds.check_numbers(self, epochs=bounds.EPOCHS, batch_size=bounds.BATCH, max_gradient_norm=_NORM)
        bounds.check_numbers(self, weight_decay=bounds.SHARE, warmup=bounds.SHARE)
        object.__setattr__(self, "learning_rate", bounds.check_rate(self.learning_rate, "2e-5 or 1e-4"))

    def rate(self, width: int) -> float:
        """The peak rate for a model of that width."""
        return self.learning_rate or default_learning_rate(width)

    def settled(self, width: int) -> "TrainingSettings":
        """The same with the rate as a number: what kept trials are found by, since defaults change with versions."""
        return replace(self, learning_rate=self.rate(width))


def settle_numbers(settings: object, training: TrainingSettings) -> None:
    """Replace numbers of numpy in settings that a training was made of by Python's own, which `training` has."""
    for name in ("epochs", "batch_size", "learning_rate"):
        if getattr(settings, name) is not None:
            object.__setattr__(settings, name, getattr(training, name))


def word_training(precision: str = "fp32", learning_rate: float | None = None) -> TrainingSettings:
    """How word pairs are learned, in the TMFT paper's epochs and batches. Raises `UsageError` as the settings do."""
    return TrainingSettings(
        epochs=WORD_EPOCHS,
        batch_size=WORD_BATCH_SIZE,
        learning_rate=learning_rate,
        precision=precision,  # type: ignore[arg-type]  # checked by the settings themselves
    )


def default_learning_rate(width: int) -> float:
    """The peak rate for pairs: 2e-5 from width 768 on, as the TMFT paper has it, and 5e-4 up to width 128.

    Between the two the logarithm of the rate is linear in that of the width. Measured from 64 to 384 (benchmarks/pick):
    last layers are at their best there; layer 1 would learn better at higher ones.
    """
    narrow = math.log(BASE_WIDTH / min(BASE_WIDTH, max(NARROW_WIDTH, width))) / math.log(BASE_WIDTH / NARROW_WIDTH)
    rate: float = BASE_RATE * (NARROW_RATE / BASE_RATE) ** narrow
    return rate


def scaled_learning_rate(width: int) -> float:
    """2e-5 at width 768, in inverse proportion to the width below, at most 1e-4: where no rates were measured."""
    return min(HIGHEST_SCALED_RATE, max(BASE_RATE, BASE_RATE * BASE_WIDTH / width))


def rate_at(step: int, total: int, warmup: float) -> float:
    """Share of the peak rate at a step 0 … total − 1: linear warm-up, then linear decay to 0 at `total`."""
    rising = round(total * warmup)
    if step < rising:
        return step / max(1, rising)
    return max(0.0, (total - step) / max(1, total - rising))
