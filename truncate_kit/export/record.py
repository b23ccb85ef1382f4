"""Settings of an export, and the record export.json, which is checked when a graph is loaded.

The digest of the record detects damage, not forgery.
"""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from truncate_kit.core.errors import DeviceError, FileProblemError, ModelError, known_name
from truncate_kit.core.files import digest_of
from truncate_kit.core.hardware import (
    EXPORT_RECORD,
    GRAPH_FILES,
    GRAPH_RUNTIMES,
    PRECISIONS,
    GraphRuntime,
    Precision,
    Target,
    check_target,
    int8_instructions,
    multiplies_narrow,
    other_graph,
    precisions_for,
    runtime_of,
)
from truncate_kit.core.results import MACHINE, RESULTS, Bounds, Result, sealed, setting, unsealed
from truncate_kit.core.workspace import folder_of, model_digests

if TYPE_CHECKING:
    from truncate_kit.data.pairs import PairSet

_POINTS = Bounds(0, whole=False)


class ExportSettings(Result):
    """Settings of one exported graph. Raises `UsageError` for values that are out of bounds or conflict."""

    runtime: GraphRuntime = setting("onnx", "Runtime of the graph.", MACHINE, choices=GRAPH_RUNTIMES)
    precision: Precision = setting(
        "fp32", "Precision of the graph: fp16 is for CUDA, bf16 for OpenVINO, int8 for the CPU.", MACHINE,
        choices=dict.fromkeys(name for row in GRAPH_RUNTIMES.values() for name in row.files),
    )  # fmt: skip
    target: Target = setting("cpu", "Device of the graph; for fp16 by default cuda.", MACHINE, default=None)
    normalize: bool | None = setting(
        None, "Scale vectors to length 1; by default as the model does.", RESULTS,
        name="--normalize/--no-normalize", show_default=False,
    )  # fmt: skip
    budget: float = setting(
        0.3, "Spearman points that int8 may lose; by default 0.3.", MACHINE, bounds=_POINTS, default=None
    )

    def __post_init__(self) -> None:
        check_target(self.precision, self.target, self.runtime)
        super().__post_init__()


class Quantization(Result):
    """Record of int8 quantization; losses are Spearman points on the pairs `searched_on`."""

    layers: int  # that can be in int8
    in_float: dict[str, float]  # layers kept in float: squared distance of unit vectors with this one alone in int8
    budget: float
    searched_on: str
    num_pairs: int
    drop_all_int8: float | None  # with all layers in int8; None if undefined
    drop: float  # of the graph
    weight_bits: int
    instructions: str | None  # of the processor

    @classmethod
    def of(cls, pairs: "PairSet", **found: Any) -> Self:
        """Add the pairs and this processor to what was found."""
        bits, used = 7 if multiplies_narrow() else 8, int8_instructions()
        return cls(searched_on=pairs.name, num_pairs=len(pairs), weight_bits=bits, instructions=used, **found)


class ExportReport(Result):
    """Record of one exported graph."""

    model: str
    encoder: str  # digest
    precision: Precision
    target: Target
    family: str
    layers: int
    width: int
    pooling: str
    normalized: bool
    max_length: int
    file: str
    file_bytes: int  # with weights
    opset: int
    versions: dict[str, str]
    fused_nodes: dict[str, int]
    mask: str  # see `set_mask`
    graph_sha256: dict[str, str]  # by file
    model_sha256: dict[str, str]  # by file of the model
    # Largest differences from torch, relative to the largest entry unless vectors have length 1.
    checks: dict[str, float]
    # Correlations × 100, in torch and in the graph.
    spearman: tuple[float, float] | None = None
    pearson: tuple[float, float] | None = None
    scored_on: str | None = None
    num_pairs: int | None = None
    invariance: dict[str, float] | None = None  # see `measure_invariance`
    invariant_on: str | None = None
    quantization: Quantization | None = None
    float32_islands: dict[str, int] | None = None  # number of each operator in float32
    largest_half: float | None = None  # float16 ends at 65,504

    @property
    def runtime(self) -> GraphRuntime:
        """Return the runtime of the graph."""
        return runtime_of(self.file)

    @property
    def fused_attention(self) -> int:
        """Count fused attentions."""
        return fused_attention(self.fused_nodes)


def fused_attention(nodes: dict[str, int]) -> int:
    """Count the attentions among fused nodes."""
    return sum(nodes.get(name, 0) for name in ("Attention", "MultiHeadAttention", "GroupQueryAttention"))


def read_exports(folder: Path) -> tuple[ExportReport, ...]:
    """Read export.json; empty if missing. Raises `ModelError` if it is damaged."""
    path = folder / EXPORT_RECORD
    if not path.exists():
        return ()
    try:
        values = unsealed(json.loads(path.read_text(encoding="utf-8")), path)
        return tuple(ExportReport.from_dict(row) for row in values["graphs"])
    except FileProblemError:
        raise
    except (OSError, ValueError, KeyError, RecursionError) as error:
        raise ModelError(
            f"{path} is damaged: {type(error).__name__}: {error}.",
            hint="Remove that file, then export each graph again with `export_onnx()`.",
        ) from error


