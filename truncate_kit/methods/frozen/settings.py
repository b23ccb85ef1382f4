"""Settings and results of heads trained on frozen blocks; does not import torch."""

import math
from collections.abc import Sequence
from statistics import fmean

from truncate_kit.core.errors import UsageError
from truncate_kit.core.hardware import TRAINING_PRECISIONS, Precision
from truncate_kit.core.results import (
    COUNT,
    LAYERS,
    RATE,
    Bounds,
    Result,
    as_text,
    check_seeds,
    names,
    seeds_setting,
    setting,
    whole_numbers,
)
from truncate_kit.core.vectors import Span, mean_and_std
from truncate_kit.data.pairs import Overlap
from truncate_kit.training.settings import PRECISION_HELP, BaseTrial, TrainingSettings

COSINE, SIAMESE, AUTOENCODER = "cosine", "siamese", "autoencoder"
STEPS = (COSINE, SIAMESE, AUTOENCODER)
SCORES = ("exp", "sigmoid")  # `ScoreKind`, copied because its module imports torch
LOSSES = ("mse", "log-variance")
LOWER_SHARE, UPPER_SHARE = 4, 2  # the paper's 256 and 512 of 1,024


def _code_widths(text: str) -> tuple[int, int]:
    widths = whole_numbers(text)
    if len(widths) > 2:
        hint = "Give one width for all blocks, or two: for lower and for upper blocks."
        raise UsageError(f"`codes` {text}: over two widths.", hint=hint)
    return widths[0], widths[-1]


