"""Results of a sweep: scores of layers, and layers that dev and seeds cannot tell apart."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from truncate_kit.analysis.drop import DropPrediction
from truncate_kit.core.results import Result
from truncate_kit.core.statistics import interval
from truncate_kit.core.wording import place_in_words
from truncate_kit.methods.tmft.settings import SweepSettings
from truncate_kit.training.settings import TrainingSettings, Trial


@dataclass(frozen=True, slots=True, kw_only=True)
class Certainty(Result):
    """Layers that could be the best one."""

    best: int  # the layer with the best mean dev score
    alike: tuple[int, ...]  # it and those that cannot be told apart from it, sorted
    compared: tuple[int, ...]  # layers that were trained out with the same seeds, sorted
    low: tuple[float, ...]  # by `compared`: lead of the best one on dev, lower end of the 95 % interval
    high: tuple[float, ...]
    seeds: int
    not_trained: tuple[int, ...] = ()  # layers that could have been taken and were not trained out
    fewer_seeds: tuple[int, ...] = ()  # layers that were trained out with too few seeds to be compared


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerScores(Result):
    """Scores of one layer over its seeds: means in points; `…_std` standard deviations over several seeds."""

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
class SweepResult(Result):
    """The outcome of `finetune`."""

    model: str  # name of the model that was cut
    data: str
    data_fingerprint: str  # of its texts and scores; empty for raw text alone
    settings: SweepSettings  # `strategy` is the one that was used
    training: TrainingSettings  # of every trial
    learning_rate: float  # peak rate that was used
    layers: tuple[LayerScores, ...]  # every layer trained with the full budget, in order
    search: tuple[Trial, ...]  # trials that only led to the choice: shorter ones, and those that a race stopped
    trials: tuple[Trial, ...]  # all with the full budget, the full model's included
    chosen: int  # the layer that was saved
    chosen_seed: int  # the seed of the saved weights, best on dev
    full: LayerScores  # the yardstick: the model at its last layer, with the same budget
    prediction: DropPrediction | None  # a drop that is likely bounded pick and search
    choice: str  # why this layer, in words
    metric: str  # the main score, in words
    search_cost: int  # block-steps spent to choose, without the chosen layer's own trials
    exhaustive_cost: int  # the same for trying all layers with all seeds
    seconds: float  # of the call
    before: str = ""  # training before the task, in words
    blocks: tuple[int, ...] | None = None  # of the full model that were tried; None if they are the first ones
    # Cheap scores that led the search, in points: (layer, score) by the name of the strategy.
    rankings: dict[str, tuple[tuple[int, float], ...]] = field(default_factory=dict)
    certainty: Certainty | None = None  # needs two trained layers and a dev set that is not tiny
    retrieval: str = ""  # name of the retrieval set by which all was chosen; empty if dev chose
    seen_before: str = ""  # that the model or its teacher had seen test pairs before, in words

    @property
    def lean(self) -> LayerScores:
        """Return the scores of the chosen layer."""
        return next(row for row in self.layers if row.layer == self.chosen)

    @property
    def rows(self) -> list[LayerScores]:
        """Return the full model and every layer trained with the full budget, by layer."""
        return sorted({row.layer: row for row in (*self.layers, self.full)}.values(), key=lambda row: row.layer)

    def place(self, layer: int) -> str:
        """Name the part of the full model that a model of `layer` has: `layer 3`, or `blocks 1, 4, 6`."""
        return place_in_words(layer, None if layer == self.full.layer else self.blocks)

    def row_name(self, layer: int) -> str:
        """Name the row of `layer` in tables: `3`, or `blocks 1, 4, 6` if blocks were left out."""
        return f"{layer}" if self.blocks is None else self.place(layer)


def certainty(
    trials: Sequence[Trial], layers: Sequence[int] = (), seeds: Sequence[int] = (), trained: Collection[int] = ()
) -> Certainty | None:
    """Compare layers by a paired bootstrap over dev pairs and by how seeds vary.

    In each draw all layers have the same resample of the dev pairs. A layer cannot be told apart from the best one if
    the interval of the difference holds 0; layers are compared with it one by one.

    Args:
        trials: Of one model with the full budget; those without `dev_draws` are passed over.
        layers: All that could have been taken.
        seeds: Used to choose. If two layers or more have all of them, other layers are not compared.
        trained: Layers that were trained out.

    Returns:
        The comparison; None if fewer than two layers share a seed and have resampled scores.
    """
    held = {(trial.layer, trial.seed): trial for trial in trials if trial.dev_draws}
    compared = sorted({layer for layer, _ in held})
    whole = [layer for layer in compared if all((layer, seed) in held for seed in seeds)]
    if seeds and len(whole) >= 2:
        compared, shared = whole, list(seeds)
    else:
        shared = [seed for seed in {seed for _, seed in held} if all((layer, seed) in held for layer in compared)]
    if len(compared) < 2 or not shared:
        return None
    shared.sort()
    means = {layer: np.mean([held[layer, seed].dev for seed in shared]) for layer in compared}
    best = max(compared, key=lambda layer: (means[layer], -layer))
    scores = {layer: np.array([held[layer, seed].dev_draws for seed in shared]) for layer in compared}
    spread = spread_over_seeds([scores[layer].mean(1) for layer in compared])
    leads = [means_over_seeds(scores[best] - scores[layer], spread if layer != best else (0, 0)) for layer in compared]
    low, high = zip(*([round(end, 3) for end in interval(lead)] for lead in leads), strict=True)
    return Certainty(
        best=best,
        alike=tuple(layer for layer, least in zip(compared, low, strict=True) if least <= 0),
        compared=tuple(compared),
        low=low,
        high=high,
        seeds=len(shared),
        not_trained=tuple(sorted({*layers} - {*trained} - {*compared})),
        fewer_seeds=tuple(sorted({*layers} & {*trained} - {*compared})),
    )


def spread_over_seeds(means: Sequence[NDArray[np.float64]]) -> tuple[float, int]:
    """Return the variance over seeds of a difference of two layers, and its degrees of freedom; 0 and 0 for one seed.

    It is the residual of a table of layers and seeds without its row and column means, pooled over all layers, as two
    or three seeds of one layer hardly tell it.

    Args:
        means: Score of each seed, for each layer.
    """
    table = np.array(means)
    freedom = (table.shape[0] - 1) * (table.shape[1] - 1)
    rest = table - table.mean(0) - table.mean(1, keepdims=True) + table.mean()
    return 2 * float((rest**2).sum()) / max(1, freedom), freedom


def means_over_seeds(draws: NDArray[np.float64], spread: tuple[float, int]) -> NDArray[np.float64]:
    """Return each resample's mean over seeds, moved as far as the mean of as many other seeds might be.

    The move follows Student's t: resampling two or three seeds gives intervals that are far too narrow. Layers that
    vary more by seed than all together, such as the last ones of a model with a drop, keep their own variance.

    Args:
        draws: Differences, (seeds, resamples).
        spread: As `spread_over_seeds` gives it.
    """
    from scipy.stats import t as student_t  # slow to import, and results are read without it

    means, (pooled, freedom) = np.array(draws.mean(0)), spread
    if not freedom:
        return means
    variance = max(pooled, float(draws.mean(1).var(ddof=1))) / len(draws)
    # All quantiles of t in a random order: a few hundred drawn at random would leave the ends to chance.
    places = (np.arange(len(means)) + 0.5) / len(means)
    moved = np.random.default_rng(0).permutation(student_t.ppf(places, freedom))
    return np.array(means + moved * np.sqrt(variance))
