"""How `layers="auto"` finds the layer: train everything, rank cheaply and train what may win, or just take one.

One row per strategy, at the end. Importing this imports no torch: the command line's help lists the rows.
"""

import random
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import TYPE_CHECKING

from truncate_kit.errors import known_name
from truncate_kit.methods.tmft.picking import Picker
from truncate_kit.training.settings import trial_name

if TYPE_CHECKING:
    from truncate_kit.methods.tmft.ranking import Scores
    from truncate_kit.methods.tmft.trials import TrialRunner
    from truncate_kit.training.settings import Trial

HALVING = 3  # each round keeps a third of the layers and triples the epochs
FORWARD_SHARE = 3  # a pass without gradients costs about a third of a training step
RACE_SHARE = 0.1  # of the exhaustive search cost: what ranking and racing may spend together


@dataclass(frozen=True, slots=True)
class Candidates:
    """What a strategy chooses among."""

    runner: "TrialRunner"  # runs trials and rankings of the model
    layers: Sequence[int]  # that may be taken
    seeds: Sequence[int]  # of the full trials; a search that uses one only takes the first
    picker: Picker  # decides once there are scores

    @property
    def early(self) -> Picker:
        """Decides among layers that have not been trained out."""
        return self.picker.unfinished()


@dataclass(frozen=True, slots=True)
class Search:
    """What a strategy found."""

    chosen: int
    short: "tuple[Trial, ...]" = ()  # trials of fewer epochs that led there
    stopped: "tuple[Trial, ...]" = ()  # trials that a race stopped
    full: "tuple[Trial, ...]" = ()  # trials with the full budget
    other_cost: int = 0  # block-steps of what is not a trial of one layer
    words: str = ""  # what was taken, where that needed no scores; nothing where the picker decided
    rankings: "dict[str, Scores]" = field(default_factory=dict)  # cheap scores of all layers, by their names

    @property
    def cost(self) -> int:
        """Block-steps spent to choose, without the chosen layer's full runs, which every strategy pays for."""
        others = (trial for trial in (*self.stopped, *self.full) if trial.layer != self.chosen)
        return self.other_cost + sum(trial.block_steps for trial in (*self.short, *others))


def exhaustive(among: Candidates) -> Search:
    """Train every layer with every seed and the full budget, then apply the pick rule: what the TMFT paper does."""
    trials = among.runner.run_all((layer, seed) for layer in among.layers for seed in among.seeds)
    dev = {layer: fmean(trial.dev for trial in trials if trial.layer == layer) for layer in among.layers}
    return Search(among.picker.pick(dev), full=trials)


