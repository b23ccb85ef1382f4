"""Run a study; a repeated call resumes a stopped study."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from functools import cached_property, partial
from itertools import chain, product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from truncate_kit.analysis.cka import cka_matrix, relative_layers, without_nan
from truncate_kit.analysis.result import Estimator
from truncate_kit.core.errors import DivergedError, LayerOutOfRangeError, ModelError, UsageError
from truncate_kit.core.files import local_path, mark_unfinished, run_lock, unfinished
from truncate_kit.core.hardware import check_precision, select_device
from truncate_kit.core.progress import Engine, Progress, TrialWatcher, WatchOption, silent, watcher_of
from truncate_kit.data.pairs import PairSplits, complete_splits, load_pairs, load_words
from truncate_kit.data.retrieval import RetrievalSet, read_retrieval
from truncate_kit.data.tables import read_texts
from truncate_kit.methods.priors import WordPrior, adapted, load_masked_head
from truncate_kit.methods.study.plan import Study, StudyModel, StudyPrior, StudyTask
from truncate_kit.methods.study.result import (
    AFTER_TEXTS,
    AFTER_WORDS,
    PLAIN,
    STUDY_FILE,
    CKARow,
    Published,
    StudyResult,
    StudyRow,
    read_published,
)
from truncate_kit.methods.tmft.trials import TrialRunner, kept_encoder, layers_named, scores_by_layer
from truncate_kit.models.encoder import Encoder
from truncate_kit.models.loading import load_encoder, random_encoder
from truncate_kit.models.truncation import layer_states, layers_held, paper_parameters, truncate
from truncate_kit.training.examples import LabelledTask
from truncate_kit.training.loop import ALONE, Group, isolated
from truncate_kit.training.queries import halves, read_judged
from truncate_kit.training.settings import Trial, check_diverged, trial_name, word_training

RANDOM_SEED = 0  # for random weights, which are the same for all trials
CKA_SEED = 0  # for the models that CKA compares: one per layer, as in the TMFT paper
MOST_TEXTS = 4_096  # test texts for CKA


@isolated()
def run_study(
    study: Study,
    out: Path,
    *,
    progress: WatchOption = False,
    finished: Callable[[StudyResult], None] | None = None,
    engine: Engine | None = None,
    device: str | None = None,
) -> StudyResult:
    """Train every model after every prior on every task at every layer with every seed, the CKA reference first.

    Args:
        study: Plan to run.
        out: Output folder for `trials/` and `adapted/`; repeat the call to resume.
        progress: A `WatchOption`.
        finished: Called with all rows so far, after each model and task. A resumed study calls it only when there are
            as many rows as in `study.json` of `out`, so that no rows are lost.
        engine: See `finetune`.
        device: For models in this process.

    Raises:
        FileProblemError: Another study runs in `out`.
        DivergedError: Training of a model on a task diverged; raised after all other trials.
    """
    start, watcher, folder = time.perf_counter(), watcher_of(progress), local_path(out)
    published = check_study(study, device)
    # Adapted models are kept until all their trials have ended, also for the next call.
    adapts = any(prior.texts is not None for prior in study.priors)
    with run_lock(folder), unfinished(folder / "adapted", shared=True) if adapts else nullcontext():
        earlier = StudyResult.read_if_whole(folder / STUDY_FILE)
        known = 0 if earlier is None else len(earlier.rows)
        rows, cka, references = list[StudyRow](), list[CKARow](), dict[tuple[str, str], Part]()
        result, diverged = StudyResult(rows=(), seconds=0.0), list[tuple[str, DivergedError]]()
        for part in _parts(study, folder, watcher, engine, device):
            watcher.part(f"{part.name}, {part.task.name}")
            place = (part.prior.name, part.task.name)
            compared = part.model.name == study.cka or place in references
            try:
                rows += part.rows(study, published, compared)
            except DivergedError as error:  # other models and tasks continue
                diverged.append((f"{part.name}, {part.task.name}", error))
                continue
            if compared:
                reference = references.setdefault(place, part)
                cka += part.cka(reference) if reference is not part else ()
            result = StudyResult(rows=tuple(rows), seconds=time.perf_counter() - start, cka=tuple(cka))
            if finished is not None and len(rows) >= known:
                finished(result)
        if finished is not None and 0 < len(rows) < known:  # the study has become smaller
            finished(result)
        check_diverged(diverged)
    return result


def adapt_all(
    study: Study, out: Path, *, device: str | None = None, group: Group = ALONE, progress: Progress = silent
) -> None:
    """Adapt all models to raw text with all processes of `group`; `run_study` then loads the adapted models."""
    check_study(study, device)
    folder = local_path(out)
    if group.leads:
        mark_unfinished(folder / "adapted")
    for _ in _models(study, folder, device, progress, group):
        pass


def _models(
    study: Study, out: Path, device: str | None, progress: Progress, group: Group = ALONE
) -> Iterator[tuple[StudyModel, StudyPrior, Encoder]]:
    for model in sorted(study.models, key=lambda model: model.name != study.cka):
        loaded = load_model(model, device)
        for prior in filter(partial(study.tasks_of, model), study.priors):
            encoder = loaded
            if prior.texts is not None:
                options: dict[str, Any] = {"layer": prior.layer, "group": group, "progress": progress}
                encoder, _ = adapted(loaded, read_texts(prior.texts), out / "adapted", prior.adaptation, **options)
            yield model, prior, encoder


def check_study(study: Study, device: str | None = None) -> Published:
    """Load every model and data set to find mistakes before training; return published scores."""
    published = read_published(study.published)
    check_published(study, published)
    for precision in {task.precision for task in study.tasks} | {prior.precision for prior in study.priors}:
        check_precision(precision, select_device(device))
    for prior in study.priors:
        if prior.words is not None:
            load_words(Path(prior.words))
        if prior.texts is not None:
            read_texts(prior.texts)
    for model in study.models:
        try:
            encoder = load_model(model, device)
            for prior in filter(partial(study.tasks_of, model), study.priors):
                cut = encoder if prior.layer is None else truncate(encoder, prior.layer)
                layers_named(cut, study.layers)
                if prior.texts is not None:
                    load_masked_head(cut)
        except LayerOutOfRangeError as error:
            raise ModelError(f"{model.name}: {error}", hint=error.hint) from error
        for task in study.tasks if model is study.models[0] else ():
            data, searched = task_data(task)
            queries = None if searched is None else halves(encoder, searched)
            LabelledTask(encoder, data, task.objective, queries=queries)
    return published


def check_published(study: Study, figures: Published) -> None:
    """Raise `UsageError` if a name has no published figures, or if no figures match the study."""
    places = {place[:2] for place in figures}
    wanted = {model.published for model in study.models} | {task.published for task in study.tasks}
    wanted -= {None, *chain(*places)}
    names = [[part.published or part.name for part in parts] for parts in (study.models, study.tasks)]
    if wanted or (figures and not places & {*product(*names)}):
        hint = 'Set published = "FILE OR FOLDER" for the study, and published = "NAME" for its models and tasks.'
        models, tasks = (", ".join(sorted(set(known))) for known in zip(*places, strict=True)) if places else ("", "")
        subject = repr(wanted.pop()) if wanted else "a model and a task of this study"
        raise UsageError(
            f"There are no published figures of {subject}.", hint=f"{hint} Models: {models}. Tasks: {tasks}."
        )


def load_model(model: StudyModel, device: str | None = None) -> Encoder:
    """Load a study's model; random weights have a fixed seed."""
    encoder = load_encoder(model.model, pooling=model.pooling, max_length=model.max_length, device=device)
    if model.weights == "random":
        torch.manual_seed(RANDOM_SEED)
        encoder.backbone = random_encoder(encoder.backbone.config).to(encoder.device).backbone
    return encoder if model.blocks is None else kept_encoder(encoder, model.blocks)


