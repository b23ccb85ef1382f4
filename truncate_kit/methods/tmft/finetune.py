"""One sweep from its first trial to the saved models: which layer, how good, against the full model."""

import time
from collections.abc import Collection, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean

from truncate_kit.analysis.drop import DropPrediction
from truncate_kit.analysis.profile import predicted_drop
from truncate_kit.data import PairSplits, RetrievalSet, splits_for
from truncate_kit.errors import UsageError
from truncate_kit.files import local_path
from truncate_kit.methods.tmft.choosing import STRATEGIES, Candidates, Picker, Search, check_strategy
from truncate_kit.methods.tmft.result import Certainty, Ranking, SweepResult, certainty, scores_by_layer
from truncate_kit.methods.tmft.settings import SweepSettings
from truncate_kit.methods.tmft.trials import Prior, TrialRunner, layers_named, layers_to_try
from truncate_kit.models import Encoder, encoder_digest, save_encoder
from truncate_kit.models.saving import origin_of
from truncate_kit.naming import place_in_words
from truncate_kit.origin import RESULT_FILES
from truncate_kit.parallel import Engine, Sequential
from truncate_kit.progress import WatchOption, watcher_of
from truncate_kit.report.card import sweep_card
from truncate_kit.seen import NO_KEYS, Keys, keys_of, merged, query_keys, seen_before
from truncate_kit.training.distributed import isolated
from truncate_kit.training.evaluators import choosing_queries, scored_as
from truncate_kit.training.objectives import OBJECTIVES
from truncate_kit.training.settings import TrainingSettings, Trial
from truncate_kit.training.store import RunStore, output_folder, run_key
from truncate_kit.training.tasks import LabelledTask, Teacher
from truncate_kit.wording import FEWEST_COMPARED, FEWEST_COMPARED_QUERIES, capitalized

CONFIDENT = 0.5  # a predicted drop bounds the pick from this probability on, or this confidence where there is none


@dataclass(frozen=True, slots=True)
class Found:
    """What was trained."""

    search: Search  # how the layer was chosen
    seeds: tuple[int, ...]  # by which layers were compared
    chosen: Sequence[Trial]  # the full trials of the chosen layer
    yardstick: Sequence[Trial]  # those of the full model
    best: Trial  # the one of the chosen layer that is saved
    strongest: Trial  # the one of the full model that is saved


@dataclass(frozen=True, slots=True)
class DataNames:
    """What the data are known by afterwards.

    Attributes:
        given: The pairs before any were left out.
        retrieval: Name of the retrieval set that chooses; empty where there is none.
        queries: Fingerprint of its queries; empty where there are none.
        num_queries: Number of those that choose.
        seen: Keys of what trials see beside their pairs: queries that choose, and what a teacher had seen.
        before: As `SweepResult.seen_before`.
    """

    given: PairSplits
    retrieval: str = ""
    queries: str = ""
    num_queries: int = 0
    seen: Keys = field(default_factory=lambda: NO_KEYS)
    before: str = ""


