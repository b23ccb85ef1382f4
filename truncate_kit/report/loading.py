"""Lines that load the model of a run, in five ways."""

import json
import shlex
from dataclasses import dataclass
from operator import index
from pathlib import Path
from typing import Any

from truncate_kit.errors import ModelError, first_line
from truncate_kit.export.record import ExportReport, suited_precision
from truncate_kit.report.card import SAMPLE_TEXTS, onnxruntime_lines, sentence_transformers_lines
from truncate_kit.report.layout import Snippet
from truncate_kit.settings import shown

_POOLED = {  # of `states` (n, t, d) and `mask` (n, t, 1), by the flag of a saved Pooling
    "pooling_mode_mean_tokens": "vectors = (states * mask).sum(1) / mask.sum(1)",
    "pooling_mode_cls_token": "vectors = states[:, 0]",
    "pooling_mode_max_tokens": "vectors = states.masked_fill(mask == 0, float('-inf')).amax(1)",
    "pooling_mode_lasttoken": "vectors = states[torch.arange(len(states)), mask.sum(1).squeeze(1) - 1]",
}

OWN_POOLINGS = ("layer_pooling.LayerAttentionPooling", "layer_pooling.LayerPooling")
"""As modules.json names what a folder brings itself; no other code of a folder is recommended to be run."""
_END = {True: "vectors of length 1", False: "vectors as they come"}  # by whether a graph normalises
_OTHERS = ("sentence_transformers.", "truncate_kit.")


@dataclass(frozen=True, slots=True)
class _Saved:
    """What a folder that this package saved says of itself. Nothing is built of it, which would take torch.

    modules: the class of each, as modules.json names it, and its folder.
    pooling: the flags of Pooling that are set.
    as_they_are: whether texts are read so, neither lower-cased nor after a prompt.
    """

    modules: dict[str, str]
    pooling: tuple[str, ...]
    max_length: int | None
    as_they_are: bool

    @property
    def kinds(self) -> set[str]:
        """The classes without their packages."""
        return {name.rpartition(".")[2] for name in self.modules}


def snippets(folder: Path, graph: ExportReport | None) -> list[Snippet]:
    """How to load the model in a folder; ways that would not give its vectors are left out.

    Args:
        folder: That of the model.
        graph: One that was exported there, None without.

    Raises:
        ModelError: The folder is damaged.
    """
    place, saved = str(folder), _saved(folder)
    same = graph if graph is not None and _same_vectors(saved, graph) else None
    command = shlex.join(["truncate-kit", "encode", "texts.txt", "--model", place, "--out", "vectors.npy"])
    found = [Snippet("Command line", command), Snippet("Python", _ours(place, same))]
    if "LayerHeads" not in saved.kinds:  # sentence-transformers has no such module
        own = any(name in OWN_POOLINGS for name in saved.modules)
        found.append(Snippet("sentence-transformers", sentence_transformers_lines(place, own_pooling=own)))
    # What changes texts before they are read, these two would have to do by hand.
    plainly = saved.kinds <= {"Transformer", "Pooling", "Normalize"} and len(saved.pooling) == 1
    if saved.as_they_are and plainly and saved.pooling[0] in _POOLED:
        found.append(Snippet("transformers", _transformers(place, saved)))
    if graph is not None and _runs_alone(folder, saved):
        what = "" if same is not None else f" ({graph.precision}, {_END[graph.normalized]})"
        lines = onnxruntime_lines(place, graph.file, graph.max_length)
        found.append(Snippet(f"ONNX Runtime, without torch{what}", lines))
    return found


def what_they_give(folder: Path, graph: ExportReport | None) -> str:
    """What the folder is, and whether all its `snippets` give the same vectors. Raises `ModelError`."""
    saved = _saved(folder)
    kind = "An ordinary sentence-transformers folder"
    if "LayerHeads" in saved.kinds:
        kind = "A folder of this package, whose heads nothing else loads"
    said = f"{kind}; each of these gives the same vectors"
    if graph is None or _same_vectors(saved, graph):
        return f"{said}."
    what = f"{graph.precision}, {_END[graph.normalized]}"
    if _runs_alone(folder, saved):
        return f"{said}, but for the graph: {what}."
    taken = suited_precision(folder) == graph.precision
    return f"{said}, but for the command line, which takes the graph: {what}." if taken else f"{said}."


def _runs_alone(folder: Path, saved: _Saved) -> bool:
    """Whether a graph in the folder needs nothing but the tokenizer's file beside it."""
    return saved.as_they_are and (folder / "tokenizer.json").is_file()


def _same_vectors(saved: _Saved, graph: ExportReport) -> bool:
    return graph.precision == "fp32" and graph.normalized == ("Normalize" in saved.kinds)


def _saved(folder: Path) -> _Saved:
    if not (folder / "modules.json").exists():  # a bare transformer
        return _Saved(modules={}, pooling=("pooling_mode_mean_tokens",), max_length=None, as_they_are=True)
    try:
        modules = {module["type"]: str(module["path"]) for module in _read(folder / "modules.json")}
        if strange := [name for name in modules if name not in OWN_POOLINGS and not name.startswith(_OTHERS)]:
            raise ValueError(f"modules.json names {shown(strange[0])}, which this package never saved")
        pooling = next((path for name, path in modules.items() if name.endswith(".Pooling")), None)
        flags = {} if pooling is None else _read(folder / Path(pooling).name / "config.json")
        reading = _read(folder / "sentence_bert_config.json")
        prompted = _read(folder / "config_sentence_transformers.json").get("default_prompt_name")
        return _Saved(
            modules=modules,
            pooling=tuple(flag for flag, on in flags.items() if flag.startswith("pooling_mode_") and on),
            max_length=None if reading["max_seq_length"] is None else index(reading["max_seq_length"]),
            as_they_are=not reading["do_lower_case"] and not prompted,
        )
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise ModelError(
            f"{folder} is damaged: {type(error).__name__} {first_line(error)}.", hint="Save the model again."
        ) from error


def _read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def _ours(place: str, graph: ExportReport | None) -> str:
    load = (
        f"load_encoder({place!r})" if graph is None else f"OnnxEncoder.load({place!r}, precision={graph.precision!r})"
    )
    return f"import truncate_kit\n\nmodel = truncate_kit.{load}\nvectors = model.encode({SAMPLE_TEXTS})"


def _transformers(place: str, saved: _Saved) -> str:
    cut = "" if saved.max_length is None else f", max_length={saved.max_length}"
    lines = [
        "import torch",
        "from transformers import AutoModel, AutoTokenizer",
        "",
        f"place = {place!r}",
        "model = AutoModel.from_pretrained(place).eval()",
        "tokenizer = AutoTokenizer.from_pretrained(place)",
        f"texts = {SAMPLE_TEXTS}",
        f"batch = tokenizer(texts, padding=True, truncation=True{cut}, return_tensors='pt')",
        "with torch.no_grad():",
        "    states = model(**batch).last_hidden_state",
        "mask = batch['attention_mask'].unsqueeze(-1)",
        _POOLED[saved.pooling[0]],
    ]
    if "Normalize" in saved.kinds:
        lines.append("vectors = torch.nn.functional.normalize(vectors)")
    return "\n".join(lines)
