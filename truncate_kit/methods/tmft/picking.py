"""Which layer to take, given a dev score for each: one row per rule. Importing this imports no torch.

The TMFT paper takes the best dev score. Dev sets flatter shallow layers (which score pairs by the words that they
share), so other rules lean towards depth, or towards small models; measured on models that they were not fitted on,
none of them loses fewer test points than the paper's with an interval that excludes zero (`benchmarks/pick`).
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from truncate_kit.errors import UsageError, known_name
from truncate_kit.wording import in_points


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
    """A pick rule with all that its choice depends on, other than the scores. Raises `UsageError`."""

    rule: str = DEFAULT_RULE
    within: float | None = None  # points from 0 to 100, None takes those of the rule
    drop_from: int | None = None  # first layer of a predicted drop, None where none is predicted
    depth: int | None = None  # layer that gets the whole bonus, None takes the deepest that has a score
    ahead: float = 0.0  # further points of that layer

    def __post_init__(self) -> None:
        known_name("pick rule", self.rule, PICK_RULES)
        if self.within is not None and not 0 <= self.within <= 100:
            raise UsageError(f"`within` is {self.within}.", hint="It is a number of points from 0 to 100, such as 2.5.")
        if self.within is not None and not self._row.within:
            usual = ", ".join(f"{row.within:g} for {row.name}" for row in _ROWS if row.within)
            raise UsageError(
                f"`within` says nothing to `pick` {self.rule}.", hint=f"Leave it out; the defaults are {usual}."
            )

    def unfinished(self) -> "Picker":
        """The same rule for scores of layers that have not been trained out."""
        leans = self._row.bonus or self._row.choose is not None  # such a rule has its own answer already
        return self if leans else replace(self, ahead=UNFINISHED_BONUS)

    def pick(self, dev: Mapping[int, float]) -> int:
        """The layer that the rule takes from mean dev scores in points by layer; the smaller one on a tie."""
        scores, bound, allowed = self._compared(dev)
        close = [layer for layer in allowed if scores[layer] >= bound]
        return self._row.choose(close) if self._row.choose and close else min(scores, key=_by_score(scores))

    def contenders(self, dev: Mapping[int, float], keep: int) -> list[int]:
        """The `keep` layers that are most likely to decide the pick once they are trained longer, sorted."""
        scores, bound, allowed = self._compared(dev)
        order = sorted(scores, key=_by_score(scores))
        if self._row.choose:
            nearest = sorted(allowed, key=lambda layer: abs(scores[layer] - bound))
            # Always the best one, because a tolerance depends on it; then those nearest to the bound that decides.
            order = list(dict.fromkeys([order[0], self.pick(dev), *nearest]))
        return sorted(order[:keep])

    def __str__(self) -> str:
        """What is taken, in words."""
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
        """The scores that are compared, the one that is close enough to the best, and the layers `choose` may take."""
        bonus = self.ahead + (self._points if self._row.bonus else 0.0)
        if bonus:
            deepest = max(1, max(dev) if self.depth is None else self.depth)
            dev = {layer: score + bonus * layer / deepest for layer, score in dev.items()}
        drop = self.drop_from if self._row.before_drop else None
        return dev, max(dev.values()) - self._points, [layer for layer in dev if drop is None or layer < drop]


def _by_score(scores: Mapping[int, float]) -> Callable[[int], tuple[float, int]]:
    """Sorts layers by score, the highest first, the smaller layer on a tie."""
    return lambda layer: (-scores[layer], layer)
