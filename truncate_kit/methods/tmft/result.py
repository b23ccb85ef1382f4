"""What a sweep returns: scores of layers, and which of them dev and seeds cannot tell apart."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from truncate_kit.analysis.drop import DropPrediction
from truncate_kit.core.results import Result
from truncate_kit.core.statistics import LEVEL, Span, interval
from truncate_kit.core.wording import place_in_words
from truncate_kit.methods.tmft.settings import SweepSettings
from truncate_kit.training.settings import TrainingSettings, Trial

if TYPE_CHECKING:
    from truncate_kit.models.encoder import Encoder


@dataclass(frozen=True, slots=True, kw_only=True)
class Certainty(Result):
    """Which layers could be the best one."""

    best: int  # the layer with the best mean dev score
    alike: tuple[int, ...]  # it and those that cannot be told apart from it, sorted
    compared: tuple[int, ...]  # layers that were trained out with the same seeds, sorted
    low: tuple[float, ...]  # of `compared`: points that the best one is ahead on dev, the interval at `level`
    high: tuple[float, ...]
    level: float
    seeds: int
    not_trained: tuple[int, ...] = ()  # layers that could have been taken and were not trained out
    fewer_seeds: tuple[int, ...] = ()  # those that were trained out with too few seeds to be compared


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerScores(Result):
    """Scores of one layer over its seeds: means in points; `…_std` standard deviations over seeds, None with one."""

    layer: int
    parameters: int
    seeds: tuple[int, ...]
    dev: float
    dev_std: float | None
    test: float
    test_std: float | None
    test_pearson: float | None
    test_pearson_std: float | None
    dev_pearson: float | None = None
    dev_pearson_std: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking(Result):
    """A finished ranking as it is kept: the score of each layer, in points."""

    layers: tuple[int, ...]
    scores: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepResult(Result):
    """The outcome of `finetune`."""

    model: str  # name of the model that was cut
    data: str
    data_fingerprint: str  # of its texts and scores; empty for raw text alone
    settings: SweepSettings  # what was searched and how the choice was made
    training: TrainingSettings  # of every trial
    learning_rate: float  # peak rate that was used
    layers: tuple[LayerScores, ...]  # every layer trained with the full budget, in order
    search: tuple[Trial, ...]  # trials that only led to the choice: shorter ones, and those that a race stopped
    trials: tuple[Trial, ...]  # all with the full budget, those of the full model included
    chosen: int  # the layer that was saved
    chosen_seed: int  # the seed of the saved weights, best on dev
    full: LayerScores  # the yardstick: the model at its last layer, with the same budget
    prediction: DropPrediction | None  # what was predicted; a drop that is likely bounded pick and search
    choice: str  # why this layer, in words; also that nothing was gained if it is the last one
    metric: str  # what the scores are
    search_cost: int  # block-steps spent to choose, without those of the chosen layer's own trials
    exhaustive_cost: int  # what trying all layers with all seeds would have spent likewise
    seconds: float  # of the call
    before: str = ""  # what the models learned before the task, in words; empty if nothing
    # Of the full model, that the model whose layers were tried consists of; None if these are its first ones.
    blocks: tuple[int, ...] | None = None
    # Cheap scores of all layers that led the search, by the names of the strategies that need nothing else.
    rankings: dict[str, Ranking] = field(default_factory=dict)
    # Which layers dev and seeds cannot tell apart; None if fewer than two were trained out, or dev is too small.
    certainty: Certainty | None = None
    retrieval: str = ""  # name of the retrieval set by half of whose queries all was chosen; empty if dev did
    queries_fingerprint: str = ""  # of these queries; empty if dev chose
    # That the model or its teacher had seen test pairs before, in words; empty if neither had.
    seen_before: str = ""

    @property
    def lean(self) -> LayerScores:
        """Return the scores of the chosen layer."""
        return next(row for row in self.layers if row.layer == self.chosen)

    @property
    def rows(self) -> list[LayerScores]:
        """Return every layer trained with the full budget and the full model, by layer."""
        return sorted({row.layer: row for row in (*self.layers, self.full)}.values(), key=lambda row: row.layer)

    def place(self, layer: int) -> str:
        """Name what a model of `layer` has of the full one: `layer 3`, or `blocks 1, 4, 6`."""
        return place_in_words(layer, None if layer == self.full.layer else self.blocks)

    def row_name(self, layer: int) -> str:
        """Name the row of `layer` in tables: `3`, or `blocks 1, 4, 6` if blocks were left out."""
        return f"{layer}" if self.blocks is None else self.place(layer)


def scores_by_layer(encoder: "Encoder", trials: Sequence[Trial]) -> tuple[LayerScores, ...]:
    """Return mean and sample standard deviation over the seeds of each layer."""
    from truncate_kit.models.truncation import parameters_kept

    kept = parameters_kept(encoder.backbone.config)
    above = [encoder.tail, *([] if encoder.pooler is None else [encoder.pooler])]
    others = sum(parameter.numel() for module in above for parameter in module.parameters())
    rows = []
    for layer in sorted({trial.layer for trial in trials}):
        mine = sorted({trial.seed: trial for trial in trials if trial.layer == layer}.values(), key=lambda t: t.seed)
        scores: dict[str, Any] = {}
        for name in ("dev", "test", "test_pearson", "dev_pearson"):
            values = [value for trial in mine if (value := getattr(trial, name)) is not None]
            span = Span.of(values) if values else None
            scores[name], scores[f"{name}_std"] = (span.mean, span.std) if span else (None, None)
        seeds = tuple(trial.seed for trial in mine)
        rows.append(LayerScores(layer=layer, parameters=(kept[layer] or 0) + others, seeds=seeds, **scores))
    return tuple(rows)


def certainty(
    trials: Sequence[Trial], layers: Sequence[int] = (), seeds: Sequence[int] = (), trained: Collection[int] = ()
) -> Certainty | None:
    """Compare layers by a paired bootstrap over dev pairs and by how seeds vary.

    In each draw all layers have the same resample of the dev pairs. A layer cannot be told apart from the best one if
    the interval of the difference holds 0; layers are compared with it one by one.

    Args:
        trials: Of one model with the full budget; those without `dev_draws` are passed over.
        layers: All that could have been taken.
        seeds: By which was chosen. If two layers or more have all of them, the others are not compared: a layer that
            an earlier run left with fewer seeds takes none from the rest.
        trained: Layers that were trained out.

    Returns:
        None if fewer than two layers share a seed and have resampled scores.
    """
    held = {(trial.layer, trial.seed): trial for trial in trials if trial.dev_draws}
    compared = sorted({layer for layer, _ in held})
    whole = [layer for layer in compared if all((layer, seed) in held for seed in seeds)]
    if seeds and len(whole) >= 2:
        held = {(layer, seed): held[layer, seed] for layer in whole for seed in seeds}
        compared = whole
    shared = [seed for seed in sorted({seed for _, seed in held}) if all((layer, seed) in held for layer in compared)]
    if len(compared) < 2 or not shared:
        return None
    means = {layer: np.mean([held[layer, seed].dev for seed in shared]) for layer in compared}
    best = max(compared, key=lambda layer: (means[layer], -layer))
    scores = {layer: np.array([held[layer, seed].dev_draws for seed in shared]) for layer in compared}
    spread = spread_over_seeds([scores[layer].mean(1) for layer in compared])
    ends = []
    for layer in compared:
        ahead = means_over_seeds(scores[best] - scores[layer], spread) if layer != best else np.zeros(1)
        ends.append([round(end, 3) for end in interval(ahead)])
    low, high = zip(*ends, strict=True)
    return Certainty(
        best=best,
        alike=tuple(layer for layer, least in zip(compared, low, strict=True) if least <= 0),
        compared=tuple(compared),
        low=low,
        high=high,
        level=LEVEL,
        seeds=len(shared),
        not_trained=tuple(sorted({*layers} - {*trained} - {*compared})),
        fewer_seeds=tuple(sorted({*layers} & {*trained} - {*compared})),
    )


def spread_over_seeds(means: Sequence[NDArray[np.float64]]) -> tuple[float, int]:
    """Return the variance over seeds of a difference of two layers, and its degrees of freedom; 0 and 0 for one seed.

    It is that of layers and seeds without repetition: what is left of a score without its layer's mean and its seed's.
    All layers together say it, since two or three seeds of one alone hardly do.

    Args:
        means: Of each layer the score of each seed.
    """
    table = np.array(means)
    freedom = (table.shape[0] - 1) * (table.shape[1] - 1)
    if not freedom:
        return 0.0, 0
    rest = table - table.mean(0) - table.mean(1, keepdims=True) + table.mean()
    return 2 * float((rest**2).sum()) / freedom, freedom


def means_over_seeds(draws: NDArray[np.float64], spread: tuple[float, int]) -> NDArray[np.float64]:
    """Return each resample's mean over seeds, moved as far as that of as many other seeds might be.

    By Student's t: of two or three seeds drawn with replacement, the ends of an interval lie far too near.

    Args:
        draws: Differences, (seeds, resamples).
        spread: As `spread_over_seeds` gives it.
    """
    from scipy.stats import t as student_t  # slow to import, and results are read without it

    means = np.array(draws.mean(0))
    _, freedom = spread
    if not freedom:
        return means
    # The quantiles of t in an order by chance: those of a few hundred draws end anywhere.
    places = (np.arange(len(means)) + 0.5) / len(means)
    moved = np.random.default_rng(0).permutation(student_t.ppf(places, freedom))
    return np.array(means + moved * np.sqrt(variance_of_mean(draws, spread)))


def variance_of_mean(draws: NDArray[np.float64], spread: tuple[float, int]) -> float:
    """Return the variance over seeds of a difference's mean: that of all layers, or its own if that is larger.

    The last layers of a model with a drop vary more by seed than the others do. Arguments as in `means_over_seeds`.
    """
    pooled, freedom = spread
    return max(pooled, float(draws.mean(1).var(ddof=1))) / len(draws) if freedom else 0.0
