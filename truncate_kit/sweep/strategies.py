"""How `--layer auto` finds the layer: train everything, rank cheaply and train what may win, or just take one."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean

from truncate_kit.errors import UsageError
from truncate_kit.sweep.picking import contenders, pick
from truncate_kit.sweep.results import SweepSettings, Trial
from truncate_kit.sweep.tasks import LabelledTask, Task
from truncate_kit.sweep.trials import TrialRunner
from truncate_kit.training.exits import PROBE_PAIRS

HALVING = 3  # each round keeps a third of the layers and triples the epochs
FORWARD_SHARE = 3  # a pass without gradients costs about a third of a training step
RACE_SHARE = 0.1  # of the exhaustive search cost: what ranking and racing may spend together


@dataclass(frozen=True, slots=True)
class Search:
    """What a strategy found: the layer, the short and the stopped trials that led there, and those trained in full.

    other_cost: block-steps of what is not a trial of one layer.
    """

    chosen: int
    short: tuple[Trial, ...] = ()
    stopped: tuple[Trial, ...] = ()
    full: tuple[Trial, ...] = ()
    other_cost: int = 0

    @property
    def cost(self) -> int:
        """Block-steps spent to choose, without the chosen layer's full runs, which every strategy pays for."""
        others = (trial for trial in (*self.stopped, *self.full) if trial.layer != self.chosen)
        return self.other_cost + sum(trial.block_steps for trial in (*self.short, *others))


def exhaustive(runner: TrialRunner, layers: Sequence[int], settings: SweepSettings, drop_from: int | None) -> Search:
    """Train every layer with every seed and the full budget, then apply the pick rule: what the TMFT paper does."""
    trials = runner.run_all((layer, seed) for layer in layers for seed in settings.seeds)
    dev = {layer: fmean(trial.dev for trial in trials if trial.layer == layer) for layer in layers}
    return Search(pick(dev, settings.pick, settings.within, drop_from, max(layers)), full=trials)


