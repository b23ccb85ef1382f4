"""Run and store trials of one model on one task, and rank layers cheaply."""

import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from truncate_kit.core.errors import DivergedError, UsageError, counted
from truncate_kit.core.hardware import in_halves
from truncate_kit.core.progress import Engine, Progress, Send, TrialEvent, TrialWatcher, silent
from truncate_kit.core.vectors import mean_and_std
from truncate_kit.data.pairs import PairSplits, splits_for
from truncate_kit.data.seen import NO_KEYS, Keys, keys_of, merged, query_keys
from truncate_kit.methods.tmft.settings import LayerScores, parse_layers
from truncate_kit.models.encoder import Batch, Encoder, evaluating, length_batches, original_order
from truncate_kit.models.store import RunStore, checkpoint_of, encoder_digest, run_key
from truncate_kit.models.truncation import keep, layers_held, parameters_kept, truncate, truncated_config
from truncate_kit.training.examples import LabelledTask, Pairs, scored_as
from truncate_kit.training.loop import Evaluator, Examples, Ids, TrainingRun
from truncate_kit.training.settings import TrainingSettings, Trial, check_diverged, trial_name, trial_scores

if TYPE_CHECKING:
    from truncate_kit.data.retrieval import RetrievalSet
    from truncate_kit.methods.priors import WordPrior

PROBE_EPOCHS, PROBE_RATE, PROBE_BATCH = 5, 1e-3, 256
PROBE_PAIRS = 10_000  # 0.8 GB of states for 13 layers × 768
Scores = dict[int, float]
Ranked = Literal["probe", "multi-exit"]


def exit_vectors(encoder: Encoder, batch: Batch, layers: Sequence[int]) -> list[Tensor]:
    """Return the vectors (b, out) of the encoder truncated at each layer, in one pass."""
    states = encoder.hidden_states(batch)
    return [encoder.from_states(states[layer], batch["attention_mask"]) for layer in layers]


@torch.inference_mode()
def exit_vectors_of(
    encoder: Encoder, ids: Sequence[Ids], layers: Sequence[int], batch_size: int = 64, progress: Progress = silent
) -> Tensor:
    """Return `exit_vectors` of many texts: (layers, n, out) float32 on the CPU, in the order of `ids`."""
    batches, parts = length_batches([len(row) for row in ids], batch_size), list[Tensor]()

    def read(places: Sequence[int]) -> Tensor:
        vectors = exit_vectors(encoder, encoder.pad([ids[place] for place in places]), layers)
        return torch.stack([one.float().cpu() for one in vectors])

    with evaluating(encoder):
        for done, batch in enumerate(batches, 1):
            parts += in_halves(read, batch)
            progress("ranking layers by their frozen states", done, len(batches))
    return torch.cat(parts, dim=1)[:, original_order(batches)]


