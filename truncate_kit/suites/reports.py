"""What the suites return: raw scores in points (× 100), seconds and bytes."""

from dataclasses import dataclass

from truncate_kit.results import Result
from truncate_kit.suites.settings import TransferSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class StsScore(Result):
    """Correlation of cosine similarity with the gold scores of one set, all its pairs together, in points."""

    name: str
    num_pairs: int  # number of pairs scored
    published_pairs: int  # number of pairs of the published set; with another number the score is not comparable
    spearman: float
    pearson: float
    unseen_pairs: int | None  # number of pairs that the model was not trained on; None where nothing is known of them
    unseen_spearman: float | None  # rank correlation of these; None also where too few are left


@dataclass(frozen=True, slots=True, kw_only=True)
class StsReport(Result):
    """The sets that were found, and plain means over them."""

    model: str
    runtime: str  # `torch`, `onnx`, or what else encoded
    sets: tuple[StsScore, ...]  # in the order of the paper
    mean_spearman: float
    seen: str | None  # where the pairs come from that the model was trained on; None where nothing is known
    mean_unseen: float | None  # mean without these pairs; None also where a set has no such score
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
class TransferPoint(Result):
    """Accuracies on one set with one part of the training rows, in points; tuples hold one value per split."""

    fraction: float  # part of the training rows, 0 … 1
    train_rows: int  # number of rows fitted on in each split
    test_rows: int  # number of rows tested on in each split
    as_is: tuple[float, ...]  # accuracy of the model's own vectors
    last: tuple[float, ...] | None  # of the states of the last layer; as the others None for a model of one vector
    combined: tuple[float, ...] | None  # accuracy of the mean of the layers that the inner cross-validation chose
    chosen: tuple[tuple[int, ...], ...] | None
    mean_as_is: float  # this and the next two: means over the splits
    mean_last: float | None
    mean_combined: float | None
    relative_error_reduction: float | None  # percentage of the errors of `last` that `combined` avoids, from the means
    by_class: bool = True  # whether the rows were enough for every class to keep its share of each division


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferScore(Result):
    """One set."""

    name: str
    num_rows: int
    num_classes: int
    majority: float  # accuracy of always naming the most frequent class, in points
    repeated_rows: int  # number of rows whose text is in an earlier row too; random splits put some on both sides
    curve: tuple[TransferPoint, ...]  # by part of the training rows, rising

    @property
    def whole(self) -> TransferPoint:
        """The point with the largest share of the training rows."""
        return max(self.curve, key=lambda point: point.fraction)


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferReport(Result):
    """The sets that were found, and plain means over them (None where a set has none)."""

    model: str
    runtime: str
    settings: TransferSettings
    num_subsets: int  # subsets of layers that were screened; 0 for a model of one vector
    sets: tuple[TransferScore, ...]
    mean_as_is: float
    mean_last: float | None
    mean_combined: float | None
    mean_relative_error_reduction: float | None
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RetrievalReport(Result):
    """Finding the relevant texts of queries by cosine similarity, with the index and exactly.

    Times are medians for one query at a time on `threads` threads.
    """

    model: str
    runtime: str  # `torch`, `onnx`, or what else encoded
    data: str
    num_queries: int
    num_texts: int
    width: int  # numbers of a vector
    lists: int
    probes: int  # lists searched for each query
    mrr: float  # mean reciprocal rank × 100 of the first relevant text among ten (0 where none is), with the index
    exact_mrr: float  # the same with all texts compared
    encode_seconds: float  # to encode a query
    search_seconds: float  # to search with the index
    exact_seconds: float  # to compare with all texts
    index_bytes: int  # the whole index, vectors included
    exact_bytes: int  # all vectors in one list
    build_seconds: float  # to train and fill the index
    threads: int
