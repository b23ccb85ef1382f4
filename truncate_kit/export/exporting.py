"""Export checked graphs into saved folders, and push these to the hub; failures change no folder."""

import contextlib
import copy
import os
import shutil
import tempfile
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from huggingface_hub import HfApi, errors, metadata_load
from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]  # public, but not declared so
from numpy.typing import NDArray
from torch import Tensor, nn
from yaml import YAMLError

from truncate_kit.core.errors import (
    ModelError,
    TruncateKitError,
    UsageError,
    counted,
    failed_check,
    first_line,
    require,
)
from truncate_kit.core.files import digest_of, local_path, name_without_folders, replacing
from truncate_kit.core.hardware import (
    EXPORT_RECORD,
    GRAPH_FILES,
    GRAPH_RUNTIMES,
    PRECISIONS,
    Precision,
    check_precision,
    usable_cores,
    without_autocast,
)
from truncate_kit.core.progress import Progress, ProgressOption, reporter, silent
from truncate_kit.core.results import drawn
from truncate_kit.core.workspace import ORIGIN_FILE, RESULT_FILES, model_digests, versions
from truncate_kit.data.seen import SEEN_FILE
from truncate_kit.export.record import (
    ExportReport,
    ExportSettings,
    check_record,
    fused_attention,
    read_exports,
    record_with,
)
from truncate_kit.export.runtime import ENCODERS, GraphEncoder, gives_unit_vectors, graph_files
from truncate_kit.export.sessions import INPUTS, OUTPUT, SCORE, STATES, Feeds, open_graph
from truncate_kit.models.encoder import Batch, Encoder, evaluating, padded
from truncate_kit.models.loading import load_encoder
from truncate_kit.models.pipeline import Normalize, save_encoder
from truncate_kit.models.store import encoder_digest, origin_of

if TYPE_CHECKING:
    from truncate_kit.data.pairs import PairSet

_EXPORTERS = ("onnx", "onnxscript")
_DEFAULTS = ExportSettings()
_BATCHES, _LENGTHS = (1, 2, 17), (2, 16, 128)
_MOST_TOKENS = 1024  # of several checked texts: more take minutes, and unfused tens of GB
_MOST_PAIRS = 200
# Not uploaded: locks, half-written files, records with local paths, keys of training pairs.
_RECORDS = (Path(RESULT_FILES["cut"]).name, Path(RESULT_FILES["distill"]).name, ORIGIN_FILE, SEEN_FILE)
_NOT_UPLOADED = (".*", "**/.*", "*.tmp", *_RECORDS)


@without_autocast()
def export_onnx(
    encoder: Encoder,
    folder: Path,
    settings: ExportSettings = _DEFAULTS,
    *,
    pairs: "PairSet | None" = None,
    search_pairs: "PairSet | None" = None,
    progress: ProgressOption = False,
) -> ExportReport:
    """Export the encoder as a checked graph from token ids to sentence vectors.

    folder: Gets graph and export.json. Without this encoder, it is replaced by the saved encoder (without a
        tokenizer: its configuration).
    pairs: Their score must not change (fp32, bf16, fp16) or is reported (int8).
    search_pairs: Other pairs, to choose the layers in int8.

    Raises:
        UsageError: int8 without `search_pairs`.
        MissingExtraError: A runtime, onnxscript or NNCF is missing.
        DeviceError: bf16 without the processor's instructions.
        FileProblemError: The folder cannot be written.
        ModelError: A check fails, or export.json is damaged.
    """
    if settings.precision == "int8" and search_pairs is None:
        raise UsageError(
            "int8 needs graded pairs to choose its layers, separate from the reported pairs.",
            hint='Give `search_pairs`, or use `precision="fp32"`.',
        )
    folder, digest, progress = local_path(folder), encoder_digest(encoder), reporter(progress)
    if _holds(folder, digest):
        return _export_into(encoder, digest, folder, settings, pairs, search_pairs, progress)
    with replacing(folder) as place:
        if encoder.tokenizer is not None:
            origin = origin_of("copy", encoder, encoder)
            save_encoder(encoder, place, origin=origin, model_card=drawn("copied", encoder, origin))
        else:
            place.mkdir()
            encoder.backbone.config.save_pretrained(place)
        return _export_into(encoder, digest, place, settings, pairs, search_pairs, progress)


