"""Settings and result of a sweep, and pick rules over dev scores; does not import torch.

Dev scores favour shallow layers, so some rules prefer deep ones. On models that the rules were not fitted
on, no rule is significantly better than the paper's rule, the best dev score (`benchmarks/pick`).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from truncate_kit.analysis.result import DropPrediction
from truncate_kit.core.errors import UsageError, in_points
from truncate_kit.core.results import (
    LAYERS,
    Bounds,
    Result,
    as_text,
    check_seeds,
    numbers_named,
    seeds_setting,
    setting,
)
from truncate_kit.core.workspace import place_in_words
from truncate_kit.training.settings import TrainingSettings, Trial

STRATEGIES = ("rankings", "guided", "exhaustive", "multi-exit", "probe", "cka", "last", "random")
DEFAULT_RULE = "best-dev"
# Bonus in points at the last layer after short training, as deep layers learn later; without the bonus, `rankings`
# picks far worse layers (benchmarks/pick).
UNFINISHED_BONUS = 4.0
CHANCE = 5.0  # points; a choice among layers that a smaller lead cannot tell apart may be chance


@dataclass(frozen=True, slots=True)
class Picker:
    """A pick rule with its parameters."""

    name: str
    words: str  # description with the field `{within}`, in points
    within: float = 0.0  # tolerance or bonus, in points
    choose: Callable[[Iterable[int]], int] | None = None  # picks among layers within the tolerance; by default the best
    bonus: bool = False  # add `within` × layer / depth to each score
    before_drop: bool = False  # give `choose` only layers before the predicted drop
    drop_from: int | None = None  # first layer of a predicted drop
    depth: int | None = None  # layer with the full bonus; by default the deepest scored layer
    ahead: float = 0.0  # points added to the full bonus

    def unfinished(self) -> "Picker":
        """Return the rule to use on scores after short training."""
        return self if self.bonus or self.choose else replace(self, ahead=UNFINISHED_BONUS)

    def pick(self, dev: Mapping[int, float]) -> int:
        """Pick a layer by dev scores in points; a tie goes to the lower layer."""
        scores, bound, allowed = self._compared(dev)
        close = [layer for layer in allowed if scores[layer] >= bound]
        return self.choose(close) if self.choose and close else next(iter(scores))

    def contenders(self, dev: Mapping[int, float], keep: int) -> list[int]:
        """Return, sorted, up to `keep` layers that may decide the pick after longer training."""
        scores, bound, allowed = self._compared(dev)
        order = list(scores)
        if self.choose:
            nearest = sorted(allowed, key=lambda layer: abs(scores[layer] - bound))
            # The best layer sets the bound; then come the layers nearest to the bound.
            order = list(dict.fromkeys([order[0], self.pick(dev), *nearest]))
        return sorted(order[:keep])

    def __str__(self) -> str:
        bounded = self.before_drop and self.drop_from is not None
        before = f" and before the predicted drop (layer {self.drop_from})" if bounded else ""
        return self.words.format(within=in_points(self.within)) + before

    def _compared(self, dev: Mapping[int, float]) -> tuple[dict[int, float], float, list[int]]:
        """Return scores with bonus, best first; the lowest score within the tolerance; layers for `choose`."""
        bonus = self.ahead + (self.within if self.bonus else 0.0)
        deepest = max(1, max(dev) if self.depth is None else self.depth)
        compared = {layer: score + bonus * layer / deepest if bonus else score for layer, score in dev.items()}
        scores = dict(sorted(compared.items(), key=lambda row: (-row[1], row[0])))
        drop = self.drop_from if self.before_drop else None
        return scores, max(scores.values()) - self.within, [layer for layer in dev if drop is None or layer < drop]


_RULES = (
    Picker("best-dev", "the layer with the best dev score"),
    Picker("robust", "the deepest layer within {within} of the best dev score", 2.5, max, before_drop=True),
    Picker("small", "the smallest layer within {within} of the best dev score", 2.5, min),
    # Worse than best-dev on sweeps that this rule was not fitted on (benchmarks/pick).
    Picker("depth-bonus", "the best dev score with a bonus for depth, {within} at the last layer", 4.0, bonus=True),
)
PICK_RULES: dict[str, Picker] = {row.name: row for row in _RULES}
_WITHIN = ", ".join(f"{row.within:g} for {row.name}" for row in _RULES if row.within)


def picker(
    rule: str = DEFAULT_RULE, within: float | None = None, drop_from: int | None = None, depth: int | None = None
) -> Picker:
    """Return the named pick rule; `within` defaults to the rule's points."""
    row = PICK_RULES[rule]
    return replace(row, within=row.within if within is None else within, drop_from=drop_from, depth=depth)


