"""What running MTEB tasks returns: main scores in points (× 100), seconds."""

from collections.abc import Iterator
from dataclasses import dataclass

from truncate_kit.cells import TableCells, number
from truncate_kit.evaluation.registry import SuiteReport
from truncate_kit.measurement import Amounts
from truncate_kit.results import Result


@dataclass(frozen=True, slots=True, kw_only=True)
class MtebScore(Result):
    """The main score of one task, in points: the mean over its splits and subsets, as MTEB reports it."""

    task: str
    kind: str  # MTEB's type of task, such as STS or Retrieval
    metric: str  # MTEB's name for the main score, such as cosine_spearman or ndcg_at_10
    splits: tuple[str, ...]
    num_subsets: int  # parts of a split that are scored each alone, mostly languages
    score: float
    revision: str  # of the data
    successor: str | None  # the task that MTEB recommends instead
    seconds: float  # to encode and score, without loading the data

    def task_cells(self) -> tuple[str, str, str]:
        """Task, metric and splits, as tables name them."""
        return self.task, self.metric, ", ".join(self.splits)


@dataclass(frozen=True, slots=True, kw_only=True)
class MtebReport(SuiteReport):
    """One model on some tasks."""

    model: str
    runtime: str  # `torch`, `onnx`, or what else encoded
    version: str  # of the `mteb` package
    scores: tuple[MtebScore, ...]  # in the order of the tasks
    mean: float  # plain mean over the tasks
    seconds: float

    def amounts(self) -> Iterator[Amounts]:
        """Splits of tasks by their subsets."""
        for row in self.scores:
            for split in row.splits:
                yield (row.task, split), (row.num_subsets,)

    def table(self) -> TableCells:
        """One row per task and one for the mean."""
        rows = [(*row.task_cells(), number(row.score), f"{row.seconds:.1f}") for row in self.scores]
        rows.append((f"mean of {len(rows)}", "", "", number(self.mean), f"{self.seconds:.1f}"))
        title = f"{self.model} in {self.runtime}: main scores of MTEB {self.version} × 100"
        return TableCells(title, ("task", "metric", "split", "score", "seconds"), [*rows])

    def sentences(self) -> list[str]:
        """What a reader has to know of the tasks before comparing."""
        subsets = [
            f"{row.task}: the mean over {row.num_subsets} subsets, mostly languages."
            for row in self.scores
            if row.num_subsets > 1
        ]
        return subsets + [
            f"{row.task}: MTEB recommends {row.successor} instead, for new comparisons."
            for row in self.scores
            if row.successor is not None
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class MtebComparison(SuiteReport):
    """Two models on the same tasks: before and after."""

    full: MtebReport
    lean: MtebReport
    differences: tuple[float, ...]  # lean less full, task by task
    mean_difference: float

    @classmethod
    def of(cls, full: MtebReport, lean: MtebReport) -> "MtebComparison":
        """Of two reports on the same tasks in the same order."""
        return cls(
            full=full,
            lean=lean,
            differences=tuple(
                after.score - before.score for before, after in zip(full.scores, lean.scores, strict=True)
            ),
            mean_difference=lean.mean - full.mean,
        )

    def amounts(self) -> Iterator[Amounts]:
        """Those of either report: both are of the same tasks."""
        return self.lean.amounts()

    def table(self) -> TableCells:
        """One row per task and one for the mean: full, lean, difference."""
        full, lean = self.full, self.lean
        rows = [
            (*before.task_cells(), number(before.score), number(after.score), number(difference, "+.2f"))
            for before, after, difference in zip(full.scores, lean.scores, self.differences, strict=True)
        ]
        means = number(full.mean), number(lean.mean), number(self.mean_difference, "+.2f")
        rows.append((f"mean of {len(rows)}", "", "", *means))
        models = " and ".join(
            f"{one.model} in {one.runtime} ({name})" for one, name in ((full, "full"), (lean, "lean"))
        )
        title = f"{models}: main scores of MTEB {full.version} × 100"
        return TableCells(title, ("task", "metric", "split", "full", "lean", "lean less full"), [*rows])

    def sentences(self) -> list[str]:
        """Those of the lean model's report."""
        return self.lean.sentences()
