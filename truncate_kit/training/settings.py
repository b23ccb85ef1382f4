"""What a training run is, validated once."""

import math
from dataclasses import dataclass, replace

from truncate_kit.precisions import TRAINING_PRECISIONS, Precision
from truncate_kit.results import Result
from truncate_kit.settings import BATCH, RATE, SHARE, TRAINING, Bounds, check_settings, setting
from truncate_kit.settings import EPOCHS as EPOCHS_ALLOWED
from truncate_kit.training.objectives import BATCH_SIZE, EPOCHS, OBJECTIVES, SEARCH, Objective, described

WORD_EPOCHS, WORD_BATCH_SIZE = 50, 128  # of the TMFT paper, for single words: short, few and cheap
_NORM = Bounds(0, math.inf, whole=False, above=True)
BASE_WIDTH, BASE_RATE = 768, 2e-5
NARROW_WIDTH, NARROW_RATE = 128, 5e-4
HIGHEST_SCALED_RATE = 1e-4
PRECISION_HELP = "fp32, or bf16 autocast where the processor has it."


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

    objective: str = setting(
        "cosine",
        f"{described('tmft')}; by default cosine, {SEARCH} of a retrieval folder. Classes are scored by macro F1 of "
        "the likeliest one; the TMFT paper has a threshold.",
        TRAINING,
        choices=OBJECTIVES,
        default=None,
    )
    epochs: int = setting(
        EPOCHS,
        f"The best on dev is kept; by default {EPOCHS}, {WORD_EPOCHS} for words.",
        TRAINING,
        bounds=EPOCHS_ALLOWED,
        default=None,
    )
    batch_size: int = setting(
        BATCH_SIZE,
        f"Pairs per step; by default {BATCH_SIZE}, {WORD_BATCH_SIZE} for words.",
        TRAINING,
        bounds=BATCH,
        default=None,
    )
    learning_rate: float | None = setting(
        None,
        "Peak learning rate; by default 2e-5 at width 768, the TMFT paper's for all models, up to 5e-4 at 128.",
        TRAINING,
        bounds=RATE,
        kind=float,
    )
    weight_decay: float = setting(0.01, bounds=SHARE)
    warmup: float = setting(0.1, bounds=SHARE)
    max_gradient_norm: float = setting(1.0, bounds=_NORM)
    precision: Precision = setting("fp32", PRECISION_HELP, TRAINING, choices=TRAINING_PRECISIONS)
    buckets: bool = True
    compact_vocabulary: bool = True

    @property
    def row(self) -> Objective:
        """The row of the objective."""
        return OBJECTIVES[self.objective]

    def __post_init__(self) -> None:
        check_settings(self)

    def rate(self, width: int) -> float:
        """The peak rate for a model of that width."""
        return self.learning_rate or default_learning_rate(width)

    def settled(self, width: int) -> "TrainingSettings":
        """The same with the rate as a number: what kept trials are found by, since defaults change with versions."""
        return replace(self, learning_rate=self.rate(width))


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