class MultiExit(Examples, Evaluator):
    """Training examples and evaluator for several layers at once, with one head per layer."""

    def __init__(self, trials: Mapping[int, tuple[Pairs, Evaluator, Evaluator]]) -> None:
        self._layers, self._exits = list(trials), [pairs for pairs, _, _ in trials.values()]
        self._held_out, self._any = [dev for _, dev, _ in trials.values()], self._exits[0]
        self.separable = self._any.separable
        heads = [pairs.head for pairs in self._exits if pairs.head is not None]
        self.head: nn.Module | None = nn.ModuleList(heads) if heads else None

    def __len__(self) -> int:
        return len(self._any)

    def lengths(self) -> list[int]:
        """Count the tokens of each pair's longer text."""
        return self._any.lengths()

    def texts(self) -> list[Ids]:
        """Return all token ids, including held-out texts."""
        return [*self._any.texts(), *self._held_out[0].texts()]

    def loss(self, encoder: Encoder, batch: Sequence[int]) -> Tensor:
        """Return the mean loss over the layers."""
        return self._losses(exit_vectors(encoder, encoder.pad(self._any.ids(batch)), self._layers), batch).mean()

    def _losses(self, vectors: Iterable[Tensor], batch: Sequence[int]) -> Tensor:
        return torch.stack([pairs.loss_of(exit_, batch) for pairs, exit_ in zip(self._exits, vectors, strict=True)])

    def _scores(self, vectors: Iterable[Tensor]) -> Scores:
        rows = zip(self._layers, self._held_out, vectors, strict=True)
        return {layer: evaluator.score_of(exit_)[0] for layer, evaluator, exit_ in rows}

    def by_layer(self, encoder: Encoder) -> Scores:
        """Return the dev score of each layer, in points."""
        return self._scores(exit_vectors_of(encoder, self._held_out[0].texts(), self._layers))

    def score(self, encoder: Encoder) -> tuple[float, float | None]:
        """Return the mean score over the layers."""
        return fmean(self.by_layer(encoder).values()), None

    def probe(self, encoder: Encoder, seed: int, progress: Progress = silent) -> Scores:
        """Train one linear map per layer on frozen states; return the best dev score of each layer, in points."""
        generator = torch.Generator().manual_seed(seed)
        texts, count = self._any.texts(), len(self)
        drawn = count > PROBE_PAIRS
        kept = torch.randperm(count, generator=generator)[:PROBE_PAIRS] if drawn else torch.arange(count)
        both_sides = [texts[place] for place in torch.cat([kept, kept + count]).tolist()]
        # The maps (out × out, from the identity) and heads are trained together on states computed once.
        train = exit_vectors_of(encoder, both_sides, self._layers, progress=progress)
        dev = exit_vectors_of(encoder, self._held_out[0].texts(), self._layers)
        centre = train.mean(dim=1, keepdim=True)  # a large common mean makes every cosine near 1
        train, dev = train - centre, dev - centre
        maps = nn.Parameter(torch.eye(train.shape[-1]).repeat(len(self._layers), 1, 1))
        heads = [] if self.head is None else self.head.cpu().parameters()
        optimiser = torch.optim.Adam([maps, *heads], lr=PROBE_RATE)
        best = self._scores(dev)
        for _ in range(PROBE_EPOCHS):
            for places in torch.split(torch.randperm(len(kept), generator=generator), PROBE_BATCH):
                both = torch.cat([places, places + len(kept)])
                optimiser.zero_grad()
                self._losses(torch.bmm(train[:, both], maps), kept[places].tolist()).sum().backward()
                optimiser.step()
            scores = self._scores(torch.bmm(dev, maps.detach()))
            best = {layer: max(score, best[layer]) for layer, score in scores.items()}
        return best


@dataclass(frozen=True, slots=True)
class TrialOrder:
    """One trial to run."""

    layer: int
    seed: int
    epochs: int  # of the full-length trial
    stop_after: int | None  # epochs to run now; the checkpoint stays
    searching: bool  # skip the test score
    keep_weights: bool

    def __str__(self) -> str:
        return f"layer {self.layer}, seed {self.seed}"

    @property
    def name(self) -> str:
        """Return the name of the full-length trial and its checkpoint."""
        return trial_name(self.layer, self.seed, self.epochs)

    @property
    def task(self) -> str:
        """Return the name of the trial in progress reports."""
        return f"{self}, {counted(self.epochs, 'epoch')}"


RankingOrder = tuple[Ranked, tuple[int, ...], int]
"""One ranking to run: name, layers and seed."""


