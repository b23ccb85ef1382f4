"""Settings and results of an analysis of layers."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

from truncate_kit.analysis.drop import DropPrediction
from truncate_kit.core.results import Result
from truncate_kit.core.settings import BATCH, DATA, LAYERS, SEED, Bounds, check_settings, setting
from truncate_kit.data.retrieval import SearchMetric

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
        intervals: Number of blocks of texts for the intervals; 0 or blocks of a single text give no intervals.
        level: Confidence level of the intervals.
        blocks: Keep these blocks of the model, as `keep` does; by default all.
        pooling: For both models; by default each one's own.
        raw: See `Encoder.hidden_states`.
        max_texts: Most distinct texts (and pairs made of them) to draw at random; None draws all.
        streamed: Hold no states; by default decided by size.
        seed: Of the draw.
        batch_size: Texts that are encoded at a time.

    Raises:
        UsageError: There would be too few texts, another number is out of its bounds, or there is no such pooling.
    """

    estimator: Estimator = setting(
        "debiased",
        "CKA estimator: debiased, or biased as in the TMFT paper.",
        LAYERS,
        choices=get_args(Estimator),
    )
    kernel: Kernel = setting("linear", "CKA kernel: linear or rbf.", LAYERS, choices=get_args(Kernel))
    outliers: int = setting(3, bounds=_COUNT)
    intervals: int = setting(10, bounds=_COUNT)
    level: float = setting(0.95, bounds=_LEVEL)
    blocks: tuple[int, ...] | None = None
    pooling: "PoolingMode | None" = None
    raw: bool = setting(False, "States of the blocks, without a family's final norm.", LAYERS, name="--raw")
    max_texts: int | None = setting(10_000, "Number of texts to draw if there are more.", DATA, bounds=_TEXTS)
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
    """CKA of each layer of the model with one layer of the reference; index 0 = embeddings, None = undefined."""

    values: Row
    reference_layers: tuple[int, ...]  # reference layer of each value
    low: Row | None = None  # lower bounds of the interval
    high: Row | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerProfile(Result):
    """All measures of the layers 0 (embeddings) … depth of one model."""

    model: str
    reference: str | None  # else the model was compared with its own middle layer
    depth: int
    reference_depth: int | None
    width: int
    pooling: str
    raw: bool
    parameters: tuple[int | None, ...]  # after a cut at that layer, pooler excluded, if a model can end there
    # To the reference at the same layer, at the same relative depth if depths differ, or to the own middle layer.
    cka: Curve
    cka_without_outliers: Curve | None  # without each layer's dimensions of largest variance
    outliers: int  # number of these dimensions
    cka_matrix: tuple[Row, ...]  # rows are the model's layers, columns the reference's, else the model's
    estimator: str
    kernel: str
    level: float
    block_influence: tuple[float, ...]  # from layer l to l + 1, one less than layers: see `TokenScores`
    angular_distance: tuple[float, ...]
    effective_rank: tuple[float, ...]  # of the pooled states: see `StateScores`
    anisotropy: tuple[float, ...]
    # Points (× 100) of the untrained states on graded pairs; a layer with equal cosines has None.
    spearman: tuple[float | None, ...] | None
    num_pairs: int
    num_texts: int  # distinct texts compared
    num_repeats: int  # repeats left out
    num_not_drawn: int  # distinct texts beyond the limit
    streamed: bool  # the states were too many to hold
    matrix_texts: int  # number of texts behind the matrix
    drop: DropPrediction | None  # missing for models of one block and for labels
    # Means over the queries of a retrieval set, in points, of the untrained states, by metric; the first chooses.
    searched: dict[SearchMetric, tuple[float, ...]] = field(default_factory=dict)
    num_queries: int = 0
    kept_blocks: tuple[int, ...] | None = None  # kept of the named model, if not all
    full_depth: int  # number of blocks of the named model
    labels: bool = False  # the score of each pair is 0 or 1
    encoder_digest: str  # of the named model
    texts_digest: str  # of all distinct texts, drawn or not

    @property
    def last_blocks(self) -> tuple[int, ...]:
        """Return the block that each layer ends in, 0 for the embeddings."""
        return (0, *(range(1, self.depth + 1) if self.kept_blocks is None else self.kept_blocks))


def called(name: str) -> str:
    """Return what to call a model in a sentence: the last part of a local path, otherwise its name."""
    return Path(name).name if Path(name).is_dir() else name
