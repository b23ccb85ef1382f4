"""Fields of settings: each owns its default, its bounds or choices, and its option on the command line."""

import dataclasses
import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

from truncate_kit.core.errors import UsageError

_SHOWN = 24  # characters of a value in a message
DATA, LAYERS, TRAINING, MACHINE, RESULTS = "Data", "Layers", "Training", "Machine", "Results"
"""Panels under which `--help` lists the options."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """From `least` to `most`, both allowed; `whole`: no fractions; `above`, `below`: `least`, or `most`, is not."""

    least: float
    most: float
    whole: bool = True
    above: bool = False
    below: bool = False

    def holds(self, value: Any) -> bool:
        """Check that `value` is a number of the right kind within the bounds; NaN and truth values are not."""
        number: Any = value
        if isinstance(value, bool) or not isinstance(value, Integral if self.whole else Real):
            return False
        is_end = (self.above and number == self.least) or (self.below and number == self.most)
        return bool(self.least <= number <= self.most) and not is_end

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
RATE = Bounds(0, 1, whole=False, above=True, below=True)
SEEDS = Bounds(1, 10_000)
SEED = Bounds(0, 2**31 - 1)
TEXTS = Bounds(1, 10**12)


def setting(
    value: Any,
    help: str = "",
    panel: str = "",
    /,
    *,
    bounds: Bounds | None = None,
    choices: Collection[str] = (),
    **option: Any,
) -> Any:
    """Make a field of a settings class, which `check_settings` checks and the command line turns into an option.

    Args:
        value: The default.
        help: Of the option; a field without it is none.
        panel: Of the help, where the option is listed.
        bounds: Of the number, or of each number of a tuple.
        choices: Names, one of which the value has to be, or each of a tuple.
        option: How the option differs from its field: `name`, `kind` (the type that is typed, by default that of the
            default), `parse` (from what is typed to the value), `default` (as typed) and what `typer.Option` takes.
    """
    metadata = {"help": help, "panel": panel, "bounds": bounds, "choices": choices, "option": option}
    return dataclasses.field(default=value, metadata=metadata)


def seeds_setting(default: tuple[int, ...], help: str) -> Any:
    """Make the field of the seeds; the command line takes their number."""
    option: dict[str, Any] = {"kind": int, "parse": first_seeds, "default": len(default)}
    return setting(default, help, TRAINING, bounds=SEED, **option)


def check_settings(settings: Any) -> None:
    """Check each field by its bounds and choices, and store numbers as Python's own, lists as tuples.

    None is allowed.

    Raises:
        UsageError: A value is out of its bounds, is no known name, or a list is empty.
    """
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        bounds, choices = field.metadata.get("bounds"), field.metadata.get("choices", ())
        if value is None or not (bounds or choices):
            continue
        is_list = isinstance(value, Iterable) and not isinstance(value, str)
        several = tuple(value) if is_list else (value,)
        if not several:
            raise UsageError(f"`{field.name}` is empty.", hint=f"Give one or more `{field.name}`.")
        if bounds:
            several = tuple(check_number(field.name, one, bounds) for one in several)
        for one in several if choices else ():
            if one not in choices:
                raise UsageError(
                    f"`{field.name}` {shown(one)} is not known.", hint=f"Use one of: {', '.join(choices)}."
                )
        object.__setattr__(settings, field.name, several if is_list else several[0])


def check_number(name: str, value: Any, allowed: Bounds) -> Any:
    """Return the number that the parameter `name` has as Python's own; raise `UsageError` out of its bounds.

    None is allowed.
    """
    if value is None:
        return None
    if not allowed.holds(value):
        raise UsageError(f"`{name}` {shown(value)} {_wrong(value, allowed)}.", hint=f"Use {allowed}.")
    return int(value) if isinstance(value, Integral) else float(value)


def check_seeds(seeds: Collection[int]) -> None:
    """Raise `UsageError` for too many seeds, or one that is named twice."""
    check_number("seeds", len(seeds), SEEDS)
    if len(set(seeds)) < len(seeds):
        raise UsageError(f"`seeds` {shown(seeds)} name one twice.", hint="Name each once: it gives the same trial.")


def first_seeds(count: int) -> tuple[int, ...]:
    """Return 0, 1, … of the number asked for. Raises `UsageError` where that is no number of seeds."""
    return tuple(range(check_number("seeds", count, SEEDS)))


def whole_numbers(text: str) -> tuple[int, ...]:
    """Return the whole numbers between commas. Raises ValueError."""
    return tuple(int(part) for part in text.split(","))


def numbers(text: str) -> tuple[float, ...]:
    """Return the numbers between commas. Raises ValueError."""
    return tuple(float(part) for part in text.split(","))


def names(text: str) -> tuple[str, ...]:
    """Return what stands between commas."""
    return tuple(part.strip() for part in text.split(","))


def listed_texts(texts: Iterable[str]) -> list[str]:
    """Return texts as a list. Raises `UsageError` for a single text, and for one that is no str."""
    if isinstance(texts, str):
        raise UsageError("Several texts are needed, not one.", hint="Give a list of texts.")
    found = list(texts)
    for number, text in enumerate(found, start=1):
        if not isinstance(text, str):
            raise UsageError(
                f"Text {number:,} of {len(found):,} is of the type {type(text).__name__}, not str.",
                hint="Give each text as a str; leave out what is missing.",
            )
    return found


def shown(value: Any) -> str:
    """Return a value for a message: as Python writes it, cut where it is long."""
    try:
        text = repr(value)
    except ValueError:  # a whole number of more digits than Python writes out
        return "of thousands of digits"
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def _wrong(value: Any, allowed: Bounds) -> str:
    if isinstance(value, bool) or not isinstance(value, Real) or value != value:  # NaN, too
        return "is no number"
    if not value <= allowed.most or (allowed.below and value == allowed.most):
        return "is too large"
    return "is too small" if value <= allowed.least else "is no whole number"
