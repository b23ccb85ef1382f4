"""What the suites return: raw scores in points (× 100), seconds and bytes."""

from dataclasses import dataclass

from truncate_kit.errors import UsageError
from truncate_kit.results import Result


@dataclass(frozen=True, slots=True, kw_only=True)
class StsScore(Result):
    """Correlation of cosine similarity with the gold scores of one set, all its pairs together, in points.

    published_pairs: how many the published set has; with fewer or more the score is not comparable. unseen_pairs,
    unseen_spearman: without the pairs the model was trained on; None where nothing is known of them, and the score
    also where too few are left.
    """

    name: str
    num_pairs: int
    published_pairs: int
    spearman: float
    pearson: float
    unseen_pairs: int | None
    unseen_spearman: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StsReport(Result):
    """The sets that were there. mean_spearman, mean_unseen: plain means over the sets.

    runtime: `torch`, `onnx`, or what else encoded. seen: where the pairs come from that the model was trained on,
    None where nothing is known. mean_unseen is also None where a set has no such score.
    """

    model: str
    runtime: str
    sets: tuple[StsScore, ...]
    mean_spearman: float
    seen: str | None
    mean_unseen: float | None
    seconds: float

    def notes(self) -> list[str]:
        """What a reader has to know before comparing: sets that are not whole."""
        return [
            f"{row.name} here has {row.num_pairs:,} of the published {row.published_pairs:,} pairs: its score is not "
            "comparable with published ones."
            for row in self.sets
            if row.num_pairs != row.published_pairs
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferSettings(Result):
    """How the classifiers are fitted and judged; the defaults are BERT-LC's where the paper states them.

    splits: random divisions. test_share: of each (0 … 1). folds: of the inner cross-validation. max_layers: in a subset
    at most. finalists: subsets fitted exactly. fractions: shares of the training rows to go through the whole protocol
    with (0 … 1). penalty: scikit-learn's C. max_rows: rows of a set at most, drawn by class, None for all. Raises
    `UsageError`.
    """

    splits: int = 10
    test_share: float = 0.15
    folds: int = 5
    max_layers: int = 4
    finalists: int = 3
    fractions: tuple[float, ...] = (1.0,)
    penalty: float = 10.0
    tolerance: float = 0.01
    iterations: int = 200
    max_rows: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse what cannot be run."""
        if not self.fractions or not all(0 < fraction <= 1 for fraction in self.fractions):
            raise UsageError("Fractions of the training data lie between 0 and 1.", hint="Write them as 0.1,0.5,1.")
        if self.splits < 1 or self.folds < 2 or self.finalists < 1 or self.max_layers < 1:
            raise UsageError(
                "Splits, finalists and layers take at least 1, folds at least 2.", hint="Leave them at their defaults."
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferPoint(Result):
    """Accuracies on one set with one share of the training rows, in points; tuples hold one value per split.

    as_is: the model's own vectors. last, combined: states of the last layer, and the mean of the layers that the inner
    cross-validation chose; None for a model of one vector. mean_*: over the splits. relative_error_reduction: by how
    many percent `combined` makes fewer errors than `last`, from the means.
    """

    fraction: float
    train_rows: int
    test_rows: int
    as_is: tuple[float, ...]
    last: tuple[float, ...] | None
    combined: tuple[float, ...] | None
    chosen: tuple[tuple[int, ...], ...] | None
    mean_as_is: float
    mean_last: float | None
    mean_combined: float | None
    relative_error_reduction: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferScore(Result):
    """One set. majority: accuracy of always naming the most frequent class, in points. curve: by training share.

    repeated_rows: rows whose text stands in an earlier row too; random splits put some of them on both sides.
    """

    name: str
    num_rows: int
    num_classes: int
    majority: float
    repeated_rows: int
    curve: tuple[TransferPoint, ...]

    @property
    def whole(self) -> TransferPoint:
        """The point with the largest share of the training rows."""
        return max(self.curve, key=lambda point: point.fraction)


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferReport(Result):
    """The sets that were there, and plain means over them (None where a set has none).

    num_subsets: how many subsets of layers were screened; 0 for a model of one vector.
    """

    model: str
    runtime: str
    settings: TransferSettings
    num_subsets: int
    sets: tuple[TransferScore, ...]
    mean_as_is: float
    mean_last: float | None
    mean_combined: float | None
    mean_relative_error_reduction: float | None
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RetrievalReport(Result):
    """Finding the relevant texts of queries by cosine similarity, with the index and exactly.

    mrr, exact_mrr: mean reciprocal rank of the first relevant text among ten (0 where none is), × 100, with the index
    and with all texts compared. lists, probes: of the inverted-file index. search_seconds, exact_seconds,
    encode_seconds: medians for one query at a time on `threads` threads, encoding apart from searching. index_bytes:
    the whole index, vectors included; exact_bytes: the same for all vectors in one list. build_seconds: training and
    filling the index.
    """

    model: str
    runtime: str
    data: str
    num_queries: int
    num_texts: int
    width: int
    lists: int
    probes: int
    mrr: float
    exact_mrr: float
    encode_seconds: float
    search_seconds: float
    exact_seconds: float
    index_bytes: int
    exact_bytes: int
    build_seconds: float
    threads: int
