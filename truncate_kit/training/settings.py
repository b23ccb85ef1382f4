"""What a training run is, checked once, and what it gives."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar

from truncate_kit.core.errors import DivergedError
from truncate_kit.core.precisions import TRAINING_PRECISIONS, Precision
from truncate_kit.core.results import Result
from truncate_kit.core.settings import BATCH, RATE, SEED, SHARE, TRAINING, Bounds, check_settings, setting
from truncate_kit.core.settings import EPOCHS as EPOCHS_ALLOWED
from truncate_kit.core.wording import counted
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
        """Return the row of the objective."""
        return OBJECTIVES[self.objective]

    def __post_init__(self) -> None:
        check_settings(self)

    def rate(self, width: int) -> float:
        """Return the peak rate for a model of that width."""
        return self.learning_rate or default_learning_rate(width)

    def settled(self, width: int) -> "TrainingSettings":
        """Return the same with the rate as a number: what kept trials are found by."""
        return replace(self, learning_rate=self.rate(width))


def word_training(precision: str = "fp32", learning_rate: float | None = None) -> TrainingSettings:
    """Say how word pairs are learned: in the TMFT paper's epochs and batches. Raises `UsageError`."""
    return TrainingSettings(
        epochs=WORD_EPOCHS,
        batch_size=WORD_BATCH_SIZE,
        learning_rate=learning_rate,
        precision=precision,  # type: ignore[arg-type]  # checked by the settings themselves
    )


def default_learning_rate(width: int) -> float:
    """Return the peak rate for pairs: 2e-5 from width 768 on, as the TMFT paper has it, and 5e-4 up to width 128.

    Between the two the logarithm of the rate is linear in that of the width. Measured from 64 to 384 (benchmarks/pick):
    last layers are at their best there; layer 1 would learn better at higher ones.
    """
    narrow = math.log(BASE_WIDTH / min(BASE_WIDTH, max(NARROW_WIDTH, width))) / math.log(BASE_WIDTH / NARROW_WIDTH)
    rate: float = BASE_RATE * (NARROW_RATE / BASE_RATE) ** narrow
    return rate


def scaled_learning_rate(width: int) -> float:
    """Return 2e-5 at width 768, in inverse proportion to the width below, at most 1e-4: where none were measured."""
    return min(HIGHEST_SCALED_RATE, max(BASE_RATE, BASE_RATE * BASE_WIDTH / width))


def rate_at(step: int, total: int, warmup: float) -> float:
    """Return the share of the peak rate at a step 0 … total − 1: linear warm-up, then decay to 0."""
    rising = round(total * warmup)
    if step < rising:
        return step / max(1, rising)
    return max(0.0, (total - step) / max(1, total - rising))


def trial_name(layer: int, seed: int, epochs: int, stop_after: int | None = None) -> str:
    """Return what the records and files of a trial are called. stop_after: the epochs of one that is stopped then."""
    return f"layer{layer:02d}-seed{seed}-epochs{epochs}" + (f"-first{stop_after}" if stop_after is not None else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseTrial(Result):
    """What every kind of trial has; scores in points."""

    layer: int  # number of blocks of the model
    seed: int  # of everything drawn in the trial
    dev_scores: tuple[float, ...]  # after each epoch; in contrastive training after each evaluation on dev
    best_epoch: int  # place of the best of them, from 1; its weights gave all other scores
    dev: float  # main score
    dev_pearson: float | None  # Pearson × 100, None where it is not defined, as for classes
    test: float | None  # main score, None in trials that only search: they never see the test set
    test_pearson: float | None
    seconds: float  # training and evaluation


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial(BaseTrial):
    """One training run at one layer with one seed; the main score is Spearman × 100, or what the objective says."""

    epochs: int  # the budget, which the learning rate follows
    steps: int
    # epochs run of a trial that a race stopped; None for the others, which ran all `epochs`
    stopped_after: int | None = None
    # Main dev scores of resamples of the dev pairs, the same for every trial on the same data, so that trials are
    # compared pair by pair; empty where a trial only searches, and in results, which say what came of them.
    dev_draws: tuple[float, ...] = ()

    @property
    def name(self) -> str:
        """Return what its records and files are called."""
        return trial_name(self.layer, self.seed, self.epochs, self.stopped_after)

    @property
    def epochs_run(self) -> int:
        """Count the epochs that were run."""
        return self.stopped_after or self.epochs

    @property
    def block_steps(self) -> int:
        """Multiply steps by blocks run; layer 0 counts as one block."""
        return self.steps * max(1, self.layer)

    def first(self, epochs: int) -> "Trial":
        """Return what this trial, evaluated once an epoch, had been when stopped after `epochs` of its epochs."""
        scores = self.dev_scores[:epochs]
        return replace(
            self,
            steps=self.steps // self.epochs * epochs,
            dev_scores=scores,
            best_epoch=scores.index(max(scores)) + 1,
            dev=max(scores),
            dev_pearson=None,
            test=None,
            test_pearson=None,
            seconds=self.seconds * epochs / self.epochs,
            stopped_after=epochs,
            dev_draws=(),
        )


Finished = TypeVar("Finished")


class DivergedTrials:
    """The trials of one call that diverged, by what errors call them; collected until all have been run."""

    def __init__(self) -> None:
        self.found: list[tuple[str, DivergedError]] = []
        self.others = 0  # that did not diverge

    def run(self, name: str, trial: Callable[[], Finished]) -> list[Finished]:
        """Return what the trial gives, as a list: empty where it diverges."""
        try:
            finished = [trial()]
        except DivergedError as error:
            self.found.append((name, error))
            return []
        self.others += 1
        return finished

    def check(self) -> None:
        """Raise `DivergedError` that names the first one and counts the others, if there is any."""
        if self.found:
            name, error = self.found[0]
            more = f" So did {len(self.found) - 1} more." if len(self.found) > 1 else ""
            kept = f" What {counted(self.others, 'other trial')} gave is kept." if self.others else ""
            raise DivergedError(f"{name}: {error}{more}{kept}", hint=error.hint)


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptationSettings(Result):
    """One adaptation; epochs and batch are those of the TMFT paper (10; 32 × 8 accumulated).

    Ours: the rate of narrow models, a twentieth of the texts held out (`HELD_OUT`) and the best epoch on it kept.
    """

    epochs: int = setting(10, bounds=EPOCHS_ALLOWED)
    batch_size: int = setting(256, bounds=BATCH)
    learning_rate: float | None = setting(None, bounds=RATE)  # peak, None is `scaled_learning_rate`
    precision: str = setting("fp32", choices=TRAINING_PRECISIONS)
    seed: int = setting(0, bounds=SEED)

    def __post_init__(self) -> None:
        check_settings(self)

    def rate(self, width: int) -> float:
        """Return the peak rate for a model of that width."""
        return self.learning_rate or scaled_learning_rate(width)
