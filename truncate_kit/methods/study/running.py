"""Run a study, trial by trial, so that it may be stopped at any instant and continues with the same call."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

import torch
from torch import Tensor

from truncate_kit.analysis.cka import cka_matrix, relative_layers, without_nan
from truncate_kit.analysis.result import Estimator
from truncate_kit.core.errors import DataError, DivergedError, LayerOutOfRangeError, ModelError, UsageError
from truncate_kit.core.files import local_path, mark_unfinished, run_lock, unfinished
from truncate_kit.core.hardware import check_precision, select_device
from truncate_kit.core.parallel import Engine
from truncate_kit.core.progress import Progress, TrialWatcher, WatchOption, silent, watcher_of
from truncate_kit.core.results import read_or_pass_over
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
    Place,
    Published,
    StudyResult,
    StudyRow,
    read_published,
)
from truncate_kit.methods.tmft.trials import TrialRunner, kept_encoder, layers_named, scores_by_layer
from truncate_kit.models.encoder import Encoder
from truncate_kit.models.loading import load_encoder, random_encoder
from truncate_kit.models.store import RunStore, run_key
from truncate_kit.models.truncation import layer_states, layers_held, paper_parameters, truncate
from truncate_kit.training.distributed import ALONE, Group, isolated
from truncate_kit.training.examples import scored_as
from truncate_kit.training.settings import Trial, trial_name
from truncate_kit.training.tasks import LabelledTask, read_judged

RANDOM_SEED = 0  # of the weights of models without pretraining: one draw, whatever the seed of a trial
CKA_SEED = 0  # the seed whose models are compared; the TMFT paper compares one model per layer, too
MOST_TEXTS = 4_096  # whose states are compared; beyond, every second or third text is left out


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
    """Train every model after every prior on every task at every layer with every seed.

    Models are run in order, but the one that others are compared with first.

    Args:
        study: What is run.
        out: Gets `trials/`, one folder per model, prior, task and settings, and `adapted/`, the models that were
            adapted to raw text; what is there is not run again.
        progress: True draws bars and logs epochs; a `TrialWatcher` hears of every epoch and every finished trial.
        finished: Is called with all rows so far whenever a model is done on a task, once these are all that
            `study.json` in `out` has: a study that is stopped leaves no fewer rows.
        engine: Where trials run, as in `finetune`.
        device: Of the models here.

    Raises:
        FileProblemError: Another study runs in `out`.
        DivergedError: Of one model and task, after all others were run.
        TruncateKitError: Whatever `finetune` raises.
    """
    start, watcher, folder = time.perf_counter(), watcher_of(progress), local_path(out)
    # For all of it: between two models a second process would take what is ours.
    with run_lock(folder), ExitStack() as held:
        check_study(study, device)
        published = read_published(study.published)
        held.enter_context(_needed(study, folder))
        earlier = read_or_pass_over(StudyResult.read, folder / STUDY_FILE)
        before = set() if earlier is None else earlier.places()
        rows, cka, told = list[StudyRow](), list[CKARow](), False
        references: dict[tuple[str, str], LayerStates] = {}
        result, diverged = StudyResult(rows=(), seconds=0.0), list[DivergedError]()
        for part in _parts(study, folder, watcher, engine, device):
            watcher.part(f"{part.name}, {part.task.name}")
            # The model that others are compared with comes first; what it does not meet is not compared.
            place = (part.prior.name, part.task.name)
            compared = part.model.name == study.cka or place in references
            states = LayerStates.of(part.name, part.runner) if compared else None
            try:
                rows += part.rows(study, published, states)
            except DivergedError as error:  # the others go on
                diverged.append(DivergedError(f"{part.name}, {part.task.name}: {error}", hint=error.hint))
                continue
            if states is not None:
                reference = references.setdefault(place, states)
                cka += cka_rows(states, reference, part.task.name) if reference is not states else ()
            result = StudyResult(rows=tuple(rows), seconds=time.perf_counter() - start, cka=tuple(cka))
            told = before <= result.places()
            if told and finished is not None:
                finished(result)
        if result.rows and not told and finished is not None:  # without rows, what an earlier call gave stands
            finished(result)
        if diverged:
            raise diverged[0]
    return result


def adapt_all(
    study: Study, out: Path, *, device: str | None = None, group: Group = ALONE, progress: Progress = silent
) -> None:
    """Adapt to raw text only, shared by the processes of `group`: `run_study` finds it done."""
    check_study(study, device)
    folder = local_path(out)
    with ExitStack() as held:
        if group.leads:
            held.enter_context(run_lock(folder))
            held.enter_context(_needed(study, folder))
        for model in study.models:
            loaded = load_model(model, device)
            for prior in study.priors:
                if study.tasks_of(model, prior):
                    _adapted(loaded, prior, folder, progress, group)
    if group.leads and _adapts(study):
        mark_unfinished(folder / "adapted")  # until `run_study` has had them


def _needed(study: Study, out: Path) -> AbstractContextManager[None]:
    """Keep adapted models until all trials have ended that begin with one, and for the next call if one diverged."""
    return unfinished(out / "adapted", shared=True) if _adapts(study) else nullcontext()


def _adapts(study: Study) -> bool:
    return any(prior.texts is not None for prior in study.priors)


def _adapted(encoder: Encoder, prior: StudyPrior, out: Path, progress: Progress, group: Group = ALONE) -> Encoder:
    if prior.texts is None:
        return encoder
    settings, texts = prior.adaptation(), read_texts(prior.texts)
    return adapted(encoder, texts, out / "adapted", settings, layer=prior.layer, group=group, progress=progress)[0]


def check_study(study: Study, device: str | None = None) -> None:
    """Load every model and every set once: a slip in the last line of a study must not show after days."""
    check_published(study, read_published(study.published))
    used: set[str] = {task.training.precision for task in study.tasks}
    used |= {prior.precision for prior in study.priors if prior.words is not None or prior.texts is not None}
    for precision in used:
        check_precision(precision, select_device(device))
    encoder = load_model(study.models[0], device)
    for task in study.tasks:
        if task.read_earlier and task.training.row.trains_head:
            raise UsageError(
                f"{task.name}: a classifier that was trained at the last layer does not fit an earlier one.",
                hint="Add read_earlier = false to this task.",
            )
        data, searched = task_data(task)
        LabelledTask(encoder, data, task.training.objective, retrieval=searched)
    for prior in study.priors:
        if prior.words is not None:
            load_words(Path(prior.words))
        if prior.texts is not None:
            read_texts(prior.texts)
    if study.layers == "auto":
        hint = 'Use "all", "3,6,9" or "2..5".'
        raise UsageError("A study trains all the layers that it names; it searches none.", hint=hint)
    for model in study.models:
        encoder = load_model(model, device)
        for prior in study.priors:
            if not study.tasks_of(model, prior):
                continue
            try:
                cut = encoder if prior.layer is None else truncate(encoder, prior.layer)
                layers_named(cut, study.layers)
            except LayerOutOfRangeError as error:
                hint = "Name layers in the study's file that each of its models has."
                raise ModelError(f"{encoder.name}: {error}", hint=hint) from error
            if prior.texts is not None:
                load_masked_head(cut)


def check_published(study: Study, figures: Published) -> None:
    """Raise `UsageError` for a name that the figures do not have, and if they have nothing of the whole study."""
    models, data = {place.model for place in figures}, {place.data for place in figures}
    for parts, known in ((study.models, models), (study.tasks, data)):
        for part in parts:
            if part.published is None or part.published in known:
                continue
            near = get_close_matches(part.published, known)
            hint = f"Did you mean {' or '.join(near)}?" if near else f"There are those of: {', '.join(sorted(known))}."
            hint = hint if figures else 'Add published = "FILE OR FOLDER" to the top of the study.'
            raise UsageError(f"{part.name}: there are no published figures of {part.published!r}.", hint=hint)
    wanted = {
        (model.published or model.name, task.published or task.name) for model in study.models for task in study.tasks
    }
    if figures and not {(place.model, place.data) for place in figures} & wanted:
        raise UsageError(
            f"No figure in {study.published} is of a model and a task of this study.",
            hint=f'Give models and tasks published = "NAME". Models: {", ".join(sorted(models))}. '
            f"Tasks: {', '.join(sorted(data))}.",
        )


def load_model(model: StudyModel, device: str | None = None) -> Encoder:
    """Load a model, pretrained or with weights drawn anew, the same in every call; all of it, or some blocks."""
    encoder = load_encoder(model.model, pooling=model.pooling, max_length=model.max_length, device=device)
    if model.weights == "random":
        torch.manual_seed(RANDOM_SEED)
        encoder.backbone = random_encoder(encoder.backbone.config).to(encoder.device).backbone
    return encoder if model.blocks is None else kept_encoder(encoder, model.blocks)


def task_data(task: StudyTask) -> tuple[PairSplits, RetrievalSet | None]:
    """Load the train, dev and test pairs of a task, and the queries that choose and report in their place, if any."""
    kind, metric = task.training.row.data, task.search_metric or "ndcg"
    if kind == "judged":
        return read_judged(task.data, metric=metric)
    data = load_pairs(task.data, columns=task.columns, scale=task.scale, classes=kind == "classes")
    if task.retrieval is None:
        return complete_splits(data), None
    searched = read_retrieval(task.retrieval, metric=metric, chooses=True)
    return complete_splits(data).without_texts(searched.held_out), searched


@dataclass(frozen=True, slots=True)
class _Part:
    """One model after one prior on one task."""

    model: StudyModel
    prior: StudyPrior
    task: StudyTask
    runner: TrialRunner

    @property
    def name(self) -> str:
        """Return what tables call the model after the prior."""
        return self.prior.label(self.model)

    def rows(self, study: Study, published: Published, states: "LayerStates | None") -> list[StudyRow]:
        """Run what is missing; states: collected as well, if the model is compared with others."""
        runner, encoder = self.runner, self.runner.full
        layers, seeds = layers_named(encoder, study.layers), range(study.seeds)
        with runner.store.open():
            # What needs weights comes first: the rows then find those trials done.
            if states is not None:
                states.collect(layers)
            earlier = runner.read_earlier(layers, seeds) if self.task.read_earlier else ()
            own = runner.run_all((layer, seed) for seed in seeds for layer in layers)
            if states is not None:
                runner.store.forget_weights(())
        # The paper's figures of random weights are in a plot only, and none are of queries.
        if self.model.weights != "pretrained" or self.task.by_queries:
            published = {}
        rows = self._rows(self.name, own, published)
        return [*rows, *self._rows(f"{self.name}, trained at layer {encoder.depth}", earlier, {})]

    def _rows(self, label: str, trials: Sequence[Trial], published: Published) -> list[StudyRow]:
        encoder, main, prior, kept = self.runner.full, self.task.training.row.published, self.prior, self.model.blocks
        names = (self.model.published or self.model.name, self.task.published or self.task.name)
        setting = PLAIN if prior.words is None else AFTER_WORDS  # as the figures call priors
        if prior.texts is not None:
            setting = AFTER_TEXTS if prior.words is None and prior.layer is None else ""  # there is none like others

        def figure(layer: int, split: str, metric: str) -> float | None:
            if kept is not None and kept[:layer] != tuple(range(1, layer + 1)):  # other blocks than those published
                return None
            return published.get(Place(*names, setting, layer, split, metric, encoder.pooling_name))

        return [
            StudyRow(
                model=label,
                task=self.task.name,
                metric=self.runner.task.metric,
                depth=encoder.depth,
                scores=scores,
                paper_parameters=paper_parameters(encoder.backbone.config, scores.layer),
                published=figure(scores.layer, "test", main),
                published_dev=figure(scores.layer, "dev", main),
                published_pearson=figure(scores.layer, "test", "pearson"),
                published_dev_pearson=figure(scores.layer, "dev", "pearson"),
            )
            for scores in scores_by_layer(encoder, trials)
        ]


def _parts(
    study: Study, out: Path, watcher: TrialWatcher, engine: Engine | None, device: str | None
) -> Iterator[_Part]:
    """Yield the parts of a study, in the order in which they are run."""
    for model in sorted(study.models, key=lambda model: model.name != study.cka):
        loaded = load_model(model, device)
        for prior in study.priors:
            tasks = study.tasks_of(model, prior)
            if not tasks:
                continue
            encoder, first = _adapted(loaded, prior, out, watcher.progress), None
            if prior.words is not None:
                first = WordPrior(encoder, load_words(Path(prior.words)), prior.word_training())
            for task in tasks:
                (data, searched), training = task_data(task), task.training
                work = LabelledTask(encoder, data, training.objective, retrieval=searched)
                parts = [training.settled(encoder.width).to_json(), data.fingerprint(), type(work).__name__]
                parts += [first.fingerprint()] if first else []
                parts += [searched.fingerprint() + scored_as(searched, encoder)] if searched is not None else []
                description = {"model": model.to_dict(), "task": task.name, "training": training.to_dict()}
                store = RunStore(out / "trials", run_key(encoder, *parts), description)
                yield _Part(model, prior, task, TrialRunner(encoder, work, training, store, first, watcher, engine))


@dataclass(frozen=True, slots=True)
class LayerStates:
    """States (n, d) of one model's layers on the test texts of one task, before and after training.

    They are kept beside the trials, not the weights that gave them: they are a fraction of the size, and a study that
    is stopped continues with them.
    """

    name: str  # what tables call the model
    runner: TrialRunner
    texts: list[str]

    @classmethod
    def of(cls, name: str, runner: TrialRunner) -> "LayerStates":
        """Make them of a model and the texts of its task. Raises `DataError` for a task without labelled pairs."""
        if not isinstance(runner.task, LabelledTask):
            raise DataError("CKA is read on the texts of labelled pairs.", hint="Leave out cka.")
        texts = runner.task.test_texts(CKA_SEED)
        return cls(name, runner, texts[:: -(-len(texts) // MOST_TEXTS)])

    @property
    def depth(self) -> int:
        """Return L of the model."""
        return self.runner.full.depth

    def collect(self, layers: Sequence[int]) -> None:
        """Run the trials of these layers, and have the states of each stage."""
        runner, epochs = self.runner, self.runner.settings.epochs
        for layer in layers:  # one whose states were still missing when the study was stopped
            if runner.store.has_weights(trial_name(layer, CKA_SEED, epochs)):
                self._read(runner.run(layer, CKA_SEED))
        # Read as soon as a trial is finished: its weights then go. One that was finished without is not run again.
        new = [(layer, CKA_SEED) for layer in layers if runner.stored(layer, CKA_SEED) is None]
        for trial in runner.as_finished(new, keep_weights=True):
            self._read(trial)
        self.stages()

    def _read(self, trial: Trial) -> None:
        store, last = self.runner.store, trial_name(self.depth, CKA_SEED, trial.epochs)
        if trial.layer < self.depth:
            store.tensor(_own(trial.layer), lambda: self._trained(trial)[-1])
            store.forget_weights({last})

    def _trained(self, trial: Trial) -> Tensor:
        trained = self.runner.store.encoder(trial.name, self.runner.full.device)
        return self._states(trained, f"trained at layer {trial.layer}")

    def _states(self, encoder: Encoder, stage: str) -> Tensor:
        def progress(task: str, done: int, total: int) -> None:
            self.runner.watcher.progress(f"Reading states of {self.name}, {stage}", done, total)

        return layer_states(encoder, self.texts, progress=progress)

    def stages(self) -> tuple[Callable[[int], Tensor | None], ...]:
        """Return what gives the states (n, d) of a layer: untrained, trained at the last layer, trained at this one.

        The model trained at its last layer is run again if its weights are gone.
        """
        store, runner = self.runner.store, self.runner
        untrained = store.tensor("states-untrained", lambda: self._states(runner.full, "untrained"))
        last = store.tensor(
            "states-last-layer-trained",
            lambda: self._trained(runner.run(self.depth, CKA_SEED, keep_weights=True)),
        )

        def own(layer: int) -> Tensor | None:
            return last[layer] if layer == self.depth else store.read_tensor(_own(layer))

        return untrained.__getitem__, last.__getitem__, own


def _own(layer: int) -> str:
    return f"states-layer{layer:02d}-trained"


def cka_rows(model: LayerStates, reference: LayerStates, task: str) -> Iterator[CKARow]:
    """Yield linear CKA of each layer to the reference's at the same relative depth, both at the same stage."""
    pairs = list(zip(model.stages(), reference.stages(), strict=True))
    held = layers_held(model.runner.full.backbone.config)
    for layer, other in enumerate(relative_layers(model.depth, reference.depth)):
        if layer in held:
            states = [(mine(layer), theirs(other)) for mine, theirs in pairs]
            untrained, last, own = (_cka(*both, "debiased") for both in states)
            biased = [_cka(*both, "biased") for both in states]
            yield CKARow(
                model=model.name,
                reference=reference.name,
                task=task,
                layer=layer,
                reference_layer=other,
                untrained=untrained,
                last_trained=last,
                own_trained=own,
                num_texts=len(model.texts),
                untrained_biased=biased[0],
                last_trained_biased=biased[1],
                own_trained_biased=biased[2],
            )


def _cka(mine: Tensor | None, theirs: Tensor | None, estimator: Estimator) -> float | None:
    """Return CKA; None if one of the two is not there, or its states do not differ."""
    if mine is None or theirs is None:
        return None
    return without_nan(cka_matrix(mine[None], theirs[None], estimator=estimator, undefined="nan")[0])[0]
