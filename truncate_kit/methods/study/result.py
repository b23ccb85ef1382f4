"""What a study found, and what it means model by model."""

import csv
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import NamedTuple

from truncate_kit.core.errors import DataError, UsageError, first_line
from truncate_kit.core.results import Result
from truncate_kit.data.tables import opened_text
from truncate_kit.methods.study.plan import Study, StudyModel, StudyPrior, StudyTask
from truncate_kit.methods.tmft.choosing import Picker
from truncate_kit.methods.tmft.result import LayerScores

STUDY_FILE = "study.json"
DROP_POINTS, DROP_ERRORS = 2.0, 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyRow(Result):
    """One model on one task at one layer; published figures are the paper's means in points, None where it has none."""

    model: str
    task: str
    metric: str
    depth: int
    scores: LayerScores
    paper_parameters: int  # as the TMFT paper counts them
    published: float | None  # test, by the main score
    published_dev: float | None = None
    published_pearson: float | None = None
    published_dev_pearson: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CKARow(Result):
    """Linear CKA of a layer to the reference's on a task's test texts; None where states do not differ.

    Debiased, and in the biased form that the TMFT authors' own figure 3 has.
    """

    model: str
    reference: str
    task: str
    layer: int
    reference_layer: int
    untrained: float | None  # before fine-tuning
    last_trained: float | None  # layers of the two models fine-tuned at their last layer
    own_trained: float | None  # each cut and fine-tuned at this layer, as the paper has it; None if one was not
    num_texts: int
    untrained_biased: float | None = None
    last_trained_biased: float | None = None
    own_trained_biased: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyResult(Result):
    """All rows that are there, models in the order they are run, tasks within, layers within."""

    rows: tuple[StudyRow, ...]
    seconds: float  # of this call
    cka: tuple[CKARow, ...] = ()  # by model, task and layer, where the study asks for it and both models are done

    def tasks(self) -> list[str]:
        """Names of the tasks, in order."""
        return list(dict.fromkeys(row.task for row in self.rows))

    def places(self) -> set[tuple[str, str, int]]:
        """Model, task and layer of each row."""
        return {(row.model, row.task, row.scores.layer) for row in self.rows}

    def of_task(self, task: str) -> list[StudyRow]:
        """Rows of all models on one task."""
        return [row for row in self.rows if row.task == task]

    def models(self) -> list[str]:
        """Names of the models, in order."""
        return list(dict.fromkeys(row.model for row in self.rows))

    def of(self, model: str, task: str) -> list[StudyRow]:
        """Rows of one model on one task, by layer."""
        return sorted(
            (row for row in self.rows if (row.model, row.task) == (model, task)), key=lambda r: r.scores.layer
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary(Result):
    """One model on one task in a line."""

    model: str
    task: str
    metric: str
    best_dev: StudyRow  # the layer with the best dev score, the paper's choice
    last: StudyRow | None  # the last layer; None where the study leaves it out
    drop: float | None  # best earlier test score minus the last layer's, in points; None without the last layer
    drops: bool  # whether that is two points and two standard errors of the difference of two means; never of one seed


def summaries(result: StudyResult) -> list[Summary]:
    """A `Summary` for each model and task that there are rows of."""
    found = []
    for task in result.tasks():
        for model in result.models():
            rows = {row.scores.layer: row for row in result.of(model, task)}
            if not rows:
                continue
            best = rows[Picker("best-dev").pick({layer: row.scores.dev for layer, row in rows.items()})]
            last = rows.get(best.depth)
            drop, drops = (None, False) if last is None else _drop([*rows.values()], last)
            found.append(
                Summary(model=model, task=task, metric=best.metric, best_dev=best, last=last, drop=drop, drops=drops)
            )
    return found


def _drop(rows: Sequence[StudyRow], last: StudyRow) -> tuple[float, bool]:
    """By how many points the last layer drops from the best one before it on test, and whether that counts."""
    earlier = max((row for row in rows if row is not last), key=lambda row: row.scores.test, default=last)
    drop = earlier.scores.test - last.scores.test
    ends = (earlier.scores, last.scores)
    if min(len(scores.seeds) for scores in ends) < 2:  # the best of several layers by one seed is often one by chance
        return drop, False
    # Standard error of the difference of two means over seeds.
    error = sum((scores.test_std or 0.0) ** 2 / len(scores.seeds) for scores in ends) ** 0.5
    return drop, drop >= DROP_POINTS and drop > DROP_ERRORS * error


def pareto_front(rows: Sequence[StudyRow]) -> list[StudyRow]:
    """The rows that no other beats in test score with as few parameters, by parameters."""
    front: list[StudyRow] = []
    for row in sorted(rows, key=lambda r: (r.scores.parameters, -r.scores.test)):
        if not front or row.scores.test > front[-1].scores.test:
            front.append(row)
    return front


PLAIN, AFTER_WORDS, AFTER_TEXTS = "plain", "word-similarity", "dapt"  # as the scores by layer call them
STSB = "stsb/en"
SETS = {
    ("STSB", "en"): STSB,
    ("STSB", "de"): "stsb/de",
    ("STSB", "es"): "stsb/es",
    ("STSB", "ko"): "korsts",
    ("MRPC", "en"): "mrpc",
    ("SICK entailment", "en"): "sick",
}
# In a folder, later files win: the scores by layer are those of the paper's first version.
FILES = ("tmft_per_layer.csv", "tmft_best_layers.csv", "tmft_table1.csv", "tmft_table2.csv")


class Place(NamedTuple):
    """What a figure is of. split: dev or test; metric: spearman, pearson or f1; pooling: mean where none is given."""

    model: str
    data: str
    setting: str
    layer: int
    split: str
    metric: str
    pooling: str = "mean"


Published = dict[Place, float]


def read_published(path: str | None) -> Published:
    """Figures in points by place, from a file or those named `FILES` in a folder; None has none. Raises `DataError`."""
    if path is None:
        return {}
    files = [Path(path)]
    if files[0].is_dir():
        files = [file for name in FILES if (file := Path(path) / name).is_file()]
    found: Published = {}
    for file in files:
        try:
            with opened_text(file, newline="") as handle:
                found |= dict(_figures(csv.DictReader(handle, strict=True)))
        except (OSError, KeyError, TypeError, AttributeError, ValueError, csv.Error) as error:
            raise _without_figures(str(file), first_line(error)) from error
    if not found:
        raise _without_figures(path, "there are none")
    endless = next((place for place, value in found.items() if not math.isfinite(value)), None)
    if endless is not None:
        raise _without_figures(path, f"that of {endless.model}, layer {endless.layer}, is not finite")
    return found


def check_published(study: Study, figures: Published) -> None:
    """Raise `UsageError` for a name that the figures do not have, and where they have nothing of the whole study."""
    models, data = {place.model for place in figures}, {place.data for place in figures}
    parts: tuple[StudyModel | StudyTask, ...] = (*study.models, *study.tasks)
    for part in parts:
        known = models if isinstance(part, StudyModel) else data
        if part.published is None or part.published in known:
            continue
        if not figures:
            hint = 'Add published = "FILE OR FOLDER" to the top of the study.'
            raise UsageError(f"{part.name} has a published name, but the study has no published figures.", hint=hint)
        near = get_close_matches(part.published, known)
        hint = f"Did you mean {' or '.join(near)}?" if near else f"There are those of: {', '.join(sorted(known))}."
        raise UsageError(f"{part.name}: there are no published figures of {part.published!r}.", hint=hint)
    pairs = {(place.model, place.data) for place in figures}
    wanted = {(published_name(model), published_name(task)) for model in study.models for task in study.tasks}
    if figures and not pairs & wanted:
        raise UsageError(
            f"No figure in {study.published} is of a model and a task of this study.",
            hint=f'Give models and tasks published = "NAME". Models: {", ".join(sorted(models))}. '
            f"Tasks: {', '.join(sorted(data))}.",
        )


def published_name(part: StudyModel | StudyTask) -> str:
    """What the published figures call a model or the data of a task."""
    return part.name if part.published is None else part.published


def prior_setting(prior: StudyPrior) -> str:
    """What the published figures call a prior, nothing where the TMFT paper has none like it."""
    if prior.texts is None:
        return PLAIN if prior.words is None else AFTER_WORDS
    return AFTER_TEXTS if prior.words is None and prior.layer is None else ""


def _without_figures(path: str, reason: str) -> DataError:
    hint = "It needs the columns name, setting, dataset, layer, split, metric and mean."
    return DataError(f"{path} holds no published figures: {reason}.", hint=hint)


def _figures(rows: "csv.DictReader[str]") -> Iterator[tuple[Place, float]]:
    columns = set(rows.fieldnames or ())
    for row in rows:
        if "val_spearman" in columns:
            for split, name in (("dev", "val"), ("test", "test")):
                for metric in ("spearman", "pearson"):
                    place = Place(
                        row["model"], STSB, _setting(row.get("setting", "")), int(row["layer"]), split, metric
                    )
                    yield place, float(row[f"{name}_{metric}"])
        elif "language" in columns:
            data = SETS.get((row["task"], row["language"]))
            if data is not None and row["layer"]:  # the paper does not name the layer of every figure
                place = Place(row["model"], data, PLAIN, int(row["layer"]), "test", row["metric"])
                yield place, float(row["value"])
        else:
            what, pooling = (row["split"], row["metric"]), row.get("pooling") or "mean"
            place = Place(row["name"], row["dataset"], row["setting"], int(row["layer"]), *what, pooling)
            yield place, 100 * float(row["mean"])


def _setting(label: str) -> str:
    """Of a row of Table 1: "TMFT STSB", "TMFT WS + TMFT STSB" or "DAPT NLI + TMFT STSB"."""
    return AFTER_TEXTS if label.startswith("DAPT") else AFTER_WORDS if "WS" in label.split() else PLAIN