@without_autocast()
def export_graph(
    encoder: Encoder, folder: Path, settings: ExportSettings = _DEFAULTS, *, fused: bool = True
) -> ExportReport:
    """Write a graph (not in int8) and its export.json to a folder without a model. Raises as `export_onnx`.

    fused: Fuse operators, for ONNX Runtime's own providers only.
    """
    folder, digest = local_path(folder), encoder_digest(encoder)
    if settings.runtime == "openvino":  # fp32 and bf16 share the file
        folder.mkdir(parents=True, exist_ok=True)
        return _export_into(encoder, digest, folder, settings)
    with replacing(folder) as place:
        place.mkdir()
        return _export_into(encoder, digest, place, settings, fused=fused)


def _holds(folder: Path, digest: str) -> bool:
    try:
        return (folder / "config.json").is_file() and encoder_digest(load_encoder(folder)) == digest
    except TruncateKitError:
        return False


def _export_into(
    encoder: Encoder,
    digest: str,
    folder: Path,
    settings: ExportSettings,
    pairs: "PairSet | None" = None,
    search_pairs: "PairSet | None" = None,
    progress: Progress = silent,
    *,
    fused: bool = True,
) -> ExportReport:
    runtime, precision, packages = settings.runtime, settings.precision, _packages(settings)
    read_exports(folder)  # raises if damaged
    traced = _with_normalization(encoder, settings.normalize)
    beside = model_digests(folder)  # the model may be replaced meanwhile
    path = folder / GRAPH_RUNTIMES[runtime].files[precision]
    with contextlib.ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="truncate-kit-export-")))
        work = settings, search_pairs, scratch, progress
        if runtime == "openvino":
            write, facts = _make_openvino(traced, _known_graph(folder, digest, traced), folder, *work)
        else:
            write, facts = _make(traced, *work, fused)
        # Write both before renaming either: on a full disk the old graph keeps its record.
        record, file = (stack.enter_context(replacing(place)) for place in (folder / EXPORT_RECORD, path))
        write(file)
        files = graph_files(file)
        checks = check_graph(file, traced, precision=precision, progress=progress)
        reader = encoder.reader if encoder.tokenizer is not None else None
        exported = ENCODERS[runtime](file, reader, precision=precision, heads=encoder.heads)
        if pairs is not None:
            facts |= check_score(traced, exported, pairs, precision=precision)
        if precision != "fp32" and (measured := search_pairs or pairs) is not None:  # fp32: see checks
            facts |= {"invariance": measure_invariance(exported, measured), "invariant_on": measured.name}
        report = ExportReport(
            model=name_without_folders(encoder.name),
            encoder=digest,
            precision=precision,
            target=settings.target,
            family=encoder.family.name,
            layers=encoder.depth,
            width=exported.width,
            pooling=encoder.pooling_name,
            normalized=gives_unit_vectors(traced),
            max_length=encoder.max_length,
            file=GRAPH_RUNTIMES[runtime].files[precision],
            file_bytes=sum(part.stat().st_size for part in files),
            versions=versions() | packages,
            graph_sha256={f"{path.parent.name}/{part.name}": digest_of(part) for part in files},
            model_sha256=beside,
            checks=checks,
            **facts,
        )
        record.write_text(record_with(folder, report), encoding="utf-8")
        for data in files[1:]:  # weights before the graph that names their files
            data.replace(path.parent / data.name)
    for old in path.parent.glob(f"{path.name}.*.data"):
        if f"{path.parent.name}/{old.name}" not in report.graph_sha256:
            old.unlink()
    drawn("measured", folder, report)
    return report


def _packages(settings: ExportSettings) -> dict[str, str]:
    """Check the runtime; return versions."""
    found = {"onnxruntime": require("onnxruntime", extra="cpu").__version__}  # the GPU build has another name
    require("onnxscript", extra="cpu")
    if settings.runtime == "openvino":
        found = {"openvino": require("openvino", extra="openvino").__version__}
        check_precision(settings.precision, torch.device("cpu"))
    return {name: version(name) for name in _EXPORTERS} | found


