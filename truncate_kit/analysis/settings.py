"""How layers are measured and compared."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

from truncate_kit.settings import BATCH, DATA, LAYERS, SEED, Bounds, check_settings, setting

if TYPE_CHECKING:  # it comes with torch
    from truncate_kit.models import PoolingMode

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
