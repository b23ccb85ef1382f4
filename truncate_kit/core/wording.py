"""Write numbers and foreign texts for readers."""

import re
from collections.abc import Iterable, Sequence

# Terminal controls except line feeds, other line ends, direction marks, surrogates.
_CONTROLS = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


NONE = "–"


def counted(number: int, one: str, many: str | None = None) -> str:
    """Write a number with its noun: "1 list", "2,758 texts"."""
    return f"{number:,} {one if number == 1 else many or f'{one}s'}"


def listed(numbers: Iterable[int]) -> str:
    """Join numbers by commas."""
    return ", ".join(map(str, numbers))


def blocks_in_words(blocks: Sequence[int], depth: int | None = None) -> str:
    """Write `blocks 1, 4, 6`, or with a depth `blocks 1, 4, 6 of 6`."""
    of = "" if depth is None else f" of {depth}"
    return f"block{'s' * (len(blocks) > 1)} {listed(blocks)}{of}"


def place_in_words(layer: int, blocks: Sequence[int] | None) -> str:
    """Write `layer 3`, or `blocks 1, 4, 6` for chosen blocks."""
    return blocks_in_words(blocks[:layer]) if blocks and layer else f"layer {layer}"


def layers_in_words(layers: Sequence[int]) -> str:
    """Write "layer 1" or "layers 1, 2"."""
    return f"layer{'' if len(layers) == 1 else 's'} {listed(layers)}"


LONGER = 1.25  # ratio of lengths that shows a note
FEWEST_COMPARED = 20
"""Fewest pairs for a bootstrap interval."""
FEWEST_COMPARED_QUERIES = 50
"""Fewest queries; two models answer most alike."""


def too_few(number: int | None, one: str, many: str) -> str | None:
    """Return a remark if `number` pairs or queries cannot tell two models apart."""
    if number is None or number >= (FEWEST_COMPARED_QUERIES if one == "query" else FEWEST_COMPARED):
        return None
    return f"{number:,} {many} are too few for an interval to say which is better"


def number(value: float | None, form: str = ".2f") -> str:
    """Write a number, or a dash."""
    return NONE if value is None else format(value, form)


def points(mean: float | None, deviation: float | None = None) -> str:
    """Write a score in points with its standard deviation, or a dash."""
    return number(mean) if mean is None or deviation is None else f"{mean:.2f} ± {deviation:.2f}"


def with_interval(value: float, ends: tuple[float, float] | None, form: str = ".1f") -> str:
    """Write a number with its interval: "97.0 [96.5, 97.5]"."""
    return format(value, form) + ("" if ends is None else f" [{ends[0]:.1f}, {ends[1]:.1f}]")


def in_points(number: float) -> str:
    """Write "1 point" or "2.5 points"."""
    return f"{number:g} point{'' if number == 1 else 's'}"


def harmless(text: str) -> str:
    """Escape the control characters of a text, such as "\\x1b"."""
    return _CONTROLS.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def in_markdown(text: str) -> str:
    """Escape text for one line of Markdown: no cell, link or HTML."""
    plain = harmless(" ".join(text.split()))
    return "".join(f"\\{char}" if char in "|<>[]`*_\\" else char for char in plain)


def harmless_json(text: str) -> str:
    """Escape the control characters of a JSON document."""
    return _CONTROLS.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def capitalized(text: str) -> str:
    """Capitalize the first letter only."""
    return text[:1].upper() + text[1:]


def lasting(seconds: float) -> str:
    """Write a duration in its two largest units, at least "1 s"."""
    if seconds < 59.5:
        return f"{max(1, round(seconds))} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    days, hours = divmod(hours, 24)
    units = [f"{number} {unit}" for number, unit in ((days, "d"), (hours, "h"), (minutes, "min")) if number]
    return " ".join(units[:2])


def longer_texts(name: str, long: int, learned: int) -> tuple[str, ...]:
    """Warn if texts are longer than the training texts; both 95th percentiles, in tokens."""
    if long <= LONGER * learned:
        return ()
    note = f"The texts of {name} are longer than the training texts: 95 of 100 have up to {long} tokens"
    return (f"{note}, and up to {learned} there. Train on texts as long as those to be served.",)
