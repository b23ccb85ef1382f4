"""What a study found, and what it means model by model."""

from collections.abc import Sequence
from dataclasses import dataclass

from truncate_kit.methods.tmft.picking import Picker
from truncate_kit.methods.tmft.sweep_result import LayerScores
from truncate_kit.results import Result

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
