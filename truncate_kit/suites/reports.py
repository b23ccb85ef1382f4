"""What the suites return: raw scores in points (× 100), seconds and bytes."""

from dataclasses import dataclass

from truncate_kit.results import Result
from truncate_kit.suites.settings import TransferSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class StsScore(Result):
    """Correlation of cosine similarity with the gold scores of one set, all its pairs together, in points.

    Attributes:
        name: Of the set.
        num_pairs: Number of pairs scored.
        published_pairs: Number of pairs of the published set; with another number the score is not comparable.
        spearman: Rank correlation.
        pearson: Linear correlation.
        unseen_pairs: Number of pairs that the model was not trained on; None where nothing is known of them.
        unseen_spearman: Rank correlation of these; None also where too few are left.
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
    """The sets that were found, and plain means over them.

    Attributes:
        model: Name of the model.
        runtime: `torch`, `onnx`, or what else encoded.
        sets: In the order of the paper.
        mean_spearman: Mean rank correlation.
        seen: Where the pairs come from that the model was trained on; None where nothing is known.
        mean_unseen: Mean without these pairs; None also where a set has no such score.
        seconds: Of the whole run.
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
class TransferPoint(Result):
    """Accuracies on one set with one part of the training rows, in points; tuples hold one value per split.

    A model of one vector has no layers to choose from: what needs them is None.

    Attributes:
        fraction: Part of the training rows, 0 … 1.
        train_rows: Number of rows fitted on in each split.
        test_rows: Number of rows tested on in each split.
        as_is: Accuracy of the model's own vectors.
        last: Accuracy of the states of the last layer.
        combined: Accuracy of the mean of the layers that the inner cross-validation chose.
        chosen: These layers.
        mean_as_is: Mean over the splits, as the next two.
        mean_last: See `last`.
        mean_combined: See `combined`.
        relative_error_reduction: Percentage of the errors of `last` that `combined` avoids, from the means.
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
    """One set.

    Attributes:
        name: Of the set.
        num_rows: Number of rows used.
        num_classes: Number of classes.
        majority: Accuracy of always naming the most frequent class, in points.
        repeated_rows: Number of rows whose text is in an earlier row too; random splits put some on both sides.
        curve: By part of the training rows, rising.
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
    """The sets that were found, and plain means over them (None where a set has none).

    num_subsets: number of subsets of layers that were screened; 0 for a model of one vector.
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

    Times are medians for one query at a time on `threads` threads.

    Attributes:
        model: Name of the model.
        runtime: `torch`, `onnx`, or what else encoded.
        data: Name of the set.
        num_queries: Number of queries.
        num_texts: Number of texts that are searched.
        width: Numbers of a vector.
        lists: Lists of the inverted-file index.
        probes: Lists searched for each query.
        mrr: Mean reciprocal rank × 100 of the first relevant text among ten (0 where none is), with the index.
        exact_mrr: The same with all texts compared.
        encode_seconds: To encode a query.
        search_seconds: To search with the index.
        exact_seconds: To compare with all texts.
        index_bytes: The whole index, vectors included.
        exact_bytes: All vectors in one list.
        build_seconds: To train and fill the index.
        threads: For searching.
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
