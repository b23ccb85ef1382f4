"""What the values inside a graph are on given inputs."""

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from truncate_kit.errors import require
from truncate_kit.export.graph_files import EMBED_LIMIT, GRAPH_FILE, save_graph

Feeds = Mapping[str, NDArray[np.int64]]
Watch = Callable[[Feeds], dict[str, NDArray[Any]]]


@contextmanager
def watching(model: Any, names: Sequence[str], *, embed_limit: int = EMBED_LIMIT) -> Iterator[Watch]:
    """A function from inputs to the values of these names in an `onnx_ir.Model`, on the CPU.

    Raises `FileProblemError` where the folder for temporary files is full.
    """
    ir = require("onnx_ir", extra="cpu")
    runtime = require("onnxruntime", extra="cpu")
    watched = model.clone()
    values = {value.name: value for node in watched.graph for value in node.outputs}
    watched.graph.outputs[:] = [values[name] for name in names]
    for value in watched.graph.outputs:
        value.dtype = value.dtype or ir.DataType.FLOAT  # fusing leaves some without one
    options = runtime.SessionOptions()
    options.log_severity_level = 4
    # Through a file: no protobuf holds a graph with more weights than `embed_limit` bytes.
    with tempfile.TemporaryDirectory(prefix="truncate-kit-watch-") as scratch:
        file = Path(scratch) / GRAPH_FILE
        save_graph(watched, file, embed_limit=embed_limit)
        session = runtime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
        yield lambda feeds: dict(zip(names, session.run(names, feeds), strict=True))
