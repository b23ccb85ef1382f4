"""Run TMFT: train layers, choose one, compare it with the full model, and save both."""

import logging
import math
import random
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from truncate_kit.core.errors import capitalized
from truncate_kit.core.files import local_path
from truncate_kit.core.progress import Engine, WatchOption, watcher_of
from truncate_kit.core.vectors import FEWEST_COMPARED, FEWEST_COMPARED_QUERIES, LEVEL, RESAMPLES
from truncate_kit.core.workspace import RESULT_FILES, place_in_words
from truncate_kit.data.pairs import PairSplits, num_distinct, splits_for
from truncate_kit.data.seen import seen_before
from truncate_kit.methods.tmft.settings import STRATEGIES, Certainty, Picker, SweepResult, SweepSettings, picker
from truncate_kit.methods.tmft.trials import (
    PROBE_PAIRS,
    Ranked,
    Scores,
    TrialRunner,
    layers_named,
    layers_to_try,
    scores_by_layer,
)
from truncate_kit.models.encoder import Encoder
from truncate_kit.models.pipeline import save_encoder
from truncate_kit.models.store import origin_of, output_folder
from truncate_kit.training.examples import announce_training
from truncate_kit.training.loop import isolated
from truncate_kit.training.settings import TrainingSettings, Trial, trial_name

if TYPE_CHECKING:
    from truncate_kit.analysis.result import DropPrediction
    from truncate_kit.data.retrieval import RetrievalSet
    from truncate_kit.methods.priors import WordPrior

_logger = logging.getLogger(__name__)
EQUAL = 1e-6  # points; least standard error of a difference
HALVING = 3  # each round keeps a third of the layers for three times the epochs
FORWARD_SHARE = 3  # a forward pass without gradients costs 1/3 of a training step
RACE_SHARE = 0.1  # largest cost of ranking and racing, relative to an exhaustive search
CONFIDENT = 0.5  # probability from which a predicted drop bounds the pick


@isolated()
def finetune(
    encoder: Encoder,
    data: PairSplits,
    *,
    out: Path,
    settings: SweepSettings | None = None,
    training: TrainingSettings | None = None,
    prediction: "DropPrediction | None" = None,
    prior: "WordPrior | None" = None,
    teacher: Encoder | None = None,
    teacher_weight: float = 1.0,
    full: Encoder | None = None,
    blocks: tuple[int, ...] | None = None,
    before: str = "",
    retrieval: "RetrievalSet | None" = None,
    progress: WatchOption = False,
    engine: Engine | None = None,
) -> SweepResult:
    """Fine-tune `encoder` cut at one or more layers; save the chosen cut and the full model.

    Args:
        encoder: Model; stays unchanged.
        data: Train, dev and test pairs with the targets of the objective.
        out: Output folder for `lean/`, `full/`, `sweep.json` and `trials/`; repeat the call to resume.
        settings: Layers, strategy, pick rule and seeds.
        training: Trial settings.
        prediction: Predicted drop, for the pick rule `robust` and the strategy `cka`.
        prior: Training before each trial.
        teacher: Model that gives target vectors, in addition to the labels.
        teacher_weight: Weight of the loss on target vectors.
        full: The full model, if `encoder` was cut before.
        blocks: The kept blocks of `full`, if not the first ones.
        before: Training before the task, in words for model cards.
        retrieval: Retrieval set that replaces dev and test: half of its queries for choosing epoch and layer,
            half for reporting. Training pairs with a text (judged pairs: with a query) of the set are excluded.
        progress: A `WatchOption`.
        engine: Runs the trials; by default one after another in this process.

    Raises:
        UsageError: Settings do not fit each other or the model.
        DataError: The data do not suit the objective.
        LayerOutOfRangeError: A layer does not exist.
        LayerNotHeldError: A model cut at a layer cannot be saved exactly.
        FileProblemError: `out` is not writable or in use.
        DivergedError: A trial diverged; the other trials are stored.
        DeviceError: A worker of the engine died.
    """
    settings, folder = settings or SweepSettings(), local_path(out)
    layers = layers_named(encoder, settings.layers)
    runner_of = partial(
        TrialRunner,
        data=data,
        settings=training or TrainingSettings(),
        folder=folder / "trials",
        prior=prior,
        teacher=teacher,
        teacher_weight=teacher_weight,
        retrieval=retrieval,
        watcher=watcher_of(progress),
        engine=engine,
        keeps_weights=True,
    )
    runner = runner_of(encoder)
    last = runner if full is None else runner_of(full)
    if teacher is not None:
        before = f"{before} Targets besides the labels: vectors of {teacher.name}, weight {teacher_weight:g}.".lstrip()
    teachers, others = () if teacher is None else (teacher,), nullcontext() if last is runner else last.store.open()
    with output_folder(folder, encoder, "lean", "full", teachers=teachers), runner.store.open(), others:
        return _Sweep(runner, last, layers, settings, folder, before, blocks).run(prediction)


