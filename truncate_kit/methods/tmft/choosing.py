"""How a sweep chooses: pick rules, given a dev score for each layer, and strategies behind `layers="auto"`.

One row per rule, one function per strategy; importing this imports no torch. The TMFT paper takes the best dev score.
Dev sets flatter shallow layers (which score pairs by the words that they share), so other rules lean towards depth, or
towards small models; measured on models that they were not fitted on, none of them loses fewer test points than the
paper's with an interval that excludes zero (`benchmarks/pick`).
"""

import random
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import TYPE_CHECKING

from truncate_kit.core.wording import in_points
from truncate_kit.training.settings import trial_name

if TYPE_CHECKING:
    from truncate_kit.methods.tmft.ranking import Scores
    from truncate_kit.methods.tmft.trials import TrialRunner
    from truncate_kit.training.settings import Trial


@dataclass(frozen=True, slots=True, kw_only=True)
class PickRule:
    """One rule."""

    name: str  # as settings and options name it
    within: float  # points that the rule allows or adds where none are given
    words: str  # what it takes, for the user; `{within}` is replaced by the points
    bonus: bool = False  # whether each layer gets `within` points × layer / depth before scores are compared
    # takes one of the layers within `within` points of the best score; None takes the best itself
    choose: Callable[[Iterable[int]], int] | None = None
    before_drop: bool = False  # whether `choose` takes a layer before the predicted drop only, where there is one


_ROWS = (
    PickRule(name="best-dev", within=0.0, words="the layer with the best dev score"),
    PickRule(
        name="robust",
        within=2.5,
        words="the deepest layer within {within} of the best dev score",
        choose=max,
        before_drop=True,
    ),
    PickRule(name="small", within=2.5, words="the smallest layer within {within} of the best dev score", choose=min),
    PickRule(
        name="depth-bonus",
        within=4.0,  # fitted on 30 sweeps, and worse than best-dev on those that came later: benchmarks/pick
        words="the best dev score with a bonus for depth, {within} at the last layer",
        bonus=True,
    ),
)
PICK_RULES: dict[str, PickRule] = {row.name: row for row in _ROWS}
DEFAULT_RULE = "best-dev"
# Points at the last layer, less in proportion above it, for scores of layers that have not been trained out: until then
# deep layers are behind. What searches had under depth-bonus; without it `rankings` loses far more (benchmarks/pick).
UNFINISHED_BONUS = 4.0


@dataclass(frozen=True, slots=True)
class Picker:
    """A pick rule with all that its choice depends on, other than the scores."""

    rule: str = DEFAULT_RULE
    within: float | None = None  # points from 0 to 100, None takes those of the rule
    drop_from: int | None = None  # first layer of a predicted drop, None if none is predicted
    depth: int | None = None  # layer that gets the whole bonus, None takes the deepest that has a score
    ahead: float = 0.0  # further points of that layer

    def unfinished(self) -> "Picker":
        """Return the same rule for scores of layers that have not been trained out."""
        leans = self._row.bonus or self._row.choose is not None  # such a rule has its own answer already
        return self if leans else replace(self, ahead=UNFINISHED_BONUS)

    def pick(self, dev: Mapping[int, float]) -> int:
        """Return the layer that the rule takes from mean dev scores in points by layer; the smaller one on a tie."""
        scores, bound, allowed = self._compared(dev)
        close = [layer for layer in allowed if scores[layer] >= bound]
        return self._row.choose(close) if self._row.choose and close else min(scores, key=_by_score(scores))

    def contenders(self, dev: Mapping[int, float], keep: int) -> list[int]:
        """Return the `keep` layers that are most likely to decide the pick once they are trained longer, sorted."""
        scores, bound, allowed = self._compared(dev)
        order = sorted(scores, key=_by_score(scores))
        if self._row.choose:
            nearest = sorted(allowed, key=lambda layer: abs(scores[layer] - bound))
            # Always the best one, because a tolerance depends on it; then those nearest to the bound that decides.
            order = list(dict.fromkeys([order[0], self.pick(dev), *nearest]))
        return sorted(order[:keep])

    def __str__(self) -> str:
        """Say what is taken."""
        bounded = self._row.before_drop and self.drop_from is not None
        before = f" and before the predicted drop (layer {self.drop_from})" if bounded else ""
        return self._row.words.format(within=in_points(self._points)) + before

    @property
    def _row(self) -> PickRule:
        return PICK_RULES[self.rule]

    @property
    def _points(self) -> float:
        return self._row.within if self.within is None else self.within

    def _compared(self, dev: Mapping[int, float]) -> tuple[Mapping[int, float], float, list[int]]:
        """Return the scores that are compared, the one close enough to the best, and the layers `choose` may take."""
        bonus = self.ahead + (self._points if self._row.bonus else 0.0)
        if bonus:
            deepest = max(1, max(dev) if self.depth is None else self.depth)
            dev = {layer: score + bonus * layer / deepest for layer, score in dev.items()}
        drop = self.drop_from if self._row.before_drop else None
        return dev, max(dev.values()) - self._points, [layer for layer in dev if drop is None or layer < drop]


