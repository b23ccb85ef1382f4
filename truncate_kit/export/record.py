"""export.json: written with every graph, and held against the graph whenever that is loaded."""

import hashlib
from pathlib import Path

from truncate_kit.errors import DeviceError, ModelError
from truncate_kit.export.precision import GRAPH_FILES, check_precision
from truncate_kit.export.results import ExportReport, Exports

REPORT_FILE = "export.json"
_HINT = "Export the model again with: truncate-kit export MODEL --onnx"


def digest_of(file: Path) -> str:
    """SHA-256 of a file's bytes, in hexadecimal."""
    with file.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def read_exports(folder: Path) -> Exports:
    """The reports on the graphs in a folder; none without export.json. Raises `ModelError` for a damaged one."""
    path = folder / REPORT_FILE
    if not path.is_file():
        return Exports(graphs=())
    try:
        return Exports.read(path)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(f"{path} is damaged: {type(error).__name__}: {error}.", hint=_HINT) from error


def add_report(folder: Path, report: ExportReport) -> None:
    """Put a report into export.json; those on graphs that are no longer there, and a damaged file, are replaced."""
    try:
        before = read_exports(folder)
    except ModelError:
        before = Exports(graphs=())
    kept = tuple(item for item in before.graphs if item.file in GRAPH_FILES.values() and (folder / item.file).is_file())
    Exports(graphs=kept).with_report(report).write(folder / REPORT_FILE)


def check_record(file: Path) -> ExportReport | None:
    """The report on a graph, None where nothing beside it speaks of it.

    Raises `ModelError` where export.json is damaged or describes other bytes than the graph's.
    """
    report = read_exports(file.parent).of(file.name)
    if report is not None and report.sha256 != digest_of(file):
        raise ModelError(
            f"{file} is not the graph that {REPORT_FILE} beside it describes: one of them was changed.", hint=_HINT
        )
    return report


def check_processor(report: ExportReport | None, *, narrow: bool) -> None:
    """Raise `DeviceError` where a graph with weights of 8 bits meets a processor that overflows with them.

    narrow: `hardware.multiplies_narrow()` of the machine that is to run it.
    """
    if narrow and report is not None and report.quantization is not None and report.quantization.weight_bits == 8:
        raise DeviceError(
            f"{report.file} has weights of 8 bits, made on a processor with {report.quantization.instructions}; this "
            "one adds their products in 16 bits, which overflow.",
            hint="Export the model again on this machine: its weights then get 7 bits. Or use the fp32 graph.",
        )


def find_graph(folder: Path, precision: str | None = None) -> Path:
    """The graph of a folder; precision None takes `model.onnx`, or the only other one. Raises `ModelError`."""
    if precision is not None:
        wanted = folder / GRAPH_FILES[check_precision(precision)]
        option = "" if precision == "fp32" else f" --precision {precision}"
    else:
        found = [folder / name for name in GRAPH_FILES.values() if (folder / name).is_file()]
        if found and (found[0].name == GRAPH_FILES["fp32"] or len(found) == 1):
            return found[0]
        if found:
            names = " and ".join(file.name for file in found)
            raise ModelError(f"{folder} holds {names}.", hint="Name one of the files.")
        wanted, option = folder / GRAPH_FILES["fp32"], ""
    if not wanted.is_file():
        raise ModelError(
            f"There is no exported graph {wanted}.", hint=f"Make one with: truncate-kit export MODEL --onnx{option}"
        )
    return wanted
