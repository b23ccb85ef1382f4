"""One trial, wherever it runs: cut, train, judge. It reads and writes no results."""

import io
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

import torch

from truncate_kit.encoders import Encoder, truncate
from truncate_kit.engines import Steps, Tell
from truncate_kit.progress import PlannedTrial, Progress
from truncate_kit.sweep.results import Trial
from truncate_kit.sweep.store import TrialStore
from truncate_kit.sweep.tasks import Task
from truncate_kit.training import TrainingSettings, train
from truncate_kit.training.judges import copied
from truncate_kit.wording import counted


class Prior(Protocol):
    """What the encoder of a trial is trained on before its task."""

    def fingerprint(self) -> str:
        """Equal exactly when the same prior training would come out."""

    def train(self, encoder: Encoder, seed: int, *, checkpoint: Path | None, progress: Progress) -> float:
        """Train the truncated encoder in place; returns the score it reached."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialOrder:
    """A trial to be run. searching: it never sees the test set. keep_weights: they come back with the scores.

    stop_after: so many of its epochs, after which its checkpoint waits.
    """

    layer: int
    seed: int
    epochs: int
    searching: bool
    keep_weights: bool
    stop_after: int | None = None

    def __str__(self) -> str:
        return f"layer {self.layer}, seed {self.seed}"

    def planned(self) -> PlannedTrial:
        """What a watcher is told of it beforehand."""
        task = f"{self}, {counted(self.epochs, 'epoch')}"
        return PlannedTrial(task, self.layer, self.seed, self.epochs, self.stop_after or self.epochs)


class TrialEpoch(NamedTuple):
    """A message of a running trial: `done` of `epochs` epochs are behind it; loss and dev of the last one."""

    layer: int
    seed: int
    epochs: int
    done: int
    loss: float
    dev: float


@dataclass(frozen=True, slots=True)
class TrialOutcome:
    """A finished trial. weights: a state dict as `torch.save` writes it, on the CPU; None unless they were ordered."""

    trial: Trial
    weights: bytes | None

    def encoder(self, full: Encoder) -> Encoder | None:
        """The trained encoder, from the one that was cut; None without weights."""
        if self.weights is None:
            return None
        encoder = truncate(full, self.trial.layer)
        encoder.load_state_dict(torch.load(io.BytesIO(self.weights), map_location=full.device, weights_only=True))
        return encoder


@dataclass(frozen=True, slots=True)
class TrialWork:
    """What the trials of one model on one task share.

    store: only for its checkpoints, and only where a worker sees its folder: on this machine and on shared disks. There
    a trial that is begun again continues; elsewhere it starts anew.
    """

    full: Encoder
    task: Task
    settings: TrainingSettings
    prior: Prior | None
    store: TrialStore

    def move(self, device: str) -> None:
        """Go to another device: task and prior read texts with the same encoder, and hold nothing on a device."""
        self.full.to(device)

    def perform(self, order: TrialOrder, tell: Tell) -> TrialOutcome:
        """Run one trial; it tells of `Steps` and, after each epoch, of a `TrialEpoch`."""
        layer, seed, budget = order.layer, order.seed, order.epochs
        encoder = truncate(self.full, layer)
        if self.prior is not None:
            self.prior.train(encoder, seed, checkpoint=self._checkpoint(layer, seed, 0), progress=_steps(tell))
        examples, dev, test = self.task.trial(encoder, seed)
        state = train(
            encoder,
            examples,
            copied(dev),
            shorter(self.settings, budget),
            seed=seed,
            checkpoint=self._checkpoint(layer, seed, budget),
            stop_after=order.stop_after,
            progress=_steps(tell),
            task=order.planned().task,
            stage_done=lambda at, loss, score: tell(TrialEpoch(layer, seed, budget, at, loss, score)),
        )
        scores = tuple(state.scores[: order.stop_after])  # the checkpoint of a killed run may be further
        dev_score, dev_pearson = dev.score(encoder) if order.stop_after is None else (max(scores), None)
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
        )
        return TrialOutcome(trial, _weights(encoder) if order.keep_weights else None)

    def _checkpoint(self, layer: int, seed: int, epochs: int) -> Path | None:
        return self.store.checkpoint(layer, seed, epochs) if self.store.folder.is_dir() else None


def shorter(settings: TrainingSettings, epochs: int) -> TrainingSettings:
    """The same settings with another number of epochs."""
    return TrainingSettings.from_dict(settings.to_dict() | {"epochs": epochs})


def _steps(tell: Tell) -> Progress:
    return lambda task, done, total: tell(Steps(task, done, total))


def _weights(encoder: Encoder) -> bytes:
    buffer = io.BytesIO()
    torch.save({name: value.cpu() for name, value in encoder.state_dict().items()}, buffer)
    return buffer.getvalue()
