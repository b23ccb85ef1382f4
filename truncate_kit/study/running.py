"""Run a study, trial by trial, so that it may be stopped at any instant and continues with the same call."""

import csv
import time
from collections.abc import Callable
from pathlib import Path

import torch

from truncate_kit.data import complete_splits, load_pairs, load_words, read_texts
from truncate_kit.encoders import Encoder, check_layer, load_encoder, paper_parameters, random_encoder
from truncate_kit.engines import Engine
from truncate_kit.errors import DataFileError
from truncate_kit.priors import AdaptationSettings, WordPrior, adapted
from truncate_kit.progress import Progress, TrialWatcher, silent
from truncate_kit.study.alignment import LayerStates, cka_rows
from truncate_kit.study.plan import Study, StudyModel, StudyPrior, StudyTask
from truncate_kit.study.results import CKARow, StudyResult, StudyRow
from truncate_kit.sweep.scores import scores_by_layer
from truncate_kit.sweep.store import TrialStore, fingerprint
from truncate_kit.sweep.tasks import LabelledTask
from truncate_kit.sweep.trials import TrialRunner, layers_to_try, parse_layers
from truncate_kit.training.distributed import ALONE, Group

RANDOM_SEED = 0  # of the weights of models without pretraining

PLAIN, AFTER_WORDS, AFTER_TEXTS = "plain", "word-similarity", "dapt"  # as the file of published figures calls them

Published = dict[tuple[str, str, str, int, str], float]


def run_study(
    study: Study,
    out: Path,
    *,
    progress: Progress = silent,
    watcher: TrialWatcher | None = None,
    finished: Callable[[StudyResult], None] | None = None,
    engine: Engine | None = None,
    device: str | None = None,
) -> StudyResult:
    """TMFT of every model after every prior on every task at every layer with every seed.

    Models are run in order, but the one that others are compared with first.
    out: gets `trials/`, one folder per model, prior, task and settings, and `adapted/`, the models that were adapted to
    raw text; what is there is not run again. finished: called with
    all rows so far whenever a model is done with a task.
    watcher: hears of every epoch and every finished trial. engine: where trials run, as in `finetune`. device: of the
    models here. Raises what `finetune` raises.
    """
    start = time.perf_counter()
    published = _published(study.published)
    rows: list[StudyRow] = []
    cka: list[CKARow] = []
    references: dict[tuple[str, str], LayerStates] = {}
    for model in sorted(study.models, key=lambda model: model.name != study.cka):
        loaded = _load(model, device)
        for prior in study.priors:
            encoder, words = _prepared(loaded, prior, Path(out), progress)
            for task in study.tasks:
                runner = _runner(model, task, encoder, words, Path(out), progress)
                runner.watcher, runner.engine = watcher or runner.watcher, engine or runner.engine
                runner.watcher.part(f"{_called(model, prior)}, {task.name}")
                states = LayerStates.of(_called(model, prior), runner) if study.cka else None
                rows += _rows(study, model, prior, task, runner, published, states)
                if states is not None:
                    reference = references.setdefault((prior.name, task.name), states)
                    cka += cka_rows(states, reference, task.name) if reference is not states else ()
                result = StudyResult(rows=tuple(rows), seconds=time.perf_counter() - start, cka=tuple(cka))
                if finished is not None:
                    finished(result)
    return result


def adapt_all(
    study: Study, out: Path, *, device: str | None = None, group: Group = ALONE, progress: Progress = silent
) -> None:
    """Only the adaptations to raw text of a study, shared by the processes of `group`: `run_study` finds them done.

    Raises what `adapted` raises.
    """
    for model in study.models:
        loaded = _load(model, device)
        for prior in study.priors:
            _adapted(loaded, prior, Path(out), progress, group)


def _load(model: StudyModel, device: str | None = None) -> Encoder:
    encoder = load_encoder(model.model, pooling=model.pooling, device=device)
    if model.weights == "random":
        torch.manual_seed(RANDOM_SEED)
        encoder.backbone = random_encoder(encoder.backbone.config).to(encoder.device).backbone
    return encoder


def _called(model: StudyModel, prior: StudyPrior) -> str:
    return f"{model.name}, {prior.name} first" if prior.name else model.name


