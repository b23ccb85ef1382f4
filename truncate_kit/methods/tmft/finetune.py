"""TMFT from end to end."""

import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from truncate_kit.core.errors import UsageError, capitalized
from truncate_kit.core.files import local_path
from truncate_kit.core.parallel import Engine
from truncate_kit.core.progress import TrialWatcher, WatchOption, watcher_of
from truncate_kit.core.vectors import FEWEST_COMPARED, FEWEST_COMPARED_QUERIES
from truncate_kit.core.workspace import RESULT_FILES, place_in_words
from truncate_kit.data.pairs import PairSplits, splits_for
from truncate_kit.data.seen import NO_KEYS, keys_of, merged, query_keys, seen_before
from truncate_kit.methods.tmft.result import Certainty, SweepResult, certainty
from truncate_kit.methods.tmft.searching import SEARCHES, Search
from truncate_kit.methods.tmft.settings import STRATEGIES, Picker, SweepSettings, picker
from truncate_kit.methods.tmft.trials import TrialRunner, layers_named, layers_to_try, scores_by_layer, trial_runner
from truncate_kit.models.encoder import Encoder
from truncate_kit.models.pipeline import save_encoder
from truncate_kit.models.store import origin_of, output_folder
from truncate_kit.training.loop import isolated
from truncate_kit.training.settings import OBJECTIVES, TrainingSettings, Trial

if TYPE_CHECKING:
    from truncate_kit.analysis.drop import DropPrediction
    from truncate_kit.data.retrieval import RetrievalSet
    from truncate_kit.methods.priors import WordPrior

CONFIDENT = 0.5  # probability from which a predicted drop bounds the pick


