"""How frozen heads are trained."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from truncate_kit.bounds import EPOCHS, TEXTS, Bounds, check_number, check_numbers, seeds_of
from truncate_kit.errors import UsageError, known_name
from truncate_kit.naming import as_text
from truncate_kit.precisions import Precision
from truncate_kit.results import Result
from truncate_kit.training.settings import TrainingSettings, settle_numbers

if TYPE_CHECKING:
    from truncate_kit.models import Encoder

COSINE, SIAMESE, AUTOENCODER = "cosine", "siamese", "autoencoder"
STEPS = (COSINE, SIAMESE, AUTOENCODER)
SCORES = ("exp", "sigmoid")  # those of `PairScore`, whose module imports torch
LOSSES = ("mse", "log-variance")
LOWER_SHARE, UPPER_SHARE = 4, 2  # the paper's codes of 256 and 512 are a quarter and a half of its model's 1,024
_UNITS, _DEPTH = Bounds(1, 65_536), Bounds(1, 16)


@dataclass(frozen=True, slots=True, kw_only=True)
class FrozenSettings(Result):
    """Which steps are taken on which blocks, and how each is trained.

    The FREEZE report gives no epochs, batch size, learning rate, number of hidden units or seeds: those are ours, as is
    `exp`. In the step `autoencoder` the encoders go on learning on the pairs, of which it says nothing.

    Attributes:
        layers: `auto` for all blocks, or how many of the lowest to try, as text ("6", "3,6,9", "1..6", `all`).
        steps: Some of `STEPS`, always in their order.
        score: `exp` or `sigmoid` (the paper's), see `PairScore`.
        loss: Of the pairs: `mse`, with which the paper trained all but its last model, or `log-variance`,
            log Var(ŷ − y).
        hidden: Units of the score's layer.
        codes: Code widths of the blocks in the lower and in the upper half of the model; None takes a quarter and a
            half of the states' width. Twice the same number is one width everywhere.
        depth: Layers of each block's network, and of what leads back from its codes. The report gives no number;
            deeper ones gained nothing there.
        final_norm: Whether the states of a model that ends in a norm have it applied. Without it they are what the
            blocks give, after the residual connection.
        raw_sentences: How many are drawn for the autoencoders; the report has as many of GenericsKB.
        epochs: Of the pairs; the one with the best dev Spearman is kept.
        nli_epochs: Of the NLI pairs before them, where there are some.
        pretraining_epochs: Of the raw sentences.
        batch_size: Pairs, or sentences, of a step.
        learning_rate: Peak rate of all of them.
        precision: Of training.
        seeds: Of the heads; the first one also draws sentences and trains the autoencoders.

    Raises:
        UsageError: A value makes no sense.
    """

    layers: str = "auto"
    steps: tuple[str, ...] = STEPS
    score: str = "exp"
    loss: str = "log-variance"
    hidden: int = 64
    codes: tuple[int, int] | None = None
    depth: int = 1
    final_norm: bool = False
    raw_sentences: int = 20_000
    epochs: int = 20
    nli_epochs: int = 3
    pretraining_epochs: int = 10
    batch_size: int = 64
    learning_rate: float = 1e-3
    precision: Precision = "fp32"
    seeds: tuple[int, ...] = (0, 1, 2)

    def __post_init__(self) -> None:
        known_name("score", self.score, SCORES)
        known_name("loss", self.loss, LOSSES)
        object.__setattr__(self, "steps", tuple(self.steps))
        unknown = [step for step in self.steps if step not in STEPS]
        if unknown or not self.steps:
            hint = f"Use some of {', '.join(STEPS)} as `steps`."
            raise UsageError(f"There is no step {unknown[0]!r}." if unknown else "No step is named.", hint=hint)
        # Its errors are raised before any state is computed.
        settle_numbers(self, self.training(self.epochs))
        object.__setattr__(self, "layers", as_text(self.layers))
        object.__setattr__(self, "seeds", seeds_of(self.seeds))
        check_numbers(
            self, hidden=_UNITS, depth=_DEPTH, raw_sentences=TEXTS, nli_epochs=EPOCHS, pretraining_epochs=EPOCHS
        )
        if self.codes is not None:
            codes = tuple(check_number("codes", width, _UNITS) for width in self.codes)
            object.__setattr__(self, "codes", codes)

    def check_model(self, encoder: "Encoder") -> None:
        """Raise `UsageError` for settings that say nothing to this model, or that its states are too narrow for."""
        if self.final_norm and encoder.family.final_norm is None:
            raise UsageError(f"{encoder.name} has no final norm.", hint="Leave out `final_norm`.")
        widest = max(self.codes or (0,))
        if widest >= encoder.width:
            raise UsageError(
                f"Codes of {widest} numbers are no shorter than the states of {encoder.name}, which have "
                f"{encoder.width}.",
                hint="Give narrower `codes`.",
            )

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
        lower, upper = self.codes or (max(1, width // LOWER_SHARE), max(1, width // UPPER_SHARE))
        return tuple(lower if 2 * block <= blocks else upper for block in range(1, blocks + 1))
