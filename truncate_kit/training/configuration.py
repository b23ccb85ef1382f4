"""What a training run is, validated once."""

from dataclasses import dataclass
from typing import Literal, get_args

from truncate_kit.errors import UsageError
from truncate_kit.results import Result

ObjectiveName = Literal["cosine", "paraphrase", "entailment", "distill"]
OBJECTIVES: tuple[str, ...] = get_args(ObjectiveName)
Precision = Literal["fp32", "bf16"]

BASE_WIDTH, BASE_RATE, HIGHEST_RATE = 768, 2e-5, 1e-4


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSettings(Result):
    """One training run; the defaults are those of the TMFT paper, but for the learning rate of narrow models.

    objective: `cosine` (mean squared error between cosine and the score scaled to [0, 1]), `paraphrase` (binary cross
    entropy with the cosine as logit), `entailment` (softmax classifier on u, v and |u − v|) or `distill` (give the full
    model's vectors on raw text). learning_rate: peak, None follows the width (`default_learning_rate`). warmup: share
    of the steps. max_gradient_norm: gradients are scaled down to it. precision: `bf16` computes products under
    autocast, weights stay float32. buckets: batches of texts of like length. compact_vocabulary: keep word embeddings
    that no text uses out of the optimiser; the result is the same but for rounding.
    """

    objective: ObjectiveName = "cosine"
    epochs: int = 10
    batch_size: int = 32
    learning_rate: float | None = None
    weight_decay: float = 0.01
    warmup: float = 0.1
    max_gradient_norm: float = 1.0
    precision: Precision = "fp32"
    buckets: bool = True
    compact_vocabulary: bool = True

    def __post_init__(self) -> None:
        if self.objective not in OBJECTIVES:
            raise UsageError(f"There is no objective {self.objective!r}.", hint=f"Use one of: {', '.join(OBJECTIVES)}.")
        if self.precision not in ("fp32", "bf16"):
            raise UsageError(f"There is no training precision {self.precision!r}.", hint="Use fp32 or bf16.")
        for name in ("epochs", "batch_size"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} is {getattr(self, name)}.", hint="It has to be at least 1.")
        if self.learning_rate is not None and not 0 < self.learning_rate < 1:
            raise UsageError(f"A learning rate of {self.learning_rate} trains nothing.", hint="Try 2e-5 or 1e-4.")


def default_learning_rate(width: int) -> float:
    """2e-5 at width 768, as the TMFT paper uses it, in inverse proportion to the width below, at most 1e-4."""
    return min(HIGHEST_RATE, max(BASE_RATE, BASE_RATE * BASE_WIDTH / width))


def rate_at(step: int, total: int, warmup: float) -> float:
    """Share of the peak rate at a step 0 … total − 1: linear warm-up, then linear decay to 0 at `total`."""
    rising = round(total * warmup)
    if step < rising:
        return step / max(1, rising)
    return max(0.0, (total - step) / max(1, total - rising))
