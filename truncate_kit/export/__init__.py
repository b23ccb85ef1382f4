"""The pooled graph: exported, fused, checked, and run in ONNX Runtime."""

from truncate_kit.export.checks import check_graph, check_score
from truncate_kit.export.exporting import export_onnx
from truncate_kit.export.precision import GRAPH_FILES, PRECISIONS, TARGETS
from truncate_kit.export.record import REPORT_FILE, check_record, find_graph, read_exports
from truncate_kit.export.results import (
    Check,
    ExportReport,
    Exports,
    FloatLayer,
    HalfPrecision,
    Invariance,
    Quantization,
    TaskScore,
)
from truncate_kit.export.runtime import RUNTIMES, OnnxEncoder, load_text_encoder
from truncate_kit.export.sessions import open_session
from truncate_kit.export.tracing import GRAPH_FILE, build_graph, count_fused_attention, require_fusions, save_graph

__all__ = [
    "GRAPH_FILE",
    "GRAPH_FILES",
    "PRECISIONS",
    "REPORT_FILE",
    "RUNTIMES",
    "TARGETS",
    "Check",
    "ExportReport",
    "Exports",
    "FloatLayer",
    "HalfPrecision",
    "Invariance",
    "OnnxEncoder",
    "Quantization",
    "TaskScore",
    "build_graph",
    "check_graph",
    "check_record",
    "check_score",
    "count_fused_attention",
    "export_onnx",
    "find_graph",
    "load_text_encoder",
    "open_session",
    "read_exports",
    "require_fusions",
    "save_graph",
]
