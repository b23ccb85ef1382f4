"""Export: a saved folder with a checked graph in it, or nothing new at all."""

import tempfile
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from truncate_kit.data import PairSet
from truncate_kit.encoders import Encoder, load_encoder, save_encoder
from truncate_kit.errors import ExportCheckError, TruncateKitError, UsageError
from truncate_kit.export.checks import check_graph, check_score, odd_inputs
from truncate_kit.export.embeddings import fuse_embeddings
from truncate_kit.export.half import to_half
from truncate_kit.export.invariance import measure_invariance
from truncate_kit.export.masks import REASONS, choose_mask, set_mask
from truncate_kit.export.precision import GRAPH_FILES, Precision, Target, check_combination
from truncate_kit.export.record import REPORT_FILE, digest_of, read_exports, record_with
from truncate_kit.export.results import ExportReport, HalfPrecision, Quantization
from truncate_kit.export.runtime import OnnxEncoder
from truncate_kit.export.searching import BUDGET, search_layers
from truncate_kit.export.tracing import (
    EMBED_LIMIT,
    build_graph,
    count_fused_attention,
    count_fused_nodes,
    ends_normalized,
    save_graph,
    strip_notes,
    with_normalization,
)
from truncate_kit.extras import require
from truncate_kit.files import replacing
from truncate_kit.progress import Progress, silent

_VERSIONS = ("truncate-kit", "torch", "transformers", "onnx", "onnxscript", "onnxruntime")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wish:
    """What one export is asked for."""

    precision: Precision
    target: Target
    normalize: bool | None
    pairs: PairSet | None
    search_pairs: PairSet | None
    budget: float
    embed_limit: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Made:
    """A graph in its precision, and how it came about."""

    graph: Any
    mask: str
    fused_expected: int
    quantization: Quantization | None = None
    half: HalfPrecision | None = None


def export_onnx(
    encoder: Encoder,
    folder: Path,
    *,
    precision: str = "fp32",
    target: str = "cpu",
    normalize: bool | None = None,
    pairs: PairSet | None = None,
    search_pairs: PairSet | None = None,
    budget: float = BUDGET,
    embed_limit: int = EMBED_LIMIT,
    progress: Progress = silent,
) -> ExportReport:
    """Write one graph, from token ids to sentence vectors, into the saved folder of `encoder`, and check it.

    folder: if it holds this very encoder, only the graph and export.json are added, beside graphs of other precisions;
    otherwise it is written anew, as by `save_encoder` (without a tokenizer it holds the configuration only).
    precision: `fp32` writes `model.onnx`, `fp16` (for CUDA) `model_fp16.onnx`, `int8` (for the CPU) `model_int8.onnx`.
    target: `cpu` or `cuda`, whose kernels the graph is made for; the checks run on the CPU. normalize: end in unit
    vectors or leave the final Normalize out; None does what the encoder does. pairs: graded pairs on which the score
    must stay (fp32, fp16) or is stated (int8). search_pairs: other graded pairs on which int8 decides which layers
    stay in float, losing at most `budget` Spearman points there; int8 needs them. embed_limit: bytes of weights that
    the graph's own file may hold; more of them go to a file beside it.
    Raises `UsageError`, `ExportError`, `ExportCheckError`, `MissingExtraError`, `CannotWriteError`, and `ModelError`
    where the folder's export.json is damaged; what was in `folder` before is then as it was.
    """
    chosen, where = check_combination(precision, target)
    if chosen == "int8" and search_pairs is None:
        raise UsageError(
            "int8 needs graded pairs to choose its layers on, apart from those that are reported on.",
            hint="Give --data with a dev or train split, or use --precision fp32.",
        )
    for module in ("onnxruntime", "onnxscript"):
        require(module, extra="cpu")
    folder = Path(folder)
    wish = _Wish(
        precision=chosen,
        target=where,
        normalize=normalize,
        pairs=pairs,
        search_pairs=search_pairs,
        budget=budget,
        embed_limit=embed_limit,
    )
    if _holds(folder, encoder):
        return _export_into(encoder, folder, wish, progress)
    with replacing(folder) as place:
        if encoder.tokenizer is not None:
            save_encoder(encoder, place)
        else:
            place.mkdir()
            encoder.backbone.config.save_pretrained(place)
        return _export_into(encoder, place, wish, progress)