def task_data(task: StudyTask) -> tuple[PairSplits, RetrievalSet | None]:
    """Load a task's pairs and any retrieval set."""
    kind, metric = task.row.data, task.search_metric
    if kind == "judged":
        return read_judged(task.data, metric=metric)
    pairs = load_pairs(task.data, columns=task.columns, scale=task.scale, classes=kind == "classes")
    searched = None if task.retrieval is None else read_retrieval(task.retrieval, metric=metric, chooses=True)
    return complete_splits(pairs), searched


def _parts(
    study: Study, out: Path, watcher: TrialWatcher, engine: Engine | None, device: str | None
) -> Iterator["Part"]:
    options: dict[str, Any] = {"watcher": watcher, "engine": engine}
    for model, prior, encoder in _models(study, out, device, watcher.progress):
        first = None
        if prior.words is not None:
            words = load_words(Path(prior.words))
            first = WordPrior(encoder, words, word_training(prior.precision, prior.learning_rate))
        for task in study.tasks_of(model, prior):
            data, searched = task_data(task)
            trials = TrialRunner(encoder, data, task.training, out / "trials", first, retrieval=searched, **options)
            yield Part(model, prior, task, trials)


class Part:
    """One model after one prior on one task: trials, and for CKA the hidden states of the test texts at each layer.

    States are stored instead of weights, which are far larger.
    """

    def __init__(self, model: StudyModel, prior: StudyPrior, task: StudyTask, runner: TrialRunner) -> None:
        self.model, self.prior, self.task, self.runner = model, prior, task, runner
        self.name, self.full, self.store = prior.label(model), runner.full, runner.store

    def rows(self, study: Study, published: Published, compared: bool) -> list[StudyRow]:
        """Run missing trials and return the rows; if `compared`, store hidden states for CKA."""
        runner, layers, seeds = self.runner, layers_named(self.full, study.layers), range(study.seeds)
        with self.store.open():
            if compared:  # before other trials, as their weights are not stored
                self._collect(layers)
            earlier = runner.read_earlier(layers, seeds) if self.task.read_earlier else ()
            own = runner.run_all((layer, seed) for seed in seeds for layer in layers)
            if compared:
                self.store.forget_weights(())
        last = f"{self.name}, trained at layer {self.full.depth}"
        return [*self._rows(self.name, own, published), *self._rows(last, earlier, {})]

    def _rows(self, name: str, trials: Sequence[Trial], published: Published) -> Iterator[StudyRow]:
        for scores in scores_by_layer(self.full, trials):
            yield StudyRow(
                model=name,
                task=self.task.name,
                metric=self.runner.task.metric,
                depth=self.full.depth,
                scores=scores,
                paper_parameters=paper_parameters(self.full.backbone.config, scores.layer),
                **self._figures(scores.layer, published),
            )

    def _figures(self, layer: int, published: Published) -> dict[str, float | None]:
        model, task, prior = self.model, self.task, self.prior
        blocks = (*range(1, layer + 1),) if model.blocks is None else model.blocks[:layer]
        if model.weights == "random" or task.retrieval is not None or blocks != (*range(1, layer + 1),):
            return {}
        setting = PLAIN if prior.words is None else AFTER_WORDS
        if prior.texts is not None:
            setting = AFTER_TEXTS if prior.words is None and prior.layer is None else ""
        names = (model.published or model.name, task.published or task.name, setting, layer)
        measures = {"": task.row.published, "_pearson": "pearson"}
        return {
            f"published_{split}{end}": published.get((*names, split, measure, self.full.pooling_name))
            for split, (end, measure) in product(("dev", "test"), measures.items())
        }

    @cached_property
    def texts(self) -> list[str]:
        """Return at most `MOST_TEXTS` test texts, evenly spaced."""
        texts = self.runner.task.test_texts(CKA_SEED)
        return texts[:: -(-len(texts) // MOST_TEXTS)]

    def _collect(self, layers: Sequence[int]) -> None:
        depth, store = self.full.depth, self.store
        store.tensor("states-untrained", lambda: self._states(self.full, "untrained"))
        missing = [(layer, CKA_SEED) for layer in {*layers, depth} if not store.has_weights(_trained(layer))]
        # Weights are read as soon as a trial is finished, then removed.
        for trial in self.runner.as_finished(missing, keep_weights=True):
            trained, first = store.encoder(trial.name, self.full.device), 0 if trial.layer == depth else -1
            states = self._states(trained, f"trained at layer {trial.layer}")[first:]
            store.tensor(_trained(trial.layer), partial(torch.clone, states))
            store.forget_weights({trial_name(depth, CKA_SEED, trial.epochs)})

    def _states(self, encoder: Encoder, stage: str) -> Tensor:
        def progress(task: str, done: int, total: int) -> None:
            self.runner.watcher.progress(f"Reading states of {self.name}, {stage}", done, total)

        return layer_states(encoder, self.texts, progress=progress)

    def _stages(self, layer: int) -> dict[str, Tensor | None]:
        untrained, last, own = (
            self.store.read_tensor(name) for name in ("states-untrained", _trained(self.full.depth), _trained(layer))
        )
        whole = {"untrained": untrained, "last_trained": last}
        stages = {stage: None if states is None else states[layer] for stage, states in whole.items()}
        return stages | {"own_trained": None if own is None else own[-1]}

    def cka(self, reference: "Part") -> Iterator[CKARow]:
        """Yield linear CKA between each layer and the reference's layer at the same relative depth."""
        held = layers_held(self.full.backbone.config)
        for layer, other in enumerate(relative_layers(self.full.depth, reference.full.depth)):
            if layer not in held:
                continue
            values, theirs = dict[str, float | None](), reference._stages(other)
            for stage, states in self._stages(layer).items():
                values[stage] = _cka(states, theirs[stage], "debiased")
                values[f"{stage}_biased"] = _cka(states, theirs[stage], "biased")
            yield CKARow(
                model=self.name,
                reference=reference.name,
                task=self.task.name,
                layer=layer,
                reference_layer=other,
                num_texts=len(self.texts),
                **values,
            )


def _trained(layer: int) -> str:
    return f"states-layer{layer:02d}-trained"


def _cka(mine: Tensor | None, theirs: Tensor | None, estimator: Estimator) -> float | None:
    if mine is None or theirs is None:
        return None
    return without_nan(cka_matrix(mine[None], theirs[None], estimator=estimator, undefined="nan")[0])[0]
