"""How sure a choice among layers is: which of them dev and seeds cannot tell apart."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from truncate_kit.results import Result
from truncate_kit.runs.trial import Trial

LEVEL = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class Certainty(Result):
    """Which layers could be the best one."""

    best: int  # the layer with the best mean dev score
    alike: tuple[int, ...]  # it and those that cannot be told apart from it, sorted
    compared: tuple[int, ...]  # all layers that were trained out, sorted
    low: tuple[float, ...]  # of `compared`: points that the best one is ahead on dev, the interval at `level`
    high: tuple[float, ...]
    level: float
    seeds: int
    sentence: str


def certainty(trials: Sequence[Trial]) -> Certainty | None:
    """By a paired bootstrap over dev pairs and seeds, from the trials of one model with the full budget.

    In each draw all layers have the same resample of the dev pairs and the same resample of the seeds. A layer cannot
    be told apart from the best one if the interval of the difference holds 0. None where fewer than two layers share a
    seed and have resampled scores.
    """
    held = {(trial.layer, trial.seed): trial for trial in trials if trial.dev_draws}
    layers = sorted({layer for layer, _ in held})
    seeds = [seed for seed in sorted({seed for _, seed in held}) if all((layer, seed) in held for layer in layers)]
    if len(layers) < 2 or not seeds:
        return None
    means = {layer: np.mean([held[layer, seed].dev for seed in seeds]) for layer in layers}
    best = max(layers, key=lambda layer: (means[layer], -layer))
    scores = {layer: np.array([held[layer, seed].dev_draws for seed in seeds]) for layer in layers}
    drawn = np.random.default_rng(0).integers(0, len(seeds), scores[best].shape)
    low, high = [], []
    for layer in layers:
        ahead = np.take_along_axis(scores[best] - scores[layer], drawn, 0).mean(0)
        ends = np.quantile(ahead, ((1 - LEVEL) / 2, (1 + LEVEL) / 2))
        low.append(round(float(ends[0]), 3))
        high.append(round(float(ends[1]), 3))
    alike = tuple(layer for layer, least in zip(layers, low, strict=True) if least <= 0)
    return Certainty(
        best=best,
        alike=alike,
        compared=tuple(layers),
        low=tuple(low),
        high=tuple(high),
        level=LEVEL,
        seeds=len(seeds),
        sentence=_sentence(alike, layers, len(seeds)),
    )


def _sentence(alike: Sequence[int], layers: Sequence[int], seeds: int) -> str:
    of = "the only two that were trained out" if len(layers) == 2 else f"of the {len(layers)} that were trained out"
    by = "dev pairs and seeds" if seeds > 1 else "dev pairs; one seed says nothing of seeds"
    if len(alike) == 1:
        others = "every other layer that was trained out"
        return f"Layer {alike[0]} is better on dev than {others} (95 % of resamples of {by})."
    return (
        f"Layers {layers_in_words(alike)}, {of}, cannot be told apart on dev (95 % of resamples of {by}); "
        f"{alike[0]} is the smallest."
    )


def layers_in_words(layers: Sequence[int]) -> str:
    """Numbers in words: "1 to 3" where they follow each other, "1, 2 and 6" where they do not."""
    if len(layers) > 2 and layers[-1] - layers[0] == len(layers) - 1:
        return f"{layers[0]} to {layers[-1]}"
    *others, last = map(str, layers)
    return f"{', '.join(others)} and {last}" if others else last
