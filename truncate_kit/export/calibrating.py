"""Where zero lies among the 256 bytes of an int8 input: what a token reaches upward and downward is rarely the same."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from truncate_kit.export.quantizing import quantized_inputs
from truncate_kit.extras import require

Feeds = dict[str, NDArray[np.int64]]
_PLACES = np.arange(1, 255)


def zero_points(model: Any, inputs: Sequence[Feeds]) -> dict[str, int]:
    """For each value that `quantize` turns to bytes, the zero point with the least mean squared step over the tokens.

    inputs: texts without padding. The step itself is found for each token when the graph runs; only how the bytes are
    shared between values above and below zero is fixed here. After a GELU nearly all of them go upward.
    """
    ir = require("onnx_ir", extra="cpu")
    runtime = require("onnxruntime", extra="cpu")
    names = quantized_inputs(model)
    watched = model.clone()
    values = {value.name: value for node in watched.graph for value in node.outputs}
    watched.graph.outputs[:] = [values[name] for name in names]
    options = runtime.SessionOptions()
    options.log_severity_level = 4
    session = runtime.InferenceSession(
        ir.to_proto(watched).SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    reaches: dict[str, list[NDArray[np.float32]]] = {name: [] for name in names}
    for feeds in inputs:
        for name, array in zip(names, session.run(names, feeds), strict=True):
            rows = array.reshape(-1, array.shape[-1])
            reaches[name].append(np.stack([rows.max(axis=1), -rows.min(axis=1)]).clip(min=0))
    return {name: best_zero(*np.concatenate(found, axis=1)) for name, found in reaches.items()}


def best_zero(high: NDArray[np.float32], low: NDArray[np.float32]) -> int:
    """The zero point, 1 … 254, with the least mean squared step for tokens that reach from −low to high, each (n,)."""
    steps = np.maximum(high / (255 - _PLACES[:, None]), low / _PLACES[:, None])
    return int(_PLACES[np.square(steps, dtype=np.float64).mean(axis=1).argmin()])
