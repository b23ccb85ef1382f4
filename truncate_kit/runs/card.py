"""The model card of every saved model: one writer, to which each method hands its facts."""

import json
from collections.abc import Sequence
from dataclasses import dataclass

from truncate_kit import __version__
from truncate_kit.encoders import Encoder
from truncate_kit.encoders.pooler_files import loading_words

_HEADS = (
    "Vectors are the codes of all blocks side by side; `load_encoder(path).similarities(u, v)` is the trained score.\n"
    "sentence-transformers has no such module and cannot load this folder."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreTable:
    """Scores of a model card."""

    caption: str  # what the scores are
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]  # one cell per column
    marked: int | None = None  # place of the row that is the saved model's, None where no single one is


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCard:
    """What a model card says, as plain text: the writer escapes names from outside."""

    base_model: str  # the model that it was made from
    title: str
    summary: str  # first paragraph
    facts: Sequence[tuple[str, str]] = ()
    scores: ScoreTable | None = None
    notes: Sequence[str] = ()  # paragraphs below the scores
    tags: Sequence[str] = ()  # for the hub, beside those that every sentence encoder has

    def text(self, encoder: Encoder) -> str:
        """Markdown with the front matter that the hub and sentence-transformers read. encoder: as it is saved."""
        parts = [_front_matter(self, encoder), f"# {_line(self.title)}", _line(self.summary)]
        if self.facts:
            parts.append(_table(("", ""), self.facts))
        if self.scores is not None:
            parts += [_line(self.scores.caption), _table(self.scores.columns, self.scores.rows, self.scores.marked)]
        parts += [_line(note) for note in self.notes]
        parts.append(loading_words(encoder.pooler) if encoder.heads is None else _HEADS)
        return "\n\n".join([*parts, f"Made by truncate-kit {__version__}."]) + "\n"


def _front_matter(card: ModelCard, encoder: Encoder) -> str:
    # A folder with heads is read by this package alone.
    library = "sentence-transformers" if encoder.heads is None else "truncate-kit"
    tags = ["sentence-transformers", "feature-extraction"] if encoder.heads is None else []
    return "\n".join(
        (
            "---",
            f"library_name: {library}",
            "pipeline_tag: sentence-similarity",
            f"base_model: {json.dumps(card.base_model)}",
            "tags:",
            *(f"- {tag}" for tag in (*tags, "sentence-similarity", *card.tags)),
            "---",
        )
    )


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]], marked: int | None = None) -> str:
    lines = [f"| {' | '.join(columns)} |" if any(columns) else "|" + " |" * len(columns), "|" + "---|" * len(columns)]
    for place, row in enumerate(rows):
        cells = [_line(cell) for cell in row]
        if place == marked:
            cells[0] = f"**{cells[0]}**"
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _line(text: str) -> str:
    """Text on one line of Markdown, unable to open a cell, a link or HTML."""
    return "".join(f"\\{char}" if char in "|<>[]`*_\\" else char for char in " ".join(text.split()))
