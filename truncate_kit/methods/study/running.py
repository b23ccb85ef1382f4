"""Run a study, trial by trial, so that it may be stopped at any instant and continues with the same call."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from pathlib import Path

from truncate_kit.data import read_texts
from truncate_kit.errors import DivergedError
from truncate_kit.files import local_path, mark_unfinished, run_lock, unfinished
from truncate_kit.methods.priors import WordPrior, adapted
from truncate_kit.methods.study.alignment import LayerStates, cka_rows
from truncate_kit.methods.study.loading import check_study, load_model, prior_words, study_layers, task_data
from truncate_kit.methods.study.plan import Study, StudyModel, StudyPrior, StudyTask, part_label
from truncate_kit.methods.study.published import Place, Published, prior_setting, published_name, read_published
from truncate_kit.methods.study.study_result import STUDY_FILE, CKARow, StudyResult, StudyRow
from truncate_kit.methods.tmft.sweep_result import scores_by_layer
from truncate_kit.methods.tmft.trials import TrialRunner
from truncate_kit.models import Encoder, paper_parameters
from truncate_kit.parallel import Engine, Sequential
from truncate_kit.progress import Progress, TrialWatcher, WatchOption, silent, watcher_of
from truncate_kit.results import read_or_pass_over
from truncate_kit.training.distributed import ALONE, Group, isolated
from truncate_kit.training.evaluators import scored_as
from truncate_kit.training.settings import Trial
from truncate_kit.training.store import RECORDS_FILE, RunStore, run_key
from truncate_kit.training.tasks import LabelledTask


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
    """TMFT of every model after every prior on every task at every layer with every seed.

    Models are run in order, but the one that others are compared with first.

    Args:
        study: What is run.
        out: Gets `trials/`, one folder per model, prior, task and settings, and `adapted/`, the models that were
            adapted to raw text; what is there is not run again.
        progress: True draws bars and logs epochs; a `TrialWatcher` hears of every epoch and every finished trial.
        finished: Is called with all rows so far whenever a model has something new on a task and `study.json` in `out`
            has no rows of others, and at the end.
        engine: Where trials run, as in `finetune`.
        device: Of the models here.

    Raises:
        FileProblemError: Another study runs in `out`.
        DivergedError: Of one model and task, after all others were run.
        TruncateKitError: Whatever `finetune` raises.
    """
    start, watcher = time.perf_counter(), watcher_of(progress)
    # For all of it: between two models a second process would take what is ours.
    with run_lock(local_path(out)), ExitStack() as held:
        check_study(study, device)
        published = read_published(study.published)
        held.enter_context(_needed(study, local_path(out)))
        rows: list[StudyRow] = []
        cka: list[CKARow] = []
        references: dict[tuple[str, str], LayerStates] = {}
        result, diverged = StudyResult(rows=(), seconds=0.0), list[DivergedError]()
        notify = _Notifier(finished, local_path(out))
        for part in _parts(study, local_path(out), watcher, engine or Sequential(), device):
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
            notify(result)
        if result.rows:  # else everything diverged, and what an earlier call gave stands
            notify(result, last=True)
        if diverged:
            raise diverged[0]
    return result


def _needed(study: Study, out: Path) -> AbstractContextManager[None]:
    """Adapted models stay until all trials have ended that begin with one, and for the next call where one diverged."""
    return unfinished(out / "adapted", shared=True) if _adapts(study) else nullcontext()


def _adapts(study: Study) -> bool:
    return any(prior.texts is not None for prior in study.priors)


class _Notifier:
    """Passes results on when there are new records, and the last ones.

    What an earlier call gave stands until all of it is there again: a study that is stopped leaves no fewer rows.
    """

    def __init__(self, finished: Callable[[StudyResult], None] | None, out: Path) -> None:
        self._finished, self._records = finished, out / "trials" / RECORDS_FILE
        self._size, self._notified = self._size_now(), False
        earlier = read_or_pass_over(StudyResult.read, out / STUDY_FILE)
        self._earlier = set() if earlier is None else earlier.places()

    def __call__(self, result: StudyResult, *, last: bool = False) -> None:
        size = self._size_now()
        new, self._size = size != self._size, size
        due = (new and self._earlier <= result.places()) or (last and not self._notified)
        if due and self._finished is not None:
            self._finished(result)
        self._notified = due

    def _size_now(self) -> int:
        return self._records.stat().st_size if self._records.exists() else 0


def adapt_all(
    study: Study, out: Path, *, device: str | None = None, group: Group = ALONE, progress: Progress = silent
) -> None:
    """Only the adaptations to raw text of a study, shared by the processes of `group`: `run_study` finds them done."""
    check_study(study, device)
    with run_lock(local_path(out)) if group.leads else nullcontext():
        with _needed(study, local_path(out)) if group.leads else nullcontext():
            for model in study.models:
                loaded = load_model(model, device)
                for prior in study.priors:
                    if study.tasks_of(model, prior):
                        _adapted(loaded, prior, local_path(out), progress, group)
        if group.leads and _adapts(study):
            mark_unfinished(local_path(out) / "adapted")  # until `run_study` has had them


@dataclass(frozen=True, slots=True)
class _Part:
    """One model after one prior on one task."""

    model: StudyModel
    prior: StudyPrior
    task: StudyTask
    runner: TrialRunner

    @property
    def name(self) -> str:
        """What tables call the model after the prior."""
        return part_label(self.model, self.prior)

    def rows(self, study: Study, published: Published, states: LayerStates | None) -> list[StudyRow]:
        """Run what is missing; states: collected as well, where the model is compared with others."""
        runner, encoder = self.runner, self.runner.full
        layers, seeds = study_layers(study, encoder), range(study.seeds)
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
        encoder, main = self.runner.full, self.task.training.row.published
        names, setting = (published_name(self.model), published_name(self.task)), prior_setting(self.prior)

        def figure(layer: int, split: str, metric: str) -> float | None:
            kept = self.model.blocks
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


def _parts(study: Study, out: Path, watcher: TrialWatcher, engine: Engine, device: str | None) -> Iterator[_Part]:
    """The parts of a study, in the order in which they are run."""
    for model in sorted(study.models, key=lambda model: model.name != study.cka):
        loaded = load_model(model, device)
        for prior in study.priors:
            tasks = study.tasks_of(model, prior)
            if not tasks:
                continue
            encoder, words = _adapted(loaded, prior, out, watcher.progress), prior_words(prior)
            first = None if words is None else WordPrior(encoder, words, prior.word_training())
            for task in tasks:
                (data, searched), training = task_data(task), task.training
                work = LabelledTask(encoder, data, training.objective, retrieval=searched)
                parts = [training.settled(encoder.width).to_json(), data.fingerprint(), type(work).__name__]
                parts += [first.fingerprint()] if first else []
                parts += [searched.fingerprint() + scored_as(searched, encoder)] if searched is not None else []
                key = run_key(encoder, *parts)
                description = {"model": model.to_dict(), "task": task.name, "training": training.to_dict()}
                store = RunStore(out / "trials", key, description)
                yield _Part(model, prior, task, TrialRunner(encoder, work, training, store, first, watcher, engine))


def _adapted(encoder: Encoder, prior: StudyPrior, out: Path, progress: Progress, group: Group = ALONE) -> Encoder:
    if prior.texts is None:
        return encoder
    settings, texts = prior.adaptation(), read_texts(prior.texts)
    return adapted(encoder, texts, out / "adapted", settings, layer=prior.layer, group=group, progress=progress)[0]
