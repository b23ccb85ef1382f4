"""The pooled graph: exported, fused, checked, and run in ONNX Runtime."""

from truncate_kit.export.checks import check_graph, check_score
from truncate_kit.export.exporting import export_onnx
from truncate_kit.export.results import Check, ExportReport, TaskScore
from truncate_kit.export.runtime import RUNTIMES, OnnxEncoder, load_text_encoder
from truncate_kit.export.sessions import open_session
from truncate_kit.export.tracing import GRAPH_FILE, build_graph, count_fused_attention, require_fusions, save_graph

__all__ = [
    "GRAPH_FILE",
    "RUNTIMES",
    "Check",
    "ExportReport",
    "OnnxEncoder",
    "TaskScore",
    "build_graph",
    "check_graph",
    "check_score",
    "count_fused_attention",
    "export_onnx",
    "load_text_encoder",
    "open_session",
    "require_fusions",
    "save_graph",
]
