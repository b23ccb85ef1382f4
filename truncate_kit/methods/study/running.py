"""Run a study trial by trial; after a stop at any instant the same call continues."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from functools import cached_property
from itertools import product
from pathlib import Path

import torch
from torch import Tensor

from truncate_kit.analysis.cka import cka_matrix, relative_layers, without_nan
from truncate_kit.analysis.result import Estimator
from truncate_kit.core.errors import DivergedError, LayerOutOfRangeError, ModelError, UsageError
from truncate_kit.core.files import local_path, mark_unfinished, run_lock, unfinished
from truncate_kit.core.hardware import check_precision, select_device
from truncate_kit.core.parallel import Engine
from truncate_kit.core.progress import Progress, TrialWatcher, WatchOption, silent, watcher_of
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
from truncate_kit.models.store import RunStore, run_key
from truncate_kit.models.truncation import layer_states, layers_held, paper_parameters, truncate
from truncate_kit.training.distributed import ALONE, Group, isolated
from truncate_kit.training.queries import read_judged
from truncate_kit.training.settings import Trial, trial_name
from truncate_kit.training.tasks import LabelledTask, scored_as

RANDOM_SEED = 0  # of random weights, whatever the seed of a trial
CKA_SEED = 0  # of compared models, one per layer as in the TMFT paper
MOST_TEXTS = 4_096  # for CKA


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
    """Train every model after every prior on every task at every layer with every seed, the reference of CKA first.

    Args:
        study: What is run.
        out: Gets `trials/` and `adapted/`; finished work there is not repeated.
        progress: True draws bars and logs epochs; a `TrialWatcher` hears of every epoch and finished trial.
        finished: Called with all rows so far whenever a model is done on a task, once no row of `study.json` in `out`
            is missing: a resumed study that is stopped again loses none.
        engine: See `finetune`.
        device: Device of the models here.

    Raises:
        FileProblemError: Another study runs in `out`.
        DivergedError: A model diverged on a task; raised after all others were run.
    """
    start, watcher, folder = time.perf_counter(), watcher_of(progress), local_path(out)
    with run_lock(folder), ExitStack() as held:  # no second process meanwhile
        check_study(study, device)
        published = read_published(study.published)
        held.enter_context(_needed(study, folder))
        earlier = StudyResult.read_if_whole(folder / STUDY_FILE)
        before = set() if earlier is None else earlier.places()
        rows, cka, told = list[StudyRow](), list[CKARow](), False
        references: dict[tuple[str, str], Part] = {}
        result, diverged = StudyResult(rows=(), seconds=0.0), list[DivergedError]()
        for part in _parts(study, folder, watcher, engine, device):
            watcher.part(f"{part.name}, {part.task.name}")
            place = (part.prior.name, part.task.name)
            compared = part.model.name == study.cka or place in references
            try:
                rows += part.rows(study, published, compared)
            except DivergedError as error:  # the others go on
                diverged.append(DivergedError(f"{part.name}, {part.task.name}: {error}", hint=error.hint))
                continue
            if compared:
                reference = references.setdefault(place, part)
                cka += part.cka(reference) if reference is not part else ()
            result = StudyResult(rows=tuple(rows), seconds=time.perf_counter() - start, cka=tuple(cka))
            told = before <= result.places()
            if told and finished is not None:
                finished(result)
        if rows and not told and finished is not None:  # of a study that names less than before
            finished(result)
        if diverged:
            raise diverged[0]
    return result


def adapt_all(
    study: Study, out: Path, *, device: str | None = None, group: Group = ALONE, progress: Progress = silent
) -> None:
    """Adapt to raw text only, shared by the processes of `group`; `run_study` then reads the models."""
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
        mark_unfinished(folder / "adapted")


def _needed(study: Study, out: Path) -> AbstractContextManager[None]:
    """Keep adapted models until all their trials have ended, also for the next call."""
    return unfinished(out / "adapted", shared=True) if _adapts(study) else nullcontext()


def _adapts(study: Study) -> bool:
    return any(prior.texts is not None for prior in study.priors)


def _adapted(encoder: Encoder, prior: StudyPrior, out: Path, progress: Progress, group: Group = ALONE) -> Encoder:
    if prior.texts is None:
        return encoder
    settings, texts = prior.adaptation(), read_texts(prior.texts)
    return adapted(encoder, texts, out / "adapted", settings, layer=prior.layer, group=group, progress=progress)[0]


def check_study(study: Study, device: str | None = None) -> None:
    """Load every model and set once, so that no mistake shows after days."""
    check_published(study, read_published(study.published))
    if study.layers == "auto":
        hint = 'Use "all", "3,6,9" or "2..5".'
        raise UsageError("A study trains all the layers that it names; it does not search.", hint=hint)
    priors = [prior for prior in study.priors if prior.words is not None or prior.texts is not None]
    for precision in {*(task.training.precision for task in study.tasks), *(prior.precision for prior in priors)}:
        check_precision(precision, select_device(device))
    for prior in priors:
        if prior.words is not None:
            load_words(Path(prior.words))
        if prior.texts is not None:
            read_texts(prior.texts)
    for model in study.models:
        encoder = load_model(model, device)
        if model is study.models[0]:
            for task in study.tasks:
                if task.read_earlier and task.training.row.trains_head:
                    raise UsageError(
                        f"{task.name}: a classifier that was trained at the last layer does not fit an earlier one.",
                        hint="Add read_earlier = false to this task.",
                    )
                task_work(encoder, task)
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
    """Raise `UsageError` for names without figures, and if no figure is of this study."""
    every: tuple[StudyModel | StudyTask, ...] = (*study.models, *study.tasks)
    if not figures and not any(part.published for part in every):
        return
    models, data = {place[0] for place in figures}, {place[1] for place in figures}
    hint = 'published = "FILE OR FOLDER" at the top of the study names the figures; a model or task has published = '
    hint += f'"NAME". Models: {", ".join(sorted(models))}. Tasks: {", ".join(sorted(data))}.'
    for parts, known in ((study.models, models), (study.tasks, data)):
        for part in parts:
            if part.published is not None and part.published not in known:
                said = f"{part.name}: there are no published figures of {part.published!r}."
                raise UsageError(said, hint=hint)
    names = [[part.published or part.name for part in parts] for parts in (study.models, study.tasks)]
    if not {place[:2] for place in figures} & {*product(*names)}:
        raise UsageError(f"No figure in {study.published} is of a model and a task of this study.", hint=hint)


def load_model(model: StudyModel, device: str | None = None) -> Encoder:
    """Load all or some blocks; random weights are the same in every call."""
    encoder = load_encoder(model.model, pooling=model.pooling, max_length=model.max_length, device=device)
    if model.weights == "random":
        torch.manual_seed(RANDOM_SEED)
        encoder.backbone = random_encoder(encoder.backbone.config).to(encoder.device).backbone
    return encoder if model.blocks is None else kept_encoder(encoder, model.blocks)


def task_data(task: StudyTask) -> tuple[PairSplits, RetrievalSet | None]:
    """Load the pairs of a task, and the queries that choose and report instead, if any."""
    kind, metric = task.training.row.data, task.search_metric or "ndcg"
    if kind == "judged":
        return read_judged(task.data, metric=metric)
    data = load_pairs(task.data, columns=task.columns, scale=task.scale, classes=kind == "classes")
    if task.retrieval is None:
        return complete_splits(data), None
    searched = read_retrieval(task.retrieval, metric=metric, chooses=True)
    return complete_splits(data).without_texts(searched.held_out), searched


def task_work(encoder: Encoder, task: StudyTask) -> tuple[LabelledTask, str, str]:
    """Return what trials do, and the fingerprints of data and queries."""
    data, searched = task_data(task)
    work = LabelledTask(encoder, data, task.training.objective, retrieval=searched)
    queries = "" if searched is None else searched.fingerprint() + scored_as(searched, encoder)
    return work, data.fingerprint(), queries


def _parts(
    study: Study, out: Path, watcher: TrialWatcher, engine: Engine | None, device: str | None
) -> Iterator["Part"]:
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
                (work, data, queries), training = task_work(encoder, task), task.training
                parts = [training.settled(encoder.width).to_json(), data, type(work).__name__]
                parts += [one for one in (first.fingerprint() if first else "", queries) if one]
                description = {"model": model.to_dict(), "task": task.name, "training": training.to_dict()}
                store = RunStore(out / "trials", run_key(encoder, *parts), description)
                runner = TrialRunner(encoder, work, training, store, first, watcher, engine)
                yield Part(model, prior, task, runner, work)


class Part:
    """One model after one prior on one task: its trials, and states of its layers on the test texts for CKA.

    States are stored, as they are a fraction of the size of the weights.
    """

    def __init__(
        self, model: StudyModel, prior: StudyPrior, task: StudyTask, runner: TrialRunner, work: LabelledTask
    ) -> None:
        self.model, self.prior, self.task, self.runner = model, prior, task, runner
        self.name, self.full, self.store = prior.label(model), runner.full, runner.store
        self._work = work

    def rows(self, study: Study, published: Published, compared: bool) -> list[StudyRow]:
        """Run what is missing, and collect states if the model is compared."""
        runner, layers, seeds = self.runner, layers_named(self.full, study.layers), range(study.seeds)
        with self.store.open():
            if compared:  # first, as it needs weights
                self._collect(layers)
            earlier = runner.read_earlier(layers, seeds) if self.task.read_earlier else ()
            own = runner.run_all((layer, seed) for seed in seeds for layer in layers)
            if compared:
                self.store.forget_weights(())
        # The paper has no figures of random weights or queries.
        if self.model.weights != "pretrained" or self.task.by_queries:
            published = {}
        rows = self._rows(self.name, own, published)
        return [*rows, *self._rows(f"{self.name}, trained at layer {self.full.depth}", earlier, {})]

    def _rows(self, label: str, trials: Sequence[Trial], published: Published) -> list[StudyRow]:
        encoder, main, prior, kept = self.full, self.task.training.row.published, self.prior, self.model.blocks
        names = (self.model.published or self.model.name, self.task.published or self.task.name)
        setting = PLAIN if prior.words is None else AFTER_WORDS
        measures = {"": main, "_pearson": "pearson"}
        if prior.texts is not None:
            setting = AFTER_TEXTS if prior.words is None and prior.layer is None else ""

        def figures(layer: int) -> dict[str, float | None]:
            if kept is not None and kept[:layer] != tuple(range(1, layer + 1)):  # other blocks than published
                return {}
            places = {(split, end): (*names, setting, layer, split) for split in ("dev", "test") for end in measures}
            return {
                f"published_{split}{end}": published.get((*place, measures[end], encoder.pooling_name))
                for (split, end), place in places.items()
            }

        return [
            StudyRow(
                model=label,
                task=self.task.name,
                metric=self.runner.task.metric,
                depth=encoder.depth,
                scores=scores,
                paper_parameters=paper_parameters(encoder.backbone.config, scores.layer),
                **figures(scores.layer),
            )
            for scores in scores_by_layer(encoder, trials)
        ]

    @cached_property
    def texts(self) -> list[str]:
        """Return the test texts, evenly thinned out to `MOST_TEXTS`."""
        texts = self._work.test_texts(CKA_SEED)
        return texts[:: -(-len(texts) // MOST_TEXTS)]

    def _collect(self, layers: Sequence[int]) -> None:
        runner, epochs = self.runner, self.runner.settings.epochs
        for layer in layers:  # states were missing at a stop
            if self.store.has_weights(trial_name(layer, CKA_SEED, epochs)):
                self._read(runner.run(layer, CKA_SEED))
        # Read as soon as a trial is finished: its weights then go.
        new = [(layer, CKA_SEED) for layer in layers if runner.stored(layer, CKA_SEED) is None]
        for trial in runner.as_finished(new, keep_weights=True):
            self._read(trial)
        self._stages()

    def _read(self, trial: Trial) -> None:
        if trial.layer < self.full.depth:
            self.store.tensor(_own(trial.layer), lambda: self._trained(trial)[-1])
            self.store.forget_weights({trial_name(self.full.depth, CKA_SEED, trial.epochs)})

    def _trained(self, trial: Trial) -> Tensor:
        trained = self.store.encoder(trial.name, self.full.device)
        return self._states(trained, f"trained at layer {trial.layer}")

    def _states(self, encoder: Encoder, stage: str) -> Tensor:
        def progress(task: str, done: int, total: int) -> None:
            self.runner.watcher.progress(f"Reading states of {self.name}, {stage}", done, total)

        return layer_states(encoder, self.texts, progress=progress)

    def _stages(self) -> tuple[Callable[[int], Tensor | None], ...]:
        """Return functions from a layer to its states (n, d): untrained, trained at the last layer, at this one."""
        store, depth = self.store, self.full.depth
        untrained = store.tensor("states-untrained", lambda: self._states(self.full, "untrained"))
        last = store.tensor(
            "states-last-layer-trained",
            lambda: self._trained(self.runner.run(depth, CKA_SEED, keep_weights=True)),
        )
        return (
            untrained.__getitem__,
            last.__getitem__,
            lambda layer: last[layer] if layer == depth else store.read_tensor(_own(layer)),
        )

    def cka(self, reference: "Part") -> Iterator[CKARow]:
        """Yield linear CKA of each layer to the reference's at the same relative depth and stage."""
        pairs = list(
            zip(("untrained", "last_trained", "own_trained"), self._stages(), reference._stages(), strict=True)
        )
        held = layers_held(self.full.backbone.config)
        for layer, other in enumerate(relative_layers(self.full.depth, reference.full.depth)):
            if layer in held:
                states = {stage: (mine(layer), theirs(other)) for stage, mine, theirs in pairs}
                yield CKARow(
                    model=self.name,
                    reference=reference.name,
                    task=self.task.name,
                    layer=layer,
                    reference_layer=other,
                    num_texts=len(self.texts),
                    **{stage: _cka(*both, "debiased") for stage, both in states.items()},
                    **{f"{stage}_biased": _cka(*both, "biased") for stage, both in states.items()},
                )


def _own(layer: int) -> str:
    return f"states-layer{layer:02d}-trained"


def _cka(mine: Tensor | None, theirs: Tensor | None, estimator: Estimator) -> float | None:
    if mine is None or theirs is None:
        return None
    return without_nan(cka_matrix(mine[None], theirs[None], estimator=estimator, undefined="nan")[0])[0]
