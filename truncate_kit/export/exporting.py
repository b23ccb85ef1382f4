"""Export: a saved folder with a checked graph in it, or nothing new at all."""

from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from truncate_kit.data import PairSet
from truncate_kit.encoders import Encoder, load_encoder, save_encoder
from truncate_kit.errors import CannotWriteError, ExportCheckError, TruncateKitError
from truncate_kit.export.checks import check_graph, check_score
from truncate_kit.export.results import ExportReport
from truncate_kit.export.runtime import OnnxEncoder
from truncate_kit.export.tracing import (
    GRAPH_FILE,
    build_graph,
    count_fused_attention,
    ends_normalized,
    save_graph,
    with_normalization,
)
from truncate_kit.extras import require
from truncate_kit.files import replacing
from truncate_kit.progress import Progress, silent

REPORT_FILE = "export.json"
_VERSIONS = ("truncate-kit", "torch", "transformers", "onnx", "onnxscript", "onnxruntime")


def export_onnx(
    encoder: Encoder,
    folder: Path,
    *,
    normalize: bool | None = None,
    pairs: PairSet | None = None,
    progress: Progress = silent,
) -> ExportReport:
    """Write `model.onnx`, from token ids to sentence vectors, into the saved folder of `encoder`, and check it.

    folder: if it holds this very encoder, only the graph and export.json are added; otherwise it is written anew, as
    by `save_encoder` (without a tokenizer it holds the configuration only). normalize: end in unit vectors or
    leave the final Normalize out; None does what the encoder does. pairs: graded pairs on which the score must stay.
    Raises `ExportError`, `ExportCheckError`, `MissingExtraError`, `CannotWriteError`; what was in `folder` before is
    then as it was.
    """
    for module in ("onnxruntime", "onnxscript"):
        require(module, extra="cpu")
    folder = Path(folder)
    if _holds(folder, encoder):
        return _export_into(encoder, folder, normalize, pairs, progress)
    with replacing(folder) as target:
        if encoder.tokenizer is not None:
            save_encoder(encoder, target)
        else:
            target.mkdir()
            encoder.backbone.config.save_pretrained(target)
        return _export_into(encoder, target, normalize, pairs, progress)


def _holds(folder: Path, encoder: Encoder) -> bool:
    """Whether `folder` is a saved model that loads as just this encoder, weight by weight."""
    if not (folder / "config.json").is_file():
        return False
    try:
        saved = load_encoder(folder)
    except TruncateKitError:
        return False
    for what in ("family", "pooling", "max_length", "combination"):
        if getattr(saved, what) != getattr(encoder, what):
            return False
    if [type(module) for module in saved.tail] != [type(module) for module in encoder.tail]:
        return False
    if repr(saved.pooler) != repr(encoder.pooler):  # its settings; the weights are compared below
        return False
    ours, theirs = encoder.state_dict(), saved.state_dict()
    return ours.keys() == theirs.keys() and all(torch.equal(value.cpu(), theirs[key]) for key, value in ours.items())


def _export_into(
    encoder: Encoder, folder: Path, normalize: bool | None, pairs: PairSet | None, progress: Progress
) -> ExportReport:
    traced = with_normalization(encoder, normalize)
    progress("Exporting", 0, 1)
    graph = build_graph(traced)
    progress("Exporting", 1, 1)
    expected, found = encoder.depth if encoder.family.fused_attention else 0, count_fused_attention(graph)
    if expected != found:
        raise ExportCheckError(f"{found} attentions are fused, where {expected} were expected")
    path = folder / GRAPH_FILE
    with replacing(path) as target:
        data = _save(graph, target)
        size = sum(file.stat().st_size for file in (target, data) if file is not None)
        checks = check_graph(target, traced, progress=progress)
        reader = encoder.reader if encoder.tokenizer is not None else None
        exported = OnnxEncoder(target, reader, heads=encoder.heads)
        task = check_score(traced, exported, pairs) if pairs is not None else None
        if data is not None:  # before the graph that names it, and beside the one that may still be there
            data.replace(folder / data.name)
    for old in folder.glob(f"{GRAPH_FILE}.*.data"):
        if data is None or old.name != data.name:
            old.unlink()
    report = ExportReport(
        model=encoder.name,
        family=encoder.family.name,
        layers=encoder.depth,
        width=exported.width,
        pooling=encoder.pooling_name,
        normalized=ends_normalized(traced),
        max_length=encoder.max_length,
        file=GRAPH_FILE,
        file_bytes=size,
        opset=int(graph.opset_imports[""]),
        versions={name: _version(name) for name in _VERSIONS},
        fused_attention_expected=expected,
        fused_attention_found=found,
        checks=checks,
        task=task,
    )
    report.write(folder / REPORT_FILE)
    return report


def _save(graph: Any, target: Path) -> Path | None:
    try:
        return save_graph(graph, target)
    except OSError as error:
        raise CannotWriteError(target, error) from error


def _version(name: str) -> str:
    """The installed version; the GPU build of ONNX Runtime has a name of its own."""
    if name == "onnxruntime":
        return str(require(name, extra="cpu").__version__)
    return version(name)
