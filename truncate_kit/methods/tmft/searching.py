"""Strategies behind `layers="auto"`."""

import random
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import fmean

from truncate_kit.methods.tmft.settings import Picker
from truncate_kit.methods.tmft.trials import PROBE_PAIRS, Ranked, Scores, TrialRunner
from truncate_kit.training.settings import Trial, trial_name

HALVING = 3  # each round keeps a third of the layers for three times the epochs
FORWARD_SHARE = 3  # cost of a pass without gradients: 1/3 training step
RACE_SHARE = 0.1  # limit of ranking and racing, relative to an exhaustive search


@dataclass(frozen=True, slots=True)
class Search:
    """The outcome of a strategy."""

    chosen: int
    trials: tuple[Trial, ...] = ()  # shorter or stopped ones
    cost: int = 0  # block-steps, without the chosen layer's full trials
    words: str = ""  # the reason, if no score was needed
    rankings: Mapping[str, Scores] = field(default_factory=dict)  # by strategy


Strategy = Callable[[TrialRunner, Sequence[int], Sequence[int], Picker], Search]
"""Chooses one of the layers; full trials have these seeds."""


def _cost(trials: Iterable[Trial], chosen: int | None = None) -> int:
    return sum(trial.block_steps for trial in trials if trial.layer != chosen)


def exhaustive(runner: TrialRunner, layers: Sequence[int], seeds: Sequence[int], picker: Picker) -> Search:
    """Train every layer with every seed, then apply the pick rule, as the TMFT paper does."""
    trials = runner.run_all((layer, seed) for layer in layers for seed in seeds)
    chosen = picker.pick({layer: fmean(trial.dev for trial in trials if trial.layer == layer) for layer in layers})
    return Search(chosen, cost=_cost(trials, chosen))


def guided(runner: TrialRunner, layers: Sequence[int], seeds: Sequence[int], picker: Picker) -> Search:
    """Halve successively with one seed: all layers for one epoch, the contenders for three, nine, and so on."""
    epochs, budget, candidates, every = 1, runner.settings.epochs, list(layers), list[Trial]()
    while True:
        epochs = min(epochs, budget)
        trials = runner.run_all([(layer, seeds[0]) for layer in candidates], epochs=epochs)
        every += trials
        dev = {trial.layer: trial.dev for trial in trials}
        rule = picker if epochs == budget else picker.unfinished()
        if len(candidates) <= 2 or epochs * HALVING**2 > budget:
            return Search(rule.pick(dev), tuple(every), _cost(every))
        # Layers after a predicted drop get one epoch, as the tolerance needs the true best; more only if best.
        candidates = rule.contenders(dev, max(2, -(-len(candidates) // HALVING)))
        epochs *= HALVING


def ranked(
    names: Sequence[Ranked], runner: TrialRunner, layers: Sequence[int], seeds: Sequence[int], picker: Picker
) -> Search:
    """Rank layers cheaply, in one or two ways; the best race unless two rankings agree.

    Probes flatter shallow layers; joint training of all exits harms both ends (arXiv 2411.17299).
    """
    early, scored = picker.unfinished(), runner.rank(names, layers, seeds[0])
    rankings: dict[str, Scores] = dict(zip(names, scored, strict=True))
    probed = -(-min(PROBE_PAIRS, runner.task.num_examples) // runner.settings.batch_size)
    costs = {"probe": probed * max(layers) // FORWARD_SHARE, "multi-exit": runner.steps(1) * max(layers)}
    cost, picked = sum(costs[name] for name in names), {early.pick(scores) for scores in scored}
    if len(picked) < len(names):
        return Search(picked.pop(), cost=cost, rankings=rankings)
    contending = picked.union(early.contenders(scored[0], 2), *(early.contenders(one, 1) for one in scored[1:]))
    budget, seed = runner.settings.epochs, seeds[0]
    spare = RACE_SHARE * len(seeds) * runner.steps(budget) * (_blocks(layers) - max(1, max(layers))) - cost
    each = runner.steps(1) * max(1, _blocks(contending) - max(1, min(contending)))
    epochs = min(max(1, int(spare / each)), budget)
    stop_after = epochs if epochs < budget else None
    trials = runner.run_all(((layer, seed) for layer in sorted(contending)), stop_after=stop_after)
    chosen = (picker if stop_after is None else early).pick({trial.layer: trial.dev for trial in trials})
    if stop_after is not None:  # the winner goes on
        for layer in contending - {chosen}:
            runner.store.remove_checkpoints(trial_name(layer, seed, budget))
    stopped = () if stop_after is None else trials
    return Search(chosen, stopped, cost + _cost(trials, chosen), rankings=rankings)


def _blocks(layers: Collection[int]) -> int:
    return sum(max(1, layer) for layer in layers)


def before_drop(_: TrialRunner, layers: Sequence[int], __: Sequence[int], picker: Picker) -> Search:
    """Take the deepest layer before the predicted drop, or the last one."""
    if picker.drop_from is None:
        return Search(max(layers), words="the last; no drop predicted")
    before = [layer for layer in layers if layer < picker.drop_from]
    return Search(max(before, default=min(layers)), words="the deepest layer before the predicted drop")


def last(_: TrialRunner, layers: Sequence[int], *__: object) -> Search:
    """Take the last layer, a baseline."""
    return Search(max(layers), words="the last")


def at_random(_: TrialRunner, layers: Sequence[int], seeds: Sequence[int], __: Picker) -> Search:
    """Draw a layer by the first seed, a baseline."""
    return Search(random.Random(seeds[0]).choice(list(layers)), words="drawn at random")


SEARCHES: dict[str, Strategy] = {  # by the names of `STRATEGIES`
    "rankings": partial(ranked, ("probe", "multi-exit")),
    "guided": guided,
    "exhaustive": exhaustive,
    "multi-exit": partial(ranked, ("multi-exit",)),
    "probe": partial(ranked, ("probe",)),
    "cka": before_drop,
    "last": last,
    "random": at_random,
}
