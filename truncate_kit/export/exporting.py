"""Export: a saved folder with a checked graph in it, or nothing new at all."""

import tempfile
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from truncate_kit.core.errors import ModelError, TruncateKitError, UsageError, failed_check, require
from truncate_kit.core.files import digest_of, local_path, name_without_folders, replacing
from truncate_kit.core.hardware import without_autocast
from truncate_kit.core.origin import model_digests
from truncate_kit.core.precisions import GRAPH_FILES, Target
from truncate_kit.core.progress import Progress, ProgressOption, reporter, silent
from truncate_kit.core.results import VERSION
from truncate_kit.data.pairs import PairSet
from truncate_kit.export.check import check_graph, check_score, measure_invariance, odd_inputs
from truncate_kit.export.graph import (
    FUSED_ATTENTION,
    GRAPH_FILE,
    count_fused_nodes,
    fuse_embeddings,
    save_graph,
    set_mask,
    strip_notes,
)
from truncate_kit.export.half import store_half, to_half
from truncate_kit.export.int8 import search_layers
from truncate_kit.export.record import REPORT_FILE, ExportReport, read_exports, record_with
from truncate_kit.export.runtime import OnnxEncoder
from truncate_kit.export.settings import ExportSettings
from truncate_kit.export.trace import build_graph, ends_normalized, fold_constants, with_normalization
from truncate_kit.models.encoder import Encoder
from truncate_kit.models.loading import load_encoder
from truncate_kit.models.pipeline import encoder_digest, load_by_any_runtime, origin_of, save_encoder

_VERSIONS = ("torch", "transformers", "onnx", "onnxscript")
_DEFAULTS = ExportSettings()


@without_autocast()
def export_onnx(
    encoder: Encoder,
    folder: Path,
    settings: ExportSettings = _DEFAULTS,
    *,
    pairs: PairSet | None = None,
    search_pairs: PairSet | None = None,
    progress: ProgressOption = False,
) -> ExportReport:
    """Write one graph, from token ids to sentence vectors, into the saved folder of `encoder`, and check it.

    Args:
        encoder: what the graph computes.
        folder: if it holds this very encoder, only the graph and export.json are added, beside graphs of other
            precisions, and a setting that loaders of graphs refuse is taken out; otherwise it is written anew, as by
            `save_encoder` (without a tokenizer it holds the configuration only).
        settings: precision, target and the end of the graph.
        pairs: graded pairs on which the score must stay (fp32, fp16) or is stated (int8).
        search_pairs: other graded pairs on which int8 decides which layers stay in float; int8 needs them.
        progress: True draws bars and logs; else what is called as the work goes on.

    Raises:
        UsageError: int8 without `search_pairs`, pairs that are no set, or a model that is none that was loaded.
        MissingExtraError: no ONNX Runtime or exporter is installed.
        FileProblemError: the folder cannot be written.
        ModelError: the encoder cannot be exported, the graph fails a check, the folder's export.json is damaged, or
            another model took the encoder's place in the folder meanwhile. The folder is then as it was.
    """
    _check_able(settings, search_pairs)
    folder, digest = local_path(folder), encoder_digest(encoder)
    given: dict[str, Any] = {"pairs": pairs, "search_pairs": search_pairs, "progress": reporter(progress)}
    if _saved_digest(folder) == digest:
        try:
            return _export_into(encoder, digest, folder, settings, **given, beside_model=True)
        except TruncateKitError:
            _check_unreplaced(encoder, digest, folder)  # a folder that was replaced takes half-written files along
            raise
    with replacing(folder) as place:
        if encoder.tokenizer is not None:
            save_encoder(encoder, place, origin=origin_of("copy", encoder, encoder))
        else:
            place.mkdir()
            encoder.backbone.config.save_pretrained(place)
        return _export_into(encoder, digest, place, settings, **given)


@without_autocast()
def export_graph(encoder: Encoder, folder: Path, target: Target = "cpu") -> ExportReport:
    """Write the checked float32 graph of `encoder` for a target and its export.json, without a model beside them.

    `folder` is replaced as a whole, or left as it was on failure. Raises the errors of `export_onnx`.
    """
    _check_able(_DEFAULTS)
    with replacing(local_path(folder)) as place:
        place.mkdir()
        return _export_into(encoder, encoder_digest(encoder), place, replace(_DEFAULTS, target=target))


def _check_able(settings: ExportSettings, search_pairs: PairSet | None = None) -> None:
    if settings.precision == "int8" and search_pairs is None:
        raise UsageError(
            "int8 needs graded pairs to choose its layers on, apart from those that are reported on.",
            hint='Give `search_pairs`, or use `precision="fp32"`.',
        )
    for module in ("onnxruntime", "onnxscript"):
        require(module, extra="cpu")


def _saved_digest(folder: Path) -> str | None:
    if not (folder / "config.json").is_file():
        return None
    try:
        return encoder_digest(load_encoder(folder))
    except TruncateKitError:
        return None


