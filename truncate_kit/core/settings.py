"""Define settings fields: default, bounds or choices, and command-line option."""

import dataclasses
import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

from truncate_kit.core.errors import UsageError, known_name

DATA, LAYERS, TRAINING, MACHINE, RESULTS = "Data", "Layers", "Training", "Machine", "Results"


@dataclass(frozen=True, slots=True)
class Bounds:
    """A range; `above` and `below` exclude the ends."""

    least: float
    most: float
    whole: bool = True
    above: bool = False
    below: bool = False

    def holds(self, value: Any) -> bool:
        """Tell if `value` is a number within the bounds."""
        number: Any = value
        if isinstance(value, bool) or not isinstance(value, Integral if self.whole else Real):
            return False
        is_end = (self.above and number == self.least) or (self.below and number == self.most)
        return bool(self.least <= number <= self.most) and not is_end

    def __str__(self) -> str:
        first = f"{'above' if self.above else 'from'} {self.least:,}"
        to = "and below" if self.below else "up to" if self.above else "to"
        last = "" if math.isinf(self.most) else f" {to} {self.most:,}"
        return f"a{' whole' if self.whole else ''} number {first}{last}"


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
    """Define a field of a settings class, checked by `check_settings`.

    Args:
        value: The default.
        help: Option help; an empty text defines no option.
        panel: Help panel.
        bounds: Bounds of the number, or of each number in a tuple.
        choices: Allowed names.
        option: Differences of the option: `name`, `kind` (input type), `parse` (input to value), `default` (as input),
            arguments of `typer.Option`.
    """
    metadata = {"help": help, "panel": panel, "bounds": bounds, "choices": choices, "option": option}
    return dataclasses.field(default=value, metadata=metadata)


def seeds_setting(default: tuple[int, ...], help: str) -> Any:
    """Define the seeds field; its option takes the number of seeds."""
    option: dict[str, Any] = {"kind": int, "parse": first_seeds, "default": len(default)}
    return setting(default, help, TRAINING, bounds=SEED, **option)


def check_settings(settings: Any) -> None:
    """Check each field and normalise numbers and tuples. Raises `UsageError`."""
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
            known_name(f"`{field.name}`", one, choices)
        object.__setattr__(settings, field.name, several if is_list else several[0])


def check_number(name: str, value: Any, allowed: Bounds) -> Any:
    """Return the checked value as int or float. Raises `UsageError`."""
    if value is None:
        return None
    if not allowed.holds(value):
        raise UsageError(f"`{name}` {shown(value)} is out of range.", hint=f"Use {allowed}.")
    return int(value) if isinstance(value, Integral) else float(value)


def check_seeds(seeds: Collection[int]) -> None:
    """Raise `UsageError` for too many or repeated seeds."""
    check_number("seeds", len(seeds), SEEDS)
    if len(set(seeds)) < len(seeds):
        raise UsageError(f"`seeds` {shown(seeds)} repeat a seed.", hint="Give each seed once.")


def first_seeds(count: int) -> tuple[int, ...]:
    """Return the seeds 0 … count − 1. Raises `UsageError`."""
    return tuple(range(check_number("seeds", count, SEEDS)))


def whole_numbers(text: str) -> tuple[int, ...]:
    """Parse comma-separated integers."""
    return tuple(int(part) for part in text.split(","))


def numbers(text: str) -> tuple[float, ...]:
    """Parse comma-separated numbers."""
    return tuple(float(part) for part in text.split(","))


def names(text: str) -> tuple[str, ...]:
    """Parse comma-separated names."""
    return tuple(part.strip() for part in text.split(","))


def listed_texts(texts: Iterable[str]) -> list[str]:
    """Return texts as a list. Raises `UsageError`."""
    several = [] if isinstance(texts, str) else list(texts)
    if isinstance(texts, str) or not all(isinstance(text, str) for text in several):
        raise UsageError("Texts must be a list of str.", hint="Give each text as a str; leave out missing texts.")
    return several


def shown(value: Any) -> str:
    """Shorten a value for a message."""
    text = repr(value)
    return text if len(text) <= 24 else f"{text[:24]}…"


# Layers and blocks


def numbers_named(text: str) -> list[int]:
    """Parse "3", "3,6,9", "2..5" or "1..3,6". Raises ValueError."""
    numbers: list[int] = []
    for part in text.split(","):
        first, dots, last = part.partition("..")
        run = range(int(first), int(last if dots else first) + 1)
        if not 0 < len(run) <= 10_000:  # deeper than any model
            raise ValueError(f"{part!r} is not a valid range")
        numbers += run
    return numbers


def as_text(named: object) -> str:
    """Write numbers as text for `numbers_named`; text stays unchanged."""
    several = named if isinstance(named, Iterable) and not isinstance(named, str) else [named]
    return ",".join(map(str, several))


def blocks_named(text: str) -> tuple[int, ...]:
    """Parse blocks such as "1..3,6". Raises `UsageError`."""
    try:
        return tuple(numbers_named(text))
    except ValueError as error:
        raise UsageError(f"{text!r} is not a list of blocks.", hint="Write `blocks` as 1,4,6 or as 1..3,6.") from error
