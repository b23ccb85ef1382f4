"""Define fields of settings with default, bounds or choices, and option on the command line."""

import dataclasses
import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

from truncate_kit.core.errors import UsageError

DATA, LAYERS, TRAINING, MACHINE, RESULTS = "Data", "Layers", "Training", "Machine", "Results"
"""Panels under which `--help` lists the options."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """A range from `least` to `most`; `above` and `below` exclude the ends; `whole`: no fractions."""

    least: float
    most: float
    whole: bool = True
    above: bool = False
    below: bool = False

    def holds(self, value: Any) -> bool:
        """Tell if `value` is a number of the right kind within the bounds."""
        number: Any = value
        if isinstance(value, bool) or not isinstance(value, Integral if self.whole else Real):
            return False
        is_end = (self.above and number == self.least) or (self.below and number == self.most)
        return bool(self.least <= number <= self.most) and not is_end

    def __str__(self) -> str:
        first = f"{'above' if self.above else 'from'} {self.least:,}"
        last = (
            ""
            if math.isinf(self.most)
            else f" {'and below' if self.below else 'up to' if self.above else 'to'} {self.most:,}"
        )
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
    """Define a field of a settings class, which `check_settings` checks and the command line turns into an option.

    Args:
        value: The default.
        help: Help of the option; a field without help has no option.
        panel: Panel of the help.
        bounds: Bounds of the number, or of each number of a tuple.
        choices: Names that the value, or each of a tuple, can have.
        option: Differences of the option from its field: `name`, `kind` (typed type, by default that of the default),
            `parse` (typed to value), `default` (as typed), and arguments of `typer.Option`.
    """
    metadata = {"help": help, "panel": panel, "bounds": bounds, "choices": choices, "option": option}
    return dataclasses.field(default=value, metadata=metadata)


def seeds_setting(default: tuple[int, ...], help: str) -> Any:
    """Define the field of the seeds; the command line takes their number."""
    option: dict[str, Any] = {"kind": int, "parse": first_seeds, "default": len(default)}
    return setting(default, help, TRAINING, bounds=SEED, **option)


def check_settings(settings: Any) -> None:
    """Check each field that is set, and store numbers as Python's own, lists as tuples.

    Raises `UsageError` for a value out of its bounds, an unknown name, or an empty list.
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
    """Return the number of the parameter `name` as Python's own. Raises `UsageError` out of its bounds."""
    if value is None:
        return None
    if not allowed.holds(value):
        raise UsageError(f"`{name}` {shown(value)} is out of range.", hint=f"Use {allowed}.")
    return int(value) if isinstance(value, Integral) else float(value)


def check_seeds(seeds: Collection[int]) -> None:
    """Raise `UsageError` for too many seeds, or one that is named twice."""
    check_number("seeds", len(seeds), SEEDS)
    if len(set(seeds)) < len(seeds):
        raise UsageError(f"`seeds` {shown(seeds)} name one twice.", hint="Name each once: it gives the same trial.")


def first_seeds(count: int) -> tuple[int, ...]:
    """Return `count` seeds from 0 on. Raises `UsageError`."""
    return tuple(range(check_number("seeds", count, SEEDS)))


def whole_numbers(text: str) -> tuple[int, ...]:
    """Return the whole numbers between commas. Raises ValueError."""
    return tuple(int(part) for part in text.split(","))


def numbers(text: str) -> tuple[float, ...]:
    """Return the numbers between commas. Raises ValueError."""
    return tuple(float(part) for part in text.split(","))


def names(text: str) -> tuple[str, ...]:
    """Return the names between commas."""
    return tuple(part.strip() for part in text.split(","))


def listed_texts(texts: Iterable[str]) -> list[str]:
    """Return texts as a list. Raises `UsageError` for a single text, and for one that is no str."""
    several = [] if isinstance(texts, str) else list(texts)
    if isinstance(texts, str) or not all(isinstance(text, str) for text in several):
        raise UsageError("A list of texts is needed.", hint="Give each text as a str; leave out what is missing.")
    return several


def shown(value: Any) -> str:
    """Return a value for a message: as Python writes it, cut if it is long."""
    text = repr(value)
    return text if len(text) <= 24 else f"{text[:24]}…"


# Layers and blocks


def numbers_named(text: str) -> list[int]:
    """Return the numbers of "3", "3,6,9", "2..5" or "1..3,6". Raises `ValueError` for any other text."""
    numbers: list[int] = []
    for part in text.split(","):
        first, dots, last = part.partition("..")
        run = range(int(first), int(last if dots else first) + 1)
        if not 0 < len(run) <= 10_000:  # no model is as deep
            raise ValueError(f"{part!r} is no range")
        numbers += run
    return numbers


def as_text(named: object) -> str:
    """Write a number or several of them as text that `numbers_named` reads; text stays as it is."""
    several = named if isinstance(named, Iterable) and not isinstance(named, str) else [named]
    return ",".join(map(str, several))


def blocks_named(text: str) -> tuple[int, ...]:
    """Return the blocks of a text such as "1,4,6" or "1..3,6". Raises `UsageError` for any other text."""
    try:
        return tuple(numbers_named(text))
    except ValueError as error:
        raise UsageError(f"{text!r} names no blocks.", hint="Write `blocks` as 1,4,6 or as 1..3,6.") from error