def _known_graph(folder: Path, digest: str, traced: Encoder) -> ExportReport | None:
    """Return the report on the same encoder's fp32 or bf16 graph, if any."""
    with contextlib.suppress(ModelError):
        report = check_record(folder / GRAPH_RUNTIMES["openvino"].files["fp32"])
        if report.encoder == digest and report.normalized == gives_unit_vectors(traced):
            return report
    return None


def _with_normalization(encoder: Encoder, normalize: bool | None) -> Encoder:
    """Copy the encoder, sharing weights; add or remove a final Normalize by `normalize`."""
    tail = list(encoder.tail)
    if normalize is not None and gives_unit_vectors(encoder):
        tail.pop()
    if normalize:
        tail.append(Normalize())
    changed = copy.copy(encoder)
    changed._modules = {**encoder._modules, "tail": nn.Sequential(*tail)}
    return changed


Written = tuple[Callable[[Path], object], dict[str, Any]]
"""Writer of a graph, and fields of `ExportReport`."""


def _make_openvino(
    encoder: Encoder,
    known: ExportReport | None,
    folder: Path,
    settings: ExportSettings,
    search_pairs: "PairSet | None",
    scratch: Path,
    progress: Progress,
) -> Written:
    """Convert the encoder, or take its `known` graph; quantize it for int8."""
    from truncate_kit.export.openvino import convert, copy_graph, quantize

    progress("Exporting", 0, 1)
    exact, rounded = scratch / "exact.xml", scratch / "rounded.xml"
    if known is None:
        opset = convert(encoder, exact)
    else:
        copy_graph(folder / known.file, exact)
        opset = known.opset
    progress("Exporting", 1, 1)
    facts: dict[str, Any] = {"opset": opset, "fused_nodes": {}, "mask": "unfused"}
    if settings.precision != "int8":
        return partial(copy_graph, exact), facts
    assert search_pairs is not None
    check_graph(exact, encoder)  # int8 vectors have no limit
    facts["quantization"] = quantize(encoder, exact, rounded, search_pairs, budget=settings.budget, progress=progress)
    return partial(copy_graph, rounded), facts


def _make(
    encoder: Encoder,
    settings: ExportSettings,
    search_pairs: "PairSet | None",
    scratch: Path,
    progress: Progress,
    fused: bool,
) -> Written:
    from truncate_kit.export.graph import (
        build_graph,
        count_fused_nodes,
        fold_constants,
        fuse_embeddings,
        save_graph,
        set_mask,
        store_half,
        strip_notes,
        to_half,
    )

    progress("Exporting", 0, 1)
    graph = build_graph(encoder, settings.target, fused=fused)
    progress("Exporting", 1, 1)
    expected = encoder.depth if fused and encoder.family.fused_attention else 0
    found = fused_attention(count_fused_nodes(graph))
    if found != expected:
        raise failed_check(f"{found} attentions are fused instead of {expected}")
    facts: dict[str, Any] = {"mask": set_mask(graph, "lengths" if settings.target == "cuda" else "tokens")}
    if fused:
        fuse_embeddings(graph, encoder.family, settings.precision)
    computed = fold_constants(graph) if settings.precision != "fp32" else set()
    if settings.precision == "fp16":
        graph, facts["float32_islands"], facts["largest_half"] = to_half(graph, encoder.family, odd_inputs(encoder))
    elif settings.precision == "int8":
        from truncate_kit.export.int8 import search_layers

        assert search_pairs is not None
        exact = scratch / "exact.onnx"
        save_graph(graph, exact)
        check_graph(exact, encoder)  # int8 vectors have no limit
        graph, facts["quantization"] = search_layers(
            graph, encoder, search_pairs, scratch, budget=settings.budget, progress=progress
        )
    if settings.precision != "fp32":
        store_half(graph, computed)
    strip_notes(graph)
    facts |= {"opset": int(graph.opset_imports[""]), "fused_nodes": count_fused_nodes(graph)}
    return partial(save_graph, graph), facts