def _by_score(scores: Mapping[int, float]) -> Callable[[int], tuple[float, int]]:
    """Sort layers by score, the highest first, the smaller layer on a tie."""
    return lambda layer: (-scores[layer], layer)


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
        """Decide among layers that have not been trained out."""
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
        """Return the block-steps spent, without the chosen layer's full runs, which every strategy pays for."""
        others = (trial for trial in (*self.stopped, *self.full) if trial.layer != self.chosen)
        return self.other_cost + sum(trial.block_steps for trial in (*self.short, *others))


def exhaustive(among: Candidates) -> Search:
    """Train every layer with every seed and the full budget, then apply the pick rule: what the TMFT paper does."""
    trials = among.runner.run_all((layer, seed) for layer in among.layers for seed in among.seeds)
    dev = {layer: fmean(trial.dev for trial in trials if trial.layer == layer) for layer in among.layers}
    return Search(among.picker.pick(dev), full=trials)


def guided(among: Candidates) -> Search:
    """Halve successively with one seed: all layers for one epoch, the contenders for three, nine, and so on."""
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
    """Rank layers by one epoch of the full model with the loss on all exits; the best two race."""
    (ranked,) = among.runner.rank(["multi-exit"], among.layers, among.seeds[0])
    # Such a run does not replace TMFT, because the layers disturb each other (arXiv 2411.17299).
    return _race(among, among.early.contenders(ranked, 2), _exits_cost(among), {"multi-exit": ranked})


def probe(among: Candidates) -> Search:
    """Rank layers by a linear map on the frozen states of each, trained on the task; the best two race."""
    (ranked,) = among.runner.rank(["probe"], among.layers, among.seeds[0])
    return _race(among, among.early.contenders(ranked, 2), _probe_cost(among), {"probe": ranked})


def rankings(among: Candidates) -> Search:
    """Take what both `probe` and `multi-exit` would pick; if they differ both race, with the best two of `probe`."""
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
    from truncate_kit.methods.tmft.ranking import PROBE_PAIRS

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
    """Take the deepest layer before the predicted drop, without training; the last one if none is predicted."""
    drop = among.picker.drop_from
    if drop is None:
        return Search(max(among.layers), words="the last; no drop predicted")
    before = [layer for layer in among.layers if layer < drop]
    return Search(max(before, default=min(among.layers)), words="the deepest layer before the predicted drop")


def last(among: Candidates) -> Search:
    """Take the last layer: what everybody did before, and what any search has to beat."""
    return Search(max(among.layers), words="the last")


def at_random(among: Candidates) -> Search:
    """Take any layer, drawn by the first seed: the other thing that a search has to beat."""
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
