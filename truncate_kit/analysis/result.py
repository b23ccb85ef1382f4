"""Settings and results of an analysis of layers.

The analysis predicts from untrained states if sentence scores drop at the end of a model.

1. *CKA* drops if the last layer is more than `CKA_DROP` below a level. With a reference, the level is the median over
   the lower half of the blocks. Without one, CKA compares with the model's middle layer, and the level is the median
   over the middle half. The bundled BERT and generator drop in scores, not in CKA (benchmarks/drop/foresight.csv).
2. A drop of untrained Spearman or, without Spearman, a collapse of effective rank must *corroborate* step 1. With a
   reference and neither curve, step 1 decides alone.
3. *Confidence* grows from 0.5 to a ceiling with the distance of CKA's interval from `CKA_DROP` and the share of
   agreeing signs. It is not calibrated: the constants come from a few small models. On later models, predicting no drop
   carried no information (benchmarks/drop/foresight-brier.csv).

*Probability* of a two-point drop: a logistic regression (`LOG_ODDS`) on untrained Spearman and effective rank, fitted
on sweeps of four small models and 21 published ones, every model counting once (same table). It tells kinds of model
apart: all discriminators drop, few others do. Within a model it has no skill, so it is given in words.
"""

from collections.abc import Mapping, Sequence
from dataclasses import field
from math import exp, log2
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Literal, Self, get_args

from truncate_kit.core.errors import undefined_cka
from truncate_kit.core.results import COUNT, DATA, LAYERS, SEED, Bounds, Result, SearchMetric, setting

if TYPE_CHECKING:
    from truncate_kit.models.layer_pooling import PoolingMode

# Larger than CKA's interval on a few hundred texts, smaller than observed drops (0.25 to 0.7).
CKA_DROP = 0.15
# Effective rank, last layer / middle: 0.26 with a drop, 0.7 to 1.4 in other models.
RANK_COLLAPSE = 0.5
SPEARMAN_DROP = 2.0  # points
CROWDED = 0.9  # mean cosine between unrelated texts
# Block Influence: last block / median of the others.
BUSY = 2.0
# Highest confidence in each case.
CEILING_DROPS = 0.8  # with a reference; CKA also drops in models with steady scores
CEILING_STAYS = 0.9  # with a reference
CEILING_ALONE = 0.65  # without a reference
CEILING_CONTRADICTED = 0.6  # CKA and the corroborating sign disagree
# Coefficients: constant, per point of untrained Spearman lost, per halving of the rank.
LOG_ODDS = (-2.008, 0.225, 0.637)  # fitted by `benchmarks.drop.foresight` on 75 sweeps
LEAST_RANK = 0.18  # lowest rank ratio; those of the sweeps are above 0.19
LIKELIHOODS = ((0.25, "unlikely"), (0.5, "possible"), (1.0, "likely"))  # probabilities below
CKA_LOST = "CKA lost at the end"
OWN_MIDDLE = "the model's own middle layer"
# All drops predicted on paraphrase data were false (benchmarks/drop/foresight.csv).
NOT_PREDICTED = "A drop at the end of the model cannot be predicted for classes or labels."


class DropPrediction(Result):
    """Prediction of a drop in similarity scores at the end of a model."""

    from_layer: int | None  # first layer of a predicted drop, missing if the drop is unlikely
    confidence: float  # 0.5 (a guess) to 1, not calibrated
    sentence: str
    signs: dict[str, float]  # by name, CKA first
    probability: float | None = None  # of a drop of two points; needs Spearman and effective rank

    @property
    def sureness(self) -> str:
        """Return the probability in words if known, else the confidence, such as "confidence 0.65"."""
        return f"confidence {self.sure:.2f}" if self.probability is None else in_words(self.probability)

    @property
    def last_before(self) -> int | None:
        """Return the layer before a predicted drop, at least 1."""
        return None if self.from_layer is None else max(1, self.from_layer - 1)

    @property
    def sure(self) -> float:
        """Return the probability if known, else the confidence."""
        return self.confidence if self.probability is None else self.probability