class FrozenSettings(Result):
    """Settings of heads trained on frozen blocks.

    Not in the FREEZE report: epochs, batch size, learning rate, hidden units, seeds, the score `exp`, and training the
    encoders further in the step `autoencoder`. In the report, only the last model uses the loss `log-variance`,
    log Var(ŷ − y). Raw sentences and autoencoders use the first seed.
    """

    layers: str = setting(
        "auto", 'Numbers of lowest blocks to try: 6, "3,6,9" or 1..6; auto: all.', LAYERS, name="--layer"
    )
    steps: tuple[str, ...] = setting(
        STEPS,
        f"Steps to run: {','.join(STEPS)}; {AUTOENCODER} needs --texts.",
        choices=STEPS,
        parse=names,
        default=None,
    )
    score: str = setting(
        "exp", "Score function; with exp, identical texts score 1; the paper has sigmoid.", choices=SCORES
    )
    loss: str = setting("log-variance", "Loss on the pairs: on the errors' variance or mean square.", choices=LOSSES)
    hidden: int = setting(64, bounds=COUNT)
    codes: tuple[int, int] | None = setting(
        None,
        "Code widths of lower and upper blocks; default: width/4,width/2.",
        bounds=COUNT,
        parse=_code_widths,
        metavar="LOWER[,UPPER]",
    )
    depth: int = setting(1, "Layers of each block's network (our default, not FREEZE's).", bounds=Bounds(1, 16))
    final_norm: bool = setting(False, "Apply the model's final norm to the states of all blocks.", LAYERS)
    raw_sentences: int = setting(20_000, bounds=COUNT)
    epochs: int = setting(20, "Epochs (our default, not FREEZE's); the best on dev is kept.", bounds=COUNT)
    nli_epochs: int = setting(3, bounds=COUNT)
    pretraining_epochs: int = setting(10, bounds=COUNT)
    batch_size: int = setting(64, "Pairs per step (our default, not FREEZE's).", bounds=COUNT)
    learning_rate: float = setting(1e-3, "Peak learning rate (our default, not FREEZE's).", bounds=RATE)
    precision: Precision = setting("fp32", PRECISION_HELP, choices=TRAINING_PRECISIONS)
    seeds: tuple[int, ...] = seeds_setting((0, 1, 2), "Number of seeds from 0 on (our default, not FREEZE's).")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_seeds(self.seeds)
        object.__setattr__(self, "layers", as_text(self.layers))

    def training(self, epochs: int) -> TrainingSettings:
        """Return training settings: random batches, as log Var needs, and no gradient clipping across blocks."""
        return TrainingSettings(
            epochs=epochs,
            batch_size=self.batch_size,
            learning_rate=self.learning_rate,
            precision=self.precision,
            max_gradient_norm=math.inf,
            buckets=False,
        )

    def code_widths(self, blocks: int, width: int) -> tuple[int, ...]:
        """Return each block's code width for states of `width`."""
        lower, upper = self.codes or (max(1, width // LOWER_SHARE), max(1, width // UPPER_SHARE))
        return tuple(lower if 2 * block <= blocks else upper for block in range(1, blocks + 1))


class FrozenTrial(BaseTrial):
    """Heads trained in one step with one seed on the lowest `layer` blocks; correlations × 100."""

    step: str  # of `STEPS`
    blocks: tuple[float | None, ...]  # test Spearman at each block
    parameters: int  # trained


class Reconstruction(Result):
    """Code widths and held-out mean squared errors of the autoencoders; the first entry is block 1."""

    code_widths: tuple[int, ...]
    losses: tuple[float, ...]  # standardised: 1 is the loss of predicting the mean
    own_losses: tuple[float, ...]  # without standardisation
    num_sentences: int  # including the held-out tenth
    left_out: int  # raw sentences excluded because dev or test has them


class FrozenReport(Result):
    """Result of `finetune_frozen`; correlations × 100."""

    model: str
    data: str
    data_fingerprint: str
    settings: FrozenSettings
    pooling: str
    depth: int
    width: int
    states: tuple[float | None, ...]  # by block, test Spearman of the cosine of states without heads
    train_states: tuple[float | None, ...]  # the same on train (the paper's figure 1)
    trials: tuple[FrozenTrial, ...]
    chosen_step: str
    chosen_layer: int
    chosen_seed: int
    reconstruction: Reconstruction | None
    test_sentences_in_nli: int | None  # distinct sentences
    # Test pairs with the largest errors: texts, target and score (0 to 1), error less the mean error on dev.
    worst: tuple[tuple[str, str, float, float, float], ...]
    overlap: Overlap
    seconds: float
    notes: tuple[str, ...]

    @property
    def groups(self) -> dict[tuple[str, int], list[FrozenTrial]]:
        """Return the trials by step and number of blocks."""
        return grouped(self.trials)

    @property
    def chosen(self) -> FrozenTrial:
        """Return the trial with the saved heads."""
        chosen = self.chosen_step, self.chosen_layer, self.chosen_seed
        return next(trial for trial in self.trials if (trial.step, trial.layer, trial.seed) == chosen)

    @property
    def steps(self) -> dict[str, tuple[int, ...]]:
        """Return the tried numbers of blocks by step, ascending."""
        return {step: tuple(layer for name, layer in self.groups if name == step) for step, _ in self.groups}

    @property
    def num_seeds(self) -> int:
        """Return the maximum number of seeds per group."""
        return max(map(len, self.groups.values()))

    def score(self, step: str, layer: int, measure: str) -> Span:
        """Return mean and standard deviation over seeds; measure: `dev`, `test`, `dev_pearson` or `test_pearson`."""
        return mean_and_std([float(getattr(trial, measure)) for trial in self.groups[step, layer]])


def grouped(trials: Sequence[FrozenTrial]) -> dict[tuple[str, int], list[FrozenTrial]]:
    """Group trials by step and number of blocks; keep their order."""
    groups: dict[tuple[str, int], list[FrozenTrial]] = {}
    for trial in trials:
        groups.setdefault((trial.step, trial.layer), []).append(trial)
    return groups


def choose(trials: Sequence[FrozenTrial]) -> FrozenTrial:
    """Return the best-dev trial of the group with the best mean dev score; ties prefer fewer blocks."""
    best = max(grouped(trials).values(), key=lambda group: (fmean(one.dev for one in group), -group[0].layer))
    return max(best, key=lambda trial: (trial.dev, -trial.seed))
