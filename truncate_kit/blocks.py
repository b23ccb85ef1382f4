"""Which blocks of a model are kept, as text; importing this imports no torch."""

from collections.abc import Iterable, Sequence

from truncate_kit.errors import UsageError
from truncate_kit.settings import check_whole, shown

_MOST = 10_000  # numbers of a range; no model is as deep


def numbers_named(text: str) -> list[int]:
    """The numbers of "3", "3,6,9", "2..5" or "1..3,6". Raises `ValueError` for what is none of these."""
    numbers: list[int] = []
    for part in text.split(","):
        first, dots, last = part.partition("..")
        found = range(int(first), int(last if dots else first) + 1)
        if not 0 < len(found) <= _MOST:
            raise ValueError(f"{part!r} is no range")
        numbers += found
    return numbers


def as_text(named: object) -> str:
    """A number, several of them, or text that says the same, as text: 3, [3, 6], range(2, 5) and "2..4" alike."""
    several = named if isinstance(named, Iterable) and not isinstance(named, str) else [named]
    return ",".join(map(str, several))


def blocks_named(text: str) -> tuple[int, ...]:
    """The blocks that a text names, such as "1,4,6" or "1..3,6"; `kept_config` says whether a model has them.

    Raises `UsageError` for what is no list of numbers.
    """
    try:
        return tuple(numbers_named(text))
    except ValueError as error:
        raise UsageError(f"{text!r} names no blocks.", hint="Write `blocks` as 1,4,6 or as 1..3,6.") from error


def listed_blocks(blocks: object) -> list[int]:
    """The numbers of several blocks. Raises `UsageError` for what is no list of whole numbers."""
    if isinstance(blocks, str) or not isinstance(blocks, Iterable):
        raise UsageError(f"`blocks` {shown(blocks)} is no list of numbers.", hint="Give a list, such as [1, 4, 6].")
    return [check_whole("blocks", block) for block in blocks]


def blocks_in_words(blocks: Sequence[int], depth: int | None = None) -> str:
    """Such as `blocks 1, 4, 6`, or `blocks 1, 4, 6 of 6` where a depth is given."""
    of = "" if depth is None else f" of {depth}"
    return f"block{'s' * (len(blocks) > 1)} {', '.join(map(str, blocks))}{of}"


def place_in_words(layer: int, blocks: Sequence[int] | None) -> str:
    """`layer 3`, or `blocks 1, 4, 6` for that layer of a model which has some blocks of another one only."""
    return blocks_in_words(blocks[:layer]) if blocks and layer else f"layer {layer}"