class SweepSettings(Result):
    """Layers to search and how to choose one.

    `layers` is `auto`, `all`, or numbers ("3,6,9", "2..5"). The default strategy, `rankings`, was most often within 0.3
    points of an exhaustive search (benchmarks/pick).
    """

    layers: str = "auto"
    strategy: str | None = setting(None, "Search strategy for --layer auto.", LAYERS, choices=STRATEGIES)
    pick: str = setting(DEFAULT_RULE, "Rule to pick a trained layer.", LAYERS, choices=PICK_RULES)
    within: float | None = setting(None, f"Points for --pick: {_WITHIN}.", LAYERS, bounds=Bounds(0, 100, whole=False))
    seeds: tuple[int, ...] = seeds_setting((0, 1, 2), "Number of seeds (the first is 0); the TMFT paper uses 5.")

    def __post_init__(self) -> None:
        object.__setattr__(self, "layers", as_text(self.layers))
        super().__post_init__()
        check_seeds(self.seeds)
        if self.within is not None and not PICK_RULES[self.pick].within:
            hint = f"Leave out `within`; rules with a tolerance are {_WITHIN}."
            raise UsageError(f"The `pick` rule {self.pick} has no `within`.", hint=hint)


def parse_layers(text: str, held: Sequence[int], depth: int) -> tuple[int, ...]:
    """Read layers named as "3", "3,6,9", "2..5" or "all". Raises `UsageError`."""
    if text == "all":
        return tuple(held)
    try:
        return tuple(dict.fromkeys(numbers_named(text)))
    except ValueError as error:
        hint = f"Use one number, a list (3,6,9), a range (2..5) or all; this model has layers 0..{depth}."
        raise UsageError(f"{text!r} names no layers.", hint=hint) from error


class Certainty(Result):
    """Comparison of layers with the best one on dev."""

    best: int  # best mean dev score
    alike: tuple[int, ...]  # layers that may be the best, see `best_layers`; sorted
    compared: tuple[int, ...]  # layers fully trained with the same seeds; sorted
    lead: float | None  # points by which a layer must lead; None: too few pairs or queries to compare
    seeds: int
    number: int  # of `unit`, used for the choice
    unit: str = "dev pairs"
    not_trained: tuple[int, ...] = ()  # candidates without full training
    fewer_seeds: tuple[int, ...] = ()  # fully trained with too few seeds

    @property
    def warning(self) -> str | None:
        """Return a sentence if the choice may be chance."""
        few = f"{self.number:,} {self.unit} are too few to tell"
        if self.lead is None:
            return f"{few} layers apart."
        if self.alike != self.compared or self.lead < CHANCE:
            return None
        return f"{few} these layers apart: a lead of {self.lead:.1f} points would be needed."


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


class SweepResult(Result):
    """Result of `finetune`."""

    model: str
    data: str
    data_fingerprint: str  # of the pairs before splitting
    settings: SweepSettings  # including the strategy used
    training: TrainingSettings
    learning_rate: float
    layers: tuple[LayerScores, ...]  # fully trained layers, in ascending order
    search: tuple[Trial, ...]  # shorter or stopped trials
    trials: tuple[Trial, ...]  # full trials, also of the full model
    chosen: int
    chosen_seed: int  # best on dev
    full: LayerScores  # the full model with the same budget
    prediction: DropPrediction | None
    choice: str  # reason
    metric: str
    search_cost: int  # blocks × training steps, without full trials of the chosen layer
    exhaustive_cost: int  # the same for a search over all layers and seeds
    seconds: float  # of the call
    before: str = ""  # training before the task, in words
    blocks: tuple[int, ...] | None = None  # kept blocks of the full model, if not the first ones
    # By strategy: (layer, score in points).
    rankings: dict[str, tuple[tuple[int, float], ...]] = field(default_factory=dict)
    certainty: Certainty | None = None
    retrieval: str = ""  # name of the set that replaced dev and test
    seen_before: str = ""  # sentence about test pairs that model or teacher had seen

    @property
    def lean(self) -> LayerScores:
        """Return the chosen layer's scores."""
        return next(row for row in self.layers if row.layer == self.chosen)

    @property
    def rows(self) -> list[LayerScores]:
        """Return `layers` and `full`, ascending."""
        return sorted({row.layer: row for row in (*self.layers, self.full)}.values(), key=lambda row: row.layer)

    def place(self, layer: int) -> str:
        """Name a layer in prose: `layer 3`, or `blocks 1, 4, 6`."""
        return place_in_words(layer, None if layer == self.full.layer else self.blocks)

    def row_name(self, layer: int) -> str:
        """Name a layer in tables: `3`, or `blocks 1, 4, 6`."""
        return f"{layer}" if self.blocks is None else self.place(layer)
