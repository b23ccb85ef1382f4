"""Do sentence scores drop at the end of a model? A prediction from what can be measured without training.

The rule, in three steps.

1. *CKA.* Where sentence scores dropped at the end in the TMFT paper, CKA dropped there first. That is a pattern and
   not a condition: those of the bundled BERT and generator drop without it (benchmarks/drop/foresight.csv). CKA drops
   when the last layer lies more than `CKA_DROP` below the level of its curve. The curve is CKA to a reference, and its
   level the median over the lower half of the blocks: a discriminator may part from its reference long before its end.
   Or it is, without a reference, CKA to the model's own middle layer, and its level, like that of every other curve
   here, the median over the middle half of the layers.
2. *Corroborated.* CKA also drops when a model's end becomes something else that is just as good, or when it is the
   reference whose end differs. So the drop must show in the model itself: in the untrained Spearman scores where there
   are any, else in a collapse of the effective rank. With a reference and neither of the two, step 1 decides alone.
3. *How sure.* From one half up to a ceiling by how clearly CKA is past `CKA_DROP`, measured from the near end of its
   interval, and by the share of the other signs that agree.

The constants of the rule were chosen on a handful of small models (a BERT, an ELECTRA pair, a sentence encoder and
random weights): its confidence is not calibrated, and the result says so. Of models that came later it said nothing
where no drop was predicted: the sentence says there that it cannot tell (benchmarks/drop/foresight-brier.csv).

*How probable.* Where there are scores of untrained states, a drop of two points after training has a probability as
well: a logistic regression on the change of the untrained Spearman and on the effective rank, fitted on sweeps of four
small models and scored on each without its own (`LOG_ODDS`; same table).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, log2
from statistics import median

from truncate_kit.core.errors import UsageError, undefined_cka
from truncate_kit.core.results import Result

# Far more than the interval of CKA on some hundred texts, and less than half of the drops seen (0.25 to 0.7).
CKA_DROP = 0.15
# Effective rank of the last layer against the middle: 0.26 in the model that has a drop, 0.7 to 1.4 in the others.
RANK_COLLAPSE = 0.5
SPEARMAN_DROP = 2.0  # points; what counts as a drop elsewhere in this package
CROWDED = 0.9  # a mean cosine between unrelated texts above which cosine scores have little room left
# Block Influence of the last block, in medians of the others: it rewrites the tokens rather than refining them.
BUSY = 2.0
CEILING_DROPS = 0.8  # with a reference: CKA also drops in models whose scores do not
# A drop of CKA to a reference and nothing else: a sentence encoder that gets better at its end shows the same.
CEILING_UNCORROBORATED = 0.65
CEILING_STAYS = 0.9  # with a reference: without a drop of CKA
CEILING_ALONE = 0.65  # without a reference: only the model itself has been seen
CEILING_CONTRADICTED = 0.6  # when CKA and the corroborating sign disagree
# Log odds of a drop: a constant, for each point that the untrained Spearman loses, and each time the rank is halved.
LOG_ODDS = (-0.033, 0.175, 0.404)  # by `benchmarks.drop.foresight`, on 54 sweeps
LEAST_RANK = 1e-3  # of the middle's: states that are all the same have none
# Of the alarms on paraphrases none came true (benchmarks/drop/foresight.csv).
NOT_PREDICTED = "Whether the last layers are worse is not known before training where classes or labels are learned."


@dataclass(frozen=True, slots=True, kw_only=True)
class Sign(Result):
    """One measure of the end of a model: `value` against `threshold`, and whether that alone means a drop."""

    name: str
    value: float
    threshold: float
    says_fall: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class DropPrediction(Result):
    """Whether sentence scores drop at the end of a model."""

    falls: bool
    # The first layer of the predicted drop, None when there is none
    from_layer: int | None
    confidence: float  # 0.5 (a guess) to 1, not calibrated
    sentence: str  # the prediction and its reasons, for the user
    with_reference: bool
    signs: tuple[Sign, ...]  # what was measured, CKA first
    probability: float | None = None  # of a drop of two points after training; None without scores and effective rank

    @property
    def sureness(self) -> str:
        """Say how sure a predicted drop is, in a word and a number."""
        if self.probability is None:
            return f"confidence {self.confidence:.2f}"
        return f"probability {_probability_in_words(self.probability)}"

    @property
    def last_before(self) -> int | None:
        """Return where to cut before a predicted drop, 1 at the lowest; None if there is none."""
        return None if self.from_layer is None else max(1, self.from_layer - 1)

    @property
    def sure(self) -> float:
        """Return the probability, or the confidence if there is none."""
        return self.confidence if self.probability is None else self.probability


def predict_drop(
    cka: Sequence[float | None],
    *,
    reference: str | None = None,
    low: Sequence[float | None] | None = None,
    high: Sequence[float | None] | None = None,
    effective_rank: Sequence[float] | None = None,
    anisotropy: Sequence[float] | None = None,
    block_influence: Sequence[float] | None = None,
    untrained_spearman: Sequence[float] | None = None,
) -> DropPrediction:
    """Predict from curves over layers 0 … depth (block_influence: 0 … depth − 1); None where CKA is not defined.

    cka: to the reference at the same layer or relative depth, with the bounds low and high of its interval; without a
    reference, of each layer to the model's own middle layer, depth // 2. reference: its name; without one,
    effective_rank or untrained_spearman, in points (× 100), is needed. The other curves: see `LayerStateScores` and
    `LayerTokenScores`. Raises `UsageError`, and `DataError` where CKA is not defined where the rule needs it.
    """
    depth = len(cka) - 1
    if depth < 2:
        hint = "Predict drops for models of at least two blocks."
        raise UsageError(f"A model of {depth} blocks has no middle to compare its end with.", hint=hint)
    if reference is None and effective_rank is None and untrained_spearman is None:
        raise UsageError(
            "Without a reference the drop cannot be predicted from CKA alone.",
            hint="Give the effective rank of the layers, scores of the untrained states, or a reference model.",
        )
    # To a reference, of the lower half of the blocks, 1 … depth / 2: the embeddings are no block's work.
    level, last = _level(cka) if reference is None else _median(cka, list(range(1, depth // 2 + 1))), cka[-1]
    if last is None:
        raise undefined_cka([depth], "the model", "the last layer has no value to compare")
    by_cka = Sign(name="CKA lost at the end", value=level - last, threshold=CKA_DROP, says_fall=level - last > CKA_DROP)
    corroborating, others = _signs(effective_rank, anisotropy, block_influence, untrained_spearman)
    falls = by_cka.says_fall and (corroborating is None or corroborating.says_fall)
    near = (high if by_cka.says_fall else low) or cka
    margin = level - (near[-1] if near[-1] is not None else last) - CKA_DROP
    strength = min(1.0, max(0.0, margin if by_cka.says_fall else -margin) / CKA_DROP)
    ceiling = _ceiling(by_cka, corroborating, with_reference=reference is not None)
    agreeing = sum(sign.says_fall == falls for sign in others) / len(others) if others else 1.0
    confidence = round(0.5 + (ceiling - 0.5) * strength * agreeing, 2)
    from_layer = _first_dropped(cka, level - CKA_DROP) if falls else None
    probability = None
    if untrained_spearman is not None and effective_rank is not None:
        probability = round(drop_probability(untrained_spearman, effective_rank), 2)
    ends = (level, last)
    return DropPrediction(
        falls=falls,
        from_layer=from_layer,
        confidence=confidence,
        sentence=_sentence(falls, from_layer, ends, reference, by_cka, corroborating, confidence, probability),
        with_reference=reference is not None,
        signs=(by_cka, *others),
        probability=probability,
    )


def drop_probability(untrained_spearman: Sequence[float], effective_rank: Sequence[float]) -> float:
    """Compute 1 / (1 + exp(−log odds)) by `LOG_ODDS`, of the last layer against the middle half of the layers.

    Both over layers 0 … depth; untrained_spearman in points (× 100).
    """
    constant, by_spearman, by_rank = LOG_ODDS
    lost = _level(untrained_spearman) - untrained_spearman[-1]
    halved = -log2(max(effective_rank[-1] / _level(effective_rank), LEAST_RANK))
    return 1 / (1 + exp(-(constant + by_spearman * lost + by_rank * halved)))


def _ceiling(by_cka: Sign, corroborating: Sign | None, *, with_reference: bool) -> float:
    if not with_reference:
        ceiling = CEILING_ALONE
    elif not by_cka.says_fall or (corroborating is not None and not corroborating.says_fall):
        ceiling = CEILING_STAYS
    else:
        ceiling = CEILING_UNCORROBORATED if corroborating is None else CEILING_DROPS
    if corroborating is not None and corroborating.says_fall != by_cka.says_fall:
        ceiling = min(ceiling, CEILING_CONTRADICTED)
    return ceiling


def _signs(
    effective_rank: Sequence[float] | None,
    anisotropy: Sequence[float] | None,
    block_influence: Sequence[float] | None,
    untrained_spearman: Sequence[float] | None,
) -> tuple[Sign | None, list[Sign]]:
    """Return the sign that corroborates, if there is one, and all signs but CKA."""
    found: list[tuple[str, float, float, bool]] = []  # name, value, threshold, whether it says drop
    if untrained_spearman is not None:
        change = untrained_spearman[-1] - _level(untrained_spearman)
        name = "change of the untrained Spearman towards the end"
        found.append((name, change, -SPEARMAN_DROP, change < -SPEARMAN_DROP))
    if effective_rank is not None:
        ratio = effective_rank[-1] / _level(effective_rank)
        name = "effective rank of the last layer against the middle"
        found.append((name, ratio, RANK_COLLAPSE, ratio < RANK_COLLAPSE))
    corroborates = bool(found)
    if anisotropy is not None:
        crowded = anisotropy[-1] > max(CROWDED, _level(anisotropy))
        found.append(("mean cosine of unrelated texts at the last layer", anisotropy[-1], CROWDED, crowded))
    if block_influence is not None and len(block_influence) > 1:
        usual = median(block_influence[:-1])
        ratio = block_influence[-1] / usual if usual > 0 else 1.0
        found.append(("Block Influence of the last block against the others", ratio, BUSY, ratio > BUSY))
    signs = [Sign(name=name, value=value, threshold=bound, says_fall=falls) for name, value, bound, falls in found]
    return signs[0] if corroborates else None, signs


def _level(curve: Sequence[float | None]) -> float:
    """Return the median over the middle half of the layers, depth / 4 … 3 depth / 4."""
    depth = len(curve) - 1
    return _median(curve, [layer for layer in range(depth + 1) if depth <= 4 * layer <= 3 * depth])


def _median(curve: Sequence[float | None], layers: list[int]) -> float:
    values = [value for layer in layers if (value := curve[layer]) is not None]
    if not values:
        raise undefined_cka(layers, "the model", "there is nothing to compare the last layer with")
    return median(values)


def _first_dropped(cka: Sequence[float | None], floor: float) -> int:
    """Return the first layer from which on all layers lie below the floor."""
    first = len(cka) - 1
    while first > 1 and (value := cka[first - 1]) is not None and value < floor:
        first -= 1
    return first


def _sentence(
    falls: bool,
    from_layer: int | None,
    ends: tuple[float, float],
    reference: str | None,
    by_cka: Sign,
    corroborating: Sign | None,
    confidence: float,
    probability: float | None,
) -> str:
    compared = f"CKA to {reference}" if reference else "CKA to the model's own middle layer"
    move = f"({ends[0]:.2f} in the {'lower half' if reference else 'middle'}, {ends[1]:.2f} at the last layer)"
    if falls:
        said = f"Scores are expected to drop at the end of this model: from layer {from_layer} on {compared} "
        said += f"leaves its plateau {move}"
    else:
        said = f"Whether scores drop at the end of this model is not known. No drop is predicted: {compared} "
        said += f"drops {move}" if by_cka.says_fall else f"keeps its level {move}"
    if corroborating is not None:
        agrees = corroborating.says_fall == by_cka.says_fall
        said += f", {'and' if agrees else 'but'} the {corroborating.name} ({corroborating.value:.2f}) "
        said += "says so too" if agrees else "says otherwise"
    if probability is not None:  # how good it is: benchmarks/drop/foresight-brier.csv
        however = ", however," if (probability > 0.5) != falls else ""
        chance = _probability_in_words(probability)
        return f"{said}; by sweeps of four small models{however} the probability of a drop of two points is {chance}."
    if falls:
        why = "" if reference else ", and lower because there is no reference model"
        return f"{said}; confidence {confidence:.2f}, not calibrated{why}."
    # Brier scores and misses of models that came later are in the same table.
    why = "" if reference else ", and there is no reference model"
    return f"{said}; scores dropped in models of which the same was said{why}."


def _probability_in_words(probability: float) -> str:
    """Write it: four models say nothing surer than a hundredth."""
    sure = "more than 0.99" if probability > 0.99 else "less than 0.01"
    return f"{probability:.2f}" if 0.01 <= probability <= 0.99 else sure
