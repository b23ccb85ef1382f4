"""TMFT from end to end: which layer, how good, against the full model; the lean model saved."""

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from truncate_kit.data import PairSplits
from truncate_kit.encoders import Encoder, check_layer, save_encoder
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
from truncate_kit.sweep.trials import TrialRunner, layers_to_try, parse_layers
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
    progress: Progress = silent,
    watcher: TrialWatcher | None = None,
    engine: Engine | None = None,
) -> SweepResult:
    """Fine-tune `encoder` cut at one or several layers, choose one, and save it beside the full model.

    data: train, dev and test pairs (classes for the objective `entailment`, labels 0 and 1 for `paraphrase`); may be
    None for distillation, which then judges by closeness to the full model.
    texts: raw text to distil from, None takes the training pairs' texts. prediction: bounds pick and search.
    prior: what every trial learns first. watcher: hears of every epoch and every finished trial. engine: where trials
    run, None is one after another here; the result does not depend on it.
    out: gets `lean/` and `full/` (sentence-transformers folders), `sweep.json` and `trials/`, from which the same call
    continues after a kill. Raises `UsageError`, `DataError`, `LayerOutOfRangeError`, `LayerNotHeldError`,
    `RunInUseError`, `CannotWriteError`, `TrainingDivergedError`, and what the engine raises.
    """
    settings, training = settings or SweepSettings(), training or TrainingSettings()
    layers = check_sweep(encoder, settings)
    start = time.perf_counter()
    task = _task(encoder, data, texts, training)
    settings = replace(settings, strategy=settings.strategy or default_strategy(task))
    parts = [training.to_json(), data.fingerprint() if data else "", "\n".join(texts or ()), type(task).__name__]
    key = fingerprint(encoder, *parts, *([prior.fingerprint()] if prior else []))
    store = TrialStore(Path(out) / "trials", key, {"model": encoder.name, "training": training.to_dict()})
    runner = TrialRunner(
        encoder, task, training, store, progress, prior, watcher or TrialWatcher(), engine or Sequential()
    )
    drop_from = prediction.from_layer if prediction and prediction.confidence >= CONFIDENT else None
    with run_lock(Path(out)), store.open():
        # First, and with its weights kept: a search that trains the last layer as well finds it done.
        yardstick = _yardstick(runner, encoder, settings)
        search = _search(runner, layers, settings, drop_from)
        chosen = _chosen(runner, search.chosen, settings.seeds)
        best = max(chosen, key=lambda trial: (trial.dev, -trial.seed))
        runner.run(best.layer, best.seed, keep_weights=True)
        trials = _unique([*search.full, *chosen, *yardstick])
        result = SweepResult(
            model=encoder.name,
            data=data.name if data else "raw text",
            data_fingerprint=data.fingerprint() if data else "",
            settings=settings,
            training=training,
            learning_rate=training.learning_rate or default_learning_rate(encoder.width),
            layers=scores_by_layer(encoder, [*search.full, *chosen] if training.objective == "distill" else trials),
            search=(*search.short, *search.stopped),
            trials=trials,
            chosen=search.chosen,
            chosen_seed=best.seed,
            full=scores_by_layer(encoder, yardstick)[0],
            prediction=prediction,
            choice=_reason(settings, search.chosen, layers, drop_from),
            metric=task.metric,
            search_cost=search.cost,
            exhaustive_cost=_exhaustive_cost(encoder, chosen[0], settings, search.chosen),
            seconds=time.perf_counter() - start,
        )
        # Where every seed has splits of its own, only the same seed has not seen the test pairs of the lean model.
        same_seed = best.seed if data is not None and data.shares is not None else None
        _save(runner, result, best, yardstick, Path(out), same_seed)
        store.forget_weights({(best.layer, best.seed), *((trial.layer, trial.seed) for trial in yardstick)})
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
    held = layers_to_try(encoder)
    layers = held if settings.layers == "auto" else parse_layers(settings.layers, held, encoder.depth)
    for layer in layers:
        check_layer(encoder.backbone.config, layer)
    return tuple(layers)


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


def _chosen(runner: TrialRunner, layer: int, seeds: Sequence[int]) -> tuple[Trial, ...]:
    """The full trials of the chosen layer; those that are new keep their weights.

    One that the search already made is not made again for its weights: only the best seed's are needed.
    """
    new = [(layer, seed) for seed in seeds if runner.store.read(layer, seed, runner.settings.epochs) is None]
    runner.run_all(new, keep_weights=True)
    return runner.run_all((layer, seed) for seed in seeds)


def _yardstick(runner: TrialRunner, encoder: Encoder, settings: SweepSettings) -> Sequence[Trial]:
    """The full model with the same budget; for distillation the teacher, which is not trained again."""
    if runner.settings.objective != "distill":
        return runner.run_all([(encoder.depth, seed) for seed in settings.seeds], keep_weights=True)
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
        return f"Layer {chosen}: the one that was asked for."
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
    runner: TrialRunner, result: SweepResult, best: Trial, yardstick: Sequence[Trial], out: Path, same_seed: int | None
) -> None:
    """The lean model and its yardstick as folders, each with its card, then the result.

    same_seed: take the yardstick's weights from this seed; None takes those that are best on dev.
    """
    lean = runner.store.encoder(best)
    lean.name = runner.full.name
    save_encoder(lean, out / "lean", model_card=model_card(result, best, lean))
    if runner.settings.objective != "distill":
        strongest = max(yardstick, key=lambda trial: (trial.seed == same_seed, trial.dev, -trial.seed))
        full = runner.store.encoder(strongest)
        full.name = runner.full.name
        save_encoder(full, out / "full", model_card=model_card(result, strongest, full))
    else:
        save_encoder(runner.full, out / "full", model_card=model_card(result, yardstick[0], runner.full))
    result.write(out / "sweep.json")
