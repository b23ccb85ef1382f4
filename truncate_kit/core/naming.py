"""Names that users give and read: bundled models, blocks and layers. Importing this imports no torch."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from truncate_kit.core.errors import UsageError

DEFAULT_MINIATURE = "mini-electra-discriminator"
DEFAULT_REFERENCE = "mini-bert"

_FOLDER = Path(__file__).parents[1] / "models/miniatures"
_MOST = 10_000  # numbers of a range; no model is as deep


def miniature_names() -> tuple[str, ...]:
    """Return the names of the encoders that come with the package, so that every command works without a download."""
    return tuple(sorted(path.parent.name for path in _FOLDER.glob("*/config.json")))


def miniature_path(name: str) -> Path | None:
    """Return the folder of the bundled encoder `name`, None if there is none."""
    return _FOLDER / name if name in miniature_names() else None


def default_reference(name: str) -> str | None:
    """Return the bundled encoder to compare another bundled one with; None for the reference itself and all others."""
    return DEFAULT_REFERENCE if name in miniature_names() and name != DEFAULT_REFERENCE else None


def numbers_named(text: str) -> list[int]:
    """Return the numbers of "3", "3,6,9", "2..5" or "1..3,6". Raises `ValueError` for any other text."""
    numbers: list[int] = []
    for part in text.split(","):
        first, dots, last = part.partition("..")
        found = range(int(first), int(last if dots else first) + 1)
        if not 0 < len(found) <= _MOST:
            raise ValueError(f"{part!r} is no range")
        numbers += found
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


def blocks_in_words(blocks: Sequence[int], depth: int | None = None) -> str:
    """Write blocks as `blocks 1, 4, 6`, or with a depth as `blocks 1, 4, 6 of 6`."""
    of = "" if depth is None else f" of {depth}"
    return f"block{'s' * (len(blocks) > 1)} {', '.join(map(str, blocks))}{of}"


def place_in_words(layer: int, blocks: Sequence[int] | None) -> str:
    """Write a cut as `layer 3`, or as `blocks 1, 4, 6` for a model that has only some blocks of another one."""
    return blocks_in_words(blocks[:layer]) if blocks and layer else f"layer {layer}"
