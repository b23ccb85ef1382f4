"""Settings and results of an analysis of layers."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Self, get_args

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
    """Settings of `profile`; see also `cka_matrix` and `Encoder.hidden_states`.

    A second curve excludes the `outliers` dimensions of largest variance. `intervals` is the number of text groups for
    confidence intervals; 0, or too few texts: no intervals. `blocks` are as in `keep`, by default all; `pooling` is by
    default each model's own. `max_texts=None` uses all. `streamed` is by default chosen by size (never for RBF).

    Raises:
        UsageError: A value is out of bounds, or the pooling is unknown.
    """

    estimator: Estimator = setting(
        "debiased", "CKA estimator: debiased, or biased as in the TMFT paper.", LAYERS, choices=get_args(Estimator)
    )
    kernel: Kernel = setting("linear", "CKA kernel: linear or rbf.", LAYERS, choices=get_args(Kernel))
    outliers: int = setting(3, bounds=_COUNT)
    intervals: int = setting(10, bounds=_COUNT)
    level: float = setting(0.95, bounds=_LEVEL)
    blocks: tuple[int, ...] | None = None
    pooling: "PoolingMode | None" = None
    raw: bool = setting(False, "Block outputs without the model's final norm.", LAYERS, name="--raw")
    max_texts: int | None = setting(10_000, "Maximum number of texts, drawn at random.", DATA, bounds=_TEXTS)
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
    """CKA of each layer with one layer of the reference; index 0 = embeddings, None = undefined."""

    values: Row
    reference_layers: tuple[int, ...]
    low: Row | None = None  # of the interval
    high: Row | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerProfile(Result):
    """Measures of layers 0 (embeddings) … depth of one model."""

    model: str
    reference: str | None  # else the own middle layer
    depth: int
    reference_depth: int | None
    width: int
    pooling: str
    raw: bool
    parameters: tuple[int | None, ...]  # after a cut at each layer, pooler excluded; missing if uncuttable there
    # With the reference at the same relative depth, or the own middle layer.
    cka: Curve
    cka_without_outliers: Curve | None  # without dimensions of largest variance
    outliers: int  # number of these dimensions
    cka_matrix: tuple[Row, ...]  # (model, reference or model)
    estimator: str
    kernel: str
    level: float
    block_influence: tuple[float, ...]  # from layer l to l + 1: see `LabelFreeScores`
    angular_distance: tuple[float, ...]
    effective_rank: tuple[float, ...]  # see `LabelFreeScores`
    anisotropy: tuple[float, ...]
    # Points (× 100) on graded pairs; None for a layer with equal cosines.
    spearman: tuple[float | None, ...] | None
    num_pairs: int
    num_texts: int  # distinct
    num_repeats: int  # left out
    num_not_drawn: int  # beyond `max_texts`
    streamed: bool
    matrix_texts: int  # texts used for the matrix
    drop: DropPrediction | None  # missing for models of one block and if `labels`
    # Means over queries, × 100, by metric; the first chooses.
    searched: dict[SearchMetric, tuple[float, ...]] = field(default_factory=dict)
    num_queries: int = 0
    kept_blocks: tuple[int, ...] | None = None  # of the named model, if not all
    full_depth: int  # of the named model
    labels: bool = False  # all scores are 0 or 1
    encoder_digest: str  # of the named model
    texts_digest: str  # of all distinct texts, drawn or not

    @property
    def last_blocks(self) -> tuple[int, ...]:
        """Return each layer's last block, 0 for the embeddings."""
        return (0, *(range(1, self.depth + 1) if self.kept_blocks is None else self.kept_blocks))

    def covers(self, other: Self) -> bool:
        """Return whether the other profile has no more data on the same model and texts."""
        of = [(one.encoder_digest, one.kept_blocks, one.texts_digest) for one in (self, other)]
        amounts = [(one.num_texts, one.num_pairs, one.num_queries) for one in (self, other)]
        return of[0] != of[1] or all(mine >= theirs for mine, theirs in zip(*amounts, strict=True))


def called(name: str) -> str:
    """Return the last part of a local folder, otherwise the name."""
    return Path(name).name if Path(name).is_dir() else name