@dataclass
class TrialWork:
    """Model, task and settings that all trials and rankings share; sent to workers."""

    full: Encoder
    task: LabelledTask
    settings: TrainingSettings
    prior: "WordPrior | None"
    folder: Path

    def move(self, device: str) -> None:
        """Move the model; task and prior hold no tensors on a device."""
        self.full.to(device)

    def perform(self, order: TrialOrder | RankingOrder, send: Send) -> Any:
        """Run one trial or ranking; send steps and `TrialEvent`s.

        Returns a ranking's scores by layer, or a trial's record (or the error if training diverged) and, with
        `order.keep_weights`, its weights as bytes.
        """

        def progress(task: str, done: int, total: int) -> None:
            send((task, done, total))

        if not isinstance(order, TrialOrder):
            return self.rank(*order, progress)
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

    def rank(self, name: Ranked, layers: Sequence[int], seed: int, progress: Progress = silent) -> Scores:
        """Return each layer's dev score, in points: of a linear probe, or after training all layers for one epoch."""
        encoder = self.full if name == "probe" else truncate(self.full, max(layers))
        exits = MultiExit({layer: self.task.trial(encoder, seed) for layer in layers})  # each has its own head
        if name == "probe":
            return exits.probe(encoder, seed, progress)
        run = TrainingRun(encoder, exits, exits, replace(self.settings, epochs=1), seed=seed)
        run.train(progress=progress, task="ranking layers, all trained at once")
        return exits.by_layer(encoder)

    def _run(self, encoder: Encoder, order: TrialOrder, send: Send, progress: Progress) -> Trial:
        layer, seed, budget, stop_after = order.layer, order.seed, order.epochs, order.stop_after
        if self.prior is not None:
            self.prior.train(
                encoder, seed, checkpoint=checkpoint_of(self.folder, order.name, "prior"), progress=progress
            )
        examples, dev, test = self.task.trial(encoder, seed)
        state = TrainingRun(encoder, examples, dev, replace(self.settings, epochs=budget), seed=seed).train(
            checkpoint=checkpoint_of(self.folder, order.name),
            stop_after=stop_after,
            progress=progress,
            task=order.task,
            stage_done=lambda at, loss, score: send(TrialEvent("epoch", layer, seed, budget, at, score, loss)),
        )
        scores = tuple(state.scores[:stop_after])  # a killed run may have stored more epochs
        on_dev: tuple[float, float | None] = max(scores), None
        on_test, draws = None if order.searching else test.score(encoder), tuple[float, ...]()
        if stop_after is None:
            vectors = encoder.encode_ids(dev.texts())
            on_dev = dev.score_of(vectors)
            draws = () if order.searching else dev.resampled(vectors)
        return Trial(
            layer=layer,
            seed=seed,
            epochs=budget,
            steps=(stop_after or budget) * -(-self.task.num_examples // self.settings.batch_size),
            **trial_scores(scores, on_dev, on_test, state.seconds),
            stopped_after=stop_after,
            dev_draws=draws,
        )


class TrialRunner:
    """Runs trials of one model on labelled pairs; only this object writes to their store, not the workers.

    Most arguments are those of `finetune`. `folder` contains one store for each combination of model, data and
    settings; `keeps_weights` keeps the weights of every full trial.
    """

    def __init__(
        self,
        full: Encoder,
        data: PairSplits,
        settings: TrainingSettings,
        folder: Path,
        prior: "WordPrior | None" = None,
        *,
        teacher: Encoder | None = None,
        teacher_weight: float = 1.0,
        retrieval: "RetrievalSet | None" = None,
        watcher: TrialWatcher | None = None,
        engine: Engine | None = None,
        keeps_weights: bool = False,
    ) -> None:
        self.full, self.whole, self.settings, self.prior = full, data, settings, prior
        self.teacher, self.retrieval, self.choosing, queries = teacher, retrieval, list[str](), None
        if retrieval is not None:
            from truncate_kit.training.queries import choosing_queries, halves

            queries, self.choosing = halves(full, retrieval), [*choosing_queries(retrieval)]
            # A document can answer many queries, so judged pairs are excluded only for their queries.
            data = data.without_texts(retrieval.asked if settings.row.data == "judged" else retrieval.held_out)
        self.task = LabelledTask(full, data, settings.objective, teacher, teacher_weight, queries)
        parts = [settings.settled(full.width).to_json(), data.fingerprint()]
        parts += [] if prior is None else [prior.fingerprint()]
        parts += [] if teacher is None else [encoder_digest(teacher), str(teacher_weight)]
        parts += [] if retrieval is None else [retrieval.fingerprint() + scored_as(retrieval, full)]
        described = {"model": full.name, "data": data.name, "training": settings.to_dict()}
        self.store = RunStore(folder, run_key(full, *parts), described)
        self.watcher, self._engine = watcher or TrialWatcher(), engine or Engine()
        self._keeps_weights = keeps_weights
        self._work = TrialWork(full, self.task, settings, prior, self.store.folder)

    def run_all(self, places: Iterable[tuple[int, int]], **options: Any) -> tuple[Trial, ...]:
        """Return the trials in order; see `as_finished`."""
        places = tuple(places)
        done = {(trial.layer, trial.seed): trial for trial in self.as_finished(places, **options)}
        return tuple(done[place] for place in places)

    def as_finished(
        self,
        places: Iterable[tuple[int, int]],
        *,
        epochs: int | None = None,
        stop_after: int | None = None,
        keep_weights: bool = False,
    ) -> Iterator[Trial]:
        """Yield each trial once: stored trials first, then new ones as they finish.

        Raises `DivergedError` after all other trials are stored.

        Args:
            places: Layers and seeds.
            epochs: Shorter budget of search trials, without a test score; by default the full budget.
            stop_after: Epochs to run now, without a test score.
            keep_weights: Store weights; a stored trial without weights runs again and keeps its record.
        """
        budget, orders = epochs or self.settings.epochs, list[TrialOrder]()
        searching = budget < self.settings.epochs or stop_after is not None
        keep = keep_weights or (self._keeps_weights and not searching)
        for layer, seed in dict.fromkeys(places):
            order = TrialOrder(layer, seed, budget, stop_after, searching, keep)
            known = self._stored(order)
            if known is not None and (not keep_weights or self.store.has_weights(known.name)):
                yield self._report(known)
            else:
                orders.append(order)
        # Start with deep layers: they take longest.
        orders.sort(key=lambda order: (order.seed, -order.layer))
        if orders:
            self.watcher.planned({one.task: max(1, one.layer) for one in orders})
        diverged = list[tuple[str, DivergedError]]()
        for order, (trial, weights) in self._engine.run(self._work, orders, self._pass_on):
            if isinstance(trial, DivergedError):
                diverged.append((f"Layer {order.layer}, seed {order.seed}", trial))
                self.store.remove_checkpoints(order.name)
                continue
            encoder = None
            if weights is not None:
                encoder = truncate(self.full, order.layer)
                encoder.load_state_dict(torch.load(io.BytesIO(weights), self.full.device, weights_only=True))
            self.store.write_encoder(trial.name, trial, encoder)
            yield self._report(trial)
        check_diverged(diverged)

    def _stored(self, order: TrialOrder) -> Trial | None:
        whole, stop_after = self.store.read(order.name, Trial), order.stop_after
        if whole is None and stop_after is not None:
            return self.store.read(trial_name(order.layer, order.seed, order.epochs, stop_after), Trial)
        return whole if whole is None or stop_after is None else whole.first(stop_after)

    def finished(self) -> list[Trial]:
        """Return stored trials with the full budget, by layer and seed."""
        # Skip records of `read_earlier`, which are stored under another name.
        own = (trial for name, trial in self.store.all(Trial).items() if name == trial.name)
        trials = [trial for trial in own if trial.epochs == self.settings.epochs and trial.test is not None]
        return sorted(trials, key=lambda trial: (trial.layer, trial.seed))

    def learned(self, seed: int) -> Keys:
        """Return the keys of all pairs and queries that this seed's model was trained or selected on."""
        queries, teacher, prior = [*self.choosing], self.teacher, self.prior
        if self.settings.row.data == "judged":
            queries += {pair.first for pair in self.task.data.train or ()}
        pairs = keys_of(*(part for split, part in splits_for(self.task.data, seed).items() if split != "test"))
        words = NO_KEYS if prior is None else prior.learned(seed)
        return merged(self.full.seen, words, query_keys(queries), NO_KEYS if teacher is None else teacher.seen, pairs)

    def _report(self, trial: Trial) -> Trial:
        kind: Literal["finished", "stopped"] = "finished" if trial.stopped_after is None else "stopped"
        event = TrialEvent(kind, trial.layer, trial.seed, trial.epochs, trial.epochs_run, trial.dev, test=trial.test)
        self.watcher.trial(event)
        return trial

    def _pass_on(self, message: Any) -> None:
        if isinstance(message, TrialEvent):
            self.watcher.trial(message)
        else:
            self.watcher.progress(*message)

    def steps(self, epochs: int) -> int:
        """Count the optimiser steps."""
        return epochs * -(-self.task.num_examples // self.settings.batch_size)

    def read_earlier(self, layers: Sequence[int], seeds: Sequence[int]) -> tuple[Trial, ...]:
        """Score the models trained at the last layer, one per seed, at each of `layers`."""

        def read(layer: int, seed: int) -> Trial | None:
            return self.store.read(_earlier(layer, seed), Trial)

        places = [(layer, seed) for seed in seeds for layer in layers]
        missing = [place for place in places if read(*place) is None]
        new = sorted({seed for _, seed in missing})
        for trial in self.run_all([(self.full.depth, seed) for seed in new], keep_weights=True):
            trained = self.store.encoder(trial.name, self.full.device)
            _, dev, test = self.task.trial(trained, trial.seed)
            for layer in (layer for layer, seed in missing if seed == trial.seed):
                encoder = truncate(trained, layer, copy_weights=False)
                on_dev = dev.score(encoder)
                scores = trial_scores(on_dev[:1], on_dev, test.score(encoder), trial.seconds)
                record = replace(trial, layer=layer, dev_draws=(), **scores)
                self.store.write(_earlier(layer, trial.seed), record)
        if missing:
            self.store.forget_weights(())
        return tuple(filter(None, (read(*place) for place in places)))

    def rank(self, names: Sequence[Ranked], layers: Sequence[int], seed: int) -> list[Scores]:
        """Return the scores by layer of each ranking, in points; run all missing rankings at once."""

        def stored_name(name: str) -> str:
            return f"{name}-seed{seed}-layers{'-'.join(map(str, layers))}"

        rankings = {name: self.store.read_tensor(stored_name(name)) for name in names}
        missing: list[RankingOrder] = [(name, tuple(layers), seed) for name in names if rankings[name] is None]
        for (name, *_), scores in self._engine.run(self._work, missing, self._pass_on):
            rankings[name] = self.store.tensor(
                stored_name(name), partial(torch.tensor, list(scores.values()), dtype=torch.float64)
            )
        return [dict(zip(layers, tensor.tolist(), strict=True)) for tensor in rankings.values() if tensor is not None]


def _earlier(layer: int, seed: int) -> str:
    return f"earlier-layer{layer:02d}-seed{seed}"


def scores_by_layer(encoder: Encoder, trials: Sequence[Trial]) -> tuple[LayerScores, ...]:
    """Return each layer's mean scores and sample standard deviations over seeds."""
    kept = parameters_kept(encoder.backbone.config)
    above = [encoder.tail, *([] if encoder.pooler is None else [encoder.pooler])]
    others = sum(parameter.numel() for module in above for parameter in module.parameters())
    rows = []
    for layer in sorted({trial.layer for trial in trials}):
        by_seed = {trial.seed: trial for trial in trials if trial.layer == layer}
        seeds, scores = tuple(sorted(by_seed)), dict[str, Any]()
        for name in ("dev", "test", "test_pearson", "dev_pearson"):
            values = [value for seed in seeds if (value := getattr(by_seed[seed], name)) is not None]
            scores[name], scores[f"{name}_std"] = mean_and_std(values) if values else (None, None)
        rows.append(LayerScores(layer=layer, parameters=(kept[layer] or 0) + others, seeds=seeds, **scores))
    return tuple(rows)


def kept_encoder(encoder: Encoder, blocks: Sequence[int]) -> Encoder:
    """Return the encoder with only these blocks. Raises `UsageError`, or the errors of `keep`."""
    if encoder.pools_over_layers or encoder.heads is not None:
        raise UsageError(
            f"The vectors of {encoder.name} combine several layers, so no block can be left out.",
            hint="Leave out `blocks`, or use the model before its layers were combined.",
        )
    return keep(encoder, blocks)


def layers_to_try(encoder: Encoder) -> tuple[int, ...]:
    """Return the layers at which the model can be cut and trained."""
    # Vectors that combine several layers need all layers.
    if encoder.pools_over_layers:
        return (encoder.depth,)
    held = layers_held(encoder.backbone.config)
    # Layer 0 may give all texts one vector, as with CLS pooling.
    if 0 in held and torch.allclose(*truncate(encoder, 0, copy_weights=False).vectors(["a", "to be"])):
        return tuple(layer for layer in held if layer > 0)
    return tuple(held)


def layers_named(encoder: Encoder, text: str) -> tuple[int, ...]:
    """Return the layers in `text`: "auto" is every trainable layer, else as in `parse_layers`.

    Raises `UsageError` for a layer that cannot be trained, or the errors of `truncate`.
    """
    if encoder.heads is not None:
        raise UsageError(
            f"{encoder.name} is a frozen model with heads: its vectors come from the heads, not from a layer.",
            hint="Use the model without heads, or train other heads with `finetune_frozen()`.",
        )
    held = layers_to_try(encoder)
    layers = held if text == "auto" else parse_layers(text, held, encoder.depth)
    for layer in layers:
        truncated_config(encoder.backbone.config, layer)
        if layer not in held:
            several = encoder.pools_over_layers
            reason = "its vectors combine several layers" if several else "all texts have equal vectors"
            hint = f"Use layers from {held[0]} to {held[-1]}, or another `pooling`."
            raise UsageError(f"{encoder.name} cannot be trained at layer {layer}: {reason}.", hint=hint)
    return layers