@dataclass(frozen=True, slots=True)
class Sweep:
    """What a sweep consists of."""

    runner: TrialRunner  # of the model whose layers are tried
    full: TrialRunner  # of the full model; the same runner, unless the model was cut before
    layers: Sequence[int]
    settings: SweepSettings
    prediction: DropPrediction | None  # bounds pick and search
    data: PairSplits  # learned from
    names: DataNames
    before: str  # what model cards say of what was learned before
    blocks: tuple[int, ...] | None = (
        None  # of the full model that the runner's has; None where these are the first ones
    )

    def run(self, out: Path) -> SweepResult:
        """Train, choose, and save both models and the result."""
        start = time.perf_counter()
        found = self._train()
        # Curves and tables are of every finished trial: a shorter run takes no row away.
        own = _finished(self.runner)
        yardstick = [trial for trial in _finished(self.full) if trial.layer == self.full.full.depth]
        encoder, training = self.runner.full, self.runner.settings
        chosen, rows = found.search.chosen, scores_by_layer(encoder, own)
        full = scores_by_layer(self.full.full, yardstick)[0]
        result = SweepResult(
            model=encoder.name,
            data=self.data.name,
            data_fingerprint=self.names.given.fingerprint(),
            retrieval=self.names.retrieval,
            queries_fingerprint=self.names.queries,
            seen_before=self.names.before,
            settings=replace(self.settings, strategy=self._strategy),
            training=training,
            learning_rate=training.rate(encoder.width),
            layers=rows,
            search=(*found.search.short, *found.search.stopped),
            trials=tuple(replace(trial, dev_draws=()) for trial in _unique([*own, *yardstick])),
            certainty=self._certainty(found, own),
            chosen=chosen,
            chosen_seed=found.best.seed,
            full=full,
            prediction=self.prediction,
            choice=self._reason(found.search, beaten=_is_beaten(yardstick, own, found.seeds)),
            metric=self.runner.task.metric,
            before=self.before,
            blocks=self.blocks,
            rankings={
                name: Ranking(layers=tuple(ranked), scores=tuple(ranked.values()))
                for name, ranked in found.search.rankings.items()
            },
            search_cost=found.search.cost,
            exhaustive_cost=self._exhaustive_cost(found),
            seconds=time.perf_counter() - start,
        )
        self._save(result, found, out)
        return result

    def _certainty(self, found: Found, own: Sequence[Trial]) -> Certainty | None:
        """Among those that this call chose from, and the full model; earlier ones of other layers are in the table."""
        dev = splits_for(self.data, found.best.seed).dev
        queries = self.names.num_queries
        if queries < FEWEST_COMPARED_QUERIES if queries else len(dev or ()) < FEWEST_COMPARED:
            return None
        layers = {*self.layers, found.search.chosen, self.full.full.depth}
        by_layer = {layer: {trial.seed for trial in own if trial.layer == layer} for layer in layers}
        whole = [seeds for seeds in by_layer.values() if seeds >= {*self.settings.seeds}]
        compared = [trial for trial in own if trial.layer in layers]
        seeds = sorted(set[int].intersection(*whole))
        return certainty(compared, self.layers, seeds, {trial.layer for trial in own})

    @property
    def _strategy(self) -> str:
        """The one asked for; rankings were most often within 0.3 points of an exhaustive search."""
        return self.settings.strategy or "rankings"

    @property
    def _picker(self) -> Picker:
        """The pick rule, bounded by a drop that is predicted with confidence."""
        drop = self.prediction
        drop_from = drop.from_layer if drop is not None and drop.sure >= CONFIDENT else None
        return Picker(self.settings.pick, self.settings.within, drop_from, self.runner.full.depth)

    def _seeds(self) -> tuple[int, ...]:
        """Those asked for, and further ones that earlier calls left of each layer compared and of the full model."""
        held = {(trial.layer, trial.seed) for trial in _finished(self.runner)}
        further = [trial.seed for trial in _finished(self.full) if trial.layer == self.full.full.depth]
        further = [seed for seed in further if all((layer, seed) in held for layer in self.layers)]
        return tuple(dict.fromkeys((*self.settings.seeds, *further)))

    def _train(self) -> Found:
        # First, and with its weights kept: a search that trains the last layer as well finds it done.
        yardstick = self._trials(self.full, self.full.full.depth)
        seeds = self._seeds() if len(self.layers) > 1 else self.settings.seeds
        search = Search(self.layers[0])
        if len(self.layers) > 1:
            strategy = STRATEGIES[self._strategy if self.settings.layers == "auto" else "exhaustive"]
            search = strategy(Candidates(self.runner, self.layers, seeds, self._picker))
        chosen = self._trials(self.runner, search.chosen)
        best = max(chosen, key=lambda trial: (trial.dev, -trial.seed))
        best = self.runner.run(best.layer, best.seed, keep_weights=True)
        # Where every seed has splits of its own, only the same seed has not seen the test pairs of the lean model.
        same_seed = best.seed if self.data.shares is not None else None
        strongest = max(yardstick, key=lambda trial: (trial.seed == same_seed, trial.dev, -trial.seed))
        strongest = self.full.run(strongest.layer, strongest.seed, keep_weights=True)
        return Found(search, seeds, chosen, yardstick, best, strongest)

    def _trials(self, runner: TrialRunner, layer: int) -> tuple[Trial, ...]:
        """The full trials of a layer with the seeds asked for; those that are new keep their weights."""
        places = [(layer, seed) for seed in self.settings.seeds]
        new = [place for place in places if runner.stored(*place) is None]
        # One that is already there is not made again for its weights: only the best seed's are needed.
        runner.run_all(new, keep_weights=True)
        return runner.run_all(places)

    def _exhaustive_cost(self, found: Found) -> int:
        """Block-steps of all layers with all seeds, without the chosen layer's own."""
        trial = found.chosen[0]
        others = (layer for layer in layers_to_try(self.runner.full) if layer != trial.layer)
        return len(found.seeds) * trial.steps * sum(max(1, layer) for layer in others)

    def _reason(self, search: Search, *, beaten: bool) -> str:
        """Why this layer; and that nothing was gained where a search ends at the full model.

        beaten: whether a layer has a better dev score than the full model, which the rule then passed over.
        """
        auto, depth = self.settings.layers == "auto", self.full.full.depth
        place = capitalized(place_in_words(search.chosen, self.blocks)) + (f" of {depth}" if self.blocks else "")
        if len(self.layers) == 1:
            one, asked = "one" if self.blocks is None else "choice", not auto and self.settings.layers != "all"
            return f"{place}: the {f'{one} that was asked for' if asked else f'only {one} that can be trained'}."
        strategy = self._strategy if auto else "exhaustive"
        taken = f"{search.words} ({strategy}, no search)"
        if not search.words:
            among = f"{strategy} search" if auto or self.settings.layers == "all" else "of those that were asked for"
            taken = f"{self._picker} ({self.settings.pick}, {among})"
        if search.rankings and self.runner.prior is not None:
            taken += "; layers were ranked without the words that each trial learned first"
        if search.chosen < depth:
            return f"{place}: {taken}."
        kept = "No layer is better than the full model"
        if search.words or beaten:
            kept = "Nothing is cut"
        elif not auto and self.settings.layers != "all":
            kept = "None of these layers is better than the full model"
        return f"{place}: {taken}. {kept}; distillation makes it smaller."

    def _save(self, result: SweepResult, found: Found, out: Path) -> None:
        """The lean model and its yardstick as folders, each with its card, then the result; other weights go."""
        settings = result.training.to_dict() | result.settings.to_dict() | {"learning_rate": result.learning_rate}
        for runner, trial, folder in ((self.runner, found.best, "lean"), (self.full, found.strongest, "full")):
            saved = runner.store.encoder(trial.name, runner.full.device)
            saved.name = runner.full.name
            splits = splits_for(self.data, trial.seed)
            before = NO_KEYS if runner.prior is None else runner.prior.learned(trial.seed)
            pairs = keys_of(*(part for name, part in splits.items() if name != "test"))
            saved.seen = merged(runner.full.seen, before, self.names.seen, pairs)
            card = sweep_card(result, trial, saved, splits)
            origin = origin_of(
                "finetune",
                runner.full,
                saved,
                depth=self.full.full.depth,
                blocks=self.blocks[: trial.layer] if self.blocks is not None and folder == "lean" else None,
                data=self.names.given,
                seed=trial.seed,
                settings=settings,
            )
            save_encoder(saved, out / folder, model_card=card.text(saved), origin=origin)
        for place in (self.runner.store.folder, out):  # what other data or settings gave stays in their own store
            result.write(place / RESULT_FILES["finetune"])
        # Another rule may choose another layer, and trains nothing then: each keeps its best weights. With splits drawn
        # by seed the yardstick is the one of the lean model's seed, whichever that will be.
        kept = {trial.name for trial in (found.best, found.strongest, *_best_of_layers(result.trials))}
        kept |= {trial.name for trial in found.yardstick if self.data.shares is not None}
        for runner in (self.runner, self.full):
            runner.store.forget_weights(kept)


