"""Trials of one model on one task: cut, train, score; read from the store if they are there, else run by an engine."""

import dataclasses
import io
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Protocol

import torch

from truncate_kit.core.errors import DivergedError, UsageError
from truncate_kit.core.parallel import Engine, Send, Steps
from truncate_kit.core.progress import Progress, TrialEvent, TrialWatcher
from truncate_kit.core.settings import numbers_named
from truncate_kit.core.wording import counted
from truncate_kit.data.seen import Keys
from truncate_kit.methods.tmft.ranking import RankingOrder, Scores, rank
from truncate_kit.methods.tmft.result import Ranking
from truncate_kit.models.encoder import Encoder
from truncate_kit.models.layer_pooling import ConcatPooling
from truncate_kit.models.store import Checkpoints, RunStore
from truncate_kit.models.truncation import keep, layers_held, truncate, truncated_config
from truncate_kit.training.examples import PairEvaluator
from truncate_kit.training.loop import TrainingRun
from truncate_kit.training.settings import TrainingSettings, Trial, check_diverged, trial_name
from truncate_kit.training.tasks import Task


class Prior(Protocol):
    """What the encoder of a trial is trained on before its task."""

    def fingerprint(self) -> str:
        """Return a text that is equal exactly when the same prior training would come out."""

    def learned(self, seed: int) -> Keys:
        """Return keys of the labelled pairs that a trial of this seed learns from or is chosen by."""

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
        """Name the whole trial, whose checkpoint this is."""
        return trial_name(self.layer, self.seed, self.epochs)

    @property
    def task(self) -> str:
        """Name the task of its progress."""
        return f"{self}, {counted(self.epochs, 'epoch')}"


