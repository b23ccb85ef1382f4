"""Run a study, trial by trial, so that it may be stopped at any instant and continues with the same call."""

import time
from collections.abc import Callable
from pathlib import Path

from truncate_kit.data import read_texts
from truncate_kit.encoders import Encoder, paper_parameters
from truncate_kit.engines import Engine, Sequential
from truncate_kit.files import run_lock
from truncate_kit.priors import WordPrior, adapted
from truncate_kit.progress import Progress, TrialWatcher, silent
from truncate_kit.study.alignment import LayerStates, cka_rows
from truncate_kit.study.loading import check_study, load_model, prior_words, study_layers, task_data
from truncate_kit.study.plan import Study, StudyModel, StudyPrior, StudyTask
from truncate_kit.study.published import (
    AFTER_TEXTS,
    AFTER_WORDS,
    PLAIN,
    Place,
    Published,
    published_name,
    read_published,
)
from truncate_kit.study.results import CKARow, StudyResult, StudyRow
from truncate_kit.sweep.scores import scores_by_layer
from truncate_kit.sweep.store import TrialStore, fingerprint
from truncate_kit.sweep.tasks import LabelledTask
from truncate_kit.sweep.trials import TrialRunner
from truncate_kit.training.distributed import ALONE, Group


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
    models here. Raises what `finetune` raises, `RunInUseError` where another study runs in `out`.
    """
    with run_lock(Path(out)):  # for all of it: between two models a second process would take what is ours
        return _run(study, Path(out), progress, watcher or TrialWatcher(), finished, engine or Sequential(), device)


def _run(
    study: Study,
    out: Path,
    progress: Progress,
    watcher: TrialWatcher,
    finished: Callable[[StudyResult], None] | None,
    engine: Engine,
    device: str | None,
) -> StudyResult:
    start = time.perf_counter()
    check_study(study, device)
    published = read_published(study.published)
    rows: list[StudyRow] = []
    cka: list[CKARow] = []
    references: dict[tuple[str, str], LayerStates] = {}
    for model in sorted(study.models, key=lambda model: model.name != study.cka):
        loaded = load_model(model, device)
        for prior in study.priors:
            tasks = study.tasks_of(model, prior)
            if not tasks:
                continue
            encoder, words = _prepared(loaded, prior, out, progress)
            for task in tasks:
                runner = _runner(model, task, encoder, words, out, progress)
                runner.watcher, runner.engine = watcher, engine
                watcher.part(f"{_called(model, prior)}, {task.name}")
                # The model that others are compared with comes first; what it does not meet is not compared.
                compared = model.name == study.cka or (prior.name, task.name) in references
                states = LayerStates.of(_called(model, prior), runner) if compared else None
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

    Raises what `run_study` raises before its first training, and what `adapted` raises.
    """
    check_study(study, device)
    for model in study.models:
        loaded = load_model(model, device)
        for prior in study.priors:
            if study.tasks_of(model, prior):
                _adapted(loaded, prior, Path(out), progress, group)


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
    words = prior_words(prior)
    return encoder, None if words is None else WordPrior(encoder, words, prior.word_training())


def _adapted(encoder: Encoder, prior: StudyPrior, out: Path, progress: Progress, group: Group = ALONE) -> Encoder:
    if prior.texts is None:
        return encoder
    settings, texts = prior.adaptation(), read_texts(prior.texts)
    return adapted(encoder, texts, out / "adapted", settings, layer=prior.layer, group=group, progress=progress)[0]


def _runner(
    model: StudyModel, task: StudyTask, encoder: Encoder, prior: WordPrior | None, out: Path, progress: Progress
) -> TrialRunner:
    training = task.training
    data = task_data(task)
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
    encoder = runner.full
    main = "spearman" if task.training.objective == "cosine" else "f1"

    def figure(label: str, layer: int, split: str, metric: str = main) -> float | None:
        if label != name or model.weights != "pretrained":  # the paper's figures of random weights are in a plot only
            return None
        place = Place(
            published_name(model), published_name(task), _setting(prior), layer, split, metric, encoder.pooling_name
        )
        return published.get(place)

    name = _called(model, prior)
    layers = study_layers(study, encoder)
    seeds = range(study.seeds)
    with runner.store.open():
        # What needs weights comes first: the rows then find those trials done.
        if states is not None:
            states.collect(layers)
        earlier = runner.read_earlier(layers, seeds) if task.read_earlier else ()
        found = {name: runner.run_all((layer, seed) for seed in seeds for layer in layers)}
        if task.read_earlier:
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
            published=figure(label, scores.layer, "test"),
            published_dev=figure(label, scores.layer, "dev"),
            published_pearson=figure(label, scores.layer, "test", "pearson"),
            published_dev_pearson=figure(label, scores.layer, "dev", "pearson"),
        )
        for label, trials in found.items()
        for scores in scores_by_layer(encoder, trials)
    ]
