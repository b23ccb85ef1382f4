"""Results of a sweep, and the comparison of its layers."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from truncate_kit.analysis.drop import DropPrediction
from truncate_kit.core.results import Result
from truncate_kit.core.vectors import interval
from truncate_kit.core.workspace import place_in_words
from truncate_kit.methods.tmft.settings import SweepSettings
from truncate_kit.training.settings import TrainingSettings, Trial


@dataclass(frozen=True, slots=True, kw_only=True)
class Certainty(Result):
    """Layers that may be the best one on dev."""

    best: int  # best mean dev score
    alike: tuple[int, ...]  # the 95 % interval of the difference to the best holds 0; sorted
    compared: tuple[int, ...]  # fully trained with the same seeds; sorted
    low: tuple[float, ...]  # of that interval, by `compared`
    high: tuple[float, ...]
    seeds: int
    not_trained: tuple[int, ...] = ()  # candidates without full training
    fewer_seeds: tuple[int, ...] = ()  # fully trained with too few seeds


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerScores(Result):
    """Mean scores of one layer in points; `…_std` are standard deviations over seeds."""

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

    model: str
    data: str
    data_fingerprint: str  # empty for raw text alone
    settings: SweepSettings  # with the strategy used
    training: TrainingSettings
    learning_rate: float
    layers: tuple[LayerScores, ...]  # fully trained ones, rising
    search: tuple[Trial, ...]  # shorter or stopped trials that led to the choice
    trials: tuple[Trial, ...]  # full ones, the full model's included
    chosen: int
    chosen_seed: int  # best on dev
    full: LayerScores  # the full model with the same budget
    prediction: DropPrediction | None
    choice: str  # in words
    metric: str  # in words
    search_cost: int  # block-steps, without the chosen layer's own trials
    exhaustive_cost: int  # the same for all layers and seeds
    seconds: float  # of the call
    before: str = ""  # training before the task, in words
    blocks: tuple[int, ...] | None = None  # of the full model, if not the first ones
    # By strategy: (layer, score in points).
    rankings: dict[str, tuple[tuple[int, float], ...]] = field(default_factory=dict)
    certainty: Certainty | None = None
    retrieval: str = ""  # name of the set that replaced dev and test
    seen_before: str = ""  # test pairs that model or teacher had seen, in words

    @property
    def lean(self) -> LayerScores:
        """Return the scores of the chosen layer."""
        return next(row for row in self.layers if row.layer == self.chosen)

    @property
    def rows(self) -> list[LayerScores]:
        """Return the full model and fully trained layers, rising."""
        return sorted({row.layer: row for row in (*self.layers, self.full)}.values(), key=lambda row: row.layer)

    def place(self, layer: int) -> str:
        """Name a layer in prose: `layer 3`, or `blocks 1, 4, 6`."""
        return place_in_words(layer, None if layer == self.full.layer else self.blocks)

    def row_name(self, layer: int) -> str:
        """Name a layer in tables: `3`, or `blocks 1, 4, 6`."""
        return f"{layer}" if self.blocks is None else self.place(layer)


def certainty(
    trials: Sequence[Trial], layers: Sequence[int] = (), seeds: Sequence[int] = (), trained: Collection[int] = ()
) -> Certainty | None:
    """Compare layers with the best by a paired bootstrap over dev pairs and the variance over seeds.

    None if fewer than two layers share a seed and have `dev_draws`.

    Args:
        trials: Full ones of one model.
        layers: All candidates.
        seeds: If two layers have all of them, only such layers are compared.
        trained: Fully trained layers.
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

    Residual of `means` (layers, seeds) without row and column means, pooled as one layer has too few seeds.
    """
    table = np.array(means)
    freedom = (table.shape[0] - 1) * (table.shape[1] - 1)
    rest = table - table.mean(0) - table.mean(1, keepdims=True) + table.mean()
    return 2 * float((rest**2).sum()) / max(1, freedom), freedom


def means_over_seeds(draws: NDArray[np.float64], spread: tuple[float, int]) -> NDArray[np.float64]:
    """Return resampled means over seeds of differences (seeds, resamples), widened by `spread`.

    Student's t, because resampling two or three seeds gives far too narrow intervals. Layers that vary more than
    the pooled `spread` keep their own variance.
    """
    from scipy.stats import t as student_t  # slow to import; results are read without it

    means, (pooled, freedom) = np.array(draws.mean(0)), spread
    if not freedom:
        return means
    variance = max(pooled, float(draws.mean(1).var(ddof=1))) / len(draws)
    # All quantiles in random order: random draws would leave the ends to chance.
    places = (np.arange(len(means)) + 0.5) / len(means)
    moved = np.random.default_rng(0).permutation(student_t.ppf(places, freedom))
    return np.array(means + moved * np.sqrt(variance))
