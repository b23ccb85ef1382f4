"""Run TMFT: train layers, choose one by a strategy, compare and save."""

import random
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from truncate_kit.core.errors import capitalized
from truncate_kit.core.files import local_path
from truncate_kit.core.parallel import Engine
from truncate_kit.core.progress import TrialWatcher, WatchOption, watcher_of
from truncate_kit.core.vectors import FEWEST_COMPARED, FEWEST_COMPARED_QUERIES, interval
from truncate_kit.core.workspace import RESULT_FILES, place_in_words
from truncate_kit.data.pairs import PairSplits, splits_for
from truncate_kit.data.seen import NO_KEYS, keys_of, merged, query_keys, seen_before
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
from truncate_kit.training.loop import isolated
from truncate_kit.training.settings import TrainingSettings, Trial, trial_name

if TYPE_CHECKING:
    from truncate_kit.analysis.drop import DropPrediction
    from truncate_kit.data.retrieval import RetrievalSet
    from truncate_kit.methods.priors import WordPrior

HALVING = 3  # each round keeps a third of the layers for three times the epochs
FORWARD_SHARE = 3  # cost of a pass without gradients: 1/3 training step
RACE_SHARE = 0.1  # limit of ranking and racing, relative to an exhaustive search
CONFIDENT = 0.5  # probability from which a predicted drop bounds the pick


@dataclass(frozen=True, slots=True, kw_only=True)
class Preparation:
    """Training and cuts before the task."""

    prior: "WordPrior | None" = None
    full: Encoder | None = None  # the uncut model, if the encoder was cut before
    teacher: Encoder | None = None  # with vectors to learn in addition to the labels
    teacher_weight: float = 1.0
    words: str = ""  # for model cards
    blocks: tuple[int, ...] | None = None  # kept blocks of `full`, if not the first ones


