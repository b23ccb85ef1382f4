"""Model cards: what the README of a saved model says, for the hub and for a reader."""

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from huggingface_hub import EvalResult, ModelCardData
from huggingface_hub import ModelCard as HubCard

from truncate_kit.files import is_there, replacing, write_text
from truncate_kit.methods.bert_lc.result import CombinationReport
from truncate_kit.methods.contrast.settings import ContrastiveResult
from truncate_kit.methods.distill.result import DistillResult, taught_by
from truncate_kit.methods.frozen.settings import FrozenReport
from truncate_kit.methods.tmft.result import SweepResult
from truncate_kit.naming import blocks_in_words, miniature_path, place_in_words
from truncate_kit.report.distillation import choice, sizes_table, texts_in_words
from truncate_kit.report.training import pooling_words, sweep_table, vocabulary_sentences
from truncate_kit.report.view import Table, view_of
from truncate_kit.results import VERSION, Result
from truncate_kit.training.objectives import OBJECTIVES
from truncate_kit.training.settings import Trial
from truncate_kit.wording import capitalized, counted, harmless, points

if TYPE_CHECKING:
    from truncate_kit.data import PairSplits
    from truncate_kit.models import Encoder
    from truncate_kit.training.cutting import CutResult

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
        parts = [_front_matter(self, encoder), f"# {_line(self.shown(self.title))}", _line(self.summary)]
        parts.append(_table(Table("", ("", ""), facts)))
        if self.table is not None:
            parts += [_line(self.table.title), _table(self.table)]
        parts += [*map(_line, self.notes), _USAGE, *(_usage(encoder) if encoder.heads is None else [_HEADS])]
        scored = "No score was measured" if self.table is None else "The scores above are all that was measured"
        limits = f"{scored}: not other domains, languages or tasks. Measure on your own texts."
        read = f"Of a longer text the first {encoder.max_length:,} tokens are read."
        return "\n\n".join([*parts, "## Limits", f"{limits} {read}", f"Made by truncate-kit {VERSION}."]) + "\n"

    def shown(self, text: str) -> str:
        """Replace the path of a local model by its last part: a path says nothing to others."""
        name = Path(self.base_model)
        return text.replace(self.base_model, name.resolve().name) if name.is_dir() else text


def card_text(result: Result, encoder: "Encoder", *parts: Any) -> str:
    """Write the card of a model that a method made.

    Args:
        result: Of the method.
        encoder: As it is saved.
        parts: For a sweep, the trial and the pairs.
    """
    makers: dict[str, Callable[..., ModelCard]] = {
        "CutResult": cut_card,
        "SweepResult": sweep_card,
        "DistillResult": distill_card,
        "ContrastiveResult": contrastive_card,
        "FrozenReport": frozen_card,
        "CombinationReport": combination_card,
    }
    card: ModelCard = makers[type(result).__name__](result, encoder, *parts)
    return card.text(encoder)


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


def _table(given: Table) -> str:
    cells = [[_line(cell) for cell in row] for row in given.rows]
    if given.marked is not None:
        cells[given.marked][0] = f"**{cells[given.marked][0]}**"
    return Table("", given.columns, cells).markdown()


def _line(text: str) -> str:
    """Put text on one line of Markdown, unable to open a cell, a link or HTML."""
    plain = harmless(" ".join(text.split()))
    return "".join(f"\\{char}" if char in "|<>[]`*_\\" else char for char in plain)


def cut_card(result: "CutResult", encoder: "Encoder") -> ModelCard:
    """Say what was kept of a model that was cut without training."""
    place, vocabulary = place_in_words(result.layer, result.blocks), result.vocabulary
    name, _, numbers = place.partition(" ")
    title, kept = f"truncated at {place}", f"the first {result.layer} of {result.depth} layers"
    if result.blocks is not None:
        title, kept = f"cut to {place}", blocks_in_words(result.blocks, result.depth)
    if result.layer == result.depth and vocabulary is not None:
        title, kept = "with fewer word pieces", "the word pieces of given texts"
    first, *words = view_of(result).sentences
    return ModelCard(
        base_model=result.model,
        title=f"{result.model}, {title}",
        summary=f"A sentence encoder that keeps {kept}, as they were trained.",
        facts=(
            (capitalized(name), f"{numbers} of {result.depth}"),
            ("Training", f"None. {first}"),
            ("Vocabulary", " ".join(words)),
        ),
        tags=("truncated",),
    )