def _is_beaten(yardstick: Sequence[Trial], trials: Sequence[Trial], seeds: Collection[int]) -> bool:
    """Whether a layer that has all of these seeds has a better dev score by them than the full model."""
    dev = [{trial.seed: trial.dev for trial in yardstick}]
    dev += [{trial.seed: trial.dev for trial in trials if trial.layer == layer} for layer in {t.layer for t in trials}]
    full, *means = [fmean(found[seed] for seed in seeds) for found in dev if found.keys() >= {*seeds}]
    return any(mean > full for mean in means)


def _best_of_layers(trials: Sequence[Trial]) -> list[Trial]:
    """Of each layer the trial with the best dev score, the one of the first seed among equals."""
    ranked = sorted(trials, key=lambda trial: (trial.dev, -trial.seed))
    return list({trial.layer: trial for trial in ranked}.values())


def _finished(runner: TrialRunner) -> tuple[Trial, ...]:
    """The trials in the store that had the full budget, by layer and seed."""
    kept = runner.store.all(Trial).items()
    whole = (trial for name, trial in kept if name == trial.name and trial.stopped_after is None)
    return _unique([trial for trial in whole if trial.epochs == runner.settings.epochs and trial.test is not None])


def _unique(trials: Sequence[Trial]) -> tuple[Trial, ...]:
    found = {(trial.layer, trial.seed, trial.epochs): trial for trial in trials}
    return tuple(found[key] for key in sorted(found))


