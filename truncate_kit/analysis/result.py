"""How layers are measured and compared."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

from truncate_kit.analysis.drop import DropPrediction
from truncate_kit.core.results import Result
from truncate_kit.core.settings import BATCH, DATA, LAYERS, SEED, Bounds, check_settings, setting
from truncate_kit.data.retrieval import SEARCH_METRICS, SearchMetric

if TYPE_CHECKING:
    from truncate_kit.models.layer_pooling import PoolingMode

Estimator = Literal["debiased", "biased"]
Kernel = Literal["linear", "rbf"]
FEWEST_TEXTS = 4
_COUNT, _LEVEL = Bounds(0, 100_000), Bounds(0, 0.999999, whole=False, above=True)
_TEXTS = Bounds(FEWEST_TEXTS, 10**12)


@dataclass(frozen=True, slots=True, kw_only=True)
class AnalysisSettings:
    """Settings of `profile`.

    Attributes:
        estimator: Of CKA, see `cka_matrix`.
        kernel: Of CKA, see `cka_matrix`; RBF cannot be streamed.
        outliers: Dimensions of largest variance that a second curve leaves out at each layer; 0: no such curve.
        intervals: Number of blocks of texts for the intervals; 0: none. There are none either where a block would be
            a single text.
        level: Confidence level of the intervals.
        blocks: Keep these of the model alone, as `keep` does; None for all.
        pooling: For both models; None is each one's own.
        raw: See `Encoder.hidden_states`.
        max_texts: Most distinct texts (and pairs made of them) to draw at random; None takes all.
        streamed: Hold no states; None decides by size.
        seed: Of the draw.
        batch_size: Texts that are encoded at a time.

    Raises:
        UsageError: There would be too few texts, another number is out of its bounds, or there is no such pooling.
    """

    estimator: Estimator = setting(
        "debiased",
        "Of CKA: debiased, or biased as the TMFT paper's authors have it.",
        LAYERS,
        choices=get_args(Estimator),
    )
    kernel: Kernel = setting("linear", "Of CKA: linear or rbf.", LAYERS, choices=get_args(Kernel))
    outliers: int = setting(3, bounds=_COUNT)
    intervals: int = setting(10, bounds=_COUNT)
    level: float = setting(0.95, bounds=_LEVEL)
    blocks: tuple[int, ...] | None = None
    pooling: "PoolingMode | None" = None
    raw: bool = setting(
        False, "States as the blocks give them, without the final norm some families have.", LAYERS, name="--raw"
    )
    max_texts: int | None = setting(10_000, "Number of texts that are drawn if there are more.", DATA, bounds=_TEXTS)
    streamed: bool | None = None
    seed: int = setting(0, bounds=SEED)
    batch_size: int = setting(64, bounds=BATCH)

    def __post_init__(self) -> None:
        check_settings(self)
        if self.pooling is not None:
            from truncate_kit.models.encoder import check_pooling

            check_pooling(self.pooling)


Row = tuple[float | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve(Result):
    """CKA of each layer of the model with one layer of the reference; index 0 = embeddings, None = not defined."""

    values: Row
    reference_layers: tuple[int, ...]  # the reference layer that each value belongs to
    low: Row | None = None  # lower bounds of the interval, None without one
    high: Row | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerProfile(Result):
    """Everything that was measured of the layers 0 (embeddings) … depth of one model."""

    model: str
    reference: str | None  # None: the model was compared with its own middle layer
    depth: int
    reference_depth: int | None
    width: int
    pooling: str
    raw: bool
    # Kept when truncated at that layer, pooler excluded; None where no model can end there.
    parameters: tuple[int | None, ...]
    # To the reference at the same layer, at the same relative depth where depths differ (its `reference_layers` say
    # which), or to the model's own middle layer.
    cka: Curve
    cka_without_outliers: Curve | None  # without each layer's dimensions of largest variance; None if not asked for
    outliers: int  # number of these dimensions
    cka_matrix: tuple[Row, ...]  # rows are the model's layers, columns the reference's
    cka_within: tuple[Row, ...]
    reference_within: tuple[Row, ...] | None
    estimator: str
    kernel: str
    level: float
    blocks: int  # of texts, for the interval; 0 for none
    # From layer l to l + 1, so one less than layers, as `angular_distance`; see `LayerTokenScores`.
    block_influence: tuple[float, ...]
    angular_distance: tuple[float, ...]
    num_tokens: int
    effective_rank: tuple[float, ...]  # and what follows: of the pooled states, see `LayerStateScores`
    anisotropy: tuple[float, ...]
    outlier_share: tuple[float | None, ...]
    # Points (× 100) of the untrained states on graded pairs, None where all cosines are the same; None without pairs.
    spearman: tuple[float | None, ...] | None
    num_pairs: int
    num_texts: int  # distinct texts compared
    num_repeats: int  # left out
    num_not_drawn: int  # distinct texts beyond the limit
    streamed: bool  # whether the states were too many to hold
    matrix_texts: int  # number of texts that the matrices come from
    drop: DropPrediction | None  # None for models too shallow to have a middle, and where pairs are only labelled
    # Means over the queries, in points, of the untrained states; None without a retrieval set.
    ndcg: tuple[float, ...] | None = None  # at 10, as the next two
    mrr: tuple[float, ...] | None = None
    recall: tuple[float, ...] | None = None
    num_queries: int = 0
    search_metric: SearchMetric = "ndcg"  # of these three, by which the highest layer is named
    kept_blocks: tuple[int, ...] | None = None  # of the model that was named, whose others were left out; None for all
    full_depth: int | None = None  # its number of blocks
    labels: bool = False  # whether the score of each pair is 0 or 1
    # SHA-256 of all that the vectors of the model that was named depend on, and of all distinct texts, also those not
    # drawn; None in earlier profiles.
    encoder_digest: str | None = None
    texts_digest: str | None = None

    @property
    def last_blocks(self) -> tuple[int, ...]:
        """The block that each layer ends in, 0 for the embeddings."""
        return (0, *(range(1, self.depth + 1) if self.kept_blocks is None else self.kept_blocks))

    @property
    def searched(self) -> dict[SearchMetric, tuple[float, ...]]:
        """The scores of a retrieval set by metric, first the one that names the highest layer; none without a set."""
        found = {"ndcg": self.ndcg, "mrr": self.mrr, "recall": self.recall}
        order = sorted(SEARCH_METRICS, key=lambda metric: metric != self.search_metric)
        return {metric: values for metric in order if (values := found[metric]) is not None}


def called(name: str) -> str:
    """What to call a model in a sentence: the last part of a local path, otherwise its name."""
    return Path(name).name if Path(name).is_dir() else name