@dataclass(frozen=True, slots=True)
class TrialWork:
    """What the trials and rankings of one model on one task share."""

    full: Encoder
    task: Task
    settings: TrainingSettings
    prior: Prior | None
    checkpoints: Checkpoints  # a trial that is begun again continues only if a worker sees their folder

    def move(self, device: str) -> None:
        """Move to another device: task and prior read texts with the same encoder, and hold nothing on a device."""
        self.full.to(device)

    def perform(
        self, order: TrialOrder | RankingOrder, send: Send
    ) -> tuple[Trial | DivergedError, bytes | None] | Scores:
        """Run one trial, or rank; sends `Steps` and, after each epoch of a trial, a `TrialEvent`.

        Returns:
            Of a ranking its scores. Of a trial what it gave, and its weights as `torch.save` writes them if they were
            asked for. One that diverges ends alone.
        """

        def progress(task: str, done: int, total: int) -> None:
            if isinstance(order, TrialOrder) and order.stop_after and task == order.task:
                total = max(1, total * order.stop_after // order.epochs)
            send(Steps(task, done, total))

        if isinstance(order, RankingOrder):
            return rank(self.full, self.task, self.settings, order, progress)
        encoder = truncate(self.full, order.layer)
        try:
            trial = self._run(encoder, order, send, progress)
        except DivergedError as error:
            return error, None
        if not order.keep_weights:
            return trial, None
        weights = io.BytesIO()
        torch.save({name: value.cpu() for name, value in encoder.state_dict().items()}, weights)
        return trial, weights.getvalue()

    def _run(self, encoder: Encoder, order: TrialOrder, send: Send, progress: Progress) -> Trial:
        layer, seed, budget, stop_after = order.layer, order.seed, order.epochs, order.stop_after
        if self.prior is not None:
            checkpoint = self.checkpoints.of(order.name, "prior")
            self.prior.train(encoder, seed, checkpoint=checkpoint, progress=progress)
        examples, dev, test = self.task.trial(encoder, seed)
        state = TrainingRun(encoder, examples, dev, replace(self.settings, epochs=budget), seed=seed).train(
            checkpoint=self.checkpoints.of(order.name),
            stop_after=stop_after,
            progress=progress,
            task=order.task,
            stage_done=lambda at, loss, score: send(TrialEvent("epoch", layer, seed, budget, at, score, loss)),
        )
        scores = tuple(state.scores[:stop_after])  # the checkpoint of a killed run may be further
        dev_score, dev_pearson = dev.score(encoder) if stop_after is None else (max(scores), None)
        draws: tuple[float, ...] = ()
        if isinstance(dev, PairEvaluator) and not order.searching:
            draws = dev.resampled(encoder.encode_ids(dev.texts()))
        test_score, test_pearson = (None, None) if order.searching else test.score(encoder)
        return Trial(
            layer=layer,
            seed=seed,
            epochs=budget,
            steps=(stop_after or budget) * -(-self.task.num_examples // self.settings.batch_size),
            dev_scores=scores,
            best_epoch=scores.index(max(scores)) + 1,
            dev=dev_score,
            dev_pearson=dev_pearson,
            test=test_score,
            test_pearson=test_pearson,
            seconds=state.seconds,
            stopped_after=stop_after,
            dev_draws=draws,
        )


class TrialRunner:
    """Runs trials of one model on one task with one set of training settings, and alone writes their store."""

    def __init__(
        self,
        full: Encoder,
        task: Task,
        settings: TrainingSettings,
        store: RunStore,
        prior: Prior | None = None,
        watcher: TrialWatcher | None = None,
        engine: Engine | None = None,
        *,
        keeps_weights: bool = False,  # of every trial with the full budget
    ) -> None:
        self.full, self.task, self.settings, self.store, self.prior = full, task, settings, store, prior
        self.watcher, self._keeps_weights = watcher or TrialWatcher(), keeps_weights
        self._engine = engine or Engine()
        self._work = TrialWork(full, task, settings, prior, store.checkpoints)

    def run(self, layer: int, seed: int, *, keep_weights: bool = False) -> Trial:
        """Return the trial of this layer and seed, see `run_all`."""
        return self.run_all([(layer, seed)], keep_weights=keep_weights)[0]

    def run_all(
        self,
        places: Iterable[tuple[int, int]],
        *,
        epochs: int | None = None,
        stop_after: int | None = None,
        keep_weights: bool = False,
    ) -> tuple[Trial, ...]:
        """Return the trials of these layers and seeds, in this order, see `as_finished`."""
        places = tuple(places)
        found = self.as_finished(places, epochs=epochs, stop_after=stop_after, keep_weights=keep_weights)
        done = {(trial.layer, trial.seed): trial for trial in found}
        return tuple(done[place] for place in places)

    def as_finished(
        self,
        places: Iterable[tuple[int, int]],
        *,
        epochs: int | None = None,
        stop_after: int | None = None,
        keep_weights: bool = False,
    ) -> Iterator[Trial]:
        """Yield each of these trials once: first those that are in the store, then the others as they finish.

        What is not there goes to the engine as one batch, and is stored before it is given. If trials diverge the
        others are run and kept; then `DivergedError` says which did.

        Args:
            places: Layers and seeds; repeats count once.
            epochs: Of shorter search runs, which never see the test set; None is the full budget.
            stop_after: Epochs of each trial that are run, without the test set; it may go on later.
            keep_weights: Run a finished trial again whose weights are gone; its first record stays.
        """
        budget, orders = epochs or self.settings.epochs, []
        searching = budget < self.settings.epochs or stop_after is not None
        for layer, seed in dict.fromkeys(places):
            trial = self.stored(layer, seed, epochs=budget, stop_after=stop_after)
            if trial is not None and (not keep_weights or self.store.has_weights(trial.name)):
                yield self._told(trial)
                continue
            orders.append(
                TrialOrder(
                    layer=layer,
                    seed=seed,
                    epochs=budget,
                    searching=searching,
                    keep_weights=keep_weights or (self._keeps_weights and not searching),
                    stop_after=stop_after,
                )
            )
        # Deep layers take longest and begin first: else one worker has the last of them while the others have nothing.
        orders.sort(key=lambda order: (order.seed, -order.layer))
        if orders:
            self.watcher.planned({one.task: max(1, one.layer) for one in orders})
        diverged = list[tuple[str, DivergedError]]()
        for order, outcome in self._engine.run(self._work, orders, self._pass_on):
            assert isinstance(outcome, tuple)
            found, weights = outcome
            if isinstance(found, DivergedError):
                diverged.append((f"Layer {order.layer}, seed {order.seed}", found))
                self.store.checkpoints.remove(order.name)
                continue
            encoder = None
            if weights is not None:
                encoder = truncate(self.full, order.layer)
                held = torch.load(io.BytesIO(weights), map_location=self.full.device, weights_only=True)
                encoder.load_state_dict(held)
            self.store.write_encoder(found.name, found, encoder)
            yield self._told(found)
        check_diverged(diverged)

    def stored(
        self, layer: int, seed: int, *, epochs: int | None = None, stop_after: int | None = None
    ) -> Trial | None:
        """Return the finished trial, or what its first epochs gave, also if it ended there; None if there is none."""
        budget = epochs or self.settings.epochs
        whole = self.store.read(trial_name(layer, seed, budget), Trial)
        if stop_after is None:
            return whole
        return whole.first(stop_after) if whole else self.store.read(trial_name(layer, seed, budget, stop_after), Trial)

    def _told(self, trial: Trial) -> Trial:
        kind: Literal["finished", "stopped"] = "finished" if trial.stopped_after is None else "stopped"
        event = TrialEvent(kind, trial.layer, trial.seed, trial.epochs, trial.epochs_run, trial.dev, test=trial.test)
        self.watcher.trial(event)
        return trial

    def _pass_on(self, message: Any) -> None:
        """Hand messages of running trials and of the engine to the watcher."""
        match message:
            case Steps(name, done, total):
                self.watcher.progress(name, done, total)
            case TrialEvent():
                self.watcher.trial(message)

    def steps(self, epochs: int) -> int:
        """Return the optimiser steps of a number of epochs."""
        return epochs * -(-self.task.num_examples // self.settings.batch_size)

    def read_earlier(self, layers: Sequence[int], seeds: Sequence[int]) -> tuple[Trial, ...]:
        """Return what the models trained at their last layer give at each of `layers`, untrained there, by seed.

        Raises `UsageError` for an objective with a classifier, which would be the last layer's.
        """
        if self.task.trial(self.full, seeds[0])[0].head is not None:
            hint = "Read earlier layers with another objective."
            raise UsageError("A classifier that was trained at the last layer does not fit an earlier one.", hint=hint)
        places = [(layer, seed) for seed in seeds for layer in layers]
        missing = [place for place in places if self.store.read(_earlier(*place), Trial) is None]
        new = sorted({seed for _, seed in missing})
        for trial in self.run_all([(self.full.depth, seed) for seed in new], keep_weights=True):
            trained = self.store.encoder(trial.name, self.full.device)
            _, dev, test = self.task.trial(trained, trial.seed)
            for layer in (layer for layer, seed in missing if seed == trial.seed):
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
                self.store.write(_earlier(layer, trial.seed), read)
        if missing:
            self.store.forget_weights(())
        found = (self.store.read(_earlier(*place), Trial) for place in places)
        return tuple(trial for trial in found if trial is not None)

    def rank(self, names: Sequence[Literal["multi-exit", "probe"]], layers: Sequence[int], seed: int) -> list[Scores]:
        """Return the rankings of these names, from the store or run as one batch: a score of every layer, in points."""
        orders = [RankingOrder(name=name, layers=tuple(layers), seed=seed) for name in names]
        kept = {order: self.store.read(order.record, Ranking) for order in orders}
        found = {o: dict(zip(r.layers, r.scores, strict=True)) for o, r in kept.items() if r is not None}
        missing = [order for order in orders if order not in found]
        for order, scores in self._engine.run(self._work, missing, self._pass_on):
            assert isinstance(scores, dict)
            self.store.write(order.record, Ranking(layers=tuple(scores), scores=tuple(scores.values())))
            found[order] = scores
        return [found[order] for order in orders]


def _earlier(layer: int, seed: int) -> str:
    return f"earlier-layer{layer:02d}-seed{seed}"


def kept_encoder(encoder: Encoder, blocks: Sequence[int]) -> Encoder:
    """Keep these blocks only, to be trained. Raises what `keep` raises, `UsageError` if the others are needed."""
    if encoder.pools_over_layers or encoder.heads is not None:
        raise UsageError(
            f"The vectors of {encoder.name} are made of the states of all its layers: no blocks can be left out.",
            hint="Leave out `blocks`, or name the model it was made from.",
        )
    return keep(encoder, blocks)


def layers_to_try(encoder: Encoder) -> tuple[int, ...]:
    """Return all layers that can be held; without layer 0 if every text has the same state there."""
    # Vectors made of several layers: cut below the last one, it would be trained as another model.
    if encoder.pools_over_layers:
        return (encoder.depth,)
    lowest = 1 if _alike_at_0(encoder) else 0
    return tuple(layer for layer in layers_held(encoder.backbone.config) if layer >= lowest)


def _alike_at_0(encoder: Encoder) -> bool:
    """Tell if the token that is pooled is the same for every text at layer 0: the first, or an end without a place."""
    if encoder.pooling == "cls":
        return not isinstance(encoder.pooler, ConcatPooling)
    if encoder.pooling != "last" or encoder.tokenizer is None:
        return False
    config = encoder.backbone.config
    rotary = getattr(config, "rope_parameters", None) is not None
    relative = getattr(config, "position_biased_input", True) is False
    return (rotary or relative) and len({ids[-1] for ids in encoder.token_ids(["a", "to"])}) == 1


def layers_named(encoder: Encoder, text: str) -> tuple[int, ...]:
    """Return the layers that "auto" or a text as in `parse_layers` names for this encoder. Raises `UsageError`."""
    held = layers_to_try(encoder)
    layers = held if text == "auto" else parse_layers(text, held, encoder.depth)
    for layer in layers:
        truncated_config(encoder.backbone.config, layer)
    if 0 in layers and _alike_at_0(encoder):
        token = "first" if encoder.pooling == "cls" else "last"
        raise UsageError(
            f"At layer 0 the {token} token is the same for every text: pooled so, there is nothing to train.",
            hint="Name layers from 1 on, or use mean pooling.",
        )
    if encoder.pools_over_layers and layers != held:
        raise UsageError(
            f"The vectors of {encoder.name} are made of several layers: it cannot be trained at another than its last.",
            hint=f"Use `layers={encoder.depth}`, or name the model it was made from.",
        )
    return layers


def parse_layers(text: str, held: Sequence[int], depth: int) -> tuple[int, ...]:
    """Read layers named as "3", "3,6,9", "2..5", or "all". Raises `UsageError` and the errors of single layers."""
    if text == "all":
        return tuple(held)
    try:
        return tuple(dict.fromkeys(numbers_named(text)))
    except ValueError as error:
        hint = f"Use a number, 3,6,9, 2..5, all or auto; this model has 0..{depth}."
        raise UsageError(f"{text!r} names no layers.", hint=hint) from error
