"""export.json: written with every graph, and held against the graph whenever that is loaded.

It carries a digest of itself, which shows an edit or a damaged disk. No key is in it: whoever makes a digest anew is
not found out.
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path

from truncate_kit.errors import DeviceError, FileProblemError, ModelError
from truncate_kit.export.export_report import ExportReport, Exports
from truncate_kit.files import digest_of
from truncate_kit.hardware import multiplies_narrow
from truncate_kit.models.digest import MODULES, digest_in, is_weights, model_digests
from truncate_kit.precisions import (
    EXPORT_RECORD,
    GRAPH_FILES,
    PRECISIONS,
    Precision,
    check_graph_precision,
    other_graph,
    precisions_for,
)
from truncate_kit.results import check_format, digest_of_values

REPORT_FILE = EXPORT_RECORD
_READ = re.compile(r"(model|pytorch_model)(-\d+-of-\d+)?\.(safetensors|bin)")
"""Weights that a model is loaded from; others may lie beside them, such as those of OpenVINO."""
_DIGEST = "digest"
_DEVICES = {"cpu": "the CPU", "cuda": "CUDA"}
_ALL_ANEW = "Remove that file, then export each graph again with `export_onnx()`."


def read_exports(folder: Path) -> Exports:
    """The reports on the graphs in a folder; none without export.json.

    Raises `ModelError` for one that is damaged, was changed, or has no digest.
    """
    path = folder / REPORT_FILE
    if not path.exists():
        return Exports(graphs=())
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        exports = Exports.from_dict(values)
        check_format(values.get("format"), path)
    except FileProblemError:
        raise
    except (OSError, ValueError, KeyError, RecursionError) as error:
        raise ModelError(f"{path} is damaged: {type(error).__name__}: {error}.", hint=_ALL_ANEW) from error
    if _DIGEST not in values:
        raise ModelError(f"{path} has no digest: it was changed.", hint=_ALL_ANEW)
    if values.pop(_DIGEST) != digest_of_values(values):
        raise ModelError(f"{path} was changed after the export: its digest is that of something else.", hint=_ALL_ANEW)
    return exports


def record_with(folder: Path, report: ExportReport) -> str:
    """The text of a folder's export.json with one report more; those on graphs that are gone are left out."""
    before = read_exports(folder).graphs
    kept = tuple(item for item in before if item.file in GRAPH_FILES.values() and (folder / item.file).is_file())
    return Exports(graphs=kept).with_report(report).sealed_text()


def check_record(graph: Path) -> ExportReport | None:
    """The report on a graph, None where there is no export.json beside it.

    Raises `ModelError` where export.json is damaged, was changed, does not know the graph, or describes other bytes
    than those of the graph, its weights, or the model beside it.
    """
    record = graph.parent / REPORT_FILE
    if not record.exists():
        return None
    report = read_exports(graph.parent).of(graph.name)
    command = export_call(precision_of(graph, report) or "fp32")
    again = f"Export the model again with {command}."
    if report is None:
        raise ModelError(f"{record} does not know {graph.name}, so that graph was not checked.", hint=again)
    if report.sha256 != digest_of(graph):
        raise ModelError(
            f"{graph} is not the graph that {REPORT_FILE} beside it describes: one of them was changed.", hint=again
        )
    if report.weights_file is not None:
        weights = graph.parent / report.weights_file
        if not weights.is_file():
            raise ModelError(
                f"{graph} lacks its weights: there is no {weights.name} beside it.",
                hint=f"Copy that file there, or export the model again with {command}.",
            )
        if report.weights_sha256 != digest_of(weights):
            raise ModelError(
                f"{weights} does not hold the weights that {REPORT_FILE} describes: it was changed.", hint=again
            )
    if (changed := _changed_since(graph.parent, report.model_sha256)) is not None:
        raise ModelError(f"{changed} after {graph.name} was made from the model here.", hint=again)
    return report


def _changed_since(folder: Path, known: Mapping[str, str]) -> str | None:
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
    """Whether an undamaged graph of the encoder with this digest is there, with its report."""
    try:
        report = check_record(graph) if graph.is_file() else None
    except ModelError:
        return False
    return report is not None and report.encoder == encoder


def export_call(precision: str) -> str:
    """What makes a graph in this precision, for a hint."""
    settings = "" if precision == "fp32" else f'settings=ExportSettings(precision="{precision}")'
    return f"`export_onnx({settings})`"


def check_runnable(graph: Path, device: str) -> ExportReport | None:
    """`check_record`, and that `cpu` or `cuda` and this processor can run the graph. Raises `DeviceError` as well."""
    report = check_record(graph)
    check_device(graph, report, device)
    check_processor(report, narrow=multiplies_narrow())
    return report


def check_processor(report: ExportReport | None, *, narrow: bool) -> None:
    """Raise `DeviceError` where a graph with weights of 8 bits meets a `narrow` processor (`multiplies_narrow`)."""
    if narrow and report is not None and report.quantization is not None and report.quantization.weight_bits == 8:
        raise DeviceError(
            f"{report.file} has weights of 8 bits, made on a processor with {report.quantization.instructions}; this "
            "one adds their products in 16 bits, which overflow.",
            hint="Export the model again on this machine: its weights then get 7 bits. Or use the fp32 graph.",
        )


def precision_of(graph: Path, report: ExportReport | None) -> Precision | None:
    """A graph's precision by its report, else by its name; None where neither says."""
    if report is not None:
        return report.precision
    return next((name for name, file in GRAPH_FILES.items() if file == graph.name), None)


def check_device(graph: Path, report: ExportReport | None, device: str) -> None:
    """Raise `DeviceError` for an int8 graph on CUDA.

    Args:
        graph: The file.
        report: What is known of it; None where nothing is.
        device: `cpu` or `cuda`.
    """
    precision = precision_of(graph, report)
    if precision is None or device in PRECISIONS[precision].preference:
        return
    if not PRECISIONS[precision].runs_elsewhere:
        raise DeviceError(
            f"{graph} is in {precision}: {PRECISIONS[precision].elsewhere}.", hint=other_graph(precision, device)
        )


def graph_sentence(graph: Path, report: ExportReport | None, device: str) -> str:
    """Which graph runs on `cpu` or `cuda`, and what it is made for if that is the other one; for the user."""
    precision = precision_of(graph, report)
    said = f"Graph: {graph}" + (f" ({precision})." if precision else ".")
    if precision is not None and device not in PRECISIONS[precision].preference:
        return f"{said} It is made for {_DEVICES[_other(device)]}: {PRECISIONS[precision].elsewhere}."
    if report is not None and report.target != device:
        return f"{said} It is made for {_DEVICES[report.target]}; one made for {_DEVICES[device]} suits this device."
    return said


def graphs_in(folder: Path) -> tuple[Precision, ...]:
    """The precisions in which a folder holds a graph."""
    return tuple(name for name, file in GRAPH_FILES.items() if (folder / file).is_file())


def suited_precision(folder: Path, device: str = "cpu") -> Precision | None:
    """The precision of a folder's graph that suits `cpu` (fp32, else int8) or `cuda` (fp16, else fp32), or None."""
    held = graphs_in(folder)
    return next((name for name in precisions_for(device) if name in held), None)


def _other(device: str) -> str:
    return "cuda" if device == "cpu" else "cpu"


def find_graph(folder: Path, precision: str | None = None, device: str = "cpu") -> Path:
    """The graph of a folder in this precision; None takes the `suited_precision` for `cpu` or `cuda`.

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
