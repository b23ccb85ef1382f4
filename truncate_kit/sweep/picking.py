"""Which layer to take, given a dev score for each.

The TMFT paper takes the best dev score; dev sets flatter shallow layers (their words overlap with train), so the other
rules lean towards depth, or towards small models. `benchmarks/pick` judges them.
"""

from collections.abc import Mapping
from typing import Literal, get_args

from truncate_kit.errors import UsageError

PickRule = Literal["best-dev", "robust", "small", "depth-bonus"]
PICK_RULES: tuple[str, ...] = get_args(PickRule)
DEFAULT_RULE: PickRule = "depth-bonus"  # the winner of `benchmarks/pick`
POINTS = {"best-dev": 0.0, "robust": 2.5, "small": 2.5, "depth-bonus": 4.0}
"""What `within` is where it is not told. 4.0 is fitted on the TMFT paper's models and ours (`benchmarks/pick`)."""


def check_rule(rule: str, within: float | None) -> None:
    """Raise `UsageError` unless `rule` is one of `PICK_RULES` and `within` is None or 0 to 100 points."""
    if rule not in PICK_RULES:
        raise UsageError(f"There is no pick rule {rule!r}.", hint=f"Use one of: {', '.join(PICK_RULES)}.")
    if within is not None and not 0 <= within <= 100:
        raise UsageError(f"--within is {within}.", hint="It is a number of points from 0 to 100, such as 2.5.")


def pick(
    dev: Mapping[int, float],
    rule: str,
    within: float | None = None,
    drop_from: int | None = None,
    depth: int | None = None,
) -> int:
    """The layer that `rule` takes.

    dev: mean dev score in points by layer. best-dev: the highest score, the smaller layer on a tie. robust: the deepest
    layer within `within` points of it, before `drop_from` where one is predicted. small: the smallest within `within`.
    depth-bonus: the highest score after each layer has got `within` points × layer / `depth`. within: None takes
    `POINTS`. depth: None takes the deepest layer of `dev`.
    """
    within = POINTS[rule] if within is None else within
    if rule == "depth-bonus":
        dev = _with_bonus(dev, within, depth)
    best = max(dev, key=lambda layer: (dev[layer], -layer))
    if rule in ("best-dev", "depth-bonus"):
        return best
    close = [layer for layer in dev if dev[layer] >= dev[best] - within]
    if rule == "small":
        return min(close)
    before = [layer for layer in close if drop_from is None or layer < drop_from]
    return max(before, default=best)


def _with_bonus(dev: Mapping[int, float], points: float, depth: int | None) -> dict[int, float]:
    deepest = max(1, max(dev) if depth is None else depth)
    return {layer: score + points * layer / deepest for layer, score in dev.items()}


def describe(rule: str, within: float | None, drop_from: int | None) -> str:
    """The rule in words, for the user."""
    within = POINTS[rule] if within is None else within
    if rule == "best-dev":
        return "the layer with the best dev score"
    if rule == "small":
        return f"the smallest layer within {within:g} points of the best dev score"
    if rule == "depth-bonus":
        return f"the best dev score with a bonus for depth, {within:g} points at the last layer"
    before = f" and before the predicted drop (layer {drop_from})" if drop_from is not None else ""
    return f"the deepest layer within {within:g} points of the best dev score{before}"


def contenders(
    dev: Mapping[int, float],
    rule: str,
    within: float | None,
    drop_from: int | None,
    keep: int,
    depth: int | None = None,
) -> list[int]:
    """The `keep` layers that are most likely to decide what `rule` picks once they are trained longer.

    Always the best one, because a tolerance hangs on it; then those with the smallest distance to the bound that
    decides, among the layers that the rule would prefer. Sorted by layer.
    """
    within = POINTS[rule] if within is None else within
    if rule == "depth-bonus":
        dev = _with_bonus(dev, within, depth)
    best = max(dev, key=lambda layer: (dev[layer], -layer))
    if rule in ("best-dev", "depth-bonus"):
        order = sorted(dev, key=lambda layer: (-dev[layer], layer))
    else:
        now = pick(dev, rule, within, drop_from)
        bound = dev[best] - within
        allowed = [layer for layer in dev if rule == "small" or drop_from is None or layer < drop_from]
        rest = sorted(
            (layer for layer in allowed if layer not in (best, now)), key=lambda layer: abs(dev[layer] - bound)
        )
        order = list(dict.fromkeys([best, now, *rest]))
    return sorted(order[:keep])