@isolated()
def finetune(
    encoder: Encoder,
    data: PairSplits,
    *,
    out: Path,
    settings: SweepSettings | None = None,
    training: TrainingSettings | None = None,
    prediction: "DropPrediction | None" = None,
    before: Preparation | None = None,
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
        training: Settings of every trial.
        prediction: Predicted drop, which bounds pick and search.
        before: Training and cuts before the task.
        retrieval: Replaces dev and test: half of its queries choose epoch and layer, the other half is reported.
            Training pairs with its texts, or judged ones with its queries, are left out.
        progress: True draws bars; a `TrialWatcher` receives steps, epochs and finished trials.
        engine: Runs trials, by default one by one here.

    Raises:
        UsageError: Settings do not fit each other or the model.
        DataError: The data do not suit the objective.
        LayerOutOfRangeError: A layer does not exist.
        LayerNotHeldError: A model cut at a layer cannot be saved exactly.
        FileProblemError: `out` is not writable or in use.
        DivergedError: A trial diverged; the others are kept.
        DeviceError: A worker of the engine died.
    """
    settings, training, before = settings or SweepSettings(), training or TrainingSettings(), before or Preparation()
    watcher, folder = watcher_of(progress), local_path(out)
    sweep = _Sweep(encoder, data, folder, settings, training, before, retrieval, watcher, engine)
    teachers = [] if before.teacher is None else [before.teacher]
    with output_folder(folder, encoder, "lean", "full", teachers=teachers), ExitStack() as stores:
        for store in dict.fromkeys([sweep.runner.store, sweep.full.store]):
            stores.enter_context(store.open())
        return sweep.run(prediction)


def sweep_prediction(
    encoder: Encoder,
    data: PairSplits,
    settings: SweepSettings | None = None,
    training: TrainingSettings | None = None,
    *,
    max_length: int | None = None,
) -> "DropPrediction | None":
    """Predict a drop for `finetune` from training pairs alone, as the other pairs choose and report.

    Args:
        encoder: Model to cut.
        data: Pairs; only the train split is read.
        settings: Settings of the sweep.
        training: Settings of every trial.
        max_length: Most tokens per text.

    Returns:
        The prediction; None for named layers, without a train split or graded scores, or if `predicted_drop` has none.
    """
    train, settings, training = data.train, settings or SweepSettings(), training or TrainingSettings()
    if train is None or settings.layers not in ("auto", "all") or training.row.data != "scores":
        return None
    from truncate_kit.analysis.profile import predicted_drop  # only searches need it

    return predicted_drop(encoder, train.texts(), pairs=train.pairs, max_length=max_length)


@dataclass(frozen=True, slots=True)
class Search:
    """The outcome of a strategy."""

    chosen: int
    trials: tuple[Trial, ...] = ()  # shorter or stopped ones
    cost: int = 0  # block-steps, without the chosen layer's full trials
    words: str = ""  # the reason, if no score was needed
    rankings: Mapping[str, Scores] = field(default_factory=dict)  # by strategy


Strategy = Callable[[TrialRunner, Sequence[int], Sequence[int], Picker], Search]
"""Chooses a layer, given the runner, layers, seeds of full trials, and the pick rule."""


def _cost(trials: Iterable[Trial], chosen: int | None = None) -> int:
    return sum(trial.block_steps for trial in trials if trial.layer != chosen)


def exhaustive(runner: TrialRunner, layers: Sequence[int], seeds: Sequence[int], picker: Picker) -> Search:
    """Train every layer with every seed, then apply the pick rule, as the TMFT paper does."""
    trials = runner.run_all((layer, seed) for layer in layers for seed in seeds)
    chosen = picker.pick({layer: fmean(trial.dev for trial in trials if trial.layer == layer) for layer in layers})
    return Search(chosen, cost=_cost(trials, chosen))


def guided(runner: TrialRunner, layers: Sequence[int], seeds: Sequence[int], picker: Picker) -> Search:
    """Train all layers for one epoch with one seed, the best third for three, the best ninth for nine, and so on."""
    epochs, budget, candidates, every = 1, runner.settings.epochs, list(layers), list[Trial]()
    while True:
        epochs = min(epochs, budget)
        trials = runner.run_all([(layer, seeds[0]) for layer in candidates], epochs=epochs)
        every += trials
        dev = {trial.layer: trial.dev for trial in trials}
        rule = picker if epochs == budget else picker.unfinished()
        if len(candidates) <= 2 or epochs * HALVING**2 > budget:
            return Search(rule.pick(dev), tuple(every), _cost(every))
        # The first round includes layers after a predicted drop, as the best score sets the tolerance.
        candidates = rule.contenders(dev, max(2, -(-len(candidates) // HALVING)))
        epochs *= HALVING


def ranked(
    names: Sequence[Ranked], runner: TrialRunner, layers: Sequence[int], seeds: Sequence[int], picker: Picker
) -> Search:
    """Rank layers cheaply by `names`, then race the best layers, unless two rankings pick the same layer.

    Probes favour shallow layers; training all layers at once harms the first and last ones (arXiv 2411.17299).
    """
    early, scored = picker.unfinished(), runner.rank(names, layers, seeds[0])
    rankings: dict[str, Scores] = dict(zip(names, scored, strict=True))
    probed = -(-min(PROBE_PAIRS, runner.task.num_examples) // runner.settings.batch_size)
    costs = {"probe": probed * max(layers) // FORWARD_SHARE, "multi-exit": runner.steps(1) * max(layers)}
    cost, picked = sum(costs[name] for name in names), {early.pick(scores) for scores in scored}
    if len(picked) < len(names):
        return Search(picked.pop(), cost=cost, rankings=rankings)
    contending = picked.union(early.contenders(scored[0], 2), *(early.contenders(one, 1) for one in scored[1:]))
    budget, seed = runner.settings.epochs, seeds[0]
    spare = RACE_SHARE * len(seeds) * runner.steps(budget) * (_blocks(layers) - max(1, max(layers))) - cost
    each = runner.steps(1) * max(1, _blocks(contending) - max(1, min(contending)))
    epochs = min(max(1, int(spare / each)), budget)
    stop_after = epochs if epochs < budget else None
    trials = runner.run_all(((layer, seed) for layer in sorted(contending)), stop_after=stop_after)
    chosen = (picker if stop_after is None else early).pick({trial.layer: trial.dev for trial in trials})
    if stop_after is not None:  # only the winner continues
        for layer in contending - {chosen}:
            runner.store.remove_checkpoints(trial_name(layer, seed, budget))
    stopped = () if stop_after is None else trials
    return Search(chosen, stopped, cost + _cost(trials, chosen), rankings=rankings)


def _blocks(layers: Collection[int]) -> int:
    return sum(max(1, layer) for layer in layers)


def before_drop(_: TrialRunner, layers: Sequence[int], __: Sequence[int], picker: Picker) -> Search:
    """Take the deepest layer before the predicted drop, or the last one."""
    if picker.drop_from is None:
        return Search(max(layers), words="the last; no drop predicted")
    before = [layer for layer in layers if layer < picker.drop_from]
    return Search(max(before, default=min(layers)), words="the deepest layer before the predicted drop")


def last(_: TrialRunner, layers: Sequence[int], *__: object) -> Search:
    """Take the last layer, as a baseline."""
    return Search(max(layers), words="the last")


def at_random(_: TrialRunner, layers: Sequence[int], seeds: Sequence[int], __: Picker) -> Search:
    """Draw a random layer with the first seed, as a baseline."""
    return Search(random.Random(seeds[0]).choice(list(layers)), words="drawn at random")


SEARCHES: dict[str, Strategy] = {  # by the names of `STRATEGIES`
    "rankings": partial(ranked, ("probe", "multi-exit")),
    "guided": guided,
    "exhaustive": exhaustive,
    "multi-exit": partial(ranked, ("multi-exit",)),
    "probe": partial(ranked, ("probe",)),
    "cka": before_drop,
    "last": last,
    "random": at_random,
}


class _Sweep:
    def __init__(
        self,
        encoder: Encoder,
        data: PairSplits,
        folder: Path,
        settings: SweepSettings,
        training: TrainingSettings,
        before: Preparation,
        retrieval: "RetrievalSet | None",
        watcher: TrialWatcher,
        engine: Engine | None,
    ) -> None:
        self.whole, self.folder, self.settings, self.before, self.retrieval = data, folder, settings, before, retrieval
        self.layers, self.choosing = layers_named(encoder, settings.layers), list[str]()
        if retrieval is not None:
            from truncate_kit.training.queries import choosing_queries

            self.choosing += choosing_queries(retrieval)

        def runner_of(model: Encoder) -> TrialRunner:
            return TrialRunner(
                model,
                data,
                training,
                folder / "trials",
                before.prior,
                teacher=before.teacher,
                teacher_weight=before.teacher_weight,
                retrieval=retrieval,
                watcher=watcher,
                engine=engine,
                keeps_weights=True,
            )

        self.runner = runner_of(encoder)
        self.full = self.runner if before.full is None else runner_of(before.full)
        self.data = self.runner.task.data

    def run(self, prediction: "DropPrediction | None") -> SweepResult:
        start, settings, encoder, full = time.perf_counter(), self.settings, self.runner.full, self.full.full
        # First, with weights: a search then finds these trials stored.
        last = _trials(self.full, full.depth, settings.seeds)
        likely = prediction is not None and prediction.sure >= CONFIDENT
        drop_from = prediction.from_layer if prediction is not None and likely else None
        rule = picker(settings.pick, settings.within, drop_from, encoder.depth)
        strategy = (settings.strategy or STRATEGIES[0]) if settings.layers == "auto" else None
        search = Search(self.layers[0])
        if len(self.layers) > 1:
            search = SEARCHES[strategy or "exhaustive"](self.runner, self.layers, settings.seeds, rule)
        chosen = _trials(self.runner, search.chosen, settings.seeds)
        best = max(chosen, key=lambda trial: (trial.dev, -trial.seed))
        (best,) = self.runner.run_all([(best.layer, best.seed)], keep_weights=True)
        # With splits by seed, other seeds may train on the lean model's test pairs.
        same_seed = best.seed if self.data.shares is not None else None
        strongest = max(last, key=lambda trial: (trial.seed == same_seed, trial.dev, -trial.seed))
        (strongest,) = self.full.run_all([(strongest.layer, strongest.seed)], keep_weights=True)
        # Layers of earlier calls stay in the table.
        own = [trial for trial in self.runner.finished() if trial.seed in settings.seeds]
        every = {(trial.layer, trial.seed): replace(trial, dev_draws=()) for trial in (*own, *last)}
        others = [layer for layer in layers_to_try(encoder) if layer != search.chosen]
        result = SweepResult(
            model=encoder.name,
            **self._data_fields(),
            settings=replace(settings, strategy=strategy),
            training=self.runner.settings,
            learning_rate=self.runner.settings.rate(encoder.width),
            layers=scores_by_layer(encoder, own),
            search=search.trials,
            trials=tuple(every[place] for place in sorted(every)),
            certainty=self._certainty(search.chosen, best.seed, own),
            chosen=search.chosen,
            chosen_seed=best.seed,
            full=scores_by_layer(full, last)[0],
            prediction=prediction,
            choice=self._reason(search, strategy, rule),
            metric=self.runner.task.metric,
            blocks=self.before.blocks,
            rankings={name: tuple(scores.items()) for name, scores in search.rankings.items()},
            search_cost=search.cost,
            exhaustive_cost=len(settings.seeds) * chosen[0].steps * sum(max(1, layer) for layer in others),
            seconds=time.perf_counter() - start,
        )
        self._save(result, best, strongest)
        # Keep each layer's best weights for other rules; with splits by seed, all of the full model for other seeds.
        ranked = sorted(result.trials, key=lambda trial: (trial.dev, -trial.seed))
        kept = {best.name, strongest.name, *{trial.layer: trial.name for trial in ranked}.values()}
        kept |= {trial.name for trial in last if self.data.shares is not None}
        for runner in (self.runner, self.full):
            runner.store.forget_weights(kept)
        return result

    def _data_fields(self) -> dict[str, str]:
        seen, learned, teacher = {self.runner.full.name: self.runner.full.seen}, self.before.words, self.before.teacher
        if teacher is not None:
            seen |= {teacher.name: teacher.seen}
            beside = f"Beside the labels: the vectors of {teacher.name}, weight {self.before.teacher_weight:g}."
            learned = f"{learned} {beside}".lstrip()
        fields = {"data": self.data.name, "data_fingerprint": self.whole.fingerprint(), "before": learned}
        if self.retrieval is None:
            return fields | {"seen_before": seen_before(self.whole.evaluation, seen)}
        return fields | {"retrieval": self.retrieval.name}

    def _certainty(self, chosen: int, seed: int, own: Sequence[Trial]) -> Certainty | None:
        """Compare layers; None if dev is too small."""
        if self.retrieval is None:
            few = len(splits_for(self.data, seed).dev or ()) < FEWEST_COMPARED
        else:
            few = len(self.choosing) < FEWEST_COMPARED_QUERIES
        if few:
            return None
        layers = {*self.layers, chosen, self.full.full.depth}
        return certainty([trial for trial in own if trial.layer in layers], self.layers, self.settings.seeds)

    def _reason(self, search: Search, strategy: str | None, rule: Picker) -> str:
        depth, blocks, named = self.full.full.depth, self.before.blocks, self.settings.layers not in ("auto", "all")
        place = capitalized(place_in_words(search.chosen, blocks)) + (f" of {depth}" if blocks else "")
        if len(self.layers) == 1:
            return f"{place}: {'as requested' if named else 'the only layer that can be trained'}."
        strategy = strategy or "exhaustive"
        among = "among the requested layers" if named else f"{strategy} search"
        taken = f"{search.words} ({strategy}, no search)" if search.words else f"{rule} ({rule.name}, {among})"
        if search.rankings and self.before.prior is not None:
            taken += "; the ranking left out the training on words"
        kept = " No block is cut; distillation makes the model smaller." if search.chosen >= depth else ""
        return f"{place}: {taken}.{kept}"

    def _save(self, result: SweepResult, best: Trial, strongest: Trial) -> None:
        """Save both models with cards, then the result."""
        settings = result.training.to_dict() | result.settings.to_dict() | {"learning_rate": result.learning_rate}
        teacher, blocks, queries = self.before.teacher, self.before.blocks, list[str]()
        if self.retrieval is not None:
            queries += self.choosing
            if result.training.row.data == "judged":
                queries += {pair.first for pair in self.data.train or ()}
        beside = [query_keys(queries), NO_KEYS if teacher is None else teacher.seen]
        for runner, trial, name in ((self.runner, best, "lean"), (self.full, strongest, "full")):
            saved = runner.store.encoder(trial.name, runner.full.device)
            saved.name = runner.full.name
            splits = splits_for(self.data, trial.seed)
            learned = NO_KEYS if runner.prior is None else runner.prior.learned(trial.seed)
            pairs = keys_of(*(part for split, part in splits.items() if split != "test"))
            saved.seen = merged(runner.full.seen, learned, *beside, pairs)
            origin = origin_of(
                "finetune",
                runner.full,
                saved,
                depth=self.full.full.depth,
                blocks=blocks[: trial.layer] if blocks is not None and name == "lean" else None,
                data=self.whole,
                seed=trial.seed,
                settings=settings,
            )
            save_encoder(saved, self.folder / name, model_card=result.card(saved, origin, trial, splits), origin=origin)
        # The store keeps results that a later call replaces in `folder`.
        for place in (self.runner.store.folder, self.folder):
            result.write(place / RESULT_FILES["finetune"])


def _trials(runner: TrialRunner, layer: int, seeds: Sequence[int]) -> tuple[Trial, ...]:
    """Return the trials of a layer; store weights of new ones."""
    places = [(layer, seed) for seed in seeds]
    runner.run_all([place for place in places if runner.stored(*place) is None], keep_weights=True)
    return runner.run_all(places)


def certainty(trials: Sequence[Trial], layers: Sequence[int] = (), seeds: Sequence[int] = ()) -> Certainty | None:
    """Compare layers with the best one by a paired bootstrap over dev pairs and the variance over seeds.

    Returns None if fewer than two layers with `dev_draws` share a seed.

    Args:
        trials: Full trials of one model.
        layers: All candidates.
        seeds: If at least two layers have all of these seeds, only such layers are compared.
    """
    held = {(trial.layer, trial.seed): trial for trial in trials if trial.dev_draws}
    trained = {trial.layer for trial in trials}
    compared = sorted({layer for layer, _ in held})
    whole = [layer for layer in compared if all((layer, seed) in held for seed in seeds)]
    if seeds and len(whole) >= 2:
        compared, shared = whole, list(seeds)
    else:
        shared = [seed for seed in {seed for _, seed in held} if all((layer, seed) in held for layer in compared)]
    if len(compared) < 2 or not shared:
        return None
    shared.sort()
    means = {layer: np.mean([held[layer, seed].dev for seed in shared]) for layer in compared}
    best = max(compared, key=lambda layer: (means[layer], -layer))
    scores = {layer: np.array([held[layer, seed].dev_draws for seed in shared]) for layer in compared}
    spread = spread_over_seeds([scores[layer].mean(1) for layer in compared])
    leads = [means_over_seeds(scores[best] - scores[layer], spread if layer != best else (0, 0)) for layer in compared]
    low, high = zip(*([round(end, 3) for end in interval(lead)] for lead in leads), strict=True)
    return Certainty(
        best=best,
        alike=tuple(layer for layer, least in zip(compared, low, strict=True) if least <= 0),
        compared=tuple(compared),
        low=low,
        high=high,
        seeds=len(shared),
        not_trained=tuple(sorted({*layers} - trained)),
        fewer_seeds=tuple(sorted({*layers} & trained - {*compared})),
    )


def spread_over_seeds(means: Sequence[NDArray[np.float64]]) -> tuple[float, int]:
    """Return the variance over seeds of a difference of two layers, and its degrees of freedom; (0, 0) for one seed.

    The residuals of `means` (layers, seeds) are pooled over layers, as each has few seeds.
    """
    table = np.array(means)
    freedom = (table.shape[0] - 1) * (table.shape[1] - 1)
    rest = table - table.mean(0) - table.mean(1, keepdims=True) + table.mean()
    return 2 * float((rest**2).sum()) / max(1, freedom), freedom


def means_over_seeds(draws: NDArray[np.float64], spread: tuple[float, int]) -> NDArray[np.float64]:
    """Return resampled means over seeds of differences (seeds, resamples), widened by `spread`.

    Student's t, because resampling two or three seeds gives far too narrow intervals. Layers that vary more than
    the pooled `spread` keep their own variance.
    """
    from scipy.stats import t as student_t  # slow to import; results are read without it

    means, (pooled, freedom) = np.array(draws.mean(0)), spread
    if not freedom:
        return means
    variance = max(pooled, float(draws.mean(1).var(ddof=1))) / len(draws)
    # Quantiles in random order, as random draws would vary at the ends.
    places = (np.arange(len(means)) + 0.5) / len(means)
    moved = np.random.default_rng(0).permutation(student_t.ppf(places, freedom))
    return np.array(means + moved * np.sqrt(variance))
