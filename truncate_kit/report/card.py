"""Model cards: what the README of a saved model says, for the hub and for a reader."""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from huggingface_hub import EvalResult, ModelCardData
from huggingface_hub import ModelCard as HubCard

from truncate_kit.core.files import is_there, replacing, write_text
from truncate_kit.core.origin import Method, Origin, miniature_path
from truncate_kit.core.results import VERSION
from truncate_kit.core.wording import (
    capitalized,
    harmless,
    in_markdown,
    layers_in_words,
    listed,
    place_in_words,
    points,
)
from truncate_kit.report.view import Table, overlap_warning, view_of

if TYPE_CHECKING:
    from truncate_kit.data.pairs import PairSplits
    from truncate_kit.models.encoder import Encoder
    from truncate_kit.training.settings import Trial

_USAGE = "## Usage"
_HEADS = (
    "Vectors are the codes of all blocks side by side; `load_encoder(path).similarities(u, v)` is the trained score.\n"
    "sentence-transformers has no such module and cannot load this folder."
)
_TOKENS = {
    "mean": "the mean over tokens",
    "cls": "the first token",
    "max": "the elementwise maximum over tokens",
    "last": "the last token",
}

_HOW: dict[Method, str] = {
    "cut": "as they were trained",
    "finetune": "fine-tuned on scored pairs",
    "distill": "which learned vectors from raw text, without labels",
    "contrast": "trained by contrast",
    "freeze": "frozen, with trained heads over their states",
    "combine": "chosen as BERT-LC chooses",
    "copy": "as they were",
}
SAMPLE_TEXTS = '["A dog runs.", "A puppy is running."]'


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCard:
    """What a model card says, as plain text; `text` escapes it.

    Attributes:
        base_model: The model that it was made from.
        title, summary: The heading and the first paragraph.
        facts: Each with its name.
        table: Scores, with the row of the saved model marked.
        notes: Paragraphs below the scores.
        tags: For the hub, beside those that every sentence encoder has.
        scores: Of the saved model on test pairs by the hub's name of the metric, not × 100, each with its set.
    """

    base_model: str
    title: str
    summary: str
    facts: Sequence[tuple[str, str]] = ()
    table: Table | None = None
    notes: Sequence[str] = ()
    tags: Sequence[str] = ()
    scores: Sequence[tuple[str, str, float]] = ()

    def text(self, encoder: "Encoder") -> str:
        """Write Markdown with the front matter that the hub reads.

        Args:
            encoder: As it is saved.
        """
        measure = encoder.settings.get("similarity_fn_name") or "cosine"
        compared = f"compared by {measure}" if encoder.heads is None else "compared by a score of their own"
        facts = [
            *((name, value) for name, value in self.facts if value),
            ("Vectors", f"{encoder.vector_width} numbers, {compared}"),
            ("Reads", f"{encoder.max_length:,} tokens"),
        ]
        parts = [_front_matter(self, encoder), f"# {in_markdown(self.shown(self.title))}", in_markdown(self.summary)]
        parts.append(Table("", ("", ""), facts).markdown())
        if self.table is not None:
            parts += [in_markdown(self.table.title), self.table.markdown()]
        parts += [*map(in_markdown, self.notes), _USAGE, *(_usage(encoder) if encoder.heads is None else [_HEADS])]
        scored = "No score was measured" if self.table is None else "The scores above are all that was measured"
        limits = f"{scored}: not other domains, languages or tasks. Measure on your own texts."
        read = f"Of a longer text the first {encoder.max_length:,} tokens are read."
        return "\n\n".join([*parts, "## Limits", f"{limits} {read}", f"Made by truncate-kit {VERSION}."]) + "\n"

    def shown(self, text: str) -> str:
        """Replace the path of a local model by its last part: a path says nothing to others."""
        name = Path(self.base_model)
        return text.replace(self.base_model, name.resolve().name) if name.is_dir() else text


