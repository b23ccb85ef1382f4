"""One trial, wherever it runs: cut, train, score. It reads and writes no results."""

import io
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import torch

from truncate_kit.errors import DivergedError
from truncate_kit.models import Encoder, truncate
from truncate_kit.parallel import Send, Steps
from truncate_kit.progress import PlannedTrial, Progress, TrialEvent
from truncate_kit.seen import Keys
from truncate_kit.training.evaluators import HeldOutPairs
from truncate_kit.training.loop import TrainingRun
from truncate_kit.training.settings import TrainingSettings, Trial, trial_name
from truncate_kit.training.store import Checkpoints
from truncate_kit.training.tasks import Task
from truncate_kit.wording import counted


class Prior(Protocol):
    """What the encoder of a trial is trained on before its task."""

    def fingerprint(self) -> str:
        """Equal exactly when the same prior training would come out."""

    def learned(self, seed: int) -> Keys:
        """Of the labelled pairs that a trial of this seed learns from or is chosen by."""

    def train(self, encoder: Encoder, seed: int, *, checkpoint: Path | None, progress: Progress) -> float:
        """Train the truncated encoder in place; returns the score it reached."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialOrder:
    """A trial to be run."""

    layer: int
    seed: int
    epochs: int  # of the whole trial
    searching: bool  # whether it never sees the test set
    keep_weights: bool  # whether weights come back with the scores
    stop_after: int | None = None  # number of epochs after which its checkpoint waits, None for all

    def __str__(self) -> str:
        return f"layer {self.layer}, seed {self.seed}"

    @property
    def name(self) -> str:
        """Of the whole trial, whose checkpoint this is."""
        return trial_name(self.layer, self.seed, self.epochs)

    def planned(self) -> PlannedTrial:
        """What a watcher is called with beforehand."""
        task = f"{self}, {counted(self.epochs, 'epoch')}"
        return PlannedTrial(task, self.layer, self.seed, self.epochs, self.stop_after or self.epochs)


@dataclass(frozen=True, slots=True)
class TrialOutcome:
    """A trial that ended. weights: a state dict on the CPU as `torch.save` writes it; None unless it was asked for."""

    trial: Trial | DivergedError
    weights: bytes | None = None

    def encoder(self, full: Encoder) -> Encoder | None:
        """The trained encoder, from the one that was cut; None without weights."""
        if self.weights is None or isinstance(self.trial, DivergedError):
            return None
        encoder = truncate(full, self.trial.layer)
        encoder.load_state_dict(torch.load(io.BytesIO(self.weights), map_location=full.device, weights_only=True))
        return encoder


@dataclass(frozen=True, slots=True)
class TrialWork:
    """What the trials of one model on one task share."""

    full: Encoder
    task: Task
    settings: TrainingSettings
    prior: Prior | None
    checkpoints: Checkpoints  # a trial that is begun again continues only where a worker sees their folder

    def move(self, device: str) -> None:
        """Go to another device: task and prior read texts with the same encoder, and hold nothing on a device."""
        self.full.to(device)

    def perform(self, order: TrialOrder, send: Send) -> TrialOutcome:
        """Run one trial; sends `Steps` and, after each epoch, a `TrialEvent`. One that diverges ends alone."""
        try:
            return self._run(order, send)
        except DivergedError as error:
            return TrialOutcome(error)

    def _run(self, order: TrialOrder, send: Send) -> TrialOutcome:
        layer, seed, budget = order.layer, order.seed, order.epochs
        encoder = truncate(self.full, layer)
        if self.prior is not None:
            self.prior.train(encoder, seed, checkpoint=self.checkpoints.of(order.name, "prior"), progress=_steps(send))
        examples, dev, test = self.task.trial(encoder, seed)
        state = TrainingRun(encoder, examples, dev, replace(self.settings, epochs=budget), seed=seed).train(
            checkpoint=self.checkpoints.of(order.name),
            stop_after=order.stop_after,
            progress=_steps(send),
            task=order.planned().task,
            stage_done=lambda at, loss, score: send(TrialEvent("epoch", layer, seed, budget, at, score, loss)),
        )
        scores = tuple(state.scores[: order.stop_after])  # the checkpoint of a killed run may be further
        dev_score, dev_pearson = dev.score(encoder) if order.stop_after is None else (max(scores), None)
        draws: tuple[float, ...] = ()
        if isinstance(dev, HeldOutPairs) and not order.searching:
            draws = dev.resampled(encoder.encode_ids(dev.texts()))
        test_score, test_pearson = (None, None) if order.searching else test.score(encoder)
        trial = Trial(
            layer=layer,
            seed=seed,
            epochs=budget,
            steps=(order.stop_after or budget) * -(-self.task.num_examples // self.settings.batch_size),
            dev_scores=scores,
            best_epoch=scores.index(max(scores)) + 1,
            dev=dev_score,
            dev_pearson=dev_pearson,
            test=test_score,
            test_pearson=test_pearson,
            seconds=state.seconds,
            stopped_after=order.stop_after,
            dev_draws=draws,
        )
        return TrialOutcome(trial, _weights(encoder) if order.keep_weights else None)


def _steps(send: Send) -> Progress:
    return lambda task, done, total: send(Steps(task, done, total))


def _weights(encoder: Encoder) -> bytes:
    buffer = io.BytesIO()
    torch.save({name: value.cpu() for name, value in encoder.state_dict().items()}, buffer)
    return buffer.getvalue()
