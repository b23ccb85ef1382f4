"""What running MTEB tasks returns: main scores in points (× 100), seconds."""

from dataclasses import dataclass

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


@dataclass(frozen=True, slots=True, kw_only=True)
class MtebReport(Result):
    """One model on some tasks."""

    model: str
    runtime: str  # `torch`, `onnx`, or what else encoded
    version: str  # of the `mteb` package
    scores: tuple[MtebScore, ...]  # in the order of the tasks
    mean: float  # plain mean over the tasks
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MtebComparison(Result):
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