def sweep_card(result: SweepResult, encoder: "Encoder", trial: Trial, pairs: "PairSplits") -> ModelCard:
    """Say layer, parameters, data, scores and seeds of a fine-tuned model.

    Args:
        result: The sweep.
        trial: Whose model it is.
        encoder: As it is saved.
        pairs: It was trained and scored on.
    """
    sizes = ", ".join(f"{part} {len(some.pairs):,}" for part, some in pairs.items())
    depth, training = result.full.layer, result.training
    row = next(row for row in result.rows if row.layer == trial.layer)
    place, uncut = result.place(trial.layer), trial.layer == depth
    name, _, numbers = place.partition(" ")
    kept = f"the first {trial.layer} of {depth} layers" if name == "layer" else f"{place} of {depth}"
    title = f"{'truncated at' if name == 'layer' else 'cut to'} {place}"
    if uncut:
        kept, title = f"all {depth} layers, the yardstick", "fine-tuned"
    scores = []
    if trial.test is not None and result.metric.startswith("Spearman"):  # the hub has no one name for the others
        scores = [(result.data, "spearman_cosine", trial.test / 100)]
        if trial.test_pearson is not None:
            scores.append((result.data, "pearson_cosine", trial.test_pearson / 100))
    return ModelCard(
        base_model=result.model,
        title=f"{result.model}, {title}",
        summary=f"A sentence encoder that keeps {kept}: {row.parameters:,} parameters.",
        facts=(
            (capitalized(name), f"{numbers} of {depth}"),
            ("Parameters kept", f"{row.parameters:,} (full model: {result.full.parameters:,})"),
            ("Data", f"{result.data} ({sizes} pairs)"),
            ("Layers", f"their mean: {', '.join(map(str, encoder.combination))}" if encoder.combination else ""),
            ("Before it", result.before),
            (
                "Training",
                f"{OBJECTIVES[training.objective].card}; {counted(trial.epochs, 'epoch')}, batch "
                f"{training.batch_size}, peak learning rate {result.learning_rate:g}, {training.precision}.",
            ),
            ("Seeds", f"{', '.join(map(str, row.seeds))}; these weights: seed {trial.seed}, epoch {trial.best_epoch}"),
            ("Choice", result.choice),
        ),
        table=sweep_table(result, marked=trial.layer),
        notes=(
            f"These weights: dev {trial.dev:.2f}, test {points(trial.test)}.",
            *filter(None, (pairs.overlap.warning(), result.seen_before)),
        ),
        tags=() if uncut else ("truncated",),
        scores=scores,
    )


def distill_card(result: DistillResult, encoder: "Encoder") -> ModelCard:
    """Say blocks, texts, agreement and scores of the chosen model."""
    named, source = ", ".join(map(str, result.chosen)), taught_by(result.settings)
    settings, student, vocabulary = result.settings, result.student, result.vocabulary
    learned = "has learned the vectors of {} from raw text, without labels"
    training = (
        f"1 − cosine to the vectors of {source}; {student.steps:,} steps of {settings.batch_size} texts, peak learning "
        f"rate {result.learning_rate:g}, {settings.precision}"
    )
    if not student.scores:
        learned, training = "is {} itself", "none: the blocks have its vectors already"
    elif student.as_it_came:
        learned, training = "is saved as it was cut", f"none that is kept: learning from {source} made it worse"
    return ModelCard(
        base_model=result.model,
        title=f"{result.model}, {len(result.chosen)} of {result.depth} blocks",
        summary=f"A sentence encoder that keeps blocks {named} of {result.depth} and {learned.format(source)}.",
        facts=(
            ("Blocks", f"{named} of {result.depth}"),
            ("Before it", result.before),
            ("Vocabulary", "" if vocabulary is None else " ".join(vocabulary_sentences(vocabulary))),
            ("Texts", texts_in_words(result.texts)),
            ("Training", training),
            ("Result", choice(result)),
        ),
        table=sizes_table(result),
        notes=() if vocabulary is None else ("Scores by number of blocks are those with all word pieces.",),
        tags=("truncated", "distilled"),
    )