def card_text(
    result: Any, encoder: "Encoder", origin: Origin, trial: "Trial | None" = None, pairs: "PairSplits | None" = None
) -> str:
    """Write the card of a model that a method made.

    Args:
        result: Of the method.
        encoder: As it is saved.
        origin: Saved beside it.
        trial: Whose weights these are, for a sweep.
        pairs: That these were trained and scored on, for a sweep.
    """
    view, cut = view_of(result), origin.layer < origin.depth
    place, data, scores = place_in_words(origin.layer, origin.blocks), origin.data, list[tuple[str, str, float]]()
    name, _, numbers = place.partition(" ")
    table, notes = next(iter(view.tables), None), [*view.notes, *view.sentences, *view.details]
    kind = type(result).__name__  # to import no more than the result's own module
    if kind == "DistillResult":
        from truncate_kit.report.distillation import sizes_table

        table = sizes_table(result)
    if kind == "SweepResult" and trial is not None and pairs is not None:
        from truncate_kit.report.training import sweep_table

        table = sweep_table(result, marked=trial.layer)
        sizes = ", ".join(f"{part} {len(some.pairs):,}" for part, some in pairs.items())
        data = f"{result.data} ({sizes} pairs)"
        weights = f"These weights: seed {trial.seed}, dev {trial.dev:.2f}, test {points(trial.test)}."
        notes += filter(None, (weights, overlap_warning(pairs.overlap)))
        found = ("spearman_cosine", trial.test), ("pearson_cosine", trial.test_pearson)
        if result.metric.startswith("Spearman"):  # the hub has no one name for the others
            scores = [(result.data, metric, value / 100) for metric, value in found if value is not None]
    kept = f"the first {origin.layer} of {origin.depth} layers" if origin.blocks is None else origin.place
    facts = {
        capitalized(name): f"{numbers} of {origin.depth}",
        "Parameters": f"{origin.parameters:,}",
        "Data": data,
        "Before it": getattr(result, "before", ""),
        **_training(result, encoder),
    }
    own_tag = {"distill": ["distilled"], "freeze": ["frozen"]}.get(origin.method, [])
    return ModelCard(
        base_model=origin.model,
        title=origin.words,
        summary=f"A sentence encoder that keeps {kept}, {_HOW[origin.method]}.",
        facts=[*facts.items()],
        table=table,
        notes=notes,
        tags=["truncated"] * cut + own_tag,
        scores=scores,
    ).text(encoder)


def _training(result: Any, encoder: "Encoder") -> dict[str, str]:
    """Say what only results of one method have to say of how the model was made."""
    from truncate_kit.training.settings import OBJECTIVES

    kind = type(result).__name__
    if kind not in ("SweepResult", "DistillResult", "ContrastiveResult", "CombinationReport"):
        return {}

    if kind == "SweepResult":
        training, objective = result.training, OBJECTIVES[result.training.objective].card
        return {
            "Layers": f"their mean: {listed(encoder.combination)}" if encoder.combination else "",
            "Training": f"{objective}; batch {training.batch_size}, {training.precision}",
        }
    if kind == "DistillResult":
        settings, student, source = result.settings, result.student, result.settings.teacher
        learned = (
            f"1 − cosine to the vectors of {source}; {student.steps:,} steps of {settings.batch_size} texts, peak "
            f"learning rate {result.learning_rate:g}, {settings.precision}"
        )
        if not student.scores:
            learned = f"None: this is {source} itself."
        elif student.as_it_came:
            learned = f"None that is kept: learning from {source} made it worse."
        return {"Training": learned}
    if kind == "ContrastiveResult":
        weight = result.settings.hard_negative_weight
        objective = f"{OBJECTIVES[result.settings.objective].card}, temperature {result.settings.temperature:g}"
        return {"Training": objective + (f", own negatives weighted by {weight:g}" if weight else "")}
    over = "maximum" if result.settings.over == "max" else "mean"
    norm = ", after a copy of the model's final norm" if getattr(encoder.pooler, "norm", None) is not None else ""
    head = ", through the trained pooler head" if result.settings.head else ""
    combined = f"{over} of {layers_in_words(result.chosen)} (0 = embeddings){head}"
    return {"Pooling": f"{combined}; of each layer {_TOKENS[encoder.pooling]}{norm}"}


def add_figure(folder: Path, figure: Path, caption: str) -> None:
    """Copy a figure of the run into the folder of a saved model, and show it on its card, above how to use it."""
    card = folder / "README.md"
    if not card.is_file():  # removed since the model was saved
        return
    with replacing(folder / figure.name) as place:
        shutil.copyfile(figure, place)
    text, shown = card.read_text(encoding="utf-8"), f"![{caption}]({figure.name})"
    if shown not in text:
        write_text(card, text.replace(_USAGE, f"{shown}\n\n{_USAGE}", 1))