@dataclass(frozen=True, slots=True, kw_only=True)
class Preparation:
    """Training and cuts before the task."""

    prior: "WordPrior | None" = None
    full: Encoder | None = None  # the uncut model, if the encoder was cut before
    teacher: Encoder | None = None  # its vectors are learned beside the labels
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
    """Fine-tune `encoder` cut at one or several layers, choose one, and save it beside the full model.

    Args:
        encoder: Unchanged.
        data: Train, dev and test pairs with the targets of the objective.
        out: Gets `lean/`, `full/`, `sweep.json` and `trials/`; the same call continues there after a kill.
        settings: Layers, strategy, pick rule and seeds.
        training: Settings of every trial.
        prediction: Bounds pick and search.
        before: Training and cuts before the task.
        retrieval: Replaces dev and test: half of its queries choose epoch and layer, the other half is reported.
            Training pairs with its texts, or judged ones with its queries, are left out.
        progress: True draws bars; a `TrialWatcher` hears of epochs and finished trials.
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


def check_sweep(encoder: Encoder, settings: SweepSettings) -> tuple[int, ...]:
    """Return the layers that `settings` name; raise as `finetune` does."""
    if encoder.heads is not None:
        raise UsageError(
            f"{encoder.name} is a frozen model with heads: its vectors come from the heads, not from a layer.",
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
) -> "DropPrediction | None":
    """Predict a drop for `finetune` from training pairs alone; the other pairs choose and are reported.

    Args:
        encoder: Model to be cut.
        data: Its train split is read.
        settings: Settings of the sweep.
        training: Settings of every trial.
        max_length: Tokens of a text.

    Returns:
        The prediction; None for named layers, without a train split or graded scores, or as `predicted_drop`.
    """
    train, settings, training = data.train, settings or SweepSettings(), training or TrainingSettings()
    if train is None or settings.layers not in ("auto", "all") or not OBJECTIVES[training.objective].is_graded:
        return None
    from truncate_kit.analysis.profile import predicted_drop  # only searches need it

    return predicted_drop(encoder, train.texts(), pairs=train.pairs, max_length=max_length)


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
        self.layers, self.choosing = check_sweep(encoder, settings), list[str]()
        if retrieval is not None:
            from truncate_kit.training.queries import choosing_queries

            self.choosing += choosing_queries(retrieval)

        def runner_of(model: Encoder) -> TrialRunner:
            return trial_runner(
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
        # First and with weights, so that a search finds the last layer done.
        last = _trials(self.full, full.depth, settings.seeds)
        likely = prediction is not None and prediction.sure >= CONFIDENT
        drop_from = prediction.from_layer if prediction is not None and likely else None
        rule = picker(settings.pick, settings.within, drop_from, encoder.depth)
        strategy = (settings.strategy or STRATEGIES[0]) if settings.layers == "auto" else None
        search, seeds = Search(self.layers[0]), settings.seeds
        if len(self.layers) > 1:
            seeds = self._seeds()
            search = SEARCHES[strategy or "exhaustive"](self.runner, self.layers, seeds, rule)
        chosen = _trials(self.runner, search.chosen, settings.seeds)
        best = max(chosen, key=lambda trial: (trial.dev, -trial.seed))
        best = self.runner.run(best.layer, best.seed, keep_weights=True)
        # With splits by seed, only the same seed has not seen the lean model's test pairs.
        same_seed = best.seed if self.data.shares is not None else None
        strongest = max(last, key=lambda trial: (trial.seed == same_seed, trial.dev, -trial.seed))
        strongest = self.full.run(strongest.layer, strongest.seed, keep_weights=True)
        # A shorter run takes no row away.
        own = self.runner.finished()
        yardstick = [trial for trial in self.full.finished() if trial.layer == full.depth]
        every = {(trial.layer, trial.seed): replace(trial, dev_draws=()) for trial in (*own, *yardstick)}
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
            full=scores_by_layer(full, yardstick)[0],
            prediction=prediction,
            choice=self._reason(search, strategy, rule),
            metric=self.runner.task.metric,
            blocks=self.before.blocks,
            rankings={name: tuple(scores.items()) for name, scores in search.rankings.items()},
            search_cost=search.cost,
            exhaustive_cost=len(seeds) * chosen[0].steps * sum(max(1, layer) for layer in others),
            seconds=time.perf_counter() - start,
        )
        self._save(result, best, strongest)
        # Another rule then chooses without training; with splits by seed the yardstick needs the lean model's seed.
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

    def _seeds(self) -> tuple[int, ...]:
        """Return the settings' seeds, and earlier ones that all compared layers and the full model have."""
        held = {(trial.layer, trial.seed) for trial in self.runner.finished()}
        further = [trial.seed for trial in self.full.finished() if trial.layer == self.full.full.depth]
        further = [seed for seed in further if all((layer, seed) in held for layer in self.layers)]
        return tuple(dict.fromkeys((*self.settings.seeds, *further)))

    def _certainty(self, chosen: int, seed: int, own: Sequence[Trial]) -> Certainty | None:
        """Compare layers; None if dev is too small."""
        if self.retrieval is None:
            few = len(splits_for(self.data, seed).dev or ()) < FEWEST_COMPARED
        else:
            few = len(self.choosing) < FEWEST_COMPARED_QUERIES
        if few:
            return None
        layers = {*self.layers, chosen, self.full.full.depth}
        by_layer = [{trial.seed for trial in own if trial.layer == layer} for layer in layers]
        shared = set[int].intersection(*(seeds for seeds in by_layer if seeds >= {*self.settings.seeds}))
        compared = [trial for trial in own if trial.layer in layers]
        return certainty(compared, self.layers, sorted(shared), {trial.layer for trial in own})

    def _reason(self, search: Search, strategy: str | None, rule: Picker) -> str:
        depth, blocks, named = self.full.full.depth, self.before.blocks, self.settings.layers not in ("auto", "all")
        place = capitalized(place_in_words(search.chosen, blocks)) + (f" of {depth}" if blocks else "")
        if len(self.layers) == 1:
            return f"{place}: the one that {'was asked for' if named else 'can be trained'}."
        strategy = strategy or "exhaustive"
        among = "of those that were asked for" if named else f"{strategy} search"
        taken = f"{search.words} ({strategy}, no search)" if search.words else f"{rule} ({rule.name}, {among})"
        if search.rankings and self.before.prior is not None:
            taken += "; layers were ranked without the words that each trial learned first"
        kept = " Nothing is cut; distillation makes it smaller." if search.chosen >= depth else ""
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
        for place in (
            self.runner.store.folder,
            self.folder,
        ):  # results of other data or settings stay in their store
            result.write(place / RESULT_FILES["finetune"])


def _trials(runner: TrialRunner, layer: int, seeds: Sequence[int]) -> tuple[Trial, ...]:
    """Return trials of a layer; only new ones keep weights."""
    places = [(layer, seed) for seed in seeds]
    runner.run_all([place for place in places if runner.stored(*place) is None], keep_weights=True)
    return runner.run_all(places)
