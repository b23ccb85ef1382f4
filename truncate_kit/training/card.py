"""The model card of every saved model: one writer, to which each method hands its facts."""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult, ModelCardData
from huggingface_hub import ModelCard as HubCard

from truncate_kit import __version__
from truncate_kit.cells import markdown
from truncate_kit.files import is_there, read_text, replacing, write_text
from truncate_kit.miniatures import miniature_path
from truncate_kit.models import Encoder
from truncate_kit.models.pooler_files import LayerPooler, loading_words
from truncate_kit.training.usage import onnxruntime_lines, sentence_transformers_lines
from truncate_kit.wording import harmless

_USAGE = "## Usage"
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
class Evaluation:
    """A score for the hub's list. data: the set; metric: as the hub names it; value: as that metric is, not × 100."""

    data: str
    metric: str
    value: float


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
    evaluations: Sequence[Evaluation] = ()  # of the saved model on test pairs

    def shown(self, text: str) -> str:
        """A text with the folder of a local model as its name alone: a path says nothing to others."""
        name = Path(self.base_model)
        return text.replace(self.base_model, name.resolve().name) if name.is_dir() else text

    def text(self, encoder: Encoder) -> str:
        """Markdown with the front matter that the hub and sentence-transformers read.

        Args:
            encoder: As it is saved.
        """
        parts = [_front_matter(self, encoder), f"# {_line(self.shown(self.title))}", _line(self.summary)]
        parts.append(_table(("", ""), [*self.facts, *_reads_and_gives(encoder)]))
        if self.scores is not None:
            parts += [_line(self.scores.caption), _table(self.scores.columns, self.scores.rows, self.scores.marked)]
        parts += [_line(note) for note in self.notes]
        parts += [_USAGE, *(_usage(encoder) if encoder.heads is None else [_HEADS])]
        parts += ["## Limits", self._limits(encoder)]
        return "\n\n".join([*parts, f"Made by truncate-kit {__version__}."]) + "\n"

    def _limits(self, encoder: Encoder) -> str:
        scored = "The scores above are all that was measured" if self.scores is not None else "No score was measured"
        cut = f" Of a longer text the first {encoder.max_length:,} tokens are read."
        return f"{scored}: not other domains, languages or tasks. Measure on your own texts.{cut}"


def add_figure(folder: Path, figure: Path, caption: str) -> None:
    """Copy a figure of the run into the folder of a saved model, and show it on its card, above how to use it."""
    card = folder / "README.md"
    if not card.is_file():  # removed since the model was saved
        return
    with replacing(folder / figure.name) as place:
        shutil.copyfile(figure, place)
    text, shown = read_text(card), f"![{caption}]({figure.name})"
    if shown not in text:
        write_text(card, text.replace(_USAGE, f"{shown}\n\n{_USAGE}", 1))


def _reads_and_gives(encoder: Encoder) -> list[tuple[str, str]]:
    """What whoever serves the model asks first."""
    measure = encoder.settings.get("similarity_fn_name") or "cosine"
    compared = f"compared by {measure}" if encoder.heads is None else "compared by a score of their own"
    return [("Vectors", f"{encoder.vector_width} numbers, {compared}"), ("Reads", f"{encoder.max_length:,} tokens")]


def _usage(encoder: Encoder) -> list[str]:
    """Lines that load the folder; those of a graph where nothing has to be done to texts before they are read."""
    own = isinstance(encoder.pooler, LayerPooler)
    parts = [
        f"{loading_words(encoder.pooler)} FOLDER is where this file lies.",
        _code(sentence_transformers_lines("FOLDER", own_pooling=own)),
    ]
    if not encoder.lower_case and not encoder.settings.get("default_prompt_name"):
        parts += [
            "ONNX Runtime, without torch, once `export_onnx()` has written `model.onnx` beside this file:",
            _code(onnxruntime_lines("FOLDER", "model.onnx", encoder.max_length)),
        ]
    return parts


def _code(lines: str) -> str:
    return f"```python\n{lines}\n```"


def _front_matter(card: ModelCard, encoder: Encoder) -> str:
    """What the hub reads: what the model is, what it was made from, and how it scores."""
    # A folder with heads is read by this package alone.
    plain = encoder.heads is None
    tags = ["sentence-transformers", "feature-extraction"] if plain else []
    base, inherited = _parent(card.base_model)
    data = ModelCardData(
        library_name="sentence-transformers" if plain else "truncate-kit",
        pipeline_tag="sentence-similarity",
        base_model=base,
        tags=[*tags, "sentence-similarity", *card.tags],
        model_name=card.shown(card.title),
        eval_results=[
            EvalResult(
                task_type="semantic-similarity",
                dataset_type=found.data,
                dataset_name=found.data,
                metric_type=found.metric,
                metric_value=round(found.value, 4),
            )
            for found in card.evaluations
        ]
        or None,
        **inherited,
    )
    return f"---\n{harmless(data.to_yaml())}\n---"


def _parent(name: str) -> tuple[str | None, dict[str, Any]]:
    """A name for `base_model`, None for a folder that nobody else has, and what its own card says for all of its kind.

    A folder's card names the model that it was made from, which then is this one's as well. A bundled model is such a
    folder: its licence goes along.
    """
    folder = miniature_path(name) or Path(name)
    if not folder.is_dir():
        return name, {}
    try:
        found = HubCard(read_text(folder / "README.md")).data
    except Exception:  # what a card holds becomes arguments of a class, each of which may be of any type
        return None, {}
    base = getattr(found, "base_model", None)
    known = isinstance(base, str) and not is_there(Path(base))
    inherited = {key: getattr(found, key, None) for key in ("language", "license", "license_name", "license_link")}
    # A few lines of YAML can be a list of billions, which no text may be made of.
    inherited = {key: value for key, value in inherited.items() if _is_text(value)}
    if not str(inherited.get("license_link")).startswith("https://"):  # a file that is not copied
        inherited.pop("license_link", None)
    return (base if known else None), inherited


def _is_text(value: Any) -> bool:
    """Whether a value of a card is a text, or a list of texts."""
    texts = value if isinstance(value, list) else [value]
    return all(isinstance(text, str) for text in texts)


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]], marked: int | None = None) -> str:
    cells = [[_line(cell) for cell in row] for row in rows]
    if marked is not None:
        cells[marked][0] = f"**{cells[marked][0]}**"
    return markdown(columns, cells)


def _line(text: str) -> str:
    """Text on one line of Markdown, unable to open a cell, a link or HTML."""
    plain = harmless(" ".join(text.split()))
    return "".join(f"\\{char}" if char in "|<>[]`*_\\" else char for char in plain)