def _check_unreplaced(encoder: Encoder, digest: str, folder: Path) -> None:
    if _saved_digest(folder) != digest:
        raise ModelError(
            f"Another model took the place of {encoder.name} in {folder} while its graph was made.",
            hint="Export the model that is there now.",
        )


def _make(
    encoder: Encoder, settings: ExportSettings, search_pairs: PairSet | None, progress: Progress
) -> tuple[Any, dict[str, Any]]:
    """Trace, fuse, set the mask, and bring the graph into its precision; with what the report says of that."""
    progress("Exporting", 0, 1)
    graph = build_graph(encoder, settings.target)
    progress("Exporting", 1, 1)
    expected, found = encoder.depth if encoder.family.fused_attention else 0, _fused_attention(graph)
    if expected != found:
        raise failed_check(f"{found} attentions are fused, where {expected} were expected")
    mask = set_mask(graph, "lengths" if settings.target == "cuda" else "tokens")
    facts: dict[str, Any] = {"fused_attention_expected": expected, "mask": mask}
    fuse_embeddings(graph, encoder.family, settings.precision)
    computed = fold_constants(graph) if settings.precision != "fp32" else set()
    if settings.precision == "fp16":
        graph, facts["float32_islands"], facts["largest_half"] = to_half(graph, encoder.family, odd_inputs(encoder))
    elif search_pairs is not None and settings.precision == "int8":
        with tempfile.TemporaryDirectory(prefix="truncate-kit-int8-") as scratch:
            exact = Path(scratch) / GRAPH_FILE
            save_graph(graph, exact, embed_limit=settings.embed_limit)
            check_graph(exact, encoder)  # int8 has no limit of its own: the graph it starts from must be right
            graph, facts["quantization"] = search_layers(
                graph,
                encoder.reader,
                search_pairs,
                Path(scratch),
                budget=settings.budget,
                heads=encoder.heads,
                progress=progress,
            )
    store_half(graph, computed)
    strip_notes(graph)
    return graph, facts


def _fused_attention(graph: Any) -> int:
    fused = count_fused_nodes(graph)
    return sum(fused.get(name, 0) for name in FUSED_ATTENTION)


def _export_into(
    encoder: Encoder,
    digest: str,
    folder: Path,
    settings: ExportSettings,
    *,
    pairs: PairSet | None = None,
    search_pairs: PairSet | None = None,
    progress: Progress = silent,
    beside_model: bool = False,
) -> ExportReport:
    """Make, write and check a graph and its record.

    digest: of the encoder. beside_model: the folder holds the encoder already, and others may write to it.
    """
    read_exports(folder)  # replacing a damaged one would lose what it says of the other graphs
    traced, precision = with_normalization(encoder, settings.normalize), settings.precision
    graph, facts = _make(traced, settings, search_pairs, progress)
    path = folder / GRAPH_FILES[precision]
    # Both are written before either is renamed: where the disk is full, the old graph keeps its old record.
    with replacing(folder / REPORT_FILE) as record, replacing(path) as file:
        data = save_graph(graph, file, embed_limit=settings.embed_limit)
        checks = check_graph(file, traced, precision=precision, progress=progress)
        exported = OnnxEncoder(file, encoder.reader if encoder.tokenizer is not None else None, heads=encoder.heads)
        some = search_pairs or pairs
        report = ExportReport(
            model=name_without_folders(encoder.name),
            encoder=digest,
            precision=precision,
            target=settings.target,
            family=encoder.family.name,
            layers=encoder.depth,
            width=exported.width,
            pooling=encoder.pooling_name,
            normalized=ends_normalized(traced),
            max_length=encoder.max_length,
            file=path.name,
            file_bytes=sum(part.stat().st_size for part in (file, data) if part is not None),
            opset=int(graph.opset_imports[""]),
            # The GPU build of ONNX Runtime has a name of its own.
            versions={"truncate-kit": VERSION}
            | {name: version(name) for name in _VERSIONS}
            | {"onnxruntime": require("onnxruntime", extra="cpu").__version__},
            fused_attention_found=_fused_attention(graph),
            fused_nodes=count_fused_nodes(graph),
            sha256=digest_of(file),
            checks=checks,
            task=None if pairs is None else check_score(traced, exported, pairs, precision=precision),
            # fp32 is shown to be invariant by its checks, to their limit
            invariance=None if some is None or precision == "fp32" else measure_invariance(exported, some),
            weights_file=None if data is None else data.name,
            weights_sha256=None if data is None else digest_of(data),
            model_sha256=model_digests(folder),
            **facts,
        )
        record.write_text(record_with(folder, report), encoding="utf-8")
        if beside_model:
            _check_unreplaced(encoder, digest, folder)
        if data is not None:  # before the graph that names it, and beside the one that may still be there
            data.replace(folder / data.name)
    load_by_any_runtime(folder)
    for old in folder.glob(f"{path.name}.*.data"):
        if data is None or old.name != data.name:
            old.unlink()
    return report
