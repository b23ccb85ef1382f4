"""TMFT from end to end: which layer, how good, against the full model; the lean model saved."""

import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

from truncate_kit.analysis.drop import DropPrediction
from truncate_kit.analysis.profile import predicted_drop
from truncate_kit.core.errors import UsageError
from truncate_kit.core.files import local_path
from truncate_kit.core.origin import RESULT_FILES
from truncate_kit.core.parallel import Engine
from truncate_kit.core.progress import WatchOption, watcher_of
from truncate_kit.core.wording import FEWEST_COMPARED, FEWEST_COMPARED_QUERIES, capitalized, place_in_words
from truncate_kit.data.pairs import PairSplits, splits_for
from truncate_kit.data.retrieval import RetrievalSet
from truncate_kit.data.seen import NO_KEYS, keys_of, merged, query_keys, seen_before
from truncate_kit.methods.tmft.choosing import STRATEGIES, Candidates, Picker, Search
from truncate_kit.methods.tmft.result import Certainty, Ranking, SweepResult, certainty, scores_by_layer
from truncate_kit.methods.tmft.settings import SweepSettings
from truncate_kit.methods.tmft.trials import Prior, TrialRunner, layers_named, layers_to_try
from truncate_kit.models.encoder import Encoder
from truncate_kit.models.pipeline import encoder_digest, origin_of, save_encoder
from truncate_kit.models.store import RunStore, output_folder, run_key
from truncate_kit.training.distributed import isolated
from truncate_kit.training.examples import choosing_queries, scored_as
from truncate_kit.training.settings import OBJECTIVES, TrainingSettings, Trial
from truncate_kit.training.tasks import LabelledTask, Teacher

CONFIDENT = 0.5  # a predicted drop bounds the pick from this probability on, or this confidence if there is none


@dataclass(frozen=True, slots=True, kw_only=True)
class Preparation:
    """What is learned before the task, and beside it."""

    prior: Prior | None = None  # what every trial learns first
    # the full model, if the encoder was cut before: it is trained as the yardstick then. None takes the encoder
    full: Encoder | None = None
    teacher: Teacher | None = None  # whose vectors are learned beside the labels
    words: str = ""  # what model cards say of all that was learned before
    blocks: tuple[int, ...] | None = None  # of `full` that the encoder has; None if these are the first ones


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
            the other half, in the place of dev and test pairs; training pairs with one of its texts are left out, of
            judged ones (`read_judged`) those with one of its queries. None for the pairs.
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
    settings, training = settings or SweepSettings(), training or TrainingSettings()
    before, watcher, given, folder = before or Preparation(), watcher_of(progress), data, local_path(out)
    layers = check_sweep(encoder, settings)
    if retrieval is not None:
        # Documents are there for many queries, those that teach among them: of judged pairs only queries are left out.
        judged = training.row.data == "judged"
        data = data.without_texts(retrieval.asked if judged else retrieval.held_out)

    def runner_of(model: Encoder) -> TrialRunner:
        task = LabelledTask(model, data, training.objective, before.teacher, retrieval)
        # All that trials depend on; two parts are constant: another key would not find the trials that are there.
        parts = [training.settled(model.width).to_json(), data.fingerprint(), "", "LabelledTask"]
        parts += [before.prior.fingerprint()] if before.prior else []
        parts += [encoder_digest(before.teacher.encoder), str(before.teacher.weight)] if before.teacher else []
        parts += [] if retrieval is None else [retrieval.fingerprint() + scored_as(retrieval, model)]
        described = {"model": model.name, "training": training.to_dict()}
        store = RunStore(folder / "trials", run_key(model, *parts), described)
        return TrialRunner(model, task, training, store, before.prior, watcher, engine, keeps_weights=True)

    teachers = [] if before.teacher is None else [before.teacher.encoder]
    with output_folder(folder, encoder, "lean", "full", teachers=teachers), ExitStack() as stores:
        runner = runner_of(encoder)
        full = runner if before.full is None else runner_of(before.full)
        for one in dict.fromkeys([runner.store, full.store]):
            stores.enter_context(one.open())
        return _Sweep(runner, full, layers, settings, prediction, given, data, retrieval, before).run(folder)


