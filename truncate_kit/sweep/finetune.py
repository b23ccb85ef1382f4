"""TMFT from end to end: which layer, how good, against the full model; the lean model saved."""

import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

from truncate_kit.data import PairSplits
from truncate_kit.encoders import Encoder, save_encoder
from truncate_kit.engines import Engine, Sequential
from truncate_kit.errors import UsageError
from truncate_kit.files import run_lock
from truncate_kit.progress import Progress, TrialWatcher, silent
from truncate_kit.similarity.drop import DropPrediction
from truncate_kit.sweep.card import model_card
from truncate_kit.sweep.picking import check_rule, describe
from truncate_kit.sweep.results import SweepResult, SweepSettings, Trial
from truncate_kit.sweep.scores import scores_by_layer
from truncate_kit.sweep.store import TrialStore, fingerprint
from truncate_kit.sweep.strategies import STRATEGIES, Search, check_strategy, default_strategy, exhaustive
from truncate_kit.sweep.tasks import DistillTask, LabelledTask, Task
from truncate_kit.sweep.trials import TrialRunner, layers_named, layers_to_try
from truncate_kit.sweep.work import Prior
from truncate_kit.training import TrainingSettings, default_learning_rate

CONFIDENT = 0.5
"""A predicted drop bounds the pick from this confidence on."""


def finetune(
    encoder: Encoder,
    data: PairSplits | None,
    *,
    out: Path,
    settings: SweepSettings | None = None,
    training: TrainingSettings | None = None,
    texts: Sequence[str] | None = None,
    prediction: DropPrediction | None = None,
    prior: Prior | None = None,
    full: Encoder | None = None,
    before: str = "",
    progress: Progress = silent,
    watcher: TrialWatcher | None = None,
    engine: Engine | None = None,
) -> SweepResult:
    """Fine-tune `encoder` cut at one or several layers, choose one, and save it beside the full model.

    data: train, dev and test pairs (classes for the objective `entailment`, labels 0 and 1 for `paraphrase`); may be
    None for distillation, which then judges by closeness to the full model.
    texts: raw text to distil from, None takes the training pairs' texts. prediction: bounds pick and search.
    prior: what every trial learns first. full: the full model, where `encoder` was cut before (to adapt it there): it
    is trained as the yardstick then; None takes `encoder` in full, and distillation always does. before: what the card
    says of earlier training. watcher: hears of every epoch and every finished trial. engine: where trials
    run, None is one after another here; the result does not depend on it.
    out: gets `lean/` and `full/` (sentence-transformers folders), `sweep.json` and `trials/`, from which the same call
    continues after a kill. Raises `UsageError`, `DataError`, `LayerOutOfRangeError`, `LayerNotHeldError`,
    `RunInUseError`, `CannotWriteError`, `TrainingDivergedError`, and what the engine raises.
    """
    settings, training = settings or SweepSettings(), training or TrainingSettings()
    layers = check_sweep(encoder, settings)
    start = time.perf_counter()

    def runner_of(model: Encoder) -> TrialRunner:
        task = _task(model, data, texts, training)
        parts = [training.to_json(), data.fingerprint() if data else "", "\n".join(texts or ()), type(task).__name__]
        key = fingerprint(model, *parts, *([prior.fingerprint()] if prior else []))
        store = TrialStore(Path(out) / "trials", key, {"model": model.name, "training": training.to_dict()})
        return TrialRunner(
            model, task, training, store, progress, prior, watcher or TrialWatcher(), engine or Sequential()
        )

    runner = runner_of(encoder)
    judged = runner if full is None or training.objective == "distill" else runner_of(full)
    settings = replace(settings, strategy=settings.strategy or default_strategy(runner.task))
    drop_from = prediction.from_layer if prediction and prediction.confidence >= CONFIDENT else None
    with run_lock(Path(out)), runner.store.open(), judged.store.open() if judged is not runner else nullcontext():
        # First, and with its weights kept: a search that trains the last layer as well finds it done.
        yardstick = _yardstick(judged, settings)
        search = _search(runner, layers, settings, drop_from)
        chosen = _trials(runner, search.chosen, settings.seeds)
        best = max(chosen, key=lambda trial: (trial.dev, -trial.seed))
        best = runner.run(best.layer, best.seed, keep_weights=True)
        # Where every seed has splits of its own, only the same seed has not seen the test pairs of the lean model.
        same_seed = best.seed if data is not None and data.shares is not None else None
        strongest = max(yardstick, key=lambda trial: (trial.seed == same_seed, trial.dev, -trial.seed))
        if strongest.epochs:
            strongest = judged.run(strongest.layer, strongest.seed, keep_weights=True)
        own = [*search.full, *chosen]
        if judged is runner and training.objective != "distill":
            own += yardstick
        result = SweepResult(
            model=encoder.name,
            data=data.name if data else "raw text",
            data_fingerprint=data.fingerprint() if data else "",
            settings=settings,
            training=training,
            learning_rate=training.learning_rate or default_learning_rate(encoder.width),
            layers=scores_by_layer(encoder, _unique(own)),
            search=(*search.short, *search.stopped),
            trials=_unique([*own, *yardstick]),
            chosen=search.chosen,
            chosen_seed=best.seed,
            full=scores_by_layer(judged.full, yardstick)[0],
            prediction=prediction,
            choice=_reason(settings, search.chosen, layers, drop_from),
            metric=runner.task.metric,
            before=before,
            search_cost=search.cost,
            exhaustive_cost=_exhaustive_cost(encoder, chosen[0], settings, search.chosen),
            seconds=time.perf_counter() - start,
        )
        _save(runner, judged, result, Path(out), best, strongest)
        for one in (runner, judged):
            one.store.forget_weights({(trial.layer, trial.seed) for trial in (best, strongest)})
    return result


