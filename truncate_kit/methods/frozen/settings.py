"""How frozen heads are trained, and what that found. Importing this imports no torch."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING

from truncate_kit.core.errors import UsageError
from truncate_kit.core.naming import as_text
from truncate_kit.core.precisions import TRAINING_PRECISIONS, Precision
from truncate_kit.core.results import Result
from truncate_kit.core.settings import (
    BATCH,
    EPOCHS,
    LAYERS,
    RATE,
    TEXTS,
    TRAINING,
    Bounds,
    check_seeds,
    check_settings,
    names,
    seeds_setting,
    setting,
    whole_numbers,
)
from truncate_kit.core.statistics import Span
from truncate_kit.data.types import Overlap
from truncate_kit.training.settings import PRECISION_HELP, BaseTrial, TrainingSettings

if TYPE_CHECKING:
    from truncate_kit.models.encoder import Encoder

COSINE, SIAMESE, AUTOENCODER = "cosine", "siamese", "autoencoder"
STEPS = (COSINE, SIAMESE, AUTOENCODER)
SCORES = ("exp", "sigmoid")  # those of `PairScore`, whose module imports torch
LOSSES = ("mse", "log-variance")
LOWER_SHARE, UPPER_SHARE = 4, 2  # the paper's codes of 256 and 512 are a quarter and a half of its model's 1,024
_UNITS, _DEPTH = Bounds(1, 65_536), Bounds(1, 16)


def _code_widths(text: str) -> tuple[int, int]:
    widths = whole_numbers(text)
    if len(widths) > 2:
        raise UsageError(f"`codes` {text} names {len(widths)} widths.", hint="Give one, or one for each half.")
    return widths[0], widths[-1]


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

    layers: str = setting(
        "auto", "Number of the lowest blocks, such as 6 or 3,6,9 or 1..6; auto for all blocks.", LAYERS, name="--layer"
    )
    steps: tuple[str, ...] = setting(
        STEPS,
        "Some of cosine,siamese,autoencoder; by default all, the last with --texts only. Encoders of autoencoders go "
        "on learning, of which the FREEZE report says nothing.",
        TRAINING,
        choices=STEPS,
        parse=names,
        default=None,
    )
    score: str = setting(
        "exp", "exp (a text has 1 with itself), or sigmoid as in the FREEZE report.", TRAINING, choices=SCORES
    )
    loss: str = setting(
        "log-variance",
        "log-variance (of what is predicted less what is given), or mse as in all but the last model of the FREEZE "
        "report.",
        TRAINING,
        choices=LOSSES,
    )
    hidden: int = setting(64, bounds=_UNITS)
    codes: tuple[int, int] | None = setting(
        None,
        "Code width of the blocks in the lower and in the upper half, or one width for all; by default a quarter and a "
        "half of the states' width.",
        TRAINING,
        bounds=_UNITS,
        parse=_code_widths,
        metavar="LOWER[,UPPER]",
    )
    depth: int = setting(
        1,
        "Layers of each block's network and of its autoencoder's way back; not from the FREEZE report.",
        TRAINING,
        bounds=_DEPTH,
    )
    final_norm: bool = setting(
        False, "Apply a decoder's final norm to every block's states, which are else as the block gives them.", LAYERS
    )
    raw_sentences: int = setting(20_000, bounds=TEXTS)
    epochs: int = setting(20, "The best on dev is kept; not from the FREEZE report.", TRAINING, bounds=EPOCHS)
    nli_epochs: int = setting(3, bounds=EPOCHS)
    pretraining_epochs: int = setting(10, bounds=EPOCHS)
    batch_size: int = setting(64, "Pairs per step; not from the FREEZE report.", TRAINING, bounds=BATCH)
    learning_rate: float = setting(1e-3, "Peak learning rate; not from the FREEZE report.", TRAINING, bounds=RATE)
    precision: Precision = setting("fp32", PRECISION_HELP, TRAINING, choices=TRAINING_PRECISIONS)
    seeds: tuple[int, ...] = seeds_setting((0, 1, 2), "Number of seeds, from 0; not from the FREEZE report.")

    def __post_init__(self) -> None:
        check_settings(self)
        check_seeds(self.seeds)
        object.__setattr__(self, "layers", as_text(self.layers))

    def check_model(self, encoder: "Encoder") -> None:
        """Raise `UsageError` for settings that say nothing to this model, or that its states are too narrow for."""
        if self.final_norm and encoder.family.final_norm is None:
            raise UsageError(f"{encoder.name} has no final norm.", hint="Leave out `final_norm`.")
        widest = max(self.codes or (0,))
        if widest >= encoder.width:
            states = f"the states of {encoder.name}, which have {encoder.width}"
            raise UsageError(f"Codes of {widest} numbers are no shorter than {states}.", hint="Give narrower `codes`.")

    def training(self, epochs: int) -> TrainingSettings:
        """Return the loop's part: random batches, as log Var depends on them; no block's gradient scales another's."""
        return TrainingSettings(
            epochs=epochs,
            batch_size=self.batch_size,
            learning_rate=self.learning_rate,
            precision=self.precision,
            max_gradient_norm=math.inf,
            buckets=False,
        )

    def ordered_steps(self) -> tuple[str, ...]:
        """Return the steps in the paper's order."""
        return tuple(step for step in STEPS if step in self.steps)

    def code_widths(self, blocks: int, width: int) -> tuple[int, ...]:
        """Return the width of the codes of each of all blocks 1 … `blocks` of a model whose states are `width` wide."""
        lower, upper = self.codes or (max(1, width // LOWER_SHARE), max(1, width // UPPER_SHARE))
        return tuple(lower if 2 * block <= blocks else upper for block in range(1, blocks + 1))


def frozen_name(step: str, layer: int, seed: int) -> str:
    """Return what the records and files of a trial are called."""
    return f"{step}-blocks{layer:02d}-seed{seed}"


@dataclass(frozen=True, slots=True, kw_only=True)
class FrozenTrial(BaseTrial):
    """Heads of one step on the lowest `layer` blocks with one seed; correlations × 100."""

    step: str  # one of `STEPS`
    # Spearman on test of the cosine of the codes at each block alone, None where it is not defined
    blocks: tuple[float | None, ...]
    parameters: int

    @property
    def name(self) -> str:
        """Return what its records and files are called."""
        return frozen_name(self.step, self.layer, self.seed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reconstruction(Result):
    """The autoencoders: width of the codes and mean squared error on held-out sentences, both by block from 1."""

    code_widths: tuple[int, ...]
    losses: tuple[float, ...]  # of standardised states: 1 is what predicting the mean costs
    num_sentences: int  # raw ones, the held-out tenth included
    left_out: int  # sentences of the file that are also in dev or test and were not used
    seconds: float
    own_losses: tuple[float, ...]  # the same errors in the states' own units


@dataclass(frozen=True, slots=True, kw_only=True)
class WorstPair(Result):
    """A test pair; target and predicted score from 0 to 1."""

    first: str
    second: str
    target: float
    predicted: float
    error: float  # predicted − target − the mean difference on dev


@dataclass(frozen=True, slots=True, kw_only=True)
class FrozenReport(Result):
    """The outcome of `finetune_frozen`."""

    model: str
    data: str
    data_fingerprint: str
    settings: FrozenSettings
    pooling: str
    depth: int  # blocks of the model as it came
    width: int
    parameters: int  # of the saved model without its heads
    num_texts: int
    # Spearman × 100 on test of the cosine of plain states by block, None where undefined
    states: tuple[float | None, ...]
    trials: tuple[FrozenTrial, ...]
    chosen_step: str  # with the next two: the trial that was saved
    chosen_layer: int
    chosen_seed: int
    reconstruction: Reconstruction | None  # None where no autoencoders were trained
    nli: str | None  # name of the NLI pairs, None without
    worst: tuple[WorstPair, ...]  # the test pairs with the largest errors of the saved model
    overlap: Overlap  # what the splits share
    seconds: float
    notes: tuple[str, ...]
    train_states: tuple[float | None, ...]  # `states` of the training pairs (the paper's figure 1)
    test_sentences_in_nli: int | None  # distinct test sentences that the NLI pairs hold, None without NLI pairs

    def of(self, step: str, layer: int) -> list[FrozenTrial]:
        """Return the trials of a step on this number of blocks, one per seed."""
        return [trial for trial in self.trials if (trial.step, trial.layer) == (step, layer)]

    @property
    def chosen(self) -> FrozenTrial:
        """Return the trial whose heads were saved."""
        return next(trial for trial in self.of(self.chosen_step, self.chosen_layer) if trial.seed == self.chosen_seed)

    @property
    def groups(self) -> tuple[tuple[str, int], ...]:
        """Return every step and number of lowest blocks that was tried, in order."""
        return tuple(dict.fromkeys((trial.step, trial.layer) for trial in self.trials))

    @property
    def steps(self) -> dict[str, tuple[int, ...]]:
        """Return the numbers of lowest blocks that were tried by step, rising."""
        return {step: tuple(layer for of, layer in self.groups if of == step) for step, _ in self.groups}

    @property
    def num_seeds(self) -> int:
        """Count the trials of one step and number of blocks, at most."""
        return max(len(self.of(*group)) for group in self.groups)

    def score(self, step: str, layer: int, measure: str) -> Span:
        """Return `dev`, `dev_pearson`, `test` or `test_pearson` over the seeds."""
        return Span.of([float(getattr(trial, measure)) for trial in self.of(step, layer)])

    def codes_by_block(self, step: str, layer: int) -> tuple[float | None, ...]:
        """Average over the seeds `FrozenTrial.blocks`."""
        columns = zip(*(trial.blocks for trial in self.of(step, layer)), strict=True)
        return tuple(None if None in column else fmean(value or 0.0 for value in column) for column in columns)


def choose(trials: Sequence[FrozenTrial]) -> FrozenTrial:
    """Take the best mean dev Spearman over seeds by step and blocks, fewer blocks on a tie; there the best seed."""
    groups: dict[tuple[str, int], list[FrozenTrial]] = {}
    for trial in trials:
        groups.setdefault((trial.step, trial.layer), []).append(trial)
    best = max(groups.values(), key=lambda group: (sum(one.dev for one in group) / len(group), -group[0].layer))
    return max(best, key=lambda trial: (trial.dev, -trial.seed))