def _holds(folder: Path, encoder: Encoder) -> bool:
    """Whether `folder` is a saved model that loads as just this encoder, weight by weight."""
    if not (folder / "config.json").is_file():
        return False
    try:
        saved = load_encoder(folder)
    except TruncateKitError:
        return False
    for what in ("family", "max_length", "pooling_details"):  # without the weights, which are compared below
        if getattr(saved, what) != getattr(encoder, what):
            return False
    if [type(module) for module in saved.tail] != [type(module) for module in encoder.tail]:
        return False
    ours, theirs = encoder.state_dict(), saved.state_dict()
    return ours.keys() == theirs.keys() and all(torch.equal(value.cpu(), theirs[key]) for key, value in ours.items())


def _make(encoder: Encoder, wish: _Wish, progress: Progress) -> _Made:
    """Trace, fuse, set the mask, and bring the graph into its precision."""
    progress("Exporting", 0, 1)
    graph = build_graph(encoder, wish.target)
    progress("Exporting", 1, 1)
    expected, found = encoder.depth if encoder.family.fused_attention else 0, count_fused_attention(graph)
    if expected != found:
        raise ExportCheckError(f"{found} attentions are fused, where {expected} were expected")
    mask = set_mask(graph, choose_mask(wish.target))
    fuse_embeddings(graph, encoder.family, wish.precision)
    if wish.precision == "fp16":
        graph, half = to_half(graph, encoder.family, odd_inputs(encoder), embed_limit=wish.embed_limit)
        return _Made(graph=graph, mask=mask, fused_expected=expected, half=half)
    if wish.precision == "int8":
        assert wish.search_pairs is not None
        with tempfile.TemporaryDirectory(prefix="truncate-kit-int8-") as scratch:
            exact = Path(scratch) / GRAPH_FILES["fp32"]
            save_graph(graph, exact, embed_limit=wish.embed_limit)
            check_graph(exact, encoder)  # int8 has no limit of its own: the graph it starts from must be right
            graph, quantization = search_layers(
                graph,
                encoder.reader,
                wish.search_pairs,
                Path(scratch),
                budget=wish.budget,
                heads=encoder.heads,
                progress=progress,
            )
        return _Made(graph=graph, mask=mask, fused_expected=expected, quantization=quantization)
    return _Made(graph=graph, mask=mask, fused_expected=expected)


def _export_into(encoder: Encoder, folder: Path, wish: _Wish, progress: Progress) -> ExportReport:
    read_exports(folder)  # replacing a damaged one would lose what it says of the other graphs
    traced = with_normalization(encoder, wish.normalize)
    made = _make(traced, wish, progress)
    strip_notes(made.graph)
    name = GRAPH_FILES[wish.precision]
    path = folder / name
    # Both are written before either is renamed: where the disk is full, the old graph keeps its old record.
    with replacing(folder / REPORT_FILE) as record, replacing(path) as target:
        data = save_graph(made.graph, target, embed_limit=wish.embed_limit)
        size = sum(file.stat().st_size for file in (target, data) if file is not None)
        checks = check_graph(target, traced, precision=wish.precision, progress=progress)
        reader = encoder.reader if encoder.tokenizer is not None else None
        exported = OnnxEncoder(target, reader, heads=encoder.heads)
        task = check_score(traced, exported, wish.pairs, precision=wish.precision) if wish.pairs is not None else None
        told = wish.search_pairs or wish.pairs
        # fp32 is shown to be invariant by its checks, to their limit
        invariance = measure_invariance(exported, told) if told is not None and wish.precision != "fp32" else None
        report = ExportReport(
            model=encoder.name,
            precision=wish.precision,
            target=wish.target,
            family=encoder.family.name,
            layers=encoder.depth,
            width=exported.width,
            pooling=encoder.pooling_name,
            normalized=ends_normalized(traced),
            max_length=encoder.max_length,
            file=name,
            file_bytes=size,
            opset=int(made.graph.opset_imports[""]),
            versions={module: _version(module) for module in _VERSIONS},
            fused_attention_expected=made.fused_expected,
            fused_attention_found=count_fused_attention(made.graph),
            fused_nodes=count_fused_nodes(made.graph),
            mask=made.mask,
            mask_reason=REASONS[made.mask],
            sha256=digest_of(target),
            checks=checks,
            task=task,
            invariance=invariance,
            quantization=made.quantization,
            half=made.half,
            weights_file=None if data is None else data.name,
            weights_sha256=None if data is None else digest_of(data),
        )
        record.write_text(record_with(folder, report), encoding="utf-8")
        if data is not None:  # before the graph that names it, and beside the one that may still be there
            data.replace(folder / data.name)
    for old in folder.glob(f"{name}.*.data"):
        if data is None or old.name != data.name:
            old.unlink()
    return report


def _version(name: str) -> str:
    """The installed version; the GPU build of ONNX Runtime has a name of its own."""
    if name == "onnxruntime":
        return str(require(name, extra="cpu").__version__)
    return version(name)