def record_with(folder: Path, report: ExportReport) -> str:
    """Return the text of export.json with this report added and missing graphs removed."""
    known = {file for file in GRAPH_FILES if (folder / file).is_file()}
    kept = [row for row in read_exports(folder) if row.file in known - {report.file} or _shares(row, report)]
    values = sealed({"graphs": [row.to_dict() for row in (*kept, report)]})
    return json.dumps(values, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def _shares(row: ExportReport, other: ExportReport) -> bool:
    """Tell if both are of one graph, in two precisions."""
    return row.graph_sha256 == other.graph_sha256 and row.file == other.file and row.precision != other.precision


def check_record(graph: Path, precision: str | None = None) -> ExportReport:
    """Return the report on a graph, by default its first. Raises `ModelError` if it is missing or files differ."""
    folder, runtime = folder_of(graph), runtime_of(graph)
    rows = [row for row in read_exports(folder) if folder / row.file == graph]
    report = next((row for row in rows if precision in (None, row.precision)), None)
    if report is None:
        named = graph.name if precision is None else f"{graph.name} in {precision}"
        problem = f"{folder / EXPORT_RECORD} has no record of {named}: the graph was not checked."
    elif (changed := _changed_file(folder, report)) is not None:
        problem = f"{folder / changed} has changed since {graph.name} was exported."
    else:
        return report
    files = GRAPH_RUNTIMES[runtime].files
    precision = precision or next((name for name, file in files.items() if folder / file == graph), "fp32")
    raise ModelError(problem, hint=f"Export the model again with {export_call(precision, runtime)}.")


def _changed_file(folder: Path, report: ExportReport) -> str | None:
    """Return a changed file of the graph or the model, if any; the model itself may be missing."""
    for name, digest in report.graph_sha256.items():
        if not (folder / name).is_file() or digest_of(folder / name) != digest:
            return name
    known, now = report.model_sha256, model_digests(folder) if report.model_sha256 else {}
    names = known | now if any(name.endswith((".safetensors", ".bin")) for name in now) else known.keys() & now.keys()
    return next((name for name in names if known.get(name) != now.get(name)), None)


def is_graph_of(graph: Path, encoder: str, precision: str | None = None) -> bool:
    """Return whether the graph is unchanged and was exported from the encoder with this digest."""
    try:
        return check_record(graph, precision).encoder == encoder
    except ModelError:
        return False


def export_call(precision: str, runtime: str = "onnx") -> str:
    """Return the call of `export_onnx` to show in a hint."""
    given = {"runtime": (runtime, "onnx"), "precision": (precision, "fp32")}
    settings = ", ".join(f'{name}="{value}"' for name, (value, usual) in given.items() if value != usual)
    return f"`export_onnx({f'settings=ExportSettings({settings})' if settings else ''})`"


def check_runnable(graph: Path, device: str, precision: str | None = None) -> ExportReport:
    """Return the report after `check_record`; raise `DeviceError` if `device` cannot run the graph."""
    report = check_record(graph, precision)
    row = PRECISIONS[report.precision]
    runtime = GRAPH_RUNTIMES[report.runtime]
    if device not in runtime.targets:
        raise DeviceError(f"{graph} is for {runtime.title}, which runs on the CPU here.", hint='Use `device="cpu"`.')
    if device not in row.preference and not row.runs_elsewhere:
        raise DeviceError(
            f"{graph} is in {report.precision}: {row.elsewhere}.", hint=other_graph(report.precision, device)
        )
    check_bits(report)
    return report


def check_bits(report: ExportReport) -> None:
    """Raise `DeviceError` if products of the graph's weights overflow on this processor."""
    int8 = report.quantization
    if int8 and int8.weight_bits == 8 and multiplies_narrow():
        raise DeviceError(
            f"{report.file} has 8-bit weights, made on a processor with {int8.instructions}; their products"
            " overflow on this one.",
            hint="Export the model again on this machine: its weights then get 7 bits. Or use the fp32 graph.",
        )


def graph_sentence(graph: Path, report: ExportReport, device: str) -> str:
    """Return a sentence that names the graph, and a warning if it was made for another device."""
    named = f"Graph: {graph} ({report.precision})."
    if device == report.target:
        return named
    other = "the CPU" if device == "cuda" else "CUDA"
    return f"{named} It was made for {other}; a graph with `target={device}` is faster here."


def graphs_in(folder: Path, runtime: str = "onnx") -> tuple[Precision, ...]:
    """Return the precisions of a runtime's graphs in a folder that export.json lists."""
    rows = (row for row in read_exports(folder) if row.runtime == runtime)
    return tuple(row.precision for row in rows if (folder / row.file).is_file())


def suited_precision(folder: Path, device: str = "cpu", runtime: str = "onnx") -> Precision | None:
    """Return the best precision among a folder's graphs: on `cpu` fp32, bf16, int8; on `cuda` fp16, then fp32."""
    held = graphs_in(folder, runtime)
    return next((name for name in precisions_for(device, runtime) if name in held), None)


def find_graph(folder: Path, precision: str | None = None, device: str = "cpu", runtime: str = "onnx") -> Path:
    """Return a folder's graph, by default in its `suited_precision`. Raises `ModelError`."""
    usual = suited_precision(folder, device, runtime) or (*precisions_for(device, runtime), "fp32")[0]
    chosen = usual if precision is None else known_name("export precision", precision, GRAPH_RUNTIMES[runtime].files)
    graph = folder / GRAPH_RUNTIMES[runtime].files[chosen]
    if not graph.is_file():
        hint = f"Export the model with {export_call(chosen, runtime)}, then give the folder of this export."
        raise ModelError(f"There is no exported graph {graph}.", hint=hint)
    return graph