def check_sweep(encoder: Encoder, settings: SweepSettings) -> tuple[int, ...]:
    """Return the layers that `settings` allow for this encoder; raises what `finetune` raises for others."""
    if encoder.heads is not None:
        raise UsageError(
            f"{encoder.name} is a frozen model with heads: its vectors are theirs, not those of a layer.",
            hint="Name the model that they were trained for; `finetune_frozen()` trains heads.",
        )
    return layers_named(encoder, settings.layers)


def sweep_prediction(
    encoder: Encoder,
    data: PairSplits,
    settings: SweepSettings | None = None,
    training: TrainingSettings | None = None,
    *,
    max_length: int | None = None,
) -> DropPrediction | None:
    """Predict what `finetune` takes as `prediction`: by training pairs alone, since others choose and are reported.

    Args:
        encoder: Whose layers are tried.
        data: As for `finetune`; what `analyze` has stored may have seen its test scores.
        settings: As for `finetune`.
        training: As for `finetune`.
        max_length: Of the reference's texts, in tokens.

    Returns:
        None if layers are named one by one, if there is no train split, if the objective learns no graded similarity,
        and as `predicted_drop`.

    Raises:
        TruncateKitError: As `predicted_drop`.
    """
    train, settings, training = data.train, settings or SweepSettings(), training or TrainingSettings()
    if train is None or settings.layers not in ("auto", "all") or not OBJECTIVES[training.objective].is_graded:
        return None

    return predicted_drop(encoder, train.texts(), pairs=train.pairs, max_length=max_length)