def _usage(encoder: "Encoder") -> list[str]:
    """Give lines that load the folder; those of a graph only if nothing has to be done to texts before."""
    from truncate_kit.models.layer_pooling import LayerPooler
    from truncate_kit.models.pipeline import loading_words

    own = isinstance(encoder.pooler, LayerPooler)
    code = "```python\n{}\n```".format
    parts = [
        f"{loading_words(encoder.pooler)} FOLDER is where this file lies.",
        code(sentence_transformers_lines("FOLDER", own_pooling=own)),
    ]
    if not encoder.lower_case and not encoder.settings.get("default_prompt_name"):
        parts += [
            "ONNX Runtime, without torch, once `export_onnx()` has written `model.onnx` beside this file:",
            code(onnxruntime_lines("FOLDER", "model.onnx", encoder.max_length)),
        ]
    return parts


def sentence_transformers_lines(place: str, *, own_pooling: bool = False) -> str:
    """Vectors by sentence-transformers.

    Args:
        place: The folder.
        own_pooling: Whether the folder brings a pooling file of its own.
    """
    trusting = ", trust_remote_code=True" if own_pooling else ""
    return (
        "from sentence_transformers import SentenceTransformer\n\n"
        f"model = SentenceTransformer({place!r}{trusting})\nvectors = model.encode({SAMPLE_TEXTS})"
    )


def onnxruntime_lines(place: str, file: str, max_length: int) -> str:
    """Vectors by a graph of that name, without torch and without this package.

    Args:
        place: The folder.
        file: The name of the graph in it.
        max_length: In tokens.
    """
    return "\n".join(
        (
            "import numpy",
            "import onnxruntime",
            "from tokenizers import Tokenizer",
            "",
            f"place = {place!r}",
            "tokenizer = Tokenizer.from_file(f'{place}/tokenizer.json')",
            f"tokenizer.enable_truncation({max_length})",
            "tokenizer.enable_padding()",
            f"session = onnxruntime.InferenceSession(f'{{place}}/{file}')",
            f"batch = tokenizer.encode_batch({SAMPLE_TEXTS})",
            "ids = numpy.array([text.ids for text in batch], dtype=numpy.int64)",
            "mask = numpy.array([text.attention_mask for text in batch], dtype=numpy.int64)",
            "vectors = session.run(['sentence_embedding'], {'input_ids': ids, 'attention_mask': mask})[0]",
        )
    )


def _front_matter(card: ModelCard, encoder: "Encoder") -> str:
    """Write what the hub reads: what the model is, what it was made from, and how it scores."""
    plain = encoder.heads is None  # a folder with heads is read by this package alone
    base, inherited = _parent(card.base_model)
    results = [
        EvalResult(
            task_type="semantic-similarity",
            dataset_type=data,
            dataset_name=data,
            metric_type=metric,
            metric_value=round(value, 4),
        )
        for data, metric, value in card.scores
    ]
    data = ModelCardData(
        library_name="sentence-transformers" if plain else "truncate-kit",
        pipeline_tag="sentence-similarity",
        base_model=base,
        tags=[*(["sentence-transformers", "feature-extraction"] * plain), "sentence-similarity", *card.tags],
        model_name=card.shown(card.title),
        eval_results=results or None,
        **inherited,
    )
    return f"---\n{harmless(data.to_yaml())}\n---"


def _parent(name: str) -> tuple[str | None, dict[str, Any]]:
    """Return a name for `base_model`, None for a folder that nobody else has, and what its own card hands on.

    A folder's card names the model that it was made from, which then is this one's as well; its licence goes along.
    """
    folder = miniature_path(name) or Path(name)
    if not folder.is_dir():
        return name, {}
    try:
        found = HubCard((folder / "README.md").read_text(encoding="utf-8")).data
    except Exception:  # what a card holds becomes arguments of a class, each of which may be of any type
        return None, {}
    base = getattr(found, "base_model", None)
    known = isinstance(base, str) and not is_there(Path(base))
    inherited = {key: getattr(found, key, None) for key in ("language", "license", "license_name", "license_link")}
    inherited = {
        key: value
        for key, value in inherited.items()
        if all(isinstance(text, str) for text in (value if isinstance(value, list) else [value]))
    }
    if not str(inherited.get("license_link")).startswith("https://"):  # a file that is not copied
        inherited.pop("license_link", None)
    return (base if known else None), inherited