def sweep_prediction(
    encoder: Encoder,
    data: PairSplits,
    settings: SweepSettings | None = None,
    training: TrainingSettings | None = None,
    *,
    max_length: int | None = None,
) -> "DropPrediction | None":
    """Predict a drop for `finetune` from training pairs alone, as others are for selection and report.

    Returns None if layers are named, graded train pairs are missing, or `predicted_drop` returns no drop.
    """
    train, settings, training = data.train, settings or SweepSettings(), training or TrainingSettings()
    if train is None or settings.layers not in ("auto", "all") or training.row.data != "scores":
        return None
    from truncate_kit.analysis.profile import predicted_drop  # only searches need it

    return predicted_drop(encoder, train.texts(), pairs=train.pairs, max_length=max_length)


class Search:
    """Strategies to find the layer to keep; each method returns a layer.

    Attributes:
        trials: Trials with fewer epochs, or stopped early.
        cost: Blocks × training steps, without full trials of the chosen layer.
        words: Reason for the layer, if no trained layers were compared.
        rankings: Scores by strategy and layer.
    """

    def __init__(self, runner: TrialRunner, layers: Sequence[int], seeds: Sequence[int], picker: Picker) -> None:
        self._runner, self._layers, self._seeds, self._picker = runner, layers, seeds, picker
        self.trials, self.cost, self.words, self.rankings = tuple[Trial, ...](), 0, "", dict[str, Scores]()

    def exhaustive(self) -> int:
        """Train every layer with every seed, then apply the pick rule, as the TMFT paper does."""
        trials = self._runner.run_all((layer, seed) for layer in self._layers for seed in self._seeds)
        dev = {layer: fmean(trial.dev for trial in trials if trial.layer == layer) for layer in self._layers}
        chosen = self._picker.pick(dev)
        self.cost = _cost(trial for trial in trials if trial.layer != chosen)
        return chosen

    def guided(self) -> int:
        """Train all layers for one epoch with one seed; repeatedly, train the best third three times as long."""
        epochs, budget, candidates = 1, self._runner.settings.epochs, list(self._layers)
        while True:
            epochs = min(epochs, budget)
            trials = self._runner.run_all([(layer, self._seeds[0]) for layer in candidates], epochs=epochs)
            self.trials += trials
            self.cost += _cost(trials)
            dev = {trial.layer: trial.dev for trial in trials}
            rule = self._picker if epochs == budget else self._picker.unfinished()
            if len(candidates) <= 2 or epochs * HALVING**2 > budget:
                return rule.pick(dev)
            # The first round includes layers after a predicted drop, as the best score sets the tolerance.
            candidates = rule.contenders(dev, max(2, -(-len(candidates) // HALVING)))
            epochs *= HALVING

    def ranked(self, *names: Ranked) -> int:
        """Return the layer that two rankings agree on; otherwise race the best layers of all rankings (`_race`).

        Probes favour shallow layers; training all layers at once harms the first and last ones (arXiv 2411.17299).
        """
        runner, early, deepest = self._runner, self._picker.unfinished(), max(self._layers)
        scored = runner.rank(names, self._layers, self._seeds[0])
        self.rankings = dict(zip(names, scored, strict=True))
        probed = -(-min(PROBE_PAIRS, runner.task.num_examples) // runner.settings.batch_size)
        costs = {"probe": probed * deepest // FORWARD_SHARE, "multi-exit": runner.steps(1) * deepest}
        self.cost, picked = sum(costs[name] for name in names), {early.pick(scores) for scores in scored}
        if len(picked) < len(names):
            return picked.pop()
        contending = picked.union(early.contenders(scored[0], 2), *(early.contenders(one, 1) for one in scored[1:]))
        return self._race(contending)

    def _race(self, contending: set[int]) -> int:
        runner, seed, budget = self._runner, self._seeds[0], self._runner.settings.epochs
        whole = len(self._seeds) * runner.steps(budget) * (_blocks(self._layers) - max(1, *self._layers))
        each = runner.steps(1) * max(1, _blocks(contending) - max(1, min(contending)))
        epochs = min(max(1, int((RACE_SHARE * whole - self.cost) / each)), budget)
        stop_after, rule = (epochs, self._picker.unfinished()) if epochs < budget else (None, self._picker)
        trials = runner.run_all(((layer, seed) for layer in sorted(contending)), stop_after=stop_after)
        chosen = rule.pick({trial.layer: trial.dev for trial in trials})
        self.cost += _cost(trial for trial in trials if trial.layer != chosen)
        if stop_after is not None:
            self.trials = trials
            for layer in contending - {chosen}:
                runner.store.remove_checkpoints(trial_name(layer, seed, budget))
        return chosen

    def before_drop(self) -> int:
        """Return the deepest layer before the predicted drop, else the last layer."""
        drop, self.words = self._picker.drop_from, "the deepest layer before the predicted drop"
        if drop is None:
            self.words = "the last; no drop predicted"
        return max((layer for layer in self._layers if drop is None or layer < drop), default=min(self._layers))

    def last(self) -> int:
        """Return the last layer, as a baseline."""
        self.words = "the last"
        return max(self._layers)

    def at_random(self) -> int:
        """Return a random layer, drawn with the first seed, as a baseline."""
        self.words = "drawn at random"
        return random.Random(self._seeds[0]).choice(list(self._layers))


def _cost(trials: Iterable[Trial]) -> int:
    return sum(trial.steps * max(1, trial.layer) for trial in trials)


def _blocks(layers: Iterable[int]) -> int:
    return sum(max(1, layer) for layer in layers)


SEARCHES: dict[str, Callable[[Search], int]] = {  # by the names of `STRATEGIES`
    "rankings": lambda search: search.ranked("probe", "multi-exit"),
    "guided": Search.guided,
    "exhaustive": Search.exhaustive,
    "multi-exit": lambda search: search.ranked("multi-exit"),
    "probe": lambda search: search.ranked("probe"),
    "cka": Search.before_drop,
    "last": Search.last,
    "random": Search.at_random,
}


@dataclass
class _Sweep:
    """One sweep: `runner` trains cut models, `full` the full model; the same object if `encoder` is the full model."""

    runner: TrialRunner
    full: TrialRunner
    layers: tuple[int, ...]
    settings: SweepSettings
    folder: Path
    before: str
    blocks: tuple[int, ...] | None

    def run(self, prediction: "DropPrediction | None") -> SweepResult:
        start, settings, encoder, full = time.perf_counter(), self.settings, self.runner.full, self.full.full
        self._announce_total()
        # Train the full model first, and store its weights: the search can then use these trials.
        last = self.full.run_all((full.depth, seed) for seed in settings.seeds)
        likely = prediction is not None and prediction.sure >= CONFIDENT
        drop_from = prediction.from_layer if prediction is not None and likely else None
        rule = picker(settings.pick, settings.within, drop_from, encoder.depth)
        strategy = (settings.strategy or STRATEGIES[0]) if settings.layers == "auto" else None
        search, layer = Search(self.runner, self.layers, settings.seeds, rule), self.layers[0]
        if len(self.layers) > 1:
            layer = SEARCHES[strategy or "exhaustive"](search)
        chosen = self.runner.run_all((layer, seed) for seed in settings.seeds)
        # With splits by seed, other seeds may train on the lean model's test pairs.
        divided = self.runner.task.data.shares is not None
        best = max(chosen, key=lambda trial: (trial.dev, -trial.seed))
        strongest = max(last, key=lambda trial: (divided and trial.seed == best.seed, trial.dev, -trial.seed))
        for runner, trial in ((self.runner, best), (self.full, strongest)):
            runner.run_all([(trial.layer, trial.seed)], keep_weights=True)
        # Layers trained in earlier calls stay in the table.
        own = [trial for trial in self.runner.finished() if trial.seed in settings.seeds]
        every = {(trial.layer, trial.seed): replace(trial, dev_draws=()) for trial in (*own, *last)}
        others = _blocks(other for other in layers_to_try(encoder) if other != layer)
        result = SweepResult(
            model=encoder.name,
            data=self.runner.whole.name,
            data_fingerprint=self.runner.whole.fingerprint(),
            settings=replace(settings, strategy=strategy),
            training=self.runner.settings,
            learning_rate=self.runner.settings.rate(encoder.width),
            layers=scores_by_layer(encoder, own),
            search=search.trials,
            trials=tuple(every[place] for place in sorted(every)),
            certainty=self._certainty({*self.layers, layer, full.depth}, best.seed, own),
            chosen=layer,
            chosen_seed=best.seed,
            full=scores_by_layer(full, last)[0],
            prediction=prediction,
            choice=self._reason(search, layer, strategy, rule),
            metric=self.runner.task.metric,
            before=self.before,
            blocks=self.blocks,
            rankings={name: tuple(scores.items()) for name, scores in search.rankings.items()},
            search_cost=search.cost,
            exhaustive_cost=len(settings.seeds) * best.steps * others,
            seconds=time.perf_counter() - start,
            **self._scored_by(),
        )
        self._save(result, best, strongest)
        # Another pick rule may need the best weights of any layer; with splits by seed, also any seed's full model.
        ranked = sorted(result.trials, key=lambda trial: (trial.dev, -trial.seed))
        kept = {best.name, strongest.name, *{trial.layer: trial.name for trial in ranked}.values()}
        kept |= {trial.name for trial in last if divided}
        for runner in (self.runner, self.full):
            runner.store.forget_weights(kept)
        return result

    def _announce_total(self) -> None:
        runner, layers, seeds = self.runner, self.layers, len(self.settings.seeds)
        epochs, auto = runner.settings.epochs, self.settings.layers == "auto"
        strategy = (self.settings.strategy or STRATEGIES[0]) if auto else "exhaustive"
        shares = {"exhaustive": 1.0, "guided": (1 + math.log(epochs, HALVING)) / (seeds * epochs)}
        shares |= dict.fromkeys(("rankings", "multi-exit", "probe"), RACE_SHARE)
        searched = shares.get(strategy, 0.0) * seeds * (_blocks(layers) - max(1, *layers))
        runs = searched + (seeds + 1) * (self.full.full.depth + max(1, *layers))  # again for weights
        blocks = 2 * runner.settings.batch_size * runner.steps(epochs) * runs
        announce_training(runner.watcher.progress, runner.full, runner.whole.evaluation.texts(), blocks)

    def _scored_by(self) -> dict[str, str]:
        runner = self.runner
        if runner.retrieval is not None:
            return {"retrieval": runner.retrieval.name}
        models = [runner.full, *([] if runner.teacher is None else [runner.teacher])]
        return {"seen_before": seen_before(runner.whole.evaluation, {model.name: model.seen for model in models})}

    def _certainty(self, layers: Collection[int], seed: int, own: Sequence[Trial]) -> Certainty | None:
        runner, trials = self.runner, [trial for trial in own if trial.layer in layers]
        number, unit = num_distinct(splits_for(runner.task.data, seed).dev or ()), "dev pairs"
        if runner.retrieval is not None:
            number, unit = len(runner.choosing), "queries"
        found = certainty(trials, self.layers, self.settings.seeds, number=number, unit=unit)
        if found is not None and found.warning and len(self.layers) > 1:
            _logger.warning(found.warning)
        return found

    def _reason(self, search: Search, layer: int, strategy: str | None, rule: Picker) -> str:
        depth, blocks, named = self.full.full.depth, self.blocks, self.settings.layers not in ("auto", "all")
        place = capitalized(place_in_words(layer, blocks)) + (f" of {depth}" if blocks else "")
        if len(self.layers) == 1:
            return f"{place}: {'as requested' if named else 'the only layer that can be trained'}."
        strategy = strategy or "exhaustive"
        among = "among the requested layers" if named else f"{strategy} search"
        taken = f"{search.words} ({strategy}, no search)" if search.words else f"{rule} ({rule.name}, {among})"
        if search.rankings and self.runner.prior is not None:
            taken += "; the layers were ranked without the training on words"
        kept = " No block is cut; distillation makes the model smaller." if layer >= depth else ""
        return f"{place}: {taken}.{kept}"

    def _save(self, result: SweepResult, best: Trial, strongest: Trial) -> None:
        settings = result.training.to_dict() | result.settings.to_dict() | {"learning_rate": result.learning_rate}
        lean = None if self.blocks is None else self.blocks[: best.layer]
        for runner, trial, name, blocks in ((self.runner, best, "lean", lean), (self.full, strongest, "full", None)):
            saved = runner.store.encoder(trial.name, runner.full.device)
            saved.name, saved.seen = runner.full.name, runner.learned(trial.seed)
            origin = origin_of(
                "finetune",
                runner.full,
                saved,
                depth=self.full.full.depth,
                blocks=blocks,
                data=runner.whole,
                seed=trial.seed,
                settings=settings,
            )
            card = result.card(saved, origin, trial, splits_for(runner.task.data, trial.seed))
            save_encoder(saved, self.folder / name, model_card=card, origin=origin)
        # The store keeps results that a later call replaces in `folder`.
        for place in (self.runner.store.folder, self.folder):
            result.write(place / RESULT_FILES["finetune"])


def certainty(
    trials: Sequence[Trial],
    layers: Sequence[int] = (),
    seeds: Sequence[int] = (),
    *,
    number: int,
    unit: str = "dev pairs",
) -> Certainty | None:
    """Return which layers may be the best on dev; see `best_layers`.

    Returns None if fewer than two layers with `dev_draws` share a seed.

    Args:
        trials: Full trials of one model.
        layers: All candidates.
        seeds: If at least two layers have all of these seeds, only such layers are compared.
        number: Pairs or queries on dev; if too few, layers are not distinguished.
        unit: Name of the pairs or queries.
    """
    held = {(trial.layer, trial.seed): trial for trial in trials if trial.dev_draws}
    trained = {trial.layer for trial in trials}
    compared = sorted({layer for layer, _ in held})
    whole = [layer for layer in compared if all((layer, seed) in held for seed in seeds)]
    if seeds and len(whole) >= 2:
        compared, shared = whole, list(seeds)
    else:
        shared = [seed for seed in {seed for _, seed in held} if all((layer, seed) in held for layer in compared)]
    few = number < (FEWEST_COMPARED if unit == "dev pairs" else FEWEST_COMPARED_QUERIES)
    if not shared or len(compared) < (1 if few else 2):
        return None
    shared.sort()
    scores = np.array([[held[layer, seed].dev for seed in shared] for layer in compared])
    best, alike, lead = int(scores.mean(1).argmax()), list(range(len(compared))), None
    if not few:
        alike, lead = best_layers(
            scores, np.array([[held[one, seed].dev_draws for seed in shared] for one in compared])
        )
    return Certainty(
        best=compared[best],
        alike=tuple(compared[place] for place in alike),
        compared=tuple(compared),
        lead=lead,
        seeds=len(shared),
        number=number,
        unit=unit,
        not_trained=tuple(sorted({*layers} - trained)),
        fewer_seeds=tuple(sorted({*layers} & trained - {*compared})),
    )


def best_layers(scores: NDArray[np.float64], draws: NDArray[np.float64]) -> tuple[list[int], float]:
    """Return the places of layers that include every best one with probability `LEVEL`, and the lead needed.

    This is the model confidence set by the largest difference (Hansen, Lunde and Nason 2011, T_R in section 3.1.2): the
    worst layer is removed until the largest lead, in standard errors, is within the quantile of its bootstrapped
    maximum. Simulated in `benchmarks.intervals`.

    Args:
        scores: Dev scores (layers, seeds) in points.
        draws: Scores (layers, seeds, resamples) of the same bootstrap resamples of dev.

    Returns:
        Places, sorted, and the median lead in points at which the best layer is distinguished from another one.
    """
    (count, seeds), means, resampled = scores.shape, scores.mean(1), draws.mean(1)
    noise, covariance = resampled - resampled.mean(1, keepdims=True), np.cov(resampled)
    if freedom := (count - 1) * (seeds - 1):
        # Student's t over seeds, pooled over layers, as each has few; a layer that varies more keeps its own variance.
        rest = (scores - scores.mean(0) - scores.mean(1, keepdims=True) + scores.mean()) ** 2
        own = rest.sum(1) / (seeds - 1) * count / (count - 1)
        variance = np.maximum(own, rest.sum() / freedom) / seeds
        covariance = covariance + np.diag(variance)
        generator = np.random.default_rng(0)
        noise = np.repeat(noise, -(-RESAMPLES // noise.shape[1]), axis=1)
        moved = generator.standard_normal(noise.shape) * np.sqrt(variance)[:, None]
        noise = noise + moved / np.sqrt(generator.chisquare(freedom, noise.shape[1]) / freedom)
    spread = np.diag(covariance)
    error = np.sqrt(np.maximum(spread[:, None] + spread - 2 * covariance, EQUAL**2))
    left, quantile = list(range(count)), 0.0
    while len(left) > 1:
        moves, apart = noise[left], error[np.ix_(left, left)]
        quantile = float(np.quantile(((moves - moves[:, None]) / apart[..., None]).max((0, 1)), LEVEL))
        behind = ((means[left] - means[left][:, None]) / apart).max(1)
        if behind.max() <= quantile:
            break
        left.pop(int(behind.argmax()))
    others = np.delete(error[means.argmax()], means.argmax())
    return left, round(quantile * float(np.median(others)), 3)