@dataclass(frozen=True, slots=True)
class _Sweep:
    """One sweep from its first trial to the saved models."""

    runner: TrialRunner  # of the model whose layers are tried
    full: TrialRunner  # of the full model; the same runner, unless the model was cut before
    layers: Sequence[int]
    settings: SweepSettings
    prediction: DropPrediction | None  # bounds pick and search
    given: PairSplits
    data: PairSplits  # learned from: those given without texts of `retrieval`
    retrieval: RetrievalSet | None
    before: Preparation

    def run(self, out: Path) -> SweepResult:
        """Train, choose, and save both models and the result."""
        start, encoder, depth = time.perf_counter(), self.runner.full, self.full.full.depth
        # First, and with its weights kept: a search that trains the last layer as well finds it done.
        last = self._trials(self.full, depth)
        seeds = self._seeds() if len(self.layers) > 1 else self.settings.seeds
        drop = self.prediction
        drop_from = drop.from_layer if drop is not None and drop.sure >= CONFIDENT else None
        picker = Picker(self.settings.pick, self.settings.within, drop_from, encoder.depth)
        strategy = self.settings.strategy or next(iter(STRATEGIES))
        search = Search(self.layers[0])
        if len(self.layers) > 1:
            found_by = strategy if self.settings.layers == "auto" else "exhaustive"
            search = STRATEGIES[found_by](Candidates(self.runner, self.layers, seeds, picker))
        chosen = self._trials(self.runner, search.chosen)
        best = max(chosen, key=lambda trial: (trial.dev, -trial.seed))
        best = self.runner.run(best.layer, best.seed, keep_weights=True)
        # If every seed has splits of its own, only the same seed has not seen the test pairs of the lean model.
        same_seed = best.seed if self.data.shares is not None else None
        strongest = max(last, key=lambda trial: (trial.seed == same_seed, trial.dev, -trial.seed))
        strongest = self.full.run(strongest.layer, strongest.seed, keep_weights=True)
        # Curves and tables are of every finished trial: a shorter run takes no row away.
        own = _finished(self.runner)
        yardstick = [trial for trial in _finished(self.full) if trial.layer == depth]
        others = (layer for layer in layers_to_try(encoder) if layer != search.chosen)
        every = {(trial.layer, trial.seed): replace(trial, dev_draws=()) for trial in (*own, *yardstick)}
        training, teacher, names = self.runner.settings, self.before.teacher, {encoder.name: encoder.seen}
        learned = [self.before.words]
        if teacher is not None:
            names |= {teacher.encoder.name: teacher.encoder.seen}
            learned.append(f"Beside the labels: the vectors of {teacher.encoder.name}, weight {teacher.weight:g}.")
        result = SweepResult(
            model=encoder.name,
            data=self.data.name,
            data_fingerprint=self.given.fingerprint(),
            retrieval="" if self.retrieval is None else self.retrieval.name,
            queries_fingerprint="" if self.retrieval is None else self.retrieval.queries_fingerprint(),
            seen_before="" if self.retrieval is not None else seen_before(self.given.evaluation, names),
            settings=replace(self.settings, strategy=strategy if self.settings.layers == "auto" else None),
            training=training,
            learning_rate=training.rate(encoder.width),
            layers=scores_by_layer(encoder, own),
            search=(*search.short, *search.stopped),
            trials=tuple(every[place] for place in sorted(every)),
            certainty=self._certainty(search.chosen, best.seed, own),
            chosen=search.chosen,
            chosen_seed=best.seed,
            full=scores_by_layer(self.full.full, yardstick)[0],
            prediction=self.prediction,
            choice=self._reason(search, strategy, picker, beaten=_is_beaten(yardstick, own, seeds)),
            metric=self.runner.task.metric,
            before=" ".join(filter(None, learned)),
            blocks=self.before.blocks,
            rankings={
                name: Ranking(layers=tuple(ranked), scores=tuple(ranked.values()))
                for name, ranked in search.rankings.items()
            },
            search_cost=search.cost,
            exhaustive_cost=len(seeds) * chosen[0].steps * sum(max(1, layer) for layer in others),
            seconds=time.perf_counter() - start,
        )
        self._save(result, best, strongest, out)
        # Another rule may choose another layer, and trains nothing then: each keeps its best weights. With splits drawn
        # by seed the yardstick is the one of the lean model's seed, whichever that will be.
        ranked = sorted(result.trials, key=lambda trial: (trial.dev, -trial.seed))
        kept = {best.name, strongest.name, *{trial.layer: trial.name for trial in ranked}.values()}
        kept |= {trial.name for trial in last if self.data.shares is not None}
        for runner in (self.runner, self.full):
            runner.store.forget_weights(kept)
        return result

    def _trials(self, runner: TrialRunner, layer: int) -> tuple[Trial, ...]:
        """Return the full trials of a layer with the seeds asked for; those that are new keep their weights."""
        places = [(layer, seed) for seed in self.settings.seeds]
        # One that is already there is not made again for its weights: only the best seed's are needed.
        runner.run_all([place for place in places if runner.stored(*place) is None], keep_weights=True)
        return runner.run_all(places)

    def _seeds(self) -> tuple[int, ...]:
        """Return those asked for, and what earlier calls left of each layer compared and of the full model."""
        held = {(trial.layer, trial.seed) for trial in _finished(self.runner)}
        further = [trial.seed for trial in _finished(self.full) if trial.layer == self.full.full.depth]
        further = [seed for seed in further if all((layer, seed) in held for layer in self.layers)]
        return tuple(dict.fromkeys((*self.settings.seeds, *further)))

    def _certainty(self, chosen: int, seed: int, own: Sequence[Trial]) -> Certainty | None:
        """Compare those that this call chose from, and the full model; earlier ones of other layers are in the table.

        None if dev is too small.
        """
        if self.retrieval is None:
            few = len(splits_for(self.data, seed).dev or ()) < FEWEST_COMPARED
        else:
            few = len(choosing_queries(self.retrieval)) < FEWEST_COMPARED_QUERIES
        if few:
            return None
        layers = {*self.layers, chosen, self.full.full.depth}
        by_layer = [{trial.seed for trial in own if trial.layer == layer} for layer in layers]
        shared = set[int].intersection(*(seeds for seeds in by_layer if seeds >= {*self.settings.seeds}))
        compared = [trial for trial in own if trial.layer in layers]
        return certainty(compared, self.layers, sorted(shared), {trial.layer for trial in own})

    def _reason(self, search: Search, strategy: str, picker: Picker, *, beaten: bool) -> str:
        """Say why this layer; and that nothing was gained if a search ends at the full model.

        beaten: whether a layer has a better dev score than the full model, which the rule then passed over.
        """
        auto, depth, blocks = self.settings.layers == "auto", self.full.full.depth, self.before.blocks
        named = not auto and self.settings.layers != "all"
        place = capitalized(place_in_words(search.chosen, blocks)) + (f" of {depth}" if blocks else "")
        if len(self.layers) == 1:
            one = "one" if blocks is None else "choice"
            return f"{place}: the {f'{one} that was asked for' if named else f'only {one} that can be trained'}."
        strategy = strategy if auto else "exhaustive"
        among = "of those that were asked for" if named else f"{strategy} search"
        taken = f"{picker} ({self.settings.pick}, {among})"
        if search.words:
            taken = f"{search.words} ({strategy}, no search)"
        if search.rankings and self.runner.prior is not None:
            taken += "; layers were ranked without the words that each trial learned first"
        if search.chosen < depth:
            return f"{place}: {taken}."
        kept = (
            "None of these layers is better than the full model" if named else "No layer is better than the full model"
        )
        if search.words or beaten:
            kept = "Nothing is cut"
        return f"{place}: {taken}. {kept}; distillation makes it smaller."

    def _save(self, result: SweepResult, best: Trial, strongest: Trial, out: Path) -> None:
        """Save the lean model and its yardstick as folders, each with its card, then the result."""
        settings = result.training.to_dict() | result.settings.to_dict() | {"learning_rate": result.learning_rate}
        teacher, blocks, queries = self.before.teacher, self.before.blocks, list[str]()
        if self.retrieval is not None:
            queries += choosing_queries(self.retrieval)
            if result.training.row.data == "judged":
                queries += {pair.first for pair in self.data.train or ()}
        beside = [query_keys(queries), NO_KEYS if teacher is None else teacher.encoder.seen]
        for runner, trial, folder in ((self.runner, best, "lean"), (self.full, strongest, "full")):
            saved = runner.store.encoder(trial.name, runner.full.device)
            saved.name = runner.full.name
            splits = splits_for(self.data, trial.seed)
            before = NO_KEYS if runner.prior is None else runner.prior.learned(trial.seed)
            pairs = keys_of(*(part for name, part in splits.items() if name != "test"))
            saved.seen = merged(runner.full.seen, before, *beside, pairs)
            origin = origin_of(
                "finetune",
                runner.full,
                saved,
                depth=self.full.full.depth,
                blocks=blocks[: trial.layer] if blocks is not None and folder == "lean" else None,
                data=self.given,
                seed=trial.seed,
                settings=settings,
            )
            save_encoder(saved, out / folder, model_card=result.card(saved, origin, trial, splits), origin=origin)
        for place in (self.runner.store.folder, out):  # what other data or settings gave stays in their own store
            result.write(place / RESULT_FILES["finetune"])


def _is_beaten(yardstick: Sequence[Trial], trials: Sequence[Trial], seeds: Sequence[int]) -> bool:
    """Tell if a layer that has all of these seeds has a better dev score by them than the full model."""
    dev = [{trial.seed: trial.dev for trial in yardstick}]
    dev += [{trial.seed: trial.dev for trial in trials if trial.layer == layer} for layer in {t.layer for t in trials}]
    full, *means = [fmean(found[seed] for seed in seeds) for found in dev if found.keys() >= {*seeds}]
    return any(mean > full for mean in means)


def _finished(runner: TrialRunner) -> list[Trial]:
    """Return the trials in the store that had the full budget, by layer and seed."""
    kept = runner.store.all(Trial).items()
    whole = (trial for name, trial in kept if name == trial.name and trial.stopped_after is None)
    found = [trial for trial in whole if trial.epochs == runner.settings.epochs and trial.test is not None]
    return sorted(found, key=lambda trial: (trial.layer, trial.seed))