def sweep_prediction(
    encoder: Encoder,
    data: PairSplits,
    settings: SweepSettings | None = None,
    training: TrainingSettings | None = None,
    *,
    max_length: int | None = None,
) -> DropPrediction | None:
    """What `finetune` may be given as `prediction`: by training pairs alone, since others choose and are reported.

    Args:
        encoder: Whose layers are tried.
        data: As for `finetune`; what `analyze` has stored may have seen its test scores.
        settings: As for `finetune`.
        training: As for `finetune`.
        max_length: Of the reference's texts, in tokens.

    Returns:
        None where layers are named one by one, where there is no train split, where the objective learns no graded
        similarity, and as `predicted_drop`.

    Raises:
        TruncateKitError: As `predicted_drop`.
    """
    train, settings, training = data.train, settings or SweepSettings(), training or TrainingSettings()
    if train is None or settings.layers not in ("auto", "all") or not OBJECTIVES[training.objective].is_graded:
        return None
    return predicted_drop(encoder, train.texts(), pairs=train.pairs, max_length=max_length)


@dataclass(frozen=True, slots=True, kw_only=True)
class Preparation:
    """What is learned before the task, and beside it."""

    prior: Prior | None = None  # what every trial learns first
    # the full model, where the encoder was cut before: it is trained as the yardstick then. None takes the encoder
    full: Encoder | None = None
    teacher: Teacher | None = None  # whose vectors are learned beside the labels
    words: str = ""  # what model cards say of all that was learned before
    blocks: tuple[int, ...] | None = None  # of `full` that the encoder has; None where these are the first ones

    def for_card(self) -> str:
        """All of it in words."""
        taught = ""
        if self.teacher is not None:
            taught = f"Beside the labels: the vectors of {self.teacher.encoder.name}, weight {self.teacher.weight:g}."
        return " ".join(part for part in (self.words, taught) if part)


