"""What a study names, loaded: models, tasks, words, layers; all of it is checked before the first training."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from truncate_kit.data import (
    PairSplits,
    RetrievalSet,
    complete_splits,
    load_pairs,
    load_words,
    read_retrieval,
    read_texts,
)
from truncate_kit.errors import LayerOutOfRangeError, ModelError, UsageError
from truncate_kit.hardware import check_precision, select_device
from truncate_kit.methods.priors import load_masked_head
from truncate_kit.methods.study.plan import Study, StudyModel, StudyPrior, StudyTask
from truncate_kit.methods.study.published import check_published, read_published
from truncate_kit.methods.tmft.trials import kept_encoder, layers_named
from truncate_kit.models import Encoder, load_encoder, random_encoder, truncate
from truncate_kit.training.tasks import LabelledTask, read_judged

RANDOM_SEED = 0  # of the weights of models without pretraining: one draw, whatever the seed of a trial


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
        prior_words(prior)
        if prior.texts is not None:
            read_texts(prior.texts)
    for model in study.models:
        encoder = load_model(model, device)
        for prior in study.priors:
            if not study.tasks_of(model, prior):
                continue
            with _with_name(encoder):
                cut = encoder if prior.layer is None else truncate(encoder, prior.layer)
            study_layers(study, cut)
            if prior.texts is not None:
                load_masked_head(cut)


def load_model(model: StudyModel, device: str | None = None) -> Encoder:
    """The encoder, pretrained or with weights drawn anew, the same in every call; all of it, or some blocks."""
    encoder = load_encoder(model.model, pooling=model.pooling, max_length=model.max_length, device=device)
    if model.weights == "random":
        torch.manual_seed(RANDOM_SEED)
        encoder.backbone = random_encoder(encoder.backbone.config).to(encoder.device).backbone
    return encoder if model.blocks is None else kept_encoder(encoder, model.blocks)


def task_data(task: StudyTask) -> tuple[PairSplits, RetrievalSet | None]:
    """The train, dev and test pairs of a task, and the queries that choose and report in their place, if any."""
    kind, metric = task.training.row.data, task.search_metric or "ndcg"
    if kind == "judged":
        return read_judged(task.data, metric=metric)
    data = load_pairs(task.data, columns=task.columns, scale=task.scale, classes=kind == "classes")
    if task.retrieval is None:
        return complete_splits(data), None
    searched = read_retrieval(task.retrieval, metric=metric, chooses=True)
    return complete_splits(data).without_texts(searched.held_out), searched


def prior_words(prior: StudyPrior) -> PairSplits | None:
    """The word pairs of a prior, None where it has none. Raises the errors of `load_words`."""
    return None if prior.words is None else load_words(Path(prior.words))


def study_layers(study: Study, encoder: Encoder) -> tuple[int, ...]:
    """The layers of this encoder that the study trains. Raises `UsageError`, `ModelError`, `LayerNotHeldError`."""
    if study.layers == "auto":
        raise UsageError(
            "A study trains all the layers that it names; it searches none.", hint='Use "all", "3,6,9" or "2..5".'
        )
    with _with_name(encoder):
        return layers_named(encoder, study.layers)


@contextmanager
def _with_name(encoder: Encoder) -> Iterator[None]:
    """The error of a layer that does not exist names the model, and what to change in the study's file."""
    try:
        yield
    except LayerOutOfRangeError as error:
        raise ModelError(
            f"{encoder.name}: {error}", hint="Name layers in the study's file that each of its models has."
        ) from error
