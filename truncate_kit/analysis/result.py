"""How layers are measured and compared."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

from truncate_kit.analysis.drop import NOT_PREDICTED, DropPrediction
from truncate_kit.data.retrieval import SEARCH_METRICS, SearchMetric
from truncate_kit.naming import blocks_in_words
from truncate_kit.results import Result
from truncate_kit.settings import BATCH, DATA, LAYERS, SEED, Bounds, check_settings, setting
from truncate_kit.wording import counted

if TYPE_CHECKING:
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
    def title(self) -> str:
        """What to call the model: its name, and the blocks where some were left out."""
        if self.kept_blocks is None:
            return called(self.model)
        return f"{called(self.model)}, {blocks_in_words(self.kept_blocks, self.full_depth)}"

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

    @property
    def sentence(self) -> str:
        """The prediction in one sentence."""
        if self.drop is not None:
            return self.drop.sentence
        if self.labels:
            return NOT_PREDICTED
        blocks = "1 block" if self.depth == 1 else f"{self.depth} blocks"
        return f"A model of {blocks} has no middle to compare its end with: no drop is predicted."

    @property
    def best_sentence(self) -> str | None:
        """Which layer scores highest untrained, and the last one beside it; None where nothing was scored."""
        values: Sequence[float | None] | None = self.spearman
        measure, searched = "Spearman", next(iter(self.searched.items()), None)
        if searched is not None:
            measure, values = SEARCH_METRICS[searched[0]], searched[1]
        scores = {layer: value for layer, value in enumerate(values or ()) if value is not None}
        if not scores:
            return None
        best, last = max(scores, key=scores.__getitem__), scores.get(self.depth)
        place = f"layer {best}, the last one" if best == self.depth else f"layer {best}"
        beside = "" if last is None or best == self.depth else f", the last layer {last:.1f}"
        return f"Highest without further training: {place} ({measure} {scores[best]:.1f}{beside})."

    def statements(self) -> tuple[str, ...]:
        """What the user has to know of how the numbers came about."""
        notes = [self._texts_sentence()]
        if self.kept_blocks is not None:
            of, ends = blocks_in_words(self.kept_blocks, self.full_depth), enumerate(self.kept_blocks, 1)
            ends_in = ", ".join(f"layer {layer} in block {block}" for layer, block in ends)
            notes.append(f"Layers are those of {of} alone: {ends_in}.")
        if self.reference is None:
            notes.append(
                f"No reference: each layer is compared with the model's own middle layer {self.depth // 2}, "
                "which is less sure."
            )
        elif self.reference_depth != self.depth:
            mapping = ", ".join(f"{layer}–{other}" for layer, other in enumerate(self.cka.reference_layers))
            notes.append(
                f"The depths differ ({self.depth} and {self.reference_depth} blocks), so layers are compared at the "
                f"same relative depth: {mapping}."
            )
        if self.streamed:
            notes.append(
                f"The states were streamed; the matrices and the choice of outlier dimensions come from a sample of "
                f"{self.matrix_texts:,} texts."
            )
        not_held = [str(layer) for layer, count in enumerate(self.parameters) if count is None]
        if not_held:
            notes.append(f"No model of this family can be cut at layer {', '.join(not_held)}.")
        if self.depth > 1 and len(set(self.parameters[1:])) == 1:
            notes.append("The blocks of this model share their weights: cutting saves time, not parameters.")
        return tuple(notes)

    def _texts_sentence(self) -> str:
        said = f"States of {self.num_texts:,} distinct texts"
        if self.num_repeats:
            said += f"; {counted(self.num_repeats, 'repeat')} {'was' if self.num_repeats == 1 else 'were'} left out"
        if self.num_not_drawn:
            said += f"; {self.num_not_drawn:,} more texts were not drawn"
        return f"{said}."


def called(name: str) -> str:
    """What to call a model in a sentence: the last part of a local path, otherwise its name."""
    return Path(name).name if Path(name).is_dir() else name
