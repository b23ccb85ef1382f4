"""Published figures to stand beside those of a study, read from CSV in one of three forms.

Scores by layer: name, setting, dataset, layer, split, metric, mean (0 … 1) and, where it is given, pooling.
Tables 1 and 2 of the TMFT paper: model, layer, val_spearman, val_pearson, test_spearman, test_pearson, maybe setting.
Single figures of its text: task, language, model, layer, metric, value.
"""

import csv
import math
from collections.abc import Iterator
from difflib import get_close_matches
from pathlib import Path
from typing import NamedTuple

from truncate_kit.data.tables import opened_text
from truncate_kit.errors import DataError, UsageError, first_line
from truncate_kit.methods.study.plan import Study, StudyModel, StudyPrior, StudyTask

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