def _setting(prior: StudyPrior) -> str:
    """What the file of published figures calls the prior, nothing where the TMFT paper has none like it."""
    if prior.texts is None:
        return PLAIN if prior.words is None else AFTER_WORDS
    return AFTER_TEXTS if prior.words is None and prior.layer is None else ""


def _prepared(encoder: Encoder, prior: StudyPrior, out: Path, progress: Progress) -> tuple[Encoder, WordPrior | None]:
    """The encoder after what all of its trials share, and what each trial learns first."""
    encoder = _adapted(encoder, prior, out, progress)
    if prior.words is None:
        return encoder, None
    words = load_words(Path(prior.words)) if Path(prior.words).is_dir() else None
    if words is None:
        raise DataFileError(f"{prior.words} holds no word similarity set.", hint="It needs rg65.csv or the like.")
    return encoder, WordPrior(encoder, words)


def _adapted(encoder: Encoder, prior: StudyPrior, out: Path, progress: Progress, group: Group = ALONE) -> Encoder:
    if prior.texts is None:
        return encoder
    settings, texts = AdaptationSettings(epochs=prior.epochs), read_texts(prior.texts)
    return adapted(encoder, texts, out / "adapted", settings, layer=prior.layer, group=group, progress=progress)[0]


def _runner(
    model: StudyModel, task: StudyTask, encoder: Encoder, prior: WordPrior | None, out: Path, progress: Progress
) -> TrialRunner:
    training = task.training
    data = complete_splits(
        load_pairs(task.data, columns=task.columns, scale=task.scale, classes=training.objective == "entailment")
    )
    work = LabelledTask(encoder, data, training.objective)
    parts = [training.to_json(), data.fingerprint(), type(work).__name__, *([prior.fingerprint()] if prior else [])]
    description = {"model": model.to_dict(), "task": task.name, "training": training.to_dict()}
    store = TrialStore(out / "trials", fingerprint(encoder, *parts), description)
    return TrialRunner(encoder, work, training, store, progress, prior)


def _rows(
    study: Study,
    model: StudyModel,
    prior: StudyPrior,
    task: StudyTask,
    runner: TrialRunner,
    published: Published,
    states: LayerStates | None,
) -> list[StudyRow]:
    def figures(split: str, layer: int) -> float | None:
        return published.get((model.published or "", task.published or "", _setting(prior), layer, split))

    encoder = runner.full
    name = _called(model, prior)
    layers = parse_layers(study.layers, layers_to_try(encoder), encoder.depth)
    for layer in layers:
        check_layer(encoder.backbone.config, layer)
    seeds = range(study.seeds)
    with runner.store.open():
        # What needs weights comes first: the rows then find those trials done.
        if states is not None:
            states.collect(layers)
        earlier = runner.read_earlier(layers, seeds) if study.read_earlier else ()
        found = {name: runner.run_all((layer, seed) for seed in seeds for layer in layers)}
        if study.read_earlier:
            found[f"{name}, trained at layer {encoder.depth}"] = earlier
        if states is not None:
            runner.store.forget_weights(set())
    return [
        StudyRow(
            model=label,
            task=task.name,
            metric=runner.task.metric,
            depth=encoder.depth,
            scores=scores,
            paper_parameters=paper_parameters(encoder.backbone.config, scores.layer),
            published=figures("test", scores.layer) if label == name else None,
            published_dev=figures("dev", scores.layer) if label == name else None,
        )
        for label, trials in found.items()
        for scores in scores_by_layer(encoder, trials)
    ]


def _published(path: str | None) -> Published:
    """Mean scores in points by model, data, setting, layer and split, from columns of these names and mean (0 … 1)."""
    if path is None:
        return {}
    try:
        with Path(path).open(newline="", encoding="utf-8") as handle:
            return {
                (row["name"], row["dataset"], row["setting"], int(row["layer"]), row["split"]): 100 * float(row["mean"])
                for row in csv.DictReader(handle)
                if row["metric"] == "spearman"
            }
    except (OSError, KeyError, ValueError) as error:
        raise DataFileError(
            f"{path} holds no published figures: {error}.",
            hint="It needs the columns name, setting, dataset, layer, split, metric and mean.",
        ) from error
