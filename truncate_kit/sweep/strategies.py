"""How `--layer auto` finds the layer: train everything, or rank cheaply and train what may win."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from truncate_kit.sweep.picking import contenders, pick
from truncate_kit.sweep.results import SweepSettings, Trial
from truncate_kit.sweep.trials import TrialRunner

STRATEGIES = ("guided", "exhaustive")
HALVING = 3  # each round keeps a third of the layers and triples the epochs


@dataclass(frozen=True, slots=True)
class Search:
    """What a strategy found: the layer, the short trials that led there, and the layers trained in full."""

    chosen: int
    short: tuple[Trial, ...]
    full: tuple[Trial, ...]


def exhaustive(
    runner: TrialRunner, layers: Sequence[int], settings: SweepSettings, drop_from: int | None = None
) -> Search:
    """Train every layer with every seed and the full budget, then apply the pick rule: what the TMFT paper does."""
    trials = tuple(runner.run(layer, seed) for layer in layers for seed in settings.seeds)
    dev = {layer: fmean(trial.dev for trial in trials if trial.layer == layer) for layer in layers}
    return Search(pick(dev, settings.pick, settings.within, drop_from), (), trials)


def guided(runner: TrialRunner, layers: Sequence[int], settings: SweepSettings, drop_from: int | None = None) -> Search:
    """Successive halving with one seed: all layers for one epoch, the contenders for three, nine, …

    The analysis bounds the search: layers from a predicted drop on get the first epoch, so that the tolerance is
    measured against the true best, but no more unless one of them is that best. The pick rule decides on the scores of
    the longest run that each remaining layer has had.
    """
    seed, epochs, candidates = settings.seeds[0], 1, list(layers)
    short: list[Trial] = []
    while True:
        epochs = min(epochs, runner.settings.epochs)
        trials = [runner.run(layer, seed, epochs=epochs) for layer in candidates]
        short += trials
        dev = {trial.layer: trial.dev for trial in trials}
        if len(candidates) <= 2 or epochs * HALVING**2 > runner.settings.epochs:
            return Search(pick(dev, settings.pick, settings.within, drop_from), tuple(short), ())
        keep = max(2, -(-len(candidates) // HALVING))
        candidates = contenders(dev, settings.pick, settings.within, drop_from, keep)
        epochs *= HALVING
