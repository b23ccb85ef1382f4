"""Convert an encoder for OpenVINO, and quantize it by NNCF; needs the extras `cpu` and `openvino`."""

import contextlib
import io
import logging
import math
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openvino

from truncate_kit.core.errors import DataError, failed_check, in_points, require
from truncate_kit.core.hardware import multiplies_narrow
from truncate_kit.core.progress import Progress, silent
from truncate_kit.data.pairs import PairSet, spread
from truncate_kit.evaluation.graded import evaluate
from truncate_kit.export.graph import build_graph, save_graph, strip_notes
from truncate_kit.export.int8 import single_feeds
from truncate_kit.export.record import Quantization
from truncate_kit.export.runtime import OpenVinoEncoder, graph_files
from truncate_kit.models.encoder import Encoder

_CALIBRATION_TEXTS = 300


def convert(encoder: Encoder, file: Path) -> int:
    """Write the encoder in float32, beside its ONNX file; return its opset."""
    graph = build_graph(encoder, fused=False)
    strip_notes(graph)
    traced = file.with_suffix(".onnx")
    save_graph(graph, traced)
    openvino.save_model(openvino.Core().read_model(traced), file, compress_to_fp16=False)
    return int(graph.opset_imports[""])


def copy_graph(file: Path, other: Path) -> None:
    """Copy a graph with its weights."""
    for part, place in zip(graph_files(file), graph_files(other), strict=True):
        shutil.copyfile(part, place)


def quantize(
    encoder: Encoder, exact: Path, file: Path, pairs: PairSet, *, budget: float, progress: Progress = silent
) -> Quantization:
    """Write `exact` in int8. Raises `ModelError` if it loses more than `budget` Spearman points."""
    narrow, reader = multiplies_narrow(), encoder.reader
    feeds = single_feeds(reader, spread(pairs.texts(), _CALIBRATION_TEXTS))
    progress("Quantizing", 0, 1)
    with _quiet_nncf() as nncf:
        made = nncf.quantize(
            openvino.Core().read_model(exact),
            nncf.Dataset(feeds),
            model_type=nncf.ModelType.TRANSFORMER,
            preset=nncf.QuantizationPreset.MIXED,  # activations have no sign after a GELU
            subset_size=len(feeds),
            advanced_parameters=nncf.AdvancedQuantizationParameters(
                overflow_fix=nncf.OverflowFix.ENABLE if narrow else nncf.OverflowFix.DISABLE
            ),
        )
    openvino.save_model(made, file, compress_to_fp16=False)
    progress("Quantizing", 1, 1)

    def score(graph: Path) -> float:
        return evaluate(OpenVinoEncoder(graph, reader, heads=encoder.heads), pairs.pairs).spearman

    try:
        drop = score(exact) - score(file)
    except DataError:  # the score is undefined
        drop = math.inf
    if drop > budget:
        lost = in_points(drop) if math.isfinite(drop) else "any correlation"
        raise failed_check(f"int8 loses {lost} on {pairs.name}, more than {in_points(budget)}")
    layers = sum(node.get_type_name() == "MatMul" for node in made.get_ops())
    return Quantization.of(pairs, layers=layers, in_float={}, budget=budget, drop_all_int8=drop, drop=drop)


@contextlib.contextmanager
def _quiet_nncf() -> Iterator[Any]:
    """Import NNCF without telemetry; silence its stdout."""
    sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]  # "not importable"
    with contextlib.redirect_stdout(io.StringIO()):
        nncf = require("nncf", extra="openvino")
        nncf.set_log_level(logging.ERROR)
        yield nncf