def predict_drop(
    curve: "Curve", measures: Mapping[str, Sequence[float]], *, reference: str | None = None
) -> DropPrediction:
    """Predict a drop from CKA and other measures by layer, 0 … depth.

    CKA compares with the reference layer at the same relative depth, or without a reference with layer depth // 2.
    `measures` has `effective_rank` and, if known, `anisotropy`, `block_influence` (0 … depth − 1) and `spearman`
    (untrained, × 100).

    Raises `DataError` if CKA is undefined at a layer that the rule needs.
    """
    cka, spearman = curve.values, measures.get("spearman")
    depth = len(cka) - 1
    # Exclude the embeddings.
    level, last = _level(cka) if reference is None else _median(cka, range(1, depth // 2 + 1)), cka[-1]
    if last is None:
        raise undefined_cka([depth], "the model", "the last layer has no value to compare")
    signs = _signs(measures)
    by_cka, (name, (sign, corroborated)) = level - last > CKA_DROP, next(iter(signs.items()))
    place, move = "middle" if reference is None else "lower half", "drops" if by_cka else "keeps its level"
    reasons = f"CKA to {reference or OWN_MIDDLE} {move} ({level:.2f} in the {place}, {last:.2f} at the last layer)"
    reasons += f"; the {name} ({sign:.2f}) {'agrees' if corroborated == by_cka else 'disagrees'}"
    probability = None
    if spearman:
        likely = drop_probability(spearman, measures["effective_rank"])
        probability = round(min(0.99, max(0.01, likely)), 2)  # fitted on few models
    drops = by_cka and corroborated and (probability is None or probability >= LIKELIHOODS[0][0])
    near = (curve.high if by_cka else curve.low) or cka
    margin = level - (near[-1] if near[-1] is not None else last) - CKA_DROP
    strength = min(1.0, max(0.0, margin if by_cka else -margin) / CKA_DROP)
    ceiling = CEILING_ALONE if reference is None else CEILING_DROPS if by_cka else CEILING_STAYS
    ceiling = ceiling if corroborated == by_cka else min(ceiling, CEILING_CONTRADICTED)
    agreeing = sum(says_drop == drops for _, says_drop in signs.values()) / len(signs)
    confidence = round(0.5 + (ceiling - 0.5) * strength * agreeing, 2)
    kept = (layer for layer in range(1, depth) if (value := cka[layer]) is None or value >= level - CKA_DROP)
    from_layer = 1 + max(kept, default=0) if drops else None
    if probability is not None:
        reasons += "; these signs tell discriminators from other kinds of model, not runs of one model"
    elif drops:
        reasons += f"; confidence {confidence:.2f}, not calibrated"
    expected = "A drop of similarity scores at the end of this model is neither predicted nor ruled out"
    if drops:
        expected = f"Scores are expected to drop from layer {from_layer} on"
    if probability is not None:
        place = "at the end of this model" if from_layer is None else f"from layer {from_layer} on"
        expected = f"A drop of two points or more {place} is {in_words(probability)}"
    return DropPrediction(
        from_layer=from_layer,
        confidence=confidence,
        sentence=f"{expected}: {reasons}.",
        signs={CKA_LOST: level - last} | {name: value for name, (value, _) in signs.items()},
        probability=probability,
    )


def _signs(measures: Mapping[str, Sequence[float]]) -> dict[str, tuple[float, bool]]:
    """Return each sign except CKA, and whether it indicates a drop; the corroborating sign first."""
    signs: dict[str, tuple[float, bool]] = {}
    if spearman := measures.get("spearman"):
        change = spearman[-1] - _level(spearman)
        signs["change of the untrained Spearman towards the end"] = change, change < -SPEARMAN_DROP
    ratio = measures["effective_rank"][-1] / _level(measures["effective_rank"])
    signs["effective rank of the last layer against the middle"] = ratio, ratio < RANK_COLLAPSE
    if anisotropy := measures.get("anisotropy"):
        crowded = anisotropy[-1] > max(CROWDED, _level(anisotropy))
        signs["mean cosine of unrelated texts at the last layer"] = anisotropy[-1], crowded
    if influence := measures.get("block_influence"):
        usual = median(influence[:-1])
        ratio = influence[-1] / usual if usual > 0 else 1.0
        signs["Block Influence of the last block against the others"] = ratio, ratio > BUSY
    return signs


def drop_probability(untrained_spearman: Sequence[float], effective_rank: Sequence[float]) -> float:
    """Return the probability of a two-point drop by `LOG_ODDS`; Spearman × 100."""
    constant, by_spearman, by_rank = LOG_ODDS
    lost = _level(untrained_spearman) - untrained_spearman[-1]
    halved = -log2(max(effective_rank[-1] / _level(effective_rank), LEAST_RANK))
    return 1 / (1 + exp(-(constant + by_spearman * lost + by_rank * halved)))


def in_words(probability: float) -> str:
    """Return `unlikely`, `possible` or `likely`."""
    return next((word for below, word in LIKELIHOODS if probability < below), LIKELIHOODS[-1][1])


def _level(curve: Sequence[float | None]) -> float:
    depth = len(curve) - 1
    return _median(curve, [layer for layer in range(depth + 1) if depth <= 4 * layer <= 3 * depth])


def _median(curve: Sequence[float | None], layers: Sequence[int]) -> float:
    values = [value for layer in layers if (value := curve[layer]) is not None]
    if not values:
        raise undefined_cka(list(layers), "the model", "there is nothing to compare the last layer with")
    return median(values)


Estimator = Literal["debiased", "biased"]
Kernel = Literal["linear", "rbf"]
FEWEST_TEXTS = 4
_TEXTS = Bounds(FEWEST_TEXTS)


class AnalysisSettings(Result):
    """Settings of `profile`; see also `cka_matrix` and `Encoder.hidden_states`.

    outliers: Number of dimensions of largest variance that a second CKA curve excludes. intervals: Number of text
    groups for confidence intervals; 0 or too few texts: no intervals. blocks: See `keep`; by default all. pooling: By
    default each model's own. max_texts: None uses all. streamed: Not in memory; default by size (no RBF).
    Raises `UsageError`.
    """

    estimator: Estimator = setting(
        "debiased", "CKA estimator; the TMFT paper's is biased.", LAYERS, choices=get_args(Estimator)
    )
    kernel: Kernel = setting("linear", "CKA kernel.", LAYERS, choices=get_args(Kernel))
    outliers: int = setting(3, bounds=Bounds(0))
    intervals: int = setting(10, bounds=Bounds(0))
    level: float = setting(0.95, bounds=Bounds(0, 0.999999, whole=False, above=True))
    blocks: tuple[int, ...] | None = None
    pooling: "PoolingMode | None" = None
    raw: bool = setting(False, "Use hidden states without the model's final norm.", LAYERS, name="--raw")
    max_texts: int | None = setting(10_000, "Maximum number of texts, drawn at random.", DATA, bounds=_TEXTS)
    streamed: bool | None = None
    seed: int = setting(0, bounds=SEED)
    batch_size: int = setting(64, bounds=COUNT)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.pooling is not None:
            from truncate_kit.models.encoder import check_pooling

            check_pooling(self.pooling)


Row = tuple[float | None, ...]


class Curve(Result):
    """CKA of each layer with one layer of the reference; index 0 = embeddings, None = undefined."""

    values: Row
    reference_layers: tuple[int, ...]
    low: Row | None = None  # bounds of the confidence interval
    high: Row | None = None


class LayerProfile(Result):
    """Measures of layers 0 (embeddings) … depth of one model."""

    model: str
    reference: str | None  # by default the model's middle layer
    depth: int
    reference_depth: int | None
    width: int
    pooling: str
    raw: bool
    parameters: tuple[int | None, ...]  # after a cut at each layer, pooler excluded; missing if a cut is impossible
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
    num_repeats: int  # removed duplicates
    num_not_drawn: int  # texts beyond `max_texts`
    streamed: bool
    matrix_texts: int  # texts used for `cka_matrix`
    drop: DropPrediction | None  # missing for models of one block and if `labels`
    # Retrieval scores × 100 by metric, means over queries; the first metric chooses the layer.
    searched: dict[SearchMetric, tuple[float, ...]] = field(default_factory=dict)
    num_queries: int = 0
    kept_blocks: tuple[int, ...] | None = None  # of the named model, if not all
    full_depth: int  # of the named model
    labels: bool = False  # all pair scores are 0 or 1
    encoder_digest: str  # of the named model
    texts_digest: str  # of all distinct texts, drawn or not

    @property
    def last_blocks(self) -> tuple[int, ...]:
        """Return the last block before each layer, numbered as in the full model; 0 for the embeddings."""
        return (0, *(range(1, self.depth + 1) if self.kept_blocks is None else self.kept_blocks))

    def may_replace(self, other: Self) -> bool:
        """Return whether `other` is of another model or other texts, or of no more data than this profile."""
        subjects = [(row.encoder_digest, row.kept_blocks, row.texts_digest) for row in (self, other)]
        amounts = [(row.num_texts, row.num_pairs, row.num_queries) for row in (self, other)]
        return subjects[0] != subjects[1] or all(mine >= theirs for mine, theirs in zip(*amounts, strict=True))


def called(name: str) -> str:
    """Return the last part of the path of a local folder, else the name."""
    return Path(name).name if Path(name).is_dir() else name
