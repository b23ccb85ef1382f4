"""Which layer to take, given a dev score for each.

The TMFT paper takes the best dev score; dev sets flatter shallow layers (their words overlap with train), so by
default the deepest layer close to the best is taken, as long as it lies before the predicted drop.
"""

from collections.abc import Mapping
from typing import Literal, get_args

from truncate_kit.errors import UsageError

PickRule = Literal["best-dev", "robust", "small"]
PICK_RULES: tuple[str, ...] = get_args(PickRule)


def check_rule(rule: str, within: float) -> None:
    """Raise `UsageError` unless `rule` is one of `PICK_RULES` and `within` is a number of points from 0 to 100."""
    if rule not in PICK_RULES:
        raise UsageError(f"There is no pick rule {rule!r}.", hint=f"Use one of: {', '.join(PICK_RULES)}.")
    if not 0 <= within <= 100:
        raise UsageError(f"--within is {within}.", hint="It is a number of points from 0 to 100, such as 2.5.")


def pick(dev: Mapping[int, float], rule: str, within: float, drop_from: int | None = None) -> int:
    """The layer that `rule` takes.

    dev: mean dev score in points by layer. best-dev: the highest score, the smaller layer on a tie. robust: the deepest
    layer within `within` points of it, before `drop_from` where one is predicted. small: the smallest within `within`.
    """
    best = max(dev, key=lambda layer: (dev[layer], -layer))
    close = [layer for layer in dev if dev[layer] >= dev[best] - within]
    if rule == "best-dev":
        return best
    if rule == "small":
        return min(close)
    before = [layer for layer in close if drop_from is None or layer < drop_from]
    return max(before, default=best)


def describe(rule: str, within: float, drop_from: int | None) -> str:
    """The rule in words, for the user."""
    if rule == "best-dev":
        return "the layer with the best dev score"
    if rule == "small":
        return f"the smallest layer within {within:g} points of the best dev score"
    before = f" and before the predicted drop (layer {drop_from})" if drop_from is not None else ""
    return f"the deepest layer within {within:g} points of the best dev score{before}"


def contenders(dev: Mapping[int, float], rule: str, within: float, drop_from: int | None, keep: int) -> list[int]:
    """The `keep` layers that are most likely to decide what `rule` picks once they are trained longer.

    Always the best one, because the tolerance hangs on it; then those with the smallest distance to the bound that
    decides, among the layers that the rule would prefer. Sorted by layer.
    """
    best = max(dev, key=lambda layer: (dev[layer], -layer))
    if rule == "best-dev":
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
