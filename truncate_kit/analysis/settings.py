"""How layers are measured and compared."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from truncate_kit.bounds import BATCH, SEED, Bounds, check_numbers
from truncate_kit.errors import UsageError
from truncate_kit.wording import counted

if TYPE_CHECKING:  # they come with torch
    from truncate_kit.analysis.cka import Estimator, Kernel
    from truncate_kit.models import PoolingMode

FEWEST_TEXTS = 4
_COUNT, _LEVEL = Bounds(0, 100_000), Bounds(0, 0.999999, whole=False, above=True)


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

    estimator: "Estimator" = "debiased"
    kernel: "Kernel" = "linear"
    outliers: int = 3
    intervals: int = 10
    level: float = 0.95
    blocks: tuple[int, ...] | None = None
    pooling: "PoolingMode | None" = None
    raw: bool = False
    max_texts: int | None = 10_000
    streamed: bool | None = None
    seed: int = 0
    batch_size: int = 64

    def __post_init__(self) -> None:
        check_numbers(self, outliers=_COUNT, intervals=_COUNT, level=_LEVEL, seed=SEED, batch_size=BATCH)
        if self.pooling is not None:
            from truncate_kit.models.encoder import check_pooling

            check_pooling(self.pooling)
        if self.max_texts is not None and self.max_texts < FEWEST_TEXTS:
            raise UsageError(
                f"{counted(self.max_texts, 'text is', 'texts are')} too few.",
                hint=f"Use `max_texts` of {FEWEST_TEXTS} or more; some hundred make CKA steady.",
            )
