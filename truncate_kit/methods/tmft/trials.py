"""Trials in batches: read from the store where they are already there, else run by an engine."""

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from truncate_kit.errors import DivergedError, UsageError
from truncate_kit.methods.tmft.ranking import RankingName, RankingOrder, RankingWork, Scores
from truncate_kit.methods.tmft.sweep_result import Ranking
from truncate_kit.methods.tmft.work import Prior, TrialOrder, TrialWork
from truncate_kit.models import Encoder, keep, layers_held, truncate, truncated_config
from truncate_kit.models.layer_pooling import ConcatPooling
from truncate_kit.naming import numbers_named
from truncate_kit.parallel import Engine, Lost, Sequential, Steps
from truncate_kit.progress import TrialEvent, TrialWatcher
from truncate_kit.training.settings import DivergedTrials, TrainingSettings, Trial, trial_name
from truncate_kit.training.store import RunStore
from truncate_kit.training.tasks import Task


@dataclass(slots=True)
class TrialRunner:
    """Runs trials of one model on one task with one set of training settings, and alone writes their store."""

    full: Encoder
    task: Task
    settings: TrainingSettings
    store: RunStore
    prior: Prior | None = None
    watcher: TrialWatcher = TrialWatcher()  # noqa: RUF009  # it has no state
    engine: Engine = Sequential()  # noqa: RUF009  # likewise
    keeps_weights: bool = False  # of every trial with the full budget
    _work: TrialWork = field(init=False)

    def __post_init__(self) -> None:
        self._work = TrialWork(self.full, self.task, self.settings, self.prior, self.store.checkpoints)

    def run(self, layer: int, seed: int, *, keep_weights: bool = False) -> Trial:
        """The trial of this layer and seed, see `run_all`."""
        return self.run_all([(layer, seed)], keep_weights=keep_weights)[0]

    def run_all(
        self,
        places: Iterable[tuple[int, int]],
        *,
        epochs: int | None = None,
        stop_after: int | None = None,
        keep_weights: bool = False,
    ) -> tuple[Trial, ...]:
        """The trials of these layers and seeds, in this order, see `as_finished`."""
        places = tuple(places)
        found = self.as_finished(places, epochs=epochs, stop_after=stop_after, keep_weights=keep_weights)
        done = {(trial.layer, trial.seed): trial for trial in found}
        return tuple(done[place] for place in places)

    def as_finished(
        self,
        places: Iterable[tuple[int, int]],  # layers and seeds; repeats count once
        *,
        epochs: int | None = None,  # of shorter search runs, which never see the test set; None is the full budget
        stop_after: int | None = None,  # epochs of each trial that are run, without the test set; it may go on later
        keep_weights: bool = False,  # run a finished trial whose weights are gone again; its first record stays
    ) -> Iterator[Trial]:
        """Each trial of these layers and seeds once: first those that are in the store, then the others as they finish.

        What is not there goes to the engine as one batch, and is stored before it is given. Where trials diverge the
        others are run and kept; then `DivergedError` says which did.
        """
        budget, orders = epochs or self.settings.epochs, []
        searching = budget < self.settings.epochs or stop_after is not None
        for layer, seed in dict.fromkeys(places):
            trial = self.stored(layer, seed, epochs=budget, stop_after=stop_after)
            if trial is not None and (not keep_weights or self.store.has_weights(trial.name)):
                yield self._finished(trial)
                continue
            orders.append(
                TrialOrder(
                    layer=layer,
                    seed=seed,
                    epochs=budget,
                    searching=searching,
                    keep_weights=keep_weights or (self.keeps_weights and not searching),
                    stop_after=stop_after,
                )
            )
        # Deep layers take longest and begin first: else one worker has the last of them while the others have nothing.
        orders.sort(key=lambda order: (order.seed, -order.layer))
        if orders:
            self.watcher.planned([order.planned() for order in orders])
        diverged = DivergedTrials()
        for order, outcome in self.engine.run(self._work, orders, self._pass_on):
            if isinstance(outcome.trial, DivergedError):
                diverged.add(f"Layer {order.layer}, seed {order.seed}", outcome.trial)
                self.store.checkpoints.remove(order.name)
                continue
            self.store.write_encoder(outcome.trial.name, outcome.trial, outcome.encoder(self.full))
            yield self._finished(diverged.finished(outcome.trial))
        diverged.check()

    def stored(
        self, layer: int, seed: int, *, epochs: int | None = None, stop_after: int | None = None
    ) -> Trial | None:
        """The finished trial, None where there is none.

        Args:
            layer: Of the trial.
            seed: Of the trial.
            epochs: Of the trial.
            stop_after: What its first epochs gave, also where it ended.
        """
        budget = epochs or self.settings.epochs
        whole = self.store.read(trial_name(layer, seed, budget), Trial)
        if stop_after is None:
            return whole
        return whole.first(stop_after) if whole else self.store.read(trial_name(layer, seed, budget, stop_after), Trial)

    def _finished(self, trial: Trial) -> Trial:
        kind: Literal["finished", "stopped"] = "finished" if trial.stopped_after is None else "stopped"
        done = trial.stopped_after or trial.epochs
        self.watcher.trial(TrialEvent(kind, trial.layer, trial.seed, trial.epochs, done, trial.dev, test=trial.test))
        return trial

    def _pass_on(self, message: Any) -> None:
        """Hand messages of running trials and of the engine to the watcher."""
        match message:
            case Steps(name, done, total):
                self.watcher.progress(name, done, total)
            case TrialEvent():
                self.watcher.trial(message)
            case Lost(TrialOrder() as order, reason):
                self.watcher.trial(TrialEvent("again", order.layer, order.seed, order.epochs, reason=reason))

    def steps(self, epochs: int) -> int:
        """Optimiser steps of a number of epochs."""
        return epochs * -(-self.task.num_examples // self.settings.batch_size)

    def read_earlier(self, layers: Sequence[int], seeds: Sequence[int]) -> tuple[Trial, ...]:
        """What the models trained at their last layer give at each of `layers`, untrained there; seed after seed.

        Raises `UsageError` for an objective with a classifier, which would be the last layer's.
        """
        if self.task.trial(self.full, seeds[0])[0].head is not None:
            hint = "Read earlier layers with another objective."
            raise UsageError("A classifier that was trained at the last layer does not fit an earlier one.", hint=hint)
        missing = {
            seed: [layer for layer in layers if self.store.read(_earlier(layer, seed), Trial) is None] for seed in seeds
        }
        self.run_all([(self.full.depth, seed) for seed in seeds if missing[seed]], keep_weights=True)
        for seed in seeds:
            if missing[seed]:
                self._read_earlier(missing[seed], seed)
        if any(missing.values()):
            self.store.forget_weights(())
        found = (self.store.read(_earlier(layer, seed), Trial) for seed in seeds for layer in layers)
        return tuple(trial for trial in found if trial is not None)

    def _read_earlier(self, layers: Sequence[int], seed: int) -> None:
        trial = self.run(self.full.depth, seed, keep_weights=True)
        trained = self.store.encoder(trial.name, self.full.device)
        _, dev, test = self.task.trial(trained, seed)
        for layer in layers:
            encoder = truncate(trained, layer, copy_weights=False)
            (dev_score, dev_pearson), (test_score, test_pearson) = dev.score(encoder), test.score(encoder)
            read = dataclasses.replace(
                trial,
                layer=layer,
                dev_scores=(dev_score,),
                best_epoch=1,
                dev_draws=(),
                dev=dev_score,
                dev_pearson=dev_pearson,
                test=test_score,
                test_pearson=test_pearson,
            )
            self.store.write(_earlier(layer, seed), read)

    def rank(self, names: Sequence[RankingName], layers: Sequence[int], seed: int) -> list[Scores]:
        """The rankings of these names, from the store or as one batch: a score of every layer, in points."""
        orders = [RankingOrder(name=name, layers=tuple(layers), seed=seed) for name in names]
        kept = {order: self.store.read(order.record, Ranking) for order in orders}
        found = {o: dict(zip(r.layers, r.scores, strict=True)) for o, r in kept.items() if r is not None}
        missing = [order for order in orders if order not in found]
        for order, scores in self.engine.run(RankingWork(self.full, self.task, self.settings), missing, self._pass_on):
            self.store.write(order.record, Ranking(layers=tuple(scores), scores=tuple(scores.values())))
            found[order] = scores
        return [found[order] for order in orders]


def _earlier(layer: int, seed: int) -> str:
    return f"earlier-layer{layer:02d}-seed{seed}"


def kept_encoder(encoder: Encoder, blocks: Sequence[int]) -> Encoder:
    """The encoder of these blocks only, to be trained; the errors of `keep`, `UsageError` where others are needed."""
    if encoder.pools_over_layers or encoder.heads is not None:
        raise UsageError(
            f"The vectors of {encoder.name} are made of the states of all its layers: no blocks can be left out.",
            hint="Leave out `blocks`, or name the model it was made from.",
        )
    return keep(encoder, blocks)


def layers_to_try(encoder: Encoder) -> tuple[int, ...]:
    """All layers that can be held; without layer 0 where every text has the same state there."""
    # Vectors made of several layers: cut below the last one, it would be trained as another model.
    if encoder.pools_over_layers:
        return (encoder.depth,)
    lowest = 1 if alike_at_0(encoder) else 0
    return tuple(layer for layer in layers_held(encoder.backbone.config) if layer >= lowest)


def alike_at_0(encoder: Encoder) -> bool:
    """Whether the token that is pooled is the same for every text at layer 0: the first, or an end without a place."""
    if encoder.pooling == "cls":
        return not isinstance(encoder.pooler, ConcatPooling)
    if encoder.pooling != "last" or encoder.tokenizer is None:
        return False
    config = encoder.backbone.config
    rotary = getattr(config, "rope_parameters", None) is not None
    relative = getattr(config, "position_biased_input", True) is False
    return (rotary or relative) and len({ids[-1] for ids in encoder.token_ids(["a", "to"])}) == 1


def layers_named(encoder: Encoder, text: str) -> tuple[int, ...]:
    """The layers that "auto" or a text as in `parse_layers` names for this encoder. Raises `UsageError`."""
    held = layers_to_try(encoder)
    layers = held if text == "auto" else parse_layers(text, held, encoder.depth)
    for layer in layers:
        truncated_config(encoder.backbone.config, layer)
    if 0 in layers and alike_at_0(encoder):
        token = "first" if encoder.pooling == "cls" else "last"
        raise UsageError(
            f"At layer 0 the {token} token is the same for every text: pooled so, there is nothing to train.",
            hint="Name layers from 1 on, or use mean pooling.",
        )
    if encoder.pools_over_layers and layers != held:
        raise UsageError(
            f"The vectors of {encoder.name} are made of several layers, up to layer {encoder.depth}: it cannot be "
            "trained at another one.",
            hint=f"Use `layers={encoder.depth}`, or name the model it was made from.",
        )
    return layers


def parse_layers(text: str, held: Sequence[int], depth: int) -> tuple[int, ...]:
    """Layers named as "3", "3,6,9", "2..5", or "all". Raises `UsageError` and the errors of single layers."""
    if text == "all":
        return tuple(held)
    try:
        return tuple(dict.fromkeys(numbers_named(text)))
    except ValueError as error:
        raise UsageError(
            f"{text!r} names no layers.", hint=f"Use a number, 3,6,9, 2..5, all or auto; this model has 0..{depth}."
        ) from error
