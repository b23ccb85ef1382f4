"""Settings of a sweep, and its pick rules over dev scores. Importing this imports no torch.

Dev sets flatter shallow layers, so some rules lean towards depth. On models that they were not fitted on, no rule is
significantly better than the paper's, the best dev score (`benchmarks/pick`).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from truncate_kit.core.errors import UsageError, in_points
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

STRATEGIES = ("rankings", "guided", "exhaustive", "multi-exit", "probe", "cka", "last", "random")
DEFAULT_RULE = "best-dev"
# Points at the last layer, as deep layers are behind until trained out; without it `rankings` loses far more
# (benchmarks/pick).
UNFINISHED_BONUS = 4.0


@dataclass(frozen=True, slots=True)
class Picker:
    """A pick rule with its parameters."""

    name: str
    words: str  # with `{within}` for the points
    within: float = 0.0  # points
    choose: Callable[[Iterable[int]], int] | None = None  # among layers within the points; by default the best
    bonus: bool = False  # add `within` × layer / depth to each score
    before_drop: bool = False  # `choose` only before the predicted drop
    drop_from: int | None = None  # first layer of a predicted drop
    depth: int | None = None  # gets the whole bonus; by default the deepest scored layer
    ahead: float = 0.0  # further points of that layer

    def unfinished(self) -> "Picker":
        """Return the rule for scores of layers that are not trained out."""
        return self if self.bonus or self.choose else replace(self, ahead=UNFINISHED_BONUS)

    def pick(self, dev: Mapping[int, float]) -> int:
        """Return the chosen layer given dev scores in points; the smaller one on a tie."""
        scores, bound, allowed = self._compared(dev)
        close = [layer for layer in allowed if scores[layer] >= bound]
        return self.choose(close) if self.choose and close else next(iter(scores))

    def contenders(self, dev: Mapping[int, float], keep: int) -> list[int]:
        """Return, sorted, the `keep` layers most likely to decide the pick."""
        scores, bound, allowed = self._compared(dev)
        order = list(scores)
        if self.choose:
            nearest = sorted(allowed, key=lambda layer: abs(scores[layer] - bound))
            # The best one sets the tolerance; the others are nearest to the deciding bound.
            order = list(dict.fromkeys([order[0], self.pick(dev), *nearest]))
        return sorted(order[:keep])

    def __str__(self) -> str:
        """Describe the rule for the user."""
        bounded = self.before_drop and self.drop_from is not None
        before = f" and before the predicted drop (layer {self.drop_from})" if bounded else ""
        return self.words.format(within=in_points(self.within)) + before

    def _compared(self, dev: Mapping[int, float]) -> tuple[dict[int, float], float, list[int]]:
        """Return scores with bonus, best first; the tolerance bound; layers for `choose`."""
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
    # Worse than best-dev on sweeps that it was not fitted on: benchmarks/pick.
    Picker("depth-bonus", "the best dev score with a bonus for depth, {within} at the last layer", 4.0, bonus=True),
)
PICK_RULES: dict[str, Picker] = {row.name: row for row in _RULES}
_WITHIN = ", ".join(f"{row.within:g} for {row.name}" for row in _RULES if row.within)


def picker(
    rule: str = DEFAULT_RULE, within: float | None = None, drop_from: int | None = None, depth: int | None = None
) -> Picker:
    """Return a pick rule, by default with its own points."""
    row = PICK_RULES[rule]
    return replace(row, within=row.within if within is None else within, drop_from=drop_from, depth=depth)


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepSettings(Result):
    """Layers to search and how to choose one.

    `layers` is `auto`, `all`, or numbers ("3,6,9", "2..5"). The default strategy, `rankings`, was most often within 0.3
    points of an exhaustive search (benchmarks/pick).
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
    """Read layers named as "3", "3,6,9", "2..5", or "all". Raises `UsageError` or the error of a layer."""
    if text == "all":
        return tuple(held)
    try:
        return tuple(dict.fromkeys(numbers_named(text)))
    except ValueError as error:
        hint = f"Use a number, 3,6,9, 2..5, all or auto; this model has 0..{depth}."
        raise UsageError(f"{text!r} names no layers.", hint=hint) from error
