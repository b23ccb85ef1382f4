"""Lines that load the model of a run, in five ways."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from truncate_kit.export.export_report import ExportReport
from truncate_kit.page.layout import Snippet
from truncate_kit.runs.usage import TEXTS, onnxruntime_lines, sentence_transformers_lines

if TYPE_CHECKING:
    from truncate_kit.encoders.pipeline import Pipeline

_POOLED = {  # of `states` (n, t, d) and `mask` (n, t, 1)
    "mean": "vectors = (states * mask).sum(1) / mask.sum(1)",
    "cls": "vectors = states[:, 0]",
    "max": "vectors = states.masked_fill(mask == 0, float('-inf')).amax(1)",
    "last": "vectors = states[torch.arange(len(states)), mask.sum(1).squeeze(1) - 1]",
}


def snippets(folder: Path, graph: ExportReport | None) -> list[Snippet]:
    """How to load the model in a folder; ways that would not give its vectors are left out.

    graph: One that was exported there, None without. Raises `ModelError` where the folder is damaged.
    """
    from truncate_kit.encoders.pipeline import read_pipeline
    from truncate_kit.encoders.pooler_files import LayerPooler

    place, pipeline = str(folder), read_pipeline(folder)
    command = shlex.join(["truncate-kit", "encode", "texts.txt", "--model", place, "--out", "vectors.npy"])
    found = [Snippet("Command line", command), Snippet("Python", _ours(place, graph))]
    if pipeline.heads is None:  # sentence-transformers has no such module
        lines = sentence_transformers_lines(place, own_pooling=isinstance(pipeline.pooler, LayerPooler))
        found.append(Snippet("sentence-transformers", lines))
    # What changes texts before they are read, these two would have to do by hand.
    as_they_are = not pipeline.lower_case and not pipeline.settings.get("default_prompt_name")
    if as_they_are and _pools_plainly(pipeline):
        found.append(Snippet("transformers", _transformers(place, pipeline)))
    if as_they_are and graph is not None and (folder / "tokenizer.json").is_file():
        found.append(Snippet("ONNX Runtime, without torch", onnxruntime_lines(place, graph.file, graph.max_length)))
    return found


def _pools_plainly(pipeline: "Pipeline") -> bool:
    """Whether the vector is the pooled last states, at most scaled to length 1."""
    only_last = pipeline.pooler is None and pipeline.heads is None and pipeline.combination is None
    return only_last and all(type(module).__name__ == "Normalize" for module in pipeline.tail)


def _ours(place: str, graph: ExportReport | None) -> str:
    load = (
        f"load_encoder({place!r})" if graph is None else f"OnnxEncoder.load({place!r}, precision={graph.precision!r})"
    )
    return f"import truncate_kit\n\nmodel = truncate_kit.{load}\nvectors = model.encode({TEXTS})"


def _transformers(place: str, pipeline: "Pipeline") -> str:
    cut = "" if pipeline.max_length is None else f", max_length={pipeline.max_length}"
    lines = [
        "import torch",
        "from transformers import AutoModel, AutoTokenizer",
        "",
        f"place = {place!r}",
        "model = AutoModel.from_pretrained(place).eval()",
        "tokenizer = AutoTokenizer.from_pretrained(place)",
        f"texts = {TEXTS}",
        f"batch = tokenizer(texts, padding=True, truncation=True{cut}, return_tensors='pt')",
        "with torch.no_grad():",
        "    states = model(**batch).last_hidden_state",
        "mask = batch['attention_mask'].unsqueeze(-1)",
        _POOLED[pipeline.pooling or "mean"],
    ]
    if pipeline.tail:
        lines.append("vectors = torch.nn.functional.normalize(vectors)")
    return "\n".join(lines)
