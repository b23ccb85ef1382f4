"""The values that numbers of settings may have: the same for a command, a study and a call."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, TypeVar

from truncate_kit.errors import UsageError

Kind = TypeVar("Kind")
_SHOWN = 24  # characters of a number in a message


@dataclass(frozen=True, slots=True)
class Bounds:
    """From `least` to `most`, both allowed; `whole`: no fractions; `above`, `below`: `least`, or `most`, is not."""

    least: float
    most: float
    whole: bool = True
    above: bool = False
    below: bool = False

    def holds(self, value: Any) -> bool:
        """Whether `value` is a number of the right kind within the bounds; NaN, texts and truth values are not."""
        if not _is_number(value) or (self.whole and not isinstance(value, Integral)):
            return False
        is_end = (self.above and value == self.least) or (self.below and value == self.most)
        return bool(self.least <= value <= self.most) and not is_end

    def __str__(self) -> str:
        kind = "a whole number" if self.whole else "a number"
        first = f"{'above' if self.above else 'from'} {self.least:,}"
        if math.isinf(self.most):
            return f"{kind} {first}{'' if self.above else ' on'}"
        last = f"and below {self.most:,}" if self.below else f"to {self.most:,}"
        return f"{kind} {first}{', up' if self.above and not self.below else ''} {last}"


EPOCHS = Bounds(1, 100_000)
BATCH = Bounds(1, 1_000_000)
STEPS = Bounds(1, 10_000_000)
SHARE = Bounds(0, 1, whole=False)
WEIGHT = Bounds(0, 1_000_000, whole=False)
SEEDS = Bounds(1, 10_000)
SEED = Bounds(0, 2**31 - 1)
TEXTS = Bounds(1, 10**12)
_RATE = Bounds(0, 1, whole=False, above=True)


def check_numbers(settings: object, **bounds: Bounds) -> None:
    """Raise `UsageError` for the first of these attributes that is out of its bounds; None is allowed.

    Numbers of numpy are replaced by Python's own.
    """
    for name, allowed in bounds.items():
        object.__setattr__(settings, name, check_number(name, getattr(settings, name), allowed))


def check_number(name: str, value: Any, allowed: Bounds) -> Any:
    """The number that the parameter `name` has, as Python's own; raises `UsageError` for one out of its bounds.

    None is allowed.
    """
    if value is None:
        return None
    if not allowed.holds(value):
        raise UsageError(f"`{name}` {shown(value)} {_wrong(value, allowed)}.", hint=f"Use {allowed}.")
    return _plain(value)


def check_whole(name: str, value: Any) -> int:
    """The whole number that the parameter `name` has, numpy's as well; raises `UsageError` for anything else."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise UsageError(f"`{name}` {shown(value)} is no whole number.", hint="Give a whole number, such as 3.")
    return int(value)


def given_or(kind: type[Kind], value: Any, name: str = "settings") -> Kind:
    """The settings that a parameter has, for None the defaults of `kind`; raises `UsageError` for another kind."""
    if value is None:
        return kind()
    if not isinstance(value, kind):
        raise UsageError(f"`{name}` {shown(value)} is no {kind.__name__}.", hint=f"Give {kind.__name__}(), or None.")
    return value


def check_rate(rate: Any, usual: str) -> Any:
    """The `learning_rate` as Python's own number.

    Args:
        rate: The `learning_rate`; None is allowed.
        usual: What the hint gives as an example.

    Raises:
        UsageError: It is not between 0 and 1.
    """
    if rate is not None and (not _RATE.holds(rate) or rate == _RATE.most):
        hint = f"Use a number between 0 and 1, such as {usual}."
        raise UsageError(f"A `learning_rate` of {shown(rate)} teaches nothing.", hint=hint)
    return None if rate is None else _plain(rate)


def seeds_of(given: Iterable[int]) -> tuple[int, ...]:
    """The seeds, of whatever kind of list; raises `UsageError` for none, too many, one that is none, or one twice."""
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise UsageError(
            f"`seeds` {shown(given)} is no list of numbers.", hint="Give a list, such as (0, 1, 2) or (0,)."
        )
    seeds = tuple(int(seed) if isinstance(seed, Integral) and seed is not True else seed for seed in given)
    if not seeds:
        raise UsageError("No seeds were given.", hint="Give one or more `seeds`.")
    check_number("seeds", len(seeds), SEEDS)
    for seed in seeds:
        check_number("seeds", seed, SEED)
    if len(set(seeds)) < len(seeds):
        raise UsageError(f"`seeds` {shown(seeds)} name one twice.", hint="Name each once: it gives the same trial.")
    return seeds


def first_seeds(count: int) -> tuple[int, ...]:
    """0, 1, … of the number asked for; none for 0 or less. Raises `UsageError` where that is too large a number."""
    if count > SEEDS.most:
        check_number("seeds", count, SEEDS)
    return tuple(range(count))


def shown(value: Any) -> str:
    """A value in a message: as Python writes it, cut where it is long."""
    try:
        text = repr(value)
    except ValueError:  # a whole number of more digits than Python writes out
        return "of thousands of digits"
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def _is_number(value: Any) -> bool:
    """Whether this is a number, numpy's as well, and no truth value."""
    return isinstance(value, Real) and not isinstance(value, bool)


def _plain(number: Any) -> int | float:
    """A number as JSON can hold it."""
    return int(number) if isinstance(number, Integral) else float(number)


def _wrong(value: Any, allowed: Bounds) -> str:
    if not _is_number(value) or value != value:  # NaN, too
        return "is no number"
    if value > allowed.most:
        return "is too large"
    return "is too small" if value <= allowed.least else "is no whole number"
