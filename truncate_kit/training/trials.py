"""What one training run gave, at one layer with one seed."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar

from truncate_kit.errors import DivergedError
from truncate_kit.results import Result
from truncate_kit.wording import counted


def trial_name(layer: int, seed: int, epochs: int, stop_after: int | None = None) -> str:
    """What the records and files of a trial are called.

    Args:
        layer: Of the trial.
        seed: Of the trial.
        epochs: Of the trial.
        stop_after: Of one that is stopped after that many epochs.
    """
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
        """What its records and files are called."""
        return trial_name(self.layer, self.seed, self.epochs, self.stopped_after)

    @property
    def epochs_run(self) -> int:
        """Number of epochs that were run."""
        return self.stopped_after or self.epochs

    @property
    def block_steps(self) -> int:
        """Steps × blocks run; layer 0 counts as one block."""
        return self.steps * max(1, self.layer)

    def first(self, epochs: int) -> "Trial":
        """What this trial, if it was evaluated once an epoch, had been when stopped after `epochs` of its epochs."""
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
    """Collects the trials of one call that diverged, until all have been run."""

    def __init__(self) -> None:
        self._found: list[tuple[str, DivergedError]] = []
        self._others = 0

    def add(self, name: str, error: DivergedError) -> None:
        """Note a trial that diverged.

        Args:
            name: What the error calls the trial, such as `Layer 3, seed 0`.
            error: That of the trial.
        """
        self._found.append((name, error))

    def finished(self, trial: Finished) -> Finished:
        """The trial, counted among those that did not diverge."""
        self._others += 1
        return trial

    def run(self, name: str, trial: Callable[[], Finished]) -> list[Finished]:
        """What the trial gives, as a list: empty where it diverges."""
        try:
            return [self.finished(trial())]
        except DivergedError as error:
            self.add(name, error)
            return []

    def check(self) -> None:
        """Raises `DivergedError` that names the first one and counts the others, if there is any."""
        if self._found:
            name, error = self._found[0]
            more = f" So did {len(self._found) - 1} more." if len(self._found) > 1 else ""
            kept = f" What {counted(self._others, 'other trial')} gave is kept." if self._others else ""
            raise DivergedError(f"{name}: {error}{more}{kept}", hint=error.hint)
