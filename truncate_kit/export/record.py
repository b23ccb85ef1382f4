"""export.json: written with every graph, and held against the graph whenever that is loaded.

It carries a digest of itself, which shows an edit or a damaged disk. No key is in it: whoever makes a digest anew is
not found out.
"""

import json
import re
from dataclasses import dataclass
from pathlib import Path

from truncate_kit.core.errors import DeviceError, FileProblemError, ModelError
from truncate_kit.core.files import digest_of
from truncate_kit.core.hardware import multiplies_narrow
from truncate_kit.core.origin import MODULES, digest_in, is_weights, model_digests
from truncate_kit.core.precisions import (
    EXPORT_RECORD,
    GRAPH_FILES,
    PRECISIONS,
    Precision,
    Target,
    check_graph_precision,
    other_graph,
    precisions_for,
)
from truncate_kit.core.results import Result, sealed, unsealed

REPORT_FILE = EXPORT_RECORD
# Weights that a model is loaded from; others may lie beside them, such as those of OpenVINO.
_READ = re.compile(r"(model|pytorch_model)(-\d+-of-\d+)?\.(safetensors|bin)")
_DEVICES = {"cpu": "the CPU", "cuda": "CUDA"}


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskScore(Result):
    """Correlations (× 100) on graded pairs, of the encoder in torch and of its graph."""

    data: str
    num_pairs: int
    spearman_before: float
    spearman_after: float
    pearson_before: float
    pearson_after: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Invariance(Result):
    """How far the vector of a text depends on what it is run with: a batch of like lengths, or much padding."""

    data: str
    num_texts: int
    num_pairs: int
    batch_difference: float  # largest change of an entry of the unit vector
    batch_cosine: float  # lowest similarity to the text run alone
    padding_difference: float
    padding_cosine: float
    spearman_alone: float  # × 100
    spearman_batched: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantization(Result):
    """What is in int8 and how that was found; Spearman points are those lost against the float graph."""

    layers: int  # number of those that int8 could take over
    # Those that stay in float32, with the mean squared distance of unit vectors when that layer alone is in int8; None
    # where they are no numbers.
    in_float: dict[str, float | None]
    weight_bits: int  # 7 where the processor lacks the instructions
    instructions: str | None  # of the processor for int8, None without them
    budget: float  # points that may be lost on the pairs searched on
    searched_on: str
    num_pairs: int
    drop_all_int8: float | None  # points lost with every layer in int8, None where the score is undefined
    drop: float  # points lost as exported


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportReport(Result):
    """One exported graph."""

    model: str
    encoder: str  # digest, see `encoder_digest`
    precision: Precision
    target: Target
    family: str
    layers: int
    width: int
    pooling: str
    normalized: bool
    max_length: int
    file: str
    file_bytes: int  # of the graph with its weights
    opset: int
    versions: dict[str, str]
    fused_attention_expected: int  # number of nodes that should hold a whole attention
    fused_attention_found: int  # number of those that do
    fused_nodes: dict[str, int]  # ONNX Runtime's own operators in the graph, with their number
    mask: str  # the form in which attention gets the padding, see `set_mask`
    sha256: str
    # By comparison with the encoder the largest difference over all entries; relative to the largest entry of the
    # encoder's vectors where they have not length 1. `vector_limit` of the precision is what is allowed.
    checks: dict[str, float]
    task: TaskScore | None  # None where no pairs were given
    # Of the files beside it that hold the model it was made from, by their names.
    model_sha256: dict[str, str]
    invariance: Invariance | None = None
    quantization: Quantization | None = None
    # In fp16: operators that stay in float32, with their number, and the largest magnitude of any float16 value over
    # the longest and oddest inputs; float16 ends at 65,504.
    float32_islands: dict[str, int] | None = None
    largest_half: float | None = None
    weights_file: str | None = None  # None where the weights are in the graph's own file
    weights_sha256: str | None = None


def read_exports(folder: Path) -> tuple[ExportReport, ...]:
    """Read the reports on the graphs in a folder; none without export.json.

    Raises `ModelError` for one that is damaged, was changed, or has no digest.
    """
    path = folder / REPORT_FILE
    if not path.exists():
        return ()
    try:
        values = unsealed(json.loads(path.read_text(encoding="utf-8")), path)
        return tuple(ExportReport.from_dict(row) for row in values["graphs"])
    except FileProblemError:
        raise
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise ModelError(
            f"{path} is damaged: {type(error).__name__}: {error}.",
            hint="Remove that file, then export each graph again with `export_onnx()`.",
        ) from error