def contrastive_card(result: ContrastiveResult, encoder: "Encoder") -> ModelCard:
    """Say how the model of the seed that is best on dev was trained, and its scores."""
    settings, chosen = result.settings, result.chosen
    what, _, rows = result.rows.rstrip(".").partition(": ")
    weighted = f", own negatives weighted by {weight:g}" if (weight := settings.hard_negative_weight) else ""
    budget = (
        f"{counted(result.epochs, 'epoch')}, batch {result.batch_size}, peak learning rate {result.learning_rate:g}"
    )
    return ModelCard(
        base_model=result.model,
        title=f"{result.model}, trained by contrast",
        summary=f"A sentence encoder that keeps {result.layer} of {result.depth} layers: {result.parameters:,} "
        "parameters.",
        facts=(
            ("Pooling", pooling_words(settings)),
            ("Objective", f"{OBJECTIVES[settings.objective].card}, temperature {settings.temperature:g}{weighted}"),
            (what, rows),
            ("Budget", f"{budget}, {settings.precision}, {counted(result.processes, 'process', 'processes')}"),
            ("Evaluated on", f"{result.data}, dev; evaluation {chosen.best_epoch} of {len(chosen.dev_scores)} is kept"),
        ),
        table=view_of(result).tables[0],
        notes=(f"These weights: dev {chosen.dev:.2f}.", *view_of(result).notes),
    )


def frozen_card(report: FrozenReport, encoder: "Encoder") -> ModelCard:
    """Say which blocks are frozen, and the scores of the heads."""
    view = view_of(report)
    return ModelCard(
        base_model=report.model,
        title="Frozen blocks with heads",
        summary=f"The first {report.chosen_layer} of {report.depth} layers, frozen, and {report.chosen.parameters:,} "
        f"trained parameters over their {report.pooling}-pooled states (step: {report.chosen_step}).",
        table=view.tables[0],
        notes=(*view.notes, *view.sentences),
        tags=("frozen", "truncated"),
    )


def combination_card(report: CombinationReport, encoder: "Encoder") -> ModelCard:
    """Say which layers are combined and how, and what that scores.

    Args:
        report: Of the chosen combination.
        encoder: As it is saved.
    """
    from truncate_kit.models.layer_pooling import LayerPooling

    layers = ", ".join(map(str, report.chosen))
    title, vector = f"layer {layers}", f"the state of layer {layers}"
    if len(report.chosen) > 1:
        title = f"{'maximum' if report.settings.over == 'max' else 'mean'} over the layers {layers}"
        vector = f"the {'elementwise ' if report.settings.over == 'max' else ''}{title}"
    own = encoder.pooler if isinstance(encoder.pooler, LayerPooling) else None
    norm = ", after a copy of the model's final norm" if own is not None and own.norm is not None else ""
    head = ", through the trained pooler head" if report.settings.head else ""
    view = view_of(report)
    return ModelCard(
        base_model=report.model,
        title=capitalized(title),
        summary=f"A sentence encoder that keeps the first {max(report.chosen)} of {report.depth} layers, chosen as "
        f"BERT-LC chooses. A vector is {vector}{head} (0 = embeddings); of each layer it takes "
        f"{_TOKENS[encoder.pooling]}{norm}.",
        table=view.tables[0],
        notes=(*view.notes, *view.sentences),
        tags=("truncated",),
    )