# Checks


def check_graph(
    file: Path, encoder: Encoder, *, precision: Precision = "fp32", progress: Progress = silent
) -> dict[str, float]:
    """Compare the graph, run on the CPU, with the encoder; return `ExportReport.checks`.

    Raises `ModelError` for a difference above the precision's limit, on NaN, and if the graph does not load.
    """
    try:
        session = open_graph(file, precision=precision, threads=usable_cores())
    except ModelError as error:
        raise failed_check(str(error)) from error
    limit, longest = PRECISIONS[precision].vector_limit, min(max(_LENGTHS), encoder.max_length)
    lengths = sorted({*(length for length in _LENGTHS if length < encoder.max_length), encoder.max_length})
    shapes = [(b, t) for t in lengths for b in _BATCHES if b == 1 or b * t <= _MOST_TOKENS]
    cases = {f"batch {b}, length {t}": (OUTPUT, _random_batch(encoder, b, t)) for b, t in shapes}
    cases |= {name: (OUTPUT, batch) for name, batch in _odd_batches(encoder).items()}
    if encoder.pools_tokens:  # output for loaders that pool token states themselves
        cases["token states"] = STATES, _random_batch(encoder, max(_BATCHES), min(_LENGTHS[1], encoder.max_length))
    for pairs in (1, 8) if encoder.heads is not None else ():
        batch = _random_batch(encoder, 2 * pairs, min(12, encoder.max_length))
        if pairs > 1:  # the last pair is one text twice
            for value in batch.values():
                value[-1] = value[pairs - 1]
        cases[f"score of {counted(pairs, 'pair')}"] = SCORE, batch
    units = {OUTPUT: 1.0 if gives_unit_vectors(encoder) else None, SCORE: 1.0}
    checks = dict[str, float]()
    for done, (name, (output, batch)) in enumerate(cases.items(), start=1):
        result, expected = _run(session, batch, name, output), _expected(encoder, batch, output)
        checks[name] = _compare(name, result, expected, limit, units.get(output))
        progress("Checking the graph", done, len(cases))
    alone = _random_batch(encoder, 1, max(1, longest // 2))
    ids, mask = (torch.nn.functional.pad(alone[key], (0, longest - alone[key].shape[1])) for key in INPUTS)
    # Two runs of the graph: int8 rounds otherwise.
    wide, narrow = (_run(session, batch, "padding", OUTPUT) for batch in (_batch(encoder, ids, mask), alone))
    checks["padding"] = _compare("padding", wide, narrow, limit, units[OUTPUT])
    return checks


def odd_inputs(encoder: Encoder) -> list[Feeds]:
    """Return inputs with extreme token ids or the maximum length."""
    batches = [_random_batch(encoder, 1, encoder.max_length), *_odd_batches(encoder).values()]
    return [{name: value.numpy() for name, value in batch.items()} for batch in batches]


def _odd_batches(encoder: Encoder) -> dict[str, Batch]:
    length = min(max(_LENGTHS), encoder.max_length)
    last = int(encoder.backbone.config.vocab_size) - 1
    ids = torch.stack([torch.full((length,), token) for token in (0, last // 2, last)])
    short = torch.full((1, 1), last)
    return {
        f"one token {length} times": _batch(encoder, ids, torch.ones_like(ids)),
        "one token alone": _batch(encoder, short, torch.ones_like(short)),
    }


def _random_batch(encoder: Encoder, size: int, length: int) -> Batch:
    """Return random ids: one full row, then rows of random length."""
    generator = torch.Generator().manual_seed(size * 10_007 + length)
    ids = torch.randint(int(encoder.backbone.config.vocab_size), (size, length), generator=generator)
    ends = torch.randint(min(2, length), length + 1, (size, 1), generator=generator)
    ends[0] = length
    return _batch(encoder, ids, (torch.arange(length) < ends).long())


def _batch(encoder: Encoder, ids: Tensor, mask: Tensor) -> Batch:
    # RoBERTa counts positions without padding ids.
    padding = encoder.backbone.config.pad_token_id
    if padding is not None:
        other = (int(padding) + 1) % int(encoder.backbone.config.vocab_size)
        ids = torch.where(ids == padding, other, ids)
    return dict(zip(INPUTS, (torch.where(mask == 1, ids, padding or 0), mask), strict=True))


def _expected(encoder: Encoder, batch: Batch, output: str) -> NDArray[np.float32]:
    from truncate_kit.export.graph import Traced

    batch = {key: value.to(encoder.device) for key, value in batch.items()}
    with torch.inference_mode(), evaluating(encoder):
        result = encoder(**batch) if output == OUTPUT else Traced(encoder)(**batch)[1]
    return _without_padding(result.cpu().numpy(), batch, output)


def _run(session: Any, batch: Batch, name: str, output: str) -> NDArray[np.float32]:
    try:
        result = session.run([output], {key: value.numpy() for key, value in batch.items()})[0]
    except Exception as error:  # the runtime's classes share no base
        raise failed_check(f"{name} does not run: {first_line(error)}") from error
    return _without_padding(result, batch, output)


def _without_padding(result: NDArray[np.float32], batch: Batch, output: str) -> NDArray[np.float32]:
    return result[batch[INPUTS[1]].cpu().numpy() == 1] if output == STATES else result


def _compare(name: str, result: NDArray[Any], expected: NDArray[Any], limit: float | None, unit: float | None) -> float:
    """Return the largest difference divided by `unit`, by default by the largest expected entry."""
    if not (np.isfinite(expected).all() and np.isfinite(result).all()):
        raise failed_check(f"{name}: vectors hold NaN or infinity")
    if result.shape != expected.shape:
        raise failed_check(f"{name}: vectors have the shape {result.shape} instead of {expected.shape}")
    largest = max(float(np.abs(expected).max()), float(np.finfo(np.float32).tiny))
    difference = float(np.abs(result - expected).max()) / (unit or largest)
    if limit is not None and difference > limit:
        raise failed_check(f"{name}: a difference of {difference:.2g} exceeds the limit of {limit:g}")
    return difference


def check_score(
    encoder: Encoder, exported: GraphEncoder, pairs: "PairSet", *, precision: Precision = "fp32"
) -> dict[str, Any]:
    """Return the scores of torch and graph for `ExportReport`. Raises `ModelError` if they differ beyond the limit."""
    from truncate_kit.evaluation.graded import evaluate

    limit = PRECISIONS[precision].score_limit
    torch_score, graph_score = evaluate(encoder, pairs.pairs), evaluate(exported, pairs.pairs)
    fields: dict[str, Any] = {"scored_on": pairs.name, "num_pairs": len(pairs)}
    for measure in ("spearman", "pearson"):
        plain, graph = getattr(torch_score, measure), getattr(graph_score, measure)
        fields[measure] = plain, graph
        if limit is not None and abs(graph - plain) > limit:
            raise failed_check(f"{measure.title()} on {pairs.name} is {graph:.3f}, but {plain:.3f} in torch")
    return fields


def measure_invariance(exported: GraphEncoder, pairs: "PairSet") -> dict[str, float]:
    """Measure how much batching, and padding to the longest text, change a text's unit vector.

    Returns, against each text run alone, the largest difference of entries, the lowest cosine, and Spearman × 100.
    """
    from truncate_kit.data.pairs import index_texts
    from truncate_kit.evaluation.graded import correlate, pair_similarities

    assert exported.reader is not None
    chosen = pairs.pairs[:: -(-len(pairs) // _MOST_PAIRS)]
    if len({pair.target for pair in chosen}) < 2:  # Spearman would be undefined
        chosen = pairs.pairs
    texts, places = index_texts(chosen)
    ids = exported.reader.token_ids(texts)
    targets, padding, longest = [pair.target for pair in chosen], exported.reader.padding_id, max(map(len, ids))

    def unit(vectors: NDArray[np.float32] | Tensor) -> Tensor:
        return torch.nn.functional.normalize(torch.as_tensor(vectors).double(), dim=1)

    def spearman(vectors: Tensor) -> float:
        return correlate(pair_similarities(vectors, places), targets).spearman

    alone = unit(np.concatenate([exported.run(padded([row], padding)) for row in ids]))
    wide = unit(np.concatenate([exported.run(padded([row], padding, longest)) for row in ids]))
    batched = unit(exported.encode_ids(ids))
    return {
        "num_pairs": len(chosen),
        "batch_difference": float((batched - alone).abs().max()),
        "batch_cosine": float((batched * alone).sum(dim=1).min()),
        "padding_difference": float((wide - alone).abs().max()),
        "padding_cosine": float((wide * alone).sum(dim=1).min()),
        "spearman_alone": spearman(alone),
        "spearman_batched": spearman(batched),
    }


# The hub


def _is_hub_name(name: str) -> bool:
    with contextlib.suppress(errors.HFValidationError):
        validate_repo_id(name)
        return True
    return False


def check_hub_name(name: str) -> None:
    """Raise `UsageError` unless `name` is a valid hub name."""
    if "/" not in name or not _is_hub_name(name):
        raise UsageError(
            f"{name!r} is not a valid hub name.", hint="Write it like owner/name: letters, digits, - _ and ."
        )


def push_folder(folder: Path, name: str, *, public: bool = False, endpoint: str | None = None) -> tuple[str, str, bool]:
    """Upload a saved model in one commit; return address, commit, and if the repository is private.

    Raises:
        ModelError: No model, an unchecked graph, or a card with a local base model.
        UsageError: An invalid name, or a public repository without `public=True`.
        TruncateKitError: The hub cannot be reached, or refuses the upload.
    """
    check_hub_name(name)
    folder = Path(folder)
    if not (folder / "config.json").is_file():
        raise ModelError(f"There is no model in {folder} to push.", hint="Make one with `finetune()` first.")
    _check_base(folder / "README.md")
    for graph in GRAPH_FILES:
        if (folder / graph).is_file():
            check_record(folder / graph)
    api = HfApi(endpoint=endpoint)
    try:
        api.create_repo(name, private=not public, exist_ok=True)
        private = bool(api.model_info(name).private)
        if not private and not public:
            raise UsageError(f"The model {name} on the hub is public.", hint="Use `public=True` to push there anyway.")
        with tempfile.TemporaryDirectory(prefix="truncate-kit-push-") as scratch:
            links = _linked(folder, Path(scratch, "model"), name)
            message, ignored = "Upload by truncate-kit", [*_NOT_UPLOADED]
            commit = api.upload_folder(repo_id=name, folder_path=links, ignore_patterns=ignored, commit_message=message)
    except (errors.OfflineModeIsEnabled, errors.HfHubHTTPError, errors.HTTPError, OSError) as error:  # type: ignore[attr-defined]  # as above
        raise TruncateKitError(
            f"The upload to {name} failed: {first_line(error)}.",
            hint="The folder is unchanged. Check the connection, HF_HUB_OFFLINE, and your login: hf auth login.",
        ) from error
    return f"{api.endpoint}/{name}", str(commit.oid), private


def _linked(folder: Path, place: Path, name: str) -> Path:
    """Link to all files; code on a copy of the card names the repository."""
    shutil.copytree(folder.resolve(), place, copy_function=os.symlink)
    card = place / "README.md"
    if card.is_file():
        text = card.read_text(encoding="utf-8").replace(" FOLDER is this folder.", "")
        downloaded = f"place = snapshot_download({name!r})"
        text = text.replace("place = 'FOLDER'", f"from huggingface_hub import snapshot_download\n\n{downloaded}")
        card.unlink()
        card.write_text(text.replace("'FOLDER'", repr(name)), encoding="utf-8")
    return place


def _check_base(card: Path) -> None:
    try:
        bases = (metadata_load(card) or {}).get("base_model", ())
    except (OSError, ValueError, YAMLError):  # no card, or one that the hub refuses
        return
    for base in map(str, bases if isinstance(bases, (list, tuple)) else (bases,)):
        if Path(base).exists() or not _is_hub_name(base):
            raise ModelError(
                f"{card} has the base model {base!r}, which is not on the hub.",
                hint="Set base_model in this file to a hub name, or remove the line.",
            )