def guided(runner: TrialRunner, layers: Sequence[int], settings: SweepSettings, drop_from: int | None) -> Search:
    """Successive halving with one seed: all layers for one epoch, the contenders for three, nine, …

    The analysis bounds the search: layers from a predicted drop on get the first epoch, so that the tolerance is
    measured against the true best, but no more unless one of them is that best. The pick rule decides on the scores of
    the longest run that each remaining layer has had.
    """
    seed, epochs, candidates = settings.seeds[0], 1, list(layers)
    short: list[Trial] = []
    while True:
        epochs = min(epochs, runner.settings.epochs)
        trials = runner.run_all([(layer, seed) for layer in candidates], epochs=epochs)
        short += trials
        dev = {trial.layer: trial.dev for trial in trials}
        if len(candidates) <= 2 or epochs * HALVING**2 > runner.settings.epochs:
            chosen = pick(dev, settings.pick, settings.within, drop_from, max(layers))
            return Search(chosen, short=tuple(short))
        keep = max(2, -(-len(candidates) // HALVING))
        candidates = contenders(dev, settings.pick, settings.within, drop_from, keep, max(layers))
        epochs *= HALVING


def multi_exit(runner: TrialRunner, layers: Sequence[int], settings: SweepSettings, drop_from: int | None) -> Search:
    """One epoch of the full model with the loss on all exits ranks the layers; the best two race.

    Such a run does not replace TMFT, because the layers disturb each other (arXiv 2411.17299).
    """
    (ranked,) = runner.rank(["multi-exit"], layers, settings.seeds[0])
    contending = _best(ranked, 2, settings, drop_from)
    return _race(runner, settings, drop_from, contending, layers, _exits_cost(runner, layers))


def probe(runner: TrialRunner, layers: Sequence[int], settings: SweepSettings, drop_from: int | None) -> Search:
    """A linear map on the frozen states of each layer, trained on the task, ranks them; the best two race."""
    (ranked,) = runner.rank(["probe"], layers, settings.seeds[0])
    contending = _best(ranked, 2, settings, drop_from)
    return _race(runner, settings, drop_from, contending, layers, _probe_cost(runner, layers))


def rankings(runner: TrialRunner, layers: Sequence[int], settings: SweepSettings, drop_from: int | None) -> Search:
    """What both `probe` and `multi-exit` would pick; where they differ both race, with the best two of `probe`.

    Each ranking is cheap and errs in its own way: frozen states of shallow layers look better than they are after
    training, and one epoch for all exits leaves both ends behind.
    """
    frozen, exits = runner.rank(["probe", "multi-exit"], layers, settings.seeds[0])
    cost = _probe_cost(runner, layers) + _exits_cost(runner, layers)
    picked = {pick(ranked, settings.pick, settings.within, drop_from, max(layers)) for ranked in (frozen, exits)}
    if len(picked) == 1:
        return Search(picked.pop(), other_cost=cost)
    contending = picked.union(_best(frozen, 2, settings, drop_from), _best(exits, 1, settings, drop_from))
    return _race(runner, settings, drop_from, sorted(contending), layers, cost)


def _best(ranked: dict[int, float], count: int, settings: SweepSettings, drop_from: int | None) -> list[int]:
    return contenders(ranked, settings.pick, settings.within, drop_from, count, max(ranked))


def _exits_cost(runner: TrialRunner, layers: Sequence[int]) -> int:
    return runner.steps(1) * max(layers)


def _probe_cost(runner: TrialRunner, layers: Sequence[int]) -> int:
    read = min(PROBE_PAIRS, runner.task.num_examples)
    return -(-read // runner.settings.batch_size) * max(layers) // FORWARD_SHARE


def _race(
    runner: TrialRunner,
    settings: SweepSettings,
    drop_from: int | None,
    contending: Sequence[int],
    layers: Sequence[int],
    cost: int,
) -> Search:
    """Begin the full trials, with one seed, of the layers that may decide it; only that of the winner goes on.

    All run for as many epochs as `RACE_SHARE` pays after the ranking, one at least, at most all; then the pick rule
    decides.
    """
    seed, budget = settings.seeds[0], runner.settings.epochs
    spare = RACE_SHARE * len(settings.seeds) * runner.steps(budget) * (_blocks(layers) - _blocks([max(layers)])) - cost
    epochs = int(spare / (runner.steps(1) * max(1, _blocks(contending) - _blocks([min(contending)]))))
    epochs = min(max(1, epochs), budget)
    stop_after = epochs if epochs < budget else None
    trials = runner.run_all(((layer, seed) for layer in contending), stop_after=stop_after)
    dev = {trial.layer: trial.dev for trial in trials}
    chosen = pick(dev, settings.pick, settings.within, drop_from, max(layers))
    if stop_after is None:
        return Search(chosen, full=trials, other_cost=cost)
    for layer in set(contending) - {chosen}:
        runner.store.remove_checkpoints(layer, seed, budget)
    return Search(chosen, stopped=trials, other_cost=cost)


def _blocks(layers: Sequence[int]) -> int:
    return sum(max(1, layer) for layer in layers)


def before_drop(runner: TrialRunner, layers: Sequence[int], settings: SweepSettings, drop_from: int | None) -> Search:
    """The deepest layer before the predicted drop, without any training; the last one where none is predicted."""
    before = [layer for layer in layers if drop_from is None or layer < drop_from]
    return Search(max(before, default=min(layers)))


def last(runner: TrialRunner, layers: Sequence[int], settings: SweepSettings, drop_from: int | None) -> Search:
    """The last layer: what everybody did before, and what any search has to beat."""
    return Search(max(layers))


def at_random(runner: TrialRunner, layers: Sequence[int], settings: SweepSettings, drop_from: int | None) -> Search:
    """Any layer, drawn by the first seed: the other thing that a search has to beat."""
    return Search(random.Random(settings.seeds[0]).choice(list(layers)))


Strategy = Callable[[TrialRunner, Sequence[int], SweepSettings, int | None], Search]
STRATEGIES: dict[str, Strategy] = {
    "rankings": rankings,
    "guided": guided,
    "exhaustive": exhaustive,
    "multi-exit": multi_exit,
    "probe": probe,
    "cka": before_drop,
    "last": last,
    "random": at_random,
}


def default_strategy(task: Task) -> str:
    """The one that was most often within 0.3 points of an exhaustive search; rankings need labelled pairs."""
    return "rankings" if isinstance(task, LabelledTask) else "guided"


def check_strategy(name: str | None) -> None:
    """Raise `UsageError` unless there is a strategy of that name, or none is named."""
    if name is not None and name not in STRATEGIES:
        raise UsageError(f"There is no strategy {name!r}.", hint=f"Use one of: {', '.join(STRATEGIES)}.")
