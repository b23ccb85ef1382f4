"""Write model cards: the README.md of saved models."""

import re
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from huggingface_hub import EvalResult, ModelCardData
from huggingface_hub import ModelCard as HubCard

from truncate_kit.core.errors import capitalized, harmless
from truncate_kit.core.files import is_there, replacing, write_text
from truncate_kit.core.hardware import runtime_of
from truncate_kit.core.results import VERSION
from truncate_kit.core.workspace import Origin, listed, miniature_path, place_in_words
from truncate_kit.report.view import Table, in_markdown, overlap_warning, points, view_of

if TYPE_CHECKING:
    from truncate_kit.data.pairs import PairSplits
    from truncate_kit.models.encoder import Encoder
    from truncate_kit.training.settings import Trial

_USAGE = "## Usage"
_HEADS = (
    "A vector concatenates the codes of all blocks; `load_encoder(path).similarities(u, v)` is the trained score.\n"
    "sentence-transformers cannot compute these codes, so it cannot load this folder."
)
_EXACT = "{'INFERENCE_PRECISION_HINT': 'f32'}"  # by default bf16
SAMPLE_TEXTS = '["A dog runs.", "A puppy is running."]'


def card_text(
    result: Any, encoder: "Encoder", origin: Origin, trial: "Trial | None" = None, pairs: "PairSplits | None" = None
) -> str:
    """Return the model card of a result; a sweep passes its saved trial and its pairs."""
    view, data, scores = view_of(result), origin.data, list[tuple[str, str, float]]()
    name, _, numbers = place_in_words(origin.layer, origin.blocks).partition(" ")
    table, notes = next(iter(view.tables), None), [*view.notes, *view.sentences, *view.details]
    if origin.method == "distill":
        table = next(cells for cells in view.tables if cells.title.startswith("The best choice"))
    if trial is not None and pairs is not None:
        from truncate_kit.report.training import sweep_table

        table = sweep_table(result, marked=trial.layer)
        sizes = ", ".join(f"{part} {len(some.pairs):,}" for part, some in pairs.items())
        data = f"{result.data} ({sizes} pairs)"
        weights = f"These weights: seed {trial.seed}, dev {trial.dev:.2f}, test {points(trial.test)}."
        notes += filter(None, (weights, overlap_warning(pairs.overlap)))
        values = ("spearman_cosine", trial.test), ("pearson_cosine", trial.test_pearson)
        if result.metric.startswith("Spearman"):  # other metrics have no name on the hub
            scores = [(result.data, metric, value / 100) for metric, value in values if value is not None]
    facts = (
        (capitalized(name), f"{numbers} of {origin.depth}"),
        ("Parameters", f"{origin.parameters:,}"),
        ("Data", data),
        ("Training before", getattr(result, "before", "")),
        ("Layers", f"their mean: {listed(encoder.combination)}" if encoder.combination else ""),
    )
    return write_card(encoder, origin, facts=facts, table=table, notes=notes, scores=scores)


def write_card(
    encoder: "Encoder",
    origin: Origin,
    *,
    facts: Sequence[tuple[str, str]] = (),
    table: Table | None = None,
    notes: Sequence[str] = (),
    scores: Sequence[tuple[str, str, float]] = (),
) -> str:
    """Return a model card: escaped Markdown, with the front matter that the hub reads.

    scores: Tuples of data set, the hub's name of the metric, and test score (0 to 1).
    """
    title = origin.words
    if Path(origin.model).is_dir():  # local paths are useless to others
        title = replace(origin, model=Path(origin.model).resolve().name).words
    kept = f"the first {origin.layer} of {origin.depth} layers" if origin.blocks is None else origin.place
    kept = f"all {origin.depth} layers" if origin.method == "copy" else kept
    tags = ["truncated"] * (origin.layer < origin.depth)
    tags += {"distill": ["distilled"], "freeze": ["frozen"]}.get(origin.method, [])
    plain, length = encoder.heads is None, f"{encoder.max_length:,}"  # other packages cannot read heads
    results = [EvalResult("semantic-similarity", data, data, metric, round(value, 4)) for data, metric, value in scores]
    front = ModelCardData(
        library_name="sentence-transformers" if plain else "truncate-kit",
        pipeline_tag="sentence-similarity",
        tags=[*(["sentence-transformers", "feature-extraction"] * plain), "sentence-similarity", *tags],
        model_name=title,
        eval_results=results or None,
        **_inherited(origin.model),
    )
    measure = encoder.settings.get("similarity_fn_name") or "cosine"
    compared = f"compared by {measure}" if plain else "compared by a trained score"
    rows = [(name, value) for name, value in facts if value]
    rows += [("Vectors", f"{encoder.vector_width} numbers, {compared}"), ("Maximum length", f"{length} tokens")]
    parts = [
        f"---\n{harmless(front.to_yaml())}\n---",
        f"# {in_markdown(title)}",
        in_markdown(f"A sentence encoder that keeps {kept}."),
        Table("", ("", ""), rows).markdown(),
        *([] if table is None else [in_markdown(table.title), table.markdown()]),
        *map(in_markdown, notes),
        _USAGE,
        *(_usage(encoder) if plain else [_HEADS]),
        "## Limits",
        "Scores and speeds hold for the data and machines named here. Measure on your own texts. Longer texts are "
        f"truncated to {length} tokens.",
        f"Made by truncate-kit {VERSION}.",
    ]
    return "\n\n".join(parts) + "\n"


