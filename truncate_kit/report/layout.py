"""What a page is made of, before it is HTML."""

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from truncate_kit.cells import TableCells

TEXTS = ("what", "value")
"""The columns of a table of words."""
MEASURE = "measure"
"""The first column of models side by side; on a phone each measure stands above its row."""


@dataclass(frozen=True, slots=True)
class Chart:
    """An SVG and the line below it."""

    svg: Markup
    caption: str


@dataclass(frozen=True, slots=True)
class Snippet:
    """Lines to copy."""

    title: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A part of the page; `key` is its anchor."""

    key: str
    title: str
    sentences: Sequence[str] = ()
    charts: Sequence[Chart] = ()
    tables: Sequence[TableCells] = ()
    folded: Sequence[TableCells] = ()  # tables that are closed at first
    snippets: Sequence[Snippet] = ()
    missing: Sequence[tuple[str, str]] = ()  # what is not there, and the command that adds it


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What to do.

    Attributes:
        sentence: The recommendation.
        signs: In a word or two each, what it rests on: the name of a measure, and how sure it is.
        grounds: How sure it is, in sentences.
    """

    sentence: str
    signs: tuple[tuple[str, str], ...]
    grounds: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A whole page."""

    title: str
    subtitle: str
    verdicts: Sequence[tuple[str, Verdict]]  # each with what it is about, nothing where there is one only
    sections: Sequence[Section]
