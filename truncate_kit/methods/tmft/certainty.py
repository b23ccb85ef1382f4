"""How sure a choice among layers is: which of them dev and seeds cannot tell apart."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from truncate_kit.results import Result
from truncate_kit.statistics import LEVEL, interval
from truncate_kit.training.settings import Trial


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
    sentence: str


def certainty(
    trials: Sequence[Trial], layers: Sequence[int] = (), seeds: Sequence[int] = (), trained: Collection[int] = ()
) -> Certainty | None:
    """By a paired bootstrap over dev pairs and what seeds vary by, from the trials of one model with the full budget.

    In each draw all layers have the same resample of the dev pairs. A layer cannot be told apart from the best one if
    the interval of the difference holds 0; layers are compared with it one by one.

    Args:
        trials: Those without `dev_draws` are passed over.
        layers: All that could have been taken; those that were not trained out are named.
        seeds: By which was chosen. Where two layers or more have all of them, the others are none that were trained
            out: a layer that an earlier run left with fewer seeds takes none from the rest.
        trained: Layers that were trained out; where these are more than are compared, the sentence says so.

    Returns:
        None where fewer than two layers share a seed and have resampled scores.
    """
    could = layers
    held = {(trial.layer, trial.seed): trial for trial in trials if trial.dev_draws}
    layers = sorted({layer for layer, _ in held})
    whole = [layer for layer in layers if all((layer, seed) in held for seed in seeds)]
    if seeds and len(whole) >= 2:
        held = {(layer, seed): held[layer, seed] for layer in whole for seed in seeds}
        layers = whole
    seeds = [seed for seed in sorted({seed for _, seed in held}) if all((layer, seed) in held for layer in layers)]
    if len(layers) < 2 or not seeds:
        return None
    means = {layer: np.mean([held[layer, seed].dev for seed in seeds]) for layer in layers}
    best = max(layers, key=lambda layer: (means[layer], -layer))
    scores = {layer: np.array([held[layer, seed].dev_draws for seed in seeds]) for layer in layers}
    spread = spread_over_seeds([scores[layer].mean(1) for layer in layers])
    ends = []
    for layer in layers:
        ahead = means_over_seeds(scores[best] - scores[layer], spread) if layer != best else np.zeros(1)
        ends.append([round(end, 3) for end in interval(ahead)])
    low, high = zip(*ends, strict=True)
    alike = tuple(layer for layer, least in zip(layers, low, strict=True) if least <= 0)
    fewer = sorted({*could} & {*trained} - {*layers})
    missing = sorted({*could} - {*trained} - {*layers})
    return Certainty(
        best=best,
        alike=alike,
        compared=tuple(layers),
        low=low,
        high=high,
        level=LEVEL,
        seeds=len(seeds),
        sentence=_sentence(alike, layers, len(seeds), "compared" if {*trained} - {*layers} else "trained out")
        + _not_compared(missing, "not trained out")
        + _not_compared(fewer, "trained with fewer seeds"),
    )


def spread_over_seeds(means: Sequence[NDArray[np.float64]]) -> tuple[float, int]:
    """Variance over seeds of a difference of two layers, and its degrees of freedom; 0 and 0 for one seed.

    That of layers and seeds without repetition: what is left of a score without its layer's mean and its seed's. All
    layers together say it, since two or three seeds of one alone hardly do.

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
    """Of each resample of pairs a difference's mean over seeds, moved as far as that of as many other seeds might be.

    By Student's t: of two or three seeds drawn with replacement, the ends of an interval lie far too near.

    Args:
        draws: (seeds, resamples).
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
    """Variance over seeds of a difference's mean over them: that of all layers, or its own where that is larger.

    The last layers of a model with a drop vary more by seed than the others do. Arguments as in `means_over_seeds`.
    """
    pooled, freedom = spread
    return max(pooled, float(draws.mean(1).var(ddof=1))) / len(draws) if freedom else 0.0


def _sentence(alike: Sequence[int], layers: Sequence[int], seeds: int, what: str) -> str:
    over = "dev pairs and seeds" if seeds > 1 else "dev pairs; one seed says nothing of seeds"
    by = f"95 % interval of each against the best, over {over}"
    if len(alike) == 1:
        worse = [layer for layer in layers if layer != alike[0]]
        than = f"layer {worse[0]}, the only other one" if len(worse) == 1 else "every other layer"
        return f"Layer {alike[0]} is better on dev than {than} that was {what} ({by})."
    of = f"the only two that were {what}" if len(layers) == 2 else f"of the {len(layers)} that were {what}"
    return f"Layers {layers_in_words(alike)}, {of}, cannot be told apart on dev ({by}); {alike[0]} is the smallest."


def _not_compared(layers: Sequence[int], why: str) -> str:
    """A further sentence on layers that could have been taken; nothing where there are none."""
    if not layers:
        return ""
    if len(layers) == 1:
        return f" Layer {layers[0]} was {why}: it is not compared."
    return f" Layers {layers_in_words(layers)} were {why}: they are not compared."


def layers_in_words(layers: Sequence[int]) -> str:
    """Numbers in words: "1 to 3" where they follow each other, "1, 2 and 6" where they do not."""
    if len(layers) > 2 and layers[-1] - layers[0] == len(layers) - 1:
        return f"{layers[0]} to {layers[-1]}"
    *others, last = map(str, layers)
    return f"{', '.join(others)} and {last}" if others else last
