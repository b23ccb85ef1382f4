"""One trial: cut, train, judge; read from the store where it is already there."""

from collections.abc import Sequence
from dataclasses import dataclass

from truncate_kit.encoders import Encoder, layers_held, truncate
from truncate_kit.errors import UsageError
from truncate_kit.progress import Progress
from truncate_kit.sweep.results import Trial
from truncate_kit.sweep.store import TrialStore
from truncate_kit.sweep.tasks import Task
from truncate_kit.training import Judge, TrainingSettings, train
from truncate_kit.training.examples import Pairs
from truncate_kit.training.exits import MultiExitJudge, MultiExitPairs, probe
from truncate_kit.training.judges import HeldOutPairs


@dataclass(slots=True)
class TrialRunner:
    """Runs trials of one model on one task with one set of training settings."""

    full: Encoder
    task: Task
    settings: TrainingSettings
    store: TrialStore
    progress: Progress

    def run(self, layer: int, seed: int, *, epochs: int | None = None, keep_weights: bool = False) -> Trial:
        """The trial of this layer and seed, from the store where it is finished.

        epochs: a shorter search run, which never sees the test set; None is the full budget. keep_weights: a finished
        trial whose weights are gone is run again.
        """
        budget = epochs or self.settings.epochs
        done = self.store.read(layer, seed, budget)
        searching = epochs is not None and epochs < self.settings.epochs
        if done is not None and (not keep_weights or self.store.has_weights(layer, seed, budget)):
            return done
        encoder = truncate(self.full, layer)
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
        return trial

    def steps(self, epochs: int) -> int:
        """Optimiser steps of so many epochs."""
        return epochs * -(-self.task.num_examples // self.settings.batch_size)

    def rank_exits(self, layers: Sequence[int], seed: int) -> dict[int, float]:
        """Dev score of every layer, in points, after one epoch of the full model with the loss on all of them.

        From the store where it is there. Raises `UsageError` for a task without pairs and cosines.
        """

        def compute() -> dict[int, float]:
            encoder = truncate(self.full, max(layers))
            pairs, dev = self._pairs(encoder, seed, "multi-exit")
            examples, judge = MultiExitPairs(pairs, layers), MultiExitJudge(dev, layers)
            settings = _shorter(self.settings, 1)
            train(encoder, examples, judge, settings, seed=seed, progress=self.progress, task="all layers at once")
            _, again = self._pairs(encoder, seed, "multi-exit")
            return dict(zip(layers, MultiExitJudge(again, layers).by_layer(encoder), strict=True))

        return self.store.ranking(f"multi-exit-seed{seed}", layers, compute)

    def rank_frozen(self, layers: Sequence[int], seed: int) -> dict[int, float]:
        """Dev score of a linear probe on the frozen states of every layer, in points; else as `rank_exits`."""

        def compute() -> dict[int, float]:
            pairs, dev = self._pairs(self.full, seed, "probe")
            return dict(zip(layers, probe(self.full, pairs, dev, layers, seed), strict=True))

        return self.store.ranking(f"probe-seed{seed}", layers, compute)

    def _pairs(self, encoder: Encoder, seed: int, strategy: str) -> tuple[Pairs, HeldOutPairs]:
        examples, dev, _ = self.task.trial(encoder, seed)
        if isinstance(examples, Pairs) and examples.head is None and isinstance(dev, HeldOutPairs):
            return examples, dev
        raise UsageError(
            f"The strategy {strategy} ranks layers by cosines of labelled pairs, which this objective does not have.",
            hint="Use --strategy guided.",
        )


def _shorter(settings: TrainingSettings, epochs: int) -> TrainingSettings:
    return TrainingSettings.from_dict(settings.to_dict() | {"epochs": epochs})


def _copy(judge: Judge) -> Judge:
    """A judge for the loop, which renumbers its ids; the original goes on with the full vocabulary."""
    import copy

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