def record_with(folder: Path, report: ExportReport) -> str:
    """Write a folder's export.json with one report more, as text; those on graphs that are gone are left out."""
    known = set(GRAPH_FILES.values()) - {report.file}
    kept = [row for row in read_exports(folder) if row.file in known and (folder / row.file).is_file()]
    values = sealed({"graphs": [row.to_dict() for row in (*kept, report)]})
    return json.dumps(values, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def check_record(graph: Path) -> ExportReport | None:
    """Return the report on a graph, None where there is no export.json beside it.

    Raises `ModelError` where export.json is damaged, was changed, does not know the graph, or describes other bytes
    than those of the graph, its weights, or the model beside it.
    """
    folder = graph.parent
    if not (folder / REPORT_FILE).exists():
        return None
    report = next((row for row in read_exports(folder) if row.file == graph.name), None)
    again = f"Export the model again with {export_call(precision_of(graph, report) or 'fp32')}."
    if report is None:
        problem = f"{folder / REPORT_FILE} does not know {graph.name}, so that graph was not checked."
        raise ModelError(problem, hint=again)
    weights = None if report.weights_file is None else folder / report.weights_file
    wrong = None
    if report.sha256 != digest_of(graph):
        wrong = f"{graph} is not the graph that {REPORT_FILE} beside it describes: one of them was changed."
    elif weights is not None and not weights.is_file():
        wrong = f"{graph} lacks its weights: there is no {weights.name} beside it."
    elif weights is not None and report.weights_sha256 != digest_of(weights):
        wrong = f"{weights} does not hold the weights that {REPORT_FILE} describes: it was changed."
    elif (changed := _changed_since(folder, report.model_sha256)) is not None:
        wrong = f"{changed} after {graph.name} was made from the model here."
    if wrong is not None:
        raise ModelError(wrong, hint=again)
    return report


def _changed_since(folder: Path, known: dict[str, str]) -> str | None:
    """What became of the model in a graph's folder whose files these were; None where it is the same, or not there."""
    for name, digest in known.items():
        file = folder / name
        if file.is_file() and digest_in(folder, file) != digest:
            return f"{file} was changed"
    now = model_digests(folder)
    if not known or not any(map(is_weights, now)):  # a graph may be made or used without a model beside it
        return None
    if MODULES in known and MODULES not in now:
        return f"{folder / MODULES} was removed"
    new = [name for name in now if name not in known and (not is_weights(name) or _READ.fullmatch(Path(name).name))]
    return f"{folder / new[0]} came" if new else None


def is_graph_of(graph: Path, encoder: str) -> bool:
    """Say whether an undamaged graph of the encoder with this digest is there, with its report."""
    try:
        report = check_record(graph) if graph.is_file() else None
    except ModelError:
        return False
    return report is not None and report.encoder == encoder


def export_call(precision: str) -> str:
    """Name what makes a graph in this precision, for a hint."""
    settings = "" if precision == "fp32" else f'settings=ExportSettings(precision="{precision}")'
    return f"`export_onnx({settings})`"


def check_runnable(graph: Path, device: str) -> ExportReport | None:
    """Do `check_record`, and check that `cpu` or `cuda` and this processor can run the graph.

    Raises `DeviceError` as well, as for an int8 graph on CUDA or one whose products overflow on this processor.
    """
    report = check_record(graph)
    precision = precision_of(graph, report)
    if precision is not None and device not in PRECISIONS[precision].preference:
        row = PRECISIONS[precision]
        if not row.runs_elsewhere:
            raise DeviceError(f"{graph} is in {precision}: {row.elsewhere}.", hint=other_graph(precision, device))
    int8 = None if report is None else report.quantization
    if int8 is not None and int8.weight_bits == 8 and multiplies_narrow():
        raise DeviceError(
            f"{graph.name} has weights of 8 bits, made on a processor with {int8.instructions}; this one adds their "
            "products in 16 bits, which overflow.",
            hint="Export the model again on this machine: its weights then get 7 bits. Or use the fp32 graph.",
        )
    return report


def precision_of(graph: Path, report: ExportReport | None) -> Precision | None:
    """Tell a graph's precision by its report, else by its name; None where neither says."""
    if report is not None:
        return report.precision
    return next((name for name, file in GRAPH_FILES.items() if file == graph.name), None)


def graph_sentence(graph: Path, report: ExportReport | None, device: str) -> str:
    """Say which graph runs on `cpu` or `cuda`, and what it is made for if that is the other one; for the user."""
    precision = precision_of(graph, report)
    said = f"Graph: {graph}" + (f" ({precision})." if precision else ".")
    if precision is not None and device not in PRECISIONS[precision].preference:
        return f"{said} It is made for {_DEVICES[_other(device)]}: {PRECISIONS[precision].elsewhere}."
    if report is not None and report.target != device:
        return f"{said} It is made for {_DEVICES[report.target]}; one made for {_DEVICES[device]} suits this device."
    return said


def graphs_in(folder: Path) -> tuple[Precision, ...]:
    """List the precisions in which a folder holds a graph."""
    return tuple(name for name, file in GRAPH_FILES.items() if (folder / file).is_file())


def suited_precision(folder: Path, device: str = "cpu") -> Precision | None:
    """Choose of a folder's graphs the precision that suits `cpu` (fp32, else int8) or `cuda` (fp16, else fp32)."""
    held = graphs_in(folder)
    return next((name for name in precisions_for(device) if name in held), None)


def _other(device: str) -> str:
    return "cuda" if device == "cpu" else "cpu"


def find_graph(folder: Path, precision: str | None = None, device: str = "cpu") -> Path:
    """Find the graph of a folder in this precision; None takes the `suited_precision` for `cpu` or `cuda`.

    Raises `ModelError` where it is not there, `DeviceError` where those that are there suit another device only.
    """
    chosen = suited_precision(folder, device) if precision is None else check_graph_precision(precision)
    held = graphs_in(folder)
    if chosen is None and held:
        other, command = _other(device), export_call(precisions_for(device)[0])
        raise DeviceError(
            f"{folder} has a graph in {held[0]} only, which is made for {_DEVICES[other]}.",
            hint=f'Use `device="{other}"`, or make one for {_DEVICES[device]} with {command}.',
        )
    wanted = folder / GRAPH_FILES[chosen or "fp32"]
    if not wanted.is_file():
        raise ModelError(
            f"There is no exported graph {wanted}.",
            hint=f"Make one with {export_call(chosen or 'fp32')}, and name the folder that it writes.",
        )
    return wanted
