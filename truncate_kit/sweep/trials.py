"""One trial: cut, train, judge; read from the store where it is already there."""

import copy
import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

from truncate_kit.encoders import Encoder, layers_held, truncate
from truncate_kit.errors import UsageError
from truncate_kit.progress import Progress, TrialWatcher
from truncate_kit.sweep.results import Trial
from truncate_kit.sweep.store import TrialStore
from truncate_kit.sweep.tasks import Task
from truncate_kit.training import Judge, TrainingSettings, train
from truncate_kit.training.examples import Pairs
from truncate_kit.training.exits import MultiExitJudge, MultiExitPairs, probe
from truncate_kit.training.judges import HeldOutPairs


class Prior(Protocol):
    """What the encoder of a trial is trained on before its task."""

    def fingerprint(self) -> str:
        """Equal exactly when the same prior training would come out."""

    def train(self, encoder: Encoder, seed: int, *, checkpoint: Path | None, progress: Progress) -> float:
        """Train the truncated encoder in place; returns the score it reached."""


@dataclass(slots=True)
class TrialRunner:
    """Runs trials of one model on one task with one set of training settings."""

    full: Encoder
    task: Task
    settings: TrainingSettings
    store: TrialStore
    progress: Progress
    prior: Prior | None = None
    watcher: TrialWatcher = TrialWatcher()  # noqa: RUF009  # it has no state

    def run(self, layer: int, seed: int, *, epochs: int | None = None, keep_weights: bool = False) -> Trial:
        """The trial of this layer and seed, from the store where it is finished.

        epochs: a shorter search run, which never sees the test set; None is the full budget. keep_weights: a finished
        trial whose weights are gone is run again.
        """
        budget = epochs or self.settings.epochs
        done = self.store.read(layer, seed, budget)
        searching = epochs is not None and epochs < self.settings.epochs
        if done is not None and (not keep_weights or self.store.has_weights(layer, seed, budget)):
            self.watcher.finished(layer, seed, budget, done.dev, done.test)
            return done
        encoder = truncate(self.full, layer)
        before = self.store.checkpoint(layer, seed, 0)
        if self.prior is not None:
            self.prior.train(encoder, seed, checkpoint=before, progress=self.progress)
        examples, dev, test = self.task.trial(encoder, seed)
        settings = self.settings if epochs is None else _shorter(self.settings, epochs)
        state = train(
            encoder,
            examples,
            _copy(dev),
            settings,
            seed=seed,
            checkpoint=self.store.checkpoint(layer, seed, budget),
            progress=self.progress,
            task=f"layer {layer}, seed {seed}, {settings.epochs} epochs",
            stage_done=lambda at, loss, score: self.watcher.epoch(layer, seed, budget, at, loss, score),
        )
        dev_score, dev_pearson = dev.score(encoder)
        test_score, test_pearson = (None, None) if searching else test.score(encoder)
        trial = Trial(
            layer=layer,
            seed=seed,
            epochs=budget,
            steps=self.steps(budget),
            dev_scores=tuple(state.scores),
            best_epoch=state.best_stage + 1,
            dev=dev_score,
            dev_pearson=dev_pearson,
            test=test_score,
            test_pearson=test_pearson,
            seconds=state.seconds,
        )
        self.store.write(trial, encoder if keep_weights else None)
        before.unlink(missing_ok=True)
        self.watcher.finished(layer, seed, budget, trial.dev, trial.test)
        return trial

    def steps(self, epochs: int) -> int:
        """Optimiser steps of so many epochs."""
        return epochs * -(-self.task.num_examples // self.settings.batch_size)

    def read_earlier(self, layers: Sequence[int], seed: int) -> tuple[Trial, ...]:
        """What the model that was trained at its last layer gives at each of `layers`, untrained there.

        From the store where it is there. Raises `UsageError` for an objective with a classifier, which would be the
        last layer's.
        """

        def compute() -> tuple[Trial, ...]:
            trial = self.run(self.full.depth, seed, keep_weights=True)
            trained = self.store.encoder(trial)
            examples, dev, test = self.task.trial(trained, seed)
            if examples.head is not None:
                raise UsageError(
                    "A classifier that was trained at the last layer does not fit an earlier one.",
                    hint="Read earlier layers with another objective.",
                )
            read = []
            for layer in layers:
                encoder = truncate(trained, layer, copy_weights=False)
                (dev_score, dev_pearson), (test_score, test_pearson) = dev.score(encoder), test.score(encoder)
                read.append(
                    dataclasses.replace(
                        trial,
                        layer=layer,
                        dev_scores=(dev_score,),
                        dev=dev_score,
                        dev_pearson=dev_pearson,
                        test=test_score,
                        test_pearson=test_pearson,
                    )
                )
            self.store.forget_weights(set())
            return tuple(read)

        return self.store.trials(f"earlier-seed{seed}", layers, compute)

    def rank_exits(self, layers: Sequence[int], seed: int) -> dict[int, float]:
        """Dev score of every layer, in points, after one epoch of the full model with the loss on all of them.

        From the store where it is there. Raises `UsageError` for a task without pairs and cosines.
        """

        def compute() -> dict[int, float]:
            encoder = truncate(self.full, max(layers))
            examples, dev = self._exits(encoder, layers, seed, "multi-exit")
            train(
                encoder,
                MultiExitPairs(examples),
                MultiExitJudge({layer: _copy(judge) for layer, judge in dev.items()}),
                _shorter(self.settings, 1),
                seed=seed,
                progress=self.progress,
                task="all layers at once",
            )
            return MultiExitJudge(dev).by_layer(encoder)

        return self.store.ranking(f"multi-exit-seed{seed}", layers, compute)

    def rank_frozen(self, layers: Sequence[int], seed: int) -> dict[int, float]:
        """Dev score of a linear probe on the frozen states of every layer, in points; else as `rank_exits`."""

        def compute() -> dict[int, float]:
            return probe(self.full, *self._exits(self.full, layers, seed, "probe"), seed)

        return self.store.ranking(f"probe-seed{seed}", layers, compute)

    def _exits(
        self, encoder: Encoder, layers: Sequence[int], seed: int, strategy: str
    ) -> tuple[dict[int, Pairs], dict[int, HeldOutPairs]]:
        """The task's examples and dev judge for each layer, each with a head of its own where there is one."""
        examples, judges = {}, {}
        for layer in layers:
            pairs, dev, _ = self.task.trial(encoder, seed)
            if not isinstance(pairs, Pairs) or not isinstance(dev, HeldOutPairs):
                raise UsageError(
                    f"The strategy {strategy} ranks layers by labelled pairs, which this objective does not have.",
                    hint="Use --strategy guided.",
                )
            examples[layer], judges[layer] = pairs, dev
        return examples, judges


def _shorter(settings: TrainingSettings, epochs: int) -> TrainingSettings:
    return TrainingSettings.from_dict(settings.to_dict() | {"epochs": epochs})


AnyJudge = TypeVar("AnyJudge", bound=Judge)


def _copy(judge: AnyJudge) -> AnyJudge:
    """A judge for the loop, which renumbers its ids; the original goes on with the full vocabulary."""
    return copy.copy(judge)


def layers_to_try(encoder: Encoder) -> tuple[int, ...]:
    """All layers that can be held; without layer 0 for CLS pooling, where every text has the same state."""
    return tuple(layer for layer in layers_held(encoder.backbone.config) if layer > 0 or encoder.pooling != "cls")


def parse_layers(text: str, held: Sequence[int], depth: int) -> tuple[int, ...]:
    """Layers named as "3", "3,6,9", "2..5", or "all". Raises `UsageError` and the errors of single layers."""
    if text == "all":
        return tuple(held)
    layers: list[int] = []
    try:
        for part in text.split(","):
            first, dots, last = part.partition("..")
            layers += range(int(first), int(last) + 1) if dots else [int(first)]
    except ValueError as error:
        raise UsageError(
            f"{text!r} names no layers.", hint=f"Use a number, 3,6,9, 2..5, all or auto; this model has 0..{depth}."
        ) from error
    if not layers:
        raise UsageError(f"{text!r} names no layers.", hint=f"This model has 0..{depth}.")
    return tuple(dict.fromkeys(layers))
