"""How frozen heads are trained."""

import math
from dataclasses import dataclass

from truncate_kit.bounds import EPOCHS, TEXTS, Bounds, check_number, check_numbers, check_seeds
from truncate_kit.errors import UsageError
from truncate_kit.precisions import Precision
from truncate_kit.results import Result
from truncate_kit.training.configuration import TrainingSettings

COSINE, SIAMESE, AUTOENCODER = "cosine", "siamese", "autoencoder"
STEPS = (COSINE, SIAMESE, AUTOENCODER)
SCORES = ("exp", "sigmoid")  # those of `PairScore`, whose module imports torch
PAPER_CODES = (256, 512)
_UNITS = Bounds(1, 65_536)
_SHARE = 3  # the paper's codes are a third and two thirds of its model's 768


@dataclass(frozen=True, slots=True, kw_only=True)
class FrozenSettings(Result):
    """Which steps are taken on which blocks, and how each is trained.

    layers: `auto` for all blocks, or how many of the lowest to try, as text ("6", "3,6,9", "1..6", `all`). steps: some
    of `STEPS`, always in their order. score: `exp` or `sigmoid`, see `PairScore`. hidden: units of its layer. codes:
    code widths of the blocks in the lower and in the upper half of the model; None takes 256 and 512, but at most a
    third and two thirds of the states' width. raw_sentences: how many are drawn for the autoencoders. epochs: of the
    pairs; the one with the best dev Spearman is kept. nli_epochs: of the NLI pairs before them, where there are some.
    pretraining_epochs: of the raw sentences. learning_rate: peak rate of all of them. Raises `UsageError`.
    """

    layers: str = "auto"
    steps: tuple[str, ...] = STEPS
    score: str = "exp"
    hidden: int = 64
    codes: tuple[int, int] | None = None
    raw_sentences: int = 20_000
    epochs: int = 20
    nli_epochs: int = 3
    pretraining_epochs: int = 10
    batch_size: int = 64
    learning_rate: float = 1e-3
    precision: Precision = "fp32"
    seeds: tuple[int, ...] = (0, 1, 2)

    def __post_init__(self) -> None:
        if self.score not in SCORES:
            raise UsageError(f"There is no score {self.score!r}.", hint=f"Use one of: {', '.join(SCORES)}.")
        unknown = [step for step in self.steps if step not in STEPS]
        if unknown or not self.steps:
            hint = f"Use some of {', '.join(STEPS)} as `steps`."
            raise UsageError(f"There is no step {unknown[0]!r}." if unknown else "No step is named.", hint=hint)
        self.training(self.epochs)  # its errors are raised before any state is computed
        check_seeds(self.seeds)
        check_numbers(self, hidden=_UNITS, raw_sentences=TEXTS, nli_epochs=EPOCHS, pretraining_epochs=EPOCHS)
        for width in self.codes or ():
            check_number("codes", width, _UNITS)

    def training(self, epochs: int) -> TrainingSettings:
        """For the loop: random batches, as log Var depends on their content; no block's gradient scales another's."""
        return TrainingSettings(
            epochs=epochs,
            batch_size=self.batch_size,
            learning_rate=self.learning_rate,
            precision=self.precision,
            max_gradient_norm=math.inf,
            buckets=False,
        )

    def ordered_steps(self) -> tuple[str, ...]:
        """The steps in the paper's order."""
        return tuple(step for step in STEPS if step in self.steps)

    def code_widths(self, blocks: int, width: int) -> tuple[int, ...]:
        """Width of the codes of each of all blocks 1 … `blocks` of a model whose states are `width` wide."""
        lower, upper = self.codes or (
            max(1, min(PAPER_CODES[0], width // _SHARE)),
            max(1, min(PAPER_CODES[1], 2 * width // _SHARE)),
        )
        return tuple(lower if 2 * block <= blocks else upper for block in range(1, blocks + 1))