@isolated()
def finetune(
    encoder: Encoder,
    data: PairSplits,
    *,
    out: Path,
    settings: SweepSettings | None = None,
    training: TrainingSettings | None = None,
    prediction: DropPrediction | None = None,
    before: Preparation | None = None,
    retrieval: RetrievalSet | None = None,
    progress: WatchOption = False,
    engine: Engine | None = None,
) -> SweepResult:
    """Fine-tune `encoder` cut at one or several layers, choose one, and save it beside the full model.

    Args:
        encoder: Whose layers are tried; it is not changed.
        data: Train, dev and test pairs with what the objective learns from.
        out: Gets `lean/` and `full/` (sentence-transformers folders), `sweep.json` and `trials/`, from which the same
            call continues after a kill.
        settings: Layers, strategy, pick rule and seeds.
        training: Of every trial.
        prediction: Bounds pick and search.
        before: What is learned before the task, and what was cut before; None for nothing.
        retrieval: Whose metric, nDCG@10 mostly, chooses epoch and layer, by half of its queries, and is reported on
            the other half, in the place of dev and test pairs; training pairs with one of its texts are left out, where
            they are judged themselves (`read_judged`) those with one of its queries. None for the pairs.
        progress: True draws bars and logs epochs; a `TrialWatcher` hears of every epoch and every finished trial.
        engine: Where trials run, None is one after another here; the result does not depend on it.

    Raises:
        UsageError: Settings make no sense, alone or beside each other.
        DataError: The data do not suit the objective.
        LayerOutOfRangeError: A layer does not exist.
        LayerNotHeldError: A layer exists, but a model cut there cannot be saved exactly.
        FileProblemError: `out` cannot be written, or another process works there.
        TruncateKitError: Training diverged, or the engine lost a trial several times.
    """
    training, before = training or TrainingSettings(), before or Preparation()
    settings, watcher = settings or SweepSettings(), watcher_of(progress)
    layers = check_sweep(encoder, settings)
    judged = training.row.data == "judged"
    names = _names(encoder, data, before, retrieval, judged=judged)
    data = _learnable(data, retrieval, judged=judged)

    def runner_of(model: Encoder) -> TrialRunner:
        task, prior = LabelledTask(model, data, training.objective, before.teacher, retrieval), before.prior
        key = _key(model, data, training, before, retrieval)
        store = RunStore(local_path(out) / "trials", key, {"model": model.name, "training": training.to_dict()})
        return TrialRunner(model, task, training, store, prior, watcher, engine or Sequential(), keeps_weights=True)

    teachers = [] if before.teacher is None else [before.teacher.encoder]
    with output_folder(local_path(out), encoder, "lean", "full", teachers=teachers), ExitStack() as stores:
        runner = runner_of(encoder)
        full = runner if before.full is None else runner_of(before.full)
        for one in dict.fromkeys([runner.store, full.store]):
            stores.enter_context(one.open())
        sweep = Sweep(runner, full, layers, settings, prediction, data, names, before.for_card(), before.blocks)
        return sweep.run(local_path(out))


def _learnable(data: PairSplits, retrieval: RetrievalSet | None, *, judged: bool) -> PairSplits:
    """Without training pairs that hold what queries are to choose and report by."""
    if retrieval is None:
        return data
    # Documents are there for many queries, those that teach among them: of judged pairs only queries are left out.
    return data.without_texts(retrieval.asked if judged else retrieval.held_out)


def _names(
    encoder: Encoder, data: PairSplits, before: Preparation, retrieval: RetrievalSet | None, *, judged: bool
) -> DataNames:
    """What the data, the queries and the teacher are known by afterwards."""
    taught = {} if before.teacher is None else {before.teacher.encoder.name: before.teacher.encoder.seen}
    names = DataNames(data, seen=merged(*taught.values()))
    if retrieval is None:
        return replace(names, before=seen_before(data.evaluation, {encoder.name: encoder.seen} | taught))
    chose = choosing_queries(retrieval)
    taught_by = {pair.first for pair in data.train} if judged and data.train is not None else set[str]()
    seen = merged(names.seen, query_keys((*chose, *taught_by)))
    queries = retrieval.queries_fingerprint()
    return replace(names, retrieval=retrieval.name, queries=queries, num_queries=len(chose), seen=seen)


def _key(
    model: Encoder, data: PairSplits, training: TrainingSettings, before: Preparation, retrieval: RetrievalSet | None
) -> str:
    """What the trials of a model are kept under: all that they depend on."""
    # The last two parts are what they always were: another key would not find the trials that are there.
    parts = [training.settled(model.width).to_json(), data.fingerprint(), "", "LabelledTask"]
    prior = [before.prior.fingerprint()] if before.prior else []
    taught = [encoder_digest(before.teacher.encoder), str(before.teacher.weight)] if before.teacher else []
    searched = [] if retrieval is None else [retrieval.fingerprint() + scored_as(retrieval, model)]
    return run_key(model, *parts, *prior, *taught, *searched)


def check_sweep(encoder: Encoder, settings: SweepSettings) -> tuple[int, ...]:
    """The layers that `settings` allow for this encoder; raises what `finetune` raises for other values."""
    Picker(settings.pick, settings.within)
    check_strategy(settings.strategy)
    if encoder.heads is not None:
        raise UsageError(
            f"{encoder.name} is a frozen model with heads: its vectors are theirs, not those of a layer.",
            hint="Name the model that they were trained for; `finetune_frozen()` trains heads.",
        )
    return layers_named(encoder, settings.layers)
