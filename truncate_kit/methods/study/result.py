"""Results of a study, summaries by model, and published figures."""

import csv
import hashlib
import math
from collections.abc import Iterator, Sequence
from pathlib import Path

from truncate_kit.core.errors import DataError, first_line
from truncate_kit.core.results import Result
from truncate_kit.data.tables import opened_text
from truncate_kit.methods.tmft.settings import LayerScores, picker

STUDY_FILE = "study.json"
DROP_POINTS, DROP_ERRORS = 2.0, 2.0
_LONGEST = 50  # characters of a task in a file name of 255 bytes


class StudyRow(Result):
    """Scores of one model on one task at one layer; published figures are the paper's means in points."""

    model: str
    task: str
    metric: str
    depth: int
    scores: LayerScores
    paper_parameters: int  # as the TMFT paper counts them
    published_dev: float | None = None
    published_dev_pearson: float | None = None
    published_test: float | None = None
    published_test_pearson: float | None = None


class CKARow(Result):
    """Linear CKA of a layer with a layer of the reference on test texts, debiased or biased; None if undefined."""

    model: str
    reference: str
    task: str
    layer: int
    reference_layer: int
    untrained: float | None  # both models before fine-tuning
    last_trained: float | None  # both models fine-tuned at their last layers
    own_trained: float | None  # both models fine-tuned at the compared layers, as in the paper
    num_texts: int
    untrained_biased: float | None = None
    last_trained_biased: float | None = None
    own_trained_biased: float | None = None


class StudyResult(Result):
    """All finished rows, in the order of models, tasks and layers in the run."""

    rows: tuple[StudyRow, ...]
    seconds: float  # of this call
    cka: tuple[CKARow, ...] = ()

    def tasks(self) -> list[str]:
        """Name the tasks, in order."""
        return list(dict.fromkeys(row.task for row in self.rows))

    def of(self, task: str) -> list[StudyRow]:
        """Return a task's rows."""
        return [row for row in self.rows if row.task == task]

    def curves(self, task: str) -> "list[Curve]":
        """Return a task's curves, one per model."""
        models: dict[str, list[StudyRow]] = {row.model: [] for row in self.rows}
        for row in sorted(self.of(task), key=lambda row: row.scores.layer):
            models[row.model].append(row)
        return [Curve(rows) for rows in models.values() if rows]


class Curve:
    """The rows of one model on one task.

    Attributes:
        rows: By layer.
        best_dev: Row with the best dev score, the paper's choice.
        last: Row of the last layer, if trained.
        drop: Best test score of the other layers, minus the last layer's score.
        drops: True if `drop` is at least two points and above two standard errors; False with one seed.
    """

    def __init__(self, rows: Sequence[StudyRow]) -> None:
        layers = {row.scores.layer: row for row in rows}
        self.best_dev = layers[picker("best-dev").pick({layer: row.scores.dev for layer, row in layers.items()})]
        self.rows, self.last = rows, layers.pop(self.best_dev.depth, None)
        self.drop: float | None = None
        self.drops = False
        if self.last is not None:
            last, others = self.last.scores, [row.scores for row in layers.values()]
            highest = max(others, key=lambda scores: scores.test, default=last)
            self.drop, seeds = highest.test - last.test, min(len(highest.seeds), len(last.seeds))
            # Standard error of the difference of two means; with one seed the best layer is often best by chance.
            error = sum((scores.test_std or 0.0) ** 2 / len(scores.seeds) for scores in (highest, last)) ** 0.5
            self.drops = seeds > 1 and self.drop >= DROP_POINTS and self.drop > DROP_ERRORS * error


def pareto_front(rows: Sequence[StudyRow]) -> list[StudyRow]:
    """Return the Pareto front of test score and number of parameters, smallest model first."""
    front: list[StudyRow] = []
    for row in sorted(rows, key=lambda r: (r.scores.parameters, -r.scores.test)):
        if not front or row.scores.test > front[-1].scores.test:
            front.append(row)
    return front


def figure_name(task: str, kind: str) -> str:
    """Return the file name of a task's figure; kind: curves, layers, pareto or cka."""
    name = "".join(char if char.isalnum() else "-" for char in task).strip("-")
    if len(name) > _LONGEST:
        name = f"{name[:_LONGEST]}-{hashlib.sha256(task.encode()).hexdigest()[:8]}"
    return f"{kind}-{name}.png"


PLAIN, AFTER_WORDS, AFTER_TEXTS = "plain", "word-similarity", "dapt"  # settings of published figures
STSB = "stsb/en"
SETS = {
    ("STSB", "en"): STSB,
    ("STSB", "de"): "stsb/de",
    ("STSB", "es"): "stsb/es",
    ("STSB", "ko"): "korsts",
    ("MRPC", "en"): "mrpc",
    ("SICK entailment", "en"): "sick",
}
# Figures of later files replace earlier ones: scores by layer are from the paper's first version.
FILES = ("tmft_per_layer.csv", "tmft_best_layers.csv", "tmft_table1.csv", "tmft_table2.csv")

Place = tuple[str, str, str, int, str, str, str]
"""Model, data, setting, layer, split (dev or test), metric (spearman, pearson or f1), and pooling."""
Published = dict[Place, float]


def read_published(path: str | None) -> Published:
    """Read published figures, in points, from a CSV file or the `FILES` of a folder. Raises `DataError`.

    Columns of scores by layer: name, setting, dataset, layer, split, metric, mean (0 … 1), optional pooling. Columns of
    Tables 1 and 2 of the TMFT paper: model, layer, val_spearman, val_pearson, test_spearman, test_pearson, optional
    setting. Columns of single figures: task, language, model, layer, metric, value.
    """
    if path is None:
        return {}
    files = [Path(path)]
    if files[0].is_dir():
        files = [file for name in FILES if (file := Path(path) / name).is_file()]
    figures: Published = {}
    try:
        for file in files:
            with opened_text(file, newline="") as handle:
                figures |= dict(_figures(csv.DictReader(handle, strict=True)))
        if not figures or not all(map(math.isfinite, figures.values())):
            raise ValueError("no figure, or one is not finite")
    except (OSError, KeyError, TypeError, AttributeError, ValueError, csv.Error) as error:
        hint = "It needs the columns name, setting, dataset, layer, split, metric and mean."
        raise DataError(f"{path} holds no published figures: {first_line(error)}.", hint=hint) from error
    return figures


def _figures(rows: "csv.DictReader[str]") -> Iterator[tuple[Place, float]]:
    columns = set(rows.fieldnames or ())
    for row in rows:
        layer = int(row["layer"] or -1)  # the paper does not give some layers
        if "val_spearman" in columns:
            for split, name in (("dev", "val"), ("test", "test")):
                for metric in ("spearman", "pearson"):
                    place = row["model"], STSB, _setting(row.get("setting", "")), layer, split, metric, "mean"
                    yield place, float(row[f"{name}_{metric}"])
        elif "language" in columns:
            data = SETS.get((row["task"], row["language"]))
            if data is not None and layer >= 0:
                yield (row["model"], data, PLAIN, layer, "test", row["metric"], "mean"), float(row["value"])
        else:
            pooling = row.get("pooling") or "mean"
            place = row["name"], row["dataset"], row["setting"], layer, row["split"], row["metric"], pooling
            yield place, 100 * float(row["mean"])


def _setting(label: str) -> str:
    """Return the setting for a label of Table 1, such as "TMFT WS + TMFT STSB"."""
    return AFTER_TEXTS if label.startswith("DAPT") else AFTER_WORDS if "WS" in label.split() else PLAIN