def add_figure(folder: Path, figure: Path, caption: str) -> None:
    """Copy a figure into a model's folder, and show it on the card."""
    with replacing(folder / figure.name) as place:
        shutil.copyfile(figure, place)
    _add_section(folder, caption, f"![{caption}]({figure.name})")


def add_result(folder: Path, result: Any) -> None:
    """Show a result on a model's card, replacing the last one of its kind."""
    view = view_of(result)
    tables = [
        part for table in view.tables if not table.detail for part in (in_markdown(table.title), table.markdown())
    ]
    _add_section(folder, view.title, "\n\n".join([*tables, *map(in_markdown, [*view.sentences, *view.details])]))


def _add_section(folder: Path, title: str, content: str) -> None:
    card = folder / "README.md"
    if card.is_file():
        older = rf"^## {re.escape(title)}\n.*?(?=^## |\Z)"
        text = re.sub(older, "", card.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
        before, usage, after = text.partition(_USAGE)
        write_text(card, f"{before.rstrip()}\n\n## {title}\n\n{content}\n\n{usage}{after}".rstrip() + "\n")


def _usage(encoder: "Encoder") -> list[str]:
    from truncate_kit.models.pipeline import loading_words

    code = "```python\n{}\n```".format
    own = encoder.pooler is not None
    parts = [
        f"{loading_words(encoder.pooler)} FOLDER is this folder.",
        code(sentence_transformers_lines("FOLDER", own_pooling=own)),
    ]
    if not encoder.lower_case and not encoder.settings.get("default_prompt_name"):
        parts += [
            "ONNX Runtime, without torch, once `export_onnx()` has written `onnx/model.onnx` beside this file:",
            code(graph_lines("FOLDER", "onnx/model.onnx", encoder.max_length)),
        ]
    return parts


def sentence_transformers_lines(place: str, *, own_pooling: bool = False) -> str:
    """Return code that encodes with sentence-transformers; `own_pooling`: pooled by this package."""
    trusting = ", trust_remote_code=True" if own_pooling else ""
    return (
        "from sentence_transformers import SentenceTransformer\n\n"
        f"model = SentenceTransformer({place!r}{trusting})\nvectors = model.encode({SAMPLE_TEXTS})"
    )


def graph_lines(place: str, file: str, max_length: int) -> str:
    """Return code that encodes with a graph, without torch or this package; `max_length` in tokens."""
    feeds, graph = "{'input_ids': ids, 'attention_mask': mask}", f"f'{{place}}/{file}'"
    package, session = "onnxruntime", f"onnxruntime.InferenceSession({graph})"
    vectors = f"session.run(['sentence_embedding'], {feeds})[0]"
    if runtime_of(file) == "openvino":
        package, vectors = "openvino", f"session({feeds})['sentence_embedding']"
        session = f"openvino.Core().compile_model({graph}, 'CPU', {_EXACT})"
    return f"""import numpy
import {package}
from tokenizers import Tokenizer

place = {place!r}
tokenizer = Tokenizer.from_file(f'{{place}}/tokenizer.json')
tokenizer.enable_truncation({max_length})
tokenizer.enable_padding()
session = {session}
batch = tokenizer.encode_batch({SAMPLE_TEXTS})
ids = numpy.array([text.ids for text in batch], dtype=numpy.int64)
mask = numpy.array([text.attention_mask for text in batch], dtype=numpy.int64)
vectors = {vectors}"""


def _inherited(name: str) -> dict[str, Any]:
    folder = miniature_path(name) or Path(name)
    if not folder.is_dir():
        return {"base_model": name}
    try:
        card = HubCard((folder / "README.md").read_text(encoding="utf-8")).data
    except Exception:  # values of a card may have any type
        return {}
    keys = ("base_model", "language", "license", "license_name", "license_link")
    values = {key: value for key in keys if isinstance(value := getattr(card, key, None), str | list)}
    # Keep text values only: YAML reads the language "no" as False.
    inherited = {key: value for key, value in values.items() if [*value] == [*map(str, value)]}
    base, link = inherited.get("base_model"), str(inherited.get("license_link"))
    if not isinstance(base, str) or is_there(Path(base)):
        inherited.pop("base_model", None)
    if not link.startswith("https://"):  # a local license file is not copied
        inherited.pop("license_link", None)
    return inherited
