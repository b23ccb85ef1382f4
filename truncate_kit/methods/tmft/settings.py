"""Settings of a sweep, and its pick rules, given a dev score for each layer. Importing this imports no torch.

The TMFT paper takes the best dev score. Dev sets flatter shallow layers (which score pairs by the words that they
share), so other rules lean towards depth, or towards small models; on models that they were not fitted on, no rule
loses fewer test points than the paper's with an interval that excludes zero (`benchmarks/pick`).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from truncate_kit.core.errors import UsageError
from truncate_kit.core.results import Result
from truncate_kit.core.settings import (
    LAYERS,
    Bounds,
    as_text,
    check_seeds,
    check_settings,
    numbers_named,
    seeds_setting,
    setting,
)
from truncate_kit.core.wording import in_points

STRATEGIES = ("rankings", "guided", "exhaustive", "multi-exit", "probe", "cka", "last", "random")
DEFAULT_RULE = "best-dev"
# Points at the last layer, less in proportion above it, for layers that are not trained out: deep layers are behind
# until then. `depth-bonus` adds as much; without it `rankings` loses far more (benchmarks/pick).
UNFINISHED_BONUS = 4.0


@dataclass(frozen=True, slots=True)
class Picker:
    """A pick rule, and all that its choice depends on beside the scores."""

    name: str  # as settings and options name it
    words: str  # of the rule; `{within}` is replaced by the points
    within: float = 0.0  # points that the rule allows or adds
    choose: Callable[[Iterable[int]], int] | None = None  # among layers within the points; None takes the best layer
    bonus: bool = False  # add `within` points × layer / depth to each score
    before_drop: bool = False  # `choose` only among layers before the predicted drop
    drop_from: int | None = None  # first layer of a predicted drop
    depth: int | None = None  # layer that gets the whole bonus, None for the deepest scored one
    ahead: float = 0.0  # further points of that layer

    def unfinished(self) -> "Picker":
        """Return the same rule for scores of layers that are not trained out; other rules allow for it already."""
        return self if self.bonus or self.choose else replace(self, ahead=UNFINISHED_BONUS)

    def pick(self, dev: Mapping[int, float]) -> int:
        """Return the layer that the rule takes from dev scores in points by layer; the smaller one on a tie."""
        scores, bound, allowed = self._compared(dev)
        close = [layer for layer in allowed if scores[layer] >= bound]
        return self.choose(close) if self.choose and close else next(iter(scores))

    def contenders(self, dev: Mapping[int, float], keep: int) -> list[int]:
        """Return the `keep` layers that are most likely to decide the pick once they are trained longer, sorted."""
        scores, bound, allowed = self._compared(dev)
        order = list(scores)
        if self.choose:
            nearest = sorted(allowed, key=lambda layer: abs(scores[layer] - bound))
            # Always the best one, because a tolerance depends on it; then layers nearest to the deciding bound.
            order = list(dict.fromkeys([order[0], self.pick(dev), *nearest]))
        return sorted(order[:keep])

    def __str__(self) -> str:
        """Describe the rule for the user."""
        bounded = self.before_drop and self.drop_from is not None
        before = f" and before the predicted drop (layer {self.drop_from})" if bounded else ""
        return self.words.format(within=in_points(self.within)) + before

    def _compared(self, dev: Mapping[int, float]) -> tuple[dict[int, float], float, list[int]]:
        """Return compared scores, the best first; the bound of the tolerance; layers `choose` may take, rising."""
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
    # Fitted on 30 sweeps, and worse than best-dev on those that came later: benchmarks/pick.
    Picker("depth-bonus", "the best dev score with a bonus for depth, {within} at the last layer", 4.0, bonus=True),
)
PICK_RULES: dict[str, Picker] = {row.name: row for row in _RULES}
_WITHIN = ", ".join(f"{row.within:g} for {row.name}" for row in _RULES if row.within)


def picker(
    rule: str = DEFAULT_RULE, within: float | None = None, drop_from: int | None = None, depth: int | None = None
) -> Picker:
    """Return the rule of that name, by default with its own points."""
    row = PICK_RULES[rule]
    return replace(row, within=row.within if within is None else within, drop_from=drop_from, depth=depth)


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepSettings(Result):
    """Layers to search and how to choose one.

    Attributes:
        layers: `auto`, `all`, layer numbers as text ("3,6,9", "2..5"), one number, or several; kept as text.
        strategy: Behind `auto`, one of `STRATEGIES`; by default `rankings`, which was most often within 0.3 points of
            an exhaustive search (benchmarks/pick).
        pick: A row of `PICK_RULES`.
        within: Points of the pick rule.
        seeds: Of the full trials.

    Raises:
        UsageError: A value is out of bounds, or does not fit another.
    """

    layers: str = "auto"
    strategy: str | None = setting(None, f"Behind auto: {', '.join(STRATEGIES)}.", LAYERS, choices=STRATEGIES, kind=str)
    pick: str = setting(DEFAULT_RULE, f"Among trained layers: {', '.join(PICK_RULES)}.", LAYERS, choices=PICK_RULES)
    within: float | None = setting(
        None, f"Points of --pick: {_WITHIN}.", LAYERS, bounds=Bounds(0, 100, whole=False), kind=float
    )
    seeds: tuple[int, ...] = seeds_setting((0, 1, 2), "Number of seeds, from 0; the TMFT paper has 5.")

    def __post_init__(self) -> None:
        object.__setattr__(self, "layers", as_text(self.layers))
        check_settings(self)
        check_seeds(self.seeds)
        if self.within is not None and not PICK_RULES[self.pick].within:
            hint = f"Leave it out; the defaults are {_WITHIN}."
            raise UsageError(f"The `pick` rule {self.pick} has no `within`.", hint=hint)


def parse_layers(text: str, held: Sequence[int], depth: int) -> tuple[int, ...]:
    """Read layers named as "3", "3,6,9", "2..5", or "all". Raises `UsageError` and the errors of single layers."""
    if text == "all":
        return tuple(held)
    try:
        return tuple(dict.fromkeys(numbers_named(text)))
    except ValueError as error:
        hint = f"Use a number, 3,6,9, 2..5, all or auto; this model has 0..{depth}."
        raise UsageError(f"{text!r} names no layers.", hint=hint) from error