def guided(among: Candidates) -> Search:
    """Successive halving with one seed: all layers for one epoch, the contenders for three, nine, and so on."""
    runner, seed, epochs, candidates = among.runner, among.seeds[0], 1, list(among.layers)
    short: list[Trial] = []
    while True:
        epochs = min(epochs, runner.settings.epochs)
        trials = runner.run_all([(layer, seed) for layer in candidates], epochs=epochs)
        short += trials
        dev = {trial.layer: trial.dev for trial in trials}
        picker = among.picker if epochs == runner.settings.epochs else among.early
        if len(candidates) <= 2 or epochs * HALVING**2 > runner.settings.epochs:
            return Search(picker.pick(dev), short=tuple(short))
        # Layers from a predicted drop on get the first epoch, so that the tolerance is measured against the true best,
        # but no more unless one of them is that best.
        candidates = picker.contenders(dev, max(2, -(-len(candidates) // HALVING)))
        epochs *= HALVING


def multi_exit(among: Candidates) -> Search:
    """One epoch of the full model with the loss on all exits ranks the layers; the best two race."""
    (ranked,) = among.runner.rank(["multi-exit"], among.layers, among.seeds[0])
    # Such a run does not replace TMFT, because the layers disturb each other (arXiv 2411.17299).
    return _race(among, among.early.contenders(ranked, 2), _exits_cost(among), {"multi-exit": ranked})


def probe(among: Candidates) -> Search:
    """A linear map on the frozen states of each layer, trained on the task, ranks them; the best two race."""
    (ranked,) = among.runner.rank(["probe"], among.layers, among.seeds[0])
    return _race(among, among.early.contenders(ranked, 2), _probe_cost(among), {"probe": ranked})


def rankings(among: Candidates) -> Search:
    """What both `probe` and `multi-exit` would pick; where they differ both race, with the best two of `probe`."""
    # Each is cheap and errs in its own way: frozen states of shallow layers look better than they are after training,
    # and one epoch for all exits leaves both ends behind.
    frozen, exits = among.runner.rank(["probe", "multi-exit"], among.layers, among.seeds[0])
    cost, both = _probe_cost(among) + _exits_cost(among), {"probe": frozen, "multi-exit": exits}
    picked = {among.early.pick(ranked) for ranked in (frozen, exits)}
    if len(picked) == 1:
        return Search(picked.pop(), other_cost=cost, rankings=both)
    contending = picked.union(among.early.contenders(frozen, 2), among.early.contenders(exits, 1))
    return _race(among, contending, cost, both)


def _exits_cost(among: Candidates) -> int:
    return among.runner.steps(1) * max(among.layers)


def _probe_cost(among: Candidates) -> int:
    from truncate_kit.methods.tmft.exits import PROBE_PAIRS

    read = min(PROBE_PAIRS, among.runner.task.num_examples)
    return -(-read // among.runner.settings.batch_size) * max(among.layers) // FORWARD_SHARE


def _race(among: Candidates, contending: Collection[int], cost: int, ranked: "dict[str, Scores]") -> Search:
    """Begin the full trials, with one seed, of the layers that may decide it; only that of the winner goes on."""
    runner, layers, seed, budget = among.runner, among.layers, among.seeds[0], among.runner.settings.epochs
    # As many epochs as `RACE_SHARE` pays after the ranking, whose block-steps `cost` is; one at least, at most all.
    others = _blocks(layers) - _blocks([max(layers)])
    spare = RACE_SHARE * len(among.seeds) * runner.steps(budget) * others - cost
    epochs = int(spare / (runner.steps(1) * max(1, _blocks(contending) - _blocks([min(contending)]))))
    epochs = min(max(1, epochs), budget)
    stop_after = epochs if epochs < budget else None
    trials = runner.run_all(((layer, seed) for layer in sorted(contending)), stop_after=stop_after)
    picker = among.picker if stop_after is None else among.early
    chosen = picker.pick({trial.layer: trial.dev for trial in trials})
    if stop_after is None:
        return Search(chosen, full=trials, other_cost=cost, rankings=ranked)
    for layer in set(contending) - {chosen}:
        runner.store.checkpoints.remove(trial_name(layer, seed, budget))
    return Search(chosen, stopped=trials, other_cost=cost, rankings=ranked)


def _blocks(layers: Collection[int]) -> int:
    return sum(max(1, layer) for layer in layers)


def before_drop(among: Candidates) -> Search:
    """The deepest layer before the predicted drop, without any training; the last one where none is predicted."""
    drop = among.picker.drop_from
    if drop is None:
        return Search(max(among.layers), words="the last; no drop predicted")
    before = [layer for layer in among.layers if layer < drop]
    return Search(max(before, default=min(among.layers)), words="the deepest layer before the predicted drop")


def last(among: Candidates) -> Search:
    """The last layer: what everybody did before, and what any search has to beat."""
    return Search(max(among.layers), words="the last")


def at_random(among: Candidates) -> Search:
    """Any layer, drawn by the first seed: the other thing that a search has to beat."""
    return Search(random.Random(among.seeds[0]).choice(list(among.layers)), words="drawn at random")


STRATEGIES: dict[str, Callable[[Candidates], Search]] = {
    "rankings": rankings,
    "guided": guided,
    "exhaustive": exhaustive,
    "multi-exit": multi_exit,
    "probe": probe,
    "cka": before_drop,
    "last": last,
    "random": at_random,
}


def check_strategy(name: str | None) -> None:
    """Raise `UsageError` unless there is a strategy of that name, or none is named."""
    if name is not None:
        known_name("strategy", name, STRATEGIES)
