"""Run a study, trial by trial, so that it may be stopped at any instant and continues with the same call."""

import csv
import time
from collections.abc import Callable
from pathlib import Path

import torch

from truncate_kit.data import complete_splits, load_pairs
from truncate_kit.encoders import Encoder, check_layer, load_encoder, paper_parameters, random_encoder
from truncate_kit.errors import DataFileError
from truncate_kit.progress import Progress, silent
from truncate_kit.study.plan import Study, StudyModel, StudyTask
from truncate_kit.study.results import StudyResult, StudyRow
from truncate_kit.sweep.scores import scores_by_layer
from truncate_kit.sweep.store import TrialStore, fingerprint
from truncate_kit.sweep.tasks import LabelledTask
from truncate_kit.sweep.trials import TrialRunner, layers_to_try, parse_layers

RANDOM_SEED = 0  # of the weights of models without pretraining

Published = dict[tuple[str, str, int], float]


def run_study(
    study: Study,
    out: Path,
    *,
    progress: Progress = silent,
    finished: Callable[[StudyResult], None] | None = None,
) -> StudyResult:
    """TMFT of every model on every task at every layer with every seed.

    out: gets `trials/`, one folder per model, task and settings; what is there is not run again. finished: called with
    all rows so far whenever a model is done with a task. Raises what `finetune` raises.
    """
    start = time.perf_counter()
    published = _published(study.published)
    rows: list[StudyRow] = []
    for model in study.models:
        encoder = _load(model)
        for task in study.tasks:
            rows += _rows(study, model, task, encoder, Path(out), progress, published)
            if finished is not None:
                finished(StudyResult(rows=tuple(rows), seconds=time.perf_counter() - start))
    return StudyResult(rows=tuple(rows), seconds=time.perf_counter() - start)


def _load(model: StudyModel) -> Encoder:
    encoder = load_encoder(model.model, pooling=model.pooling)
    if model.weights == "random":
        torch.manual_seed(RANDOM_SEED)
        encoder.backbone = random_encoder(encoder.backbone.config).to(encoder.device).backbone
    return encoder


def _rows(
    study: Study,
    model: StudyModel,
    task: StudyTask,
    encoder: Encoder,
    out: Path,
    progress: Progress,
    published: Published,
) -> list[StudyRow]:
    training, config = task.training, encoder.backbone.config
    data = complete_splits(
        load_pairs(task.data, columns=task.columns, scale=task.scale, classes=training.objective == "entailment")
    )
    layers = parse_layers(study.layers, layers_to_try(encoder), encoder.depth)
    for layer in layers:
        check_layer(config, layer)
    work = LabelledTask(encoder, data, training.objective)
    key = fingerprint(encoder, training.to_json(), data.fingerprint(), type(work).__name__)
    description = {"model": model.to_dict(), "task": task.name, "training": training.to_dict()}
    runner = TrialRunner(encoder, work, training, TrialStore(out / "trials", key, description), progress)
    with runner.store.open():
        trials = [runner.run(layer, seed) for seed in range(study.seeds) for layer in layers]
    return [
        StudyRow(
            model=model.name,
            task=task.name,
            metric=work.metric,
            depth=encoder.depth,
            scores=scores,
            paper_parameters=paper_parameters(config, scores.layer),
            published=published.get((model.published or "", task.published or "", scores.layer)),
        )
        for scores in scores_by_layer(encoder, trials)
    ]


def _published(path: str | None) -> Published:
    """Mean test scores in points by model, data and layer, from columns name, dataset, layer, split, mean (0 … 1)."""
    if path is None:
        return {}
    try:
        with Path(path).open(newline="", encoding="utf-8") as handle:
            return {
                (row["name"], row["dataset"], int(row["layer"])): 100 * float(row["mean"])
                for row in csv.DictReader(handle)
                if (row["split"], row["metric"], row["setting"]) == ("test", "spearman", "plain")
            }
    except (OSError, KeyError, ValueError) as error:
        raise DataFileError(
            f"{path} holds no published figures: {error}.",
            hint="It needs the columns name, setting, dataset, layer, split, metric and mean.",
        ) from error