def check_sweep(encoder: Encoder, settings: SweepSettings) -> tuple[int, ...]:
    """The layers that `settings` allow for this encoder; raises what `finetune` raises for other values."""
    check_rule(settings.pick, settings.within)
    check_strategy(settings.strategy)
    if not settings.seeds:
        raise UsageError("No seeds were given.", hint="Use --seeds 3 for the seeds 0, 1 and 2.")
    if encoder.heads is not None:
        raise UsageError(
            f"{encoder.name} is a frozen model with heads: its vectors are theirs, not those of a layer.",
            hint="Name the model that they were trained for; --method frozen trains heads.",
        )
    return layers_named(encoder, settings.layers)


def _task(encoder: Encoder, data: PairSplits | None, texts: Sequence[str] | None, training: TrainingSettings) -> Task:
    if training.objective == "distill":
        if texts is None and (data is None or data.train is None):
            raise UsageError("Distillation has no texts.", hint="Give --texts FILE, or --data with a train set.")
        raw = list(texts) if texts is not None else data.train.texts()  # type: ignore[union-attr]  # checked above
        return DistillTask(encoder, raw, data)
    if data is None:
        raise UsageError(
            "Fine-tuning needs pairs with scores or classes.", hint="Give --data, or --objective distill with --texts."
        )
    return LabelledTask(encoder, data, training.objective)


def _search(runner: TrialRunner, layers: Sequence[int], settings: SweepSettings, drop_from: int | None) -> Search:
    if len(layers) == 1:
        return Search(layers[0])
    how = settings.strategy if settings.layers == "auto" else None
    strategy = STRATEGIES[how] if how else exhaustive
    return strategy(runner, layers, settings, drop_from)


def _trials(runner: TrialRunner, layer: int, seeds: Sequence[int]) -> tuple[Trial, ...]:
    """The full trials of a layer; those that are new keep their weights.

    One that is already there is not made again for its weights: only the best seed's are needed.
    """
    new = [(layer, seed) for seed in seeds if runner.store.read(layer, seed, runner.settings.epochs) is None]
    runner.run_all(new, keep_weights=True)
    return runner.run_all((layer, seed) for seed in seeds)


def _yardstick(runner: TrialRunner, settings: SweepSettings) -> Sequence[Trial]:
    """The full model with the same budget; for distillation the teacher, which is not trained again."""
    encoder = runner.full
    if runner.settings.objective != "distill":
        return _trials(runner, encoder.depth, settings.seeds)
    _, dev, test = runner.task.trial(encoder, settings.seeds[0])
    (dev_score, dev_pearson), (test_score, test_pearson) = dev.score(encoder), test.score(encoder)
    return [
        Trial(
            layer=encoder.depth,
            seed=settings.seeds[0],
            epochs=0,
            steps=0,
            dev_scores=(dev_score,),
            best_epoch=0,
            dev=dev_score,
            dev_pearson=dev_pearson,
            test=test_score,
            test_pearson=test_pearson,
            seconds=0.0,
        )
    ]


def _unique(trials: Sequence[Trial]) -> tuple[Trial, ...]:
    found = {(trial.layer, trial.seed, trial.epochs): trial for trial in trials}
    return tuple(found[key] for key in sorted(found))


def _exhaustive_cost(encoder: Encoder, trial: Trial, settings: SweepSettings, chosen: int) -> int:
    """Block-steps of all layers with all seeds, without the chosen layer's own."""
    others = (layer for layer in layers_to_try(encoder) if layer != chosen)
    return len(settings.seeds) * trial.steps * sum(max(1, layer) for layer in others)


def _reason(settings: SweepSettings, chosen: int, layers: Sequence[int], drop_from: int | None) -> str:
    if len(layers) == 1:
        asked = settings.layers not in ("auto", "all")
        return f"Layer {chosen}: the {'one that was asked for' if asked else 'only one that can be trained'}."
    how = (settings.strategy if settings.layers == "auto" else None) or "exhaustive"
    blind = {
        "cka": "the deepest layer before the predicted drop"
        if drop_from is not None
        else "the last; no drop predicted",
        "last": "the last",
        "random": "drawn at random",
    }
    if how in blind:
        return f"Layer {chosen}: {blind[how]} ({how}, no search)."
    return f"Layer {chosen}: {describe(settings.pick, settings.within, drop_from)} ({settings.pick}, {how} search)."


def _save(
    runner: TrialRunner, judged: TrialRunner, result: SweepResult, out: Path, best: Trial, strongest: Trial
) -> None:
    """The lean model and its yardstick as folders, each with its card, then the result."""
    lean = runner.store.encoder(best, runner.full.device)
    lean.name = runner.full.name
    save_encoder(lean, out / "lean", model_card=model_card(result, best, lean))
    full = judged.full  # for distillation the teacher as it was
    if strongest.epochs:
        full = judged.store.encoder(strongest, judged.full.device)
        full.name = judged.full.name
    save_encoder(full, out / "full", model_card=model_card(result, strongest, full))
    result.write(out / "sweep.json")
