"""One trial, wherever it runs: cut, train, score. It reads and writes no results."""

import dataclasses
import io
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Protocol

import torch

from truncate_kit.errors import DivergedError, UsageError
from truncate_kit.methods.tmft.ranking import RankingName, RankingOrder, RankingWork, Scores
from truncate_kit.methods.tmft.result import Ranking
from truncate_kit.models import Encoder, keep, layers_held, truncate, truncated_config
from truncate_kit.models.layer_pooling import ConcatPooling
from truncate_kit.naming import numbers_named
from truncate_kit.parallel import Engine, Lost, Send, Sequential, Steps
from truncate_kit.progress import PlannedTrial, Progress, TrialEvent, TrialWatcher
from truncate_kit.seen import Keys
from truncate_kit.training.evaluators import HeldOutPairs
from truncate_kit.training.loop import TrainingRun
from truncate_kit.training.settings import DivergedTrials, TrainingSettings, Trial, trial_name
from truncate_kit.training.store import Checkpoints, RunStore
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
