"""Graphs as files: what their inputs and outputs are called, what is in them, and how they are written."""

import hashlib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from truncate_kit.errors import cannot_write, require
from truncate_kit.precisions import GRAPH_FILES

INPUTS = ("input_ids", "attention_mask")
OUTPUT = "sentence_embedding"
STATES = "last_hidden_state"  # what loaders that pool by themselves ask for; never computed apart, nor fetched here
GRAPH_FILE = GRAPH_FILES["fp32"]
EMBED_LIMIT = 1_900_000_000  # bytes of weights inside the graph's own file; protobuf ends at 2 GiB
MICROSOFT = "com.microsoft"  # the domain of ONNX Runtime's own operators
_FUSED_ATTENTION = ("Attention", "MultiHeadAttention", "GroupQueryAttention")


def strip_notes(model: Any) -> None:
    """Take out the tracer's notes, in place: they hold source lines with paths of this machine."""
    for node in model.graph.all_nodes():
        node.metadata_props.clear()
        node.doc_string = None
        for value in node.outputs:
            value.metadata_props.clear()
    for value in (*model.graph.inputs, *model.graph.initializers.values()):
        value.metadata_props.clear()


def count_fused_nodes(model: Any) -> dict[str, int]:
    """ONNX Runtime's own operators in the graph, and how many of each."""
    return dict(Counter(str(node.op_type) for node in model.graph if node.domain == MICROSOFT))


def count_fused_attention(model: Any) -> int:
    """Nodes of the graph that compute a whole attention."""
    return sum(node.op_type in _FUSED_ATTENTION and node.domain == MICROSOFT for node in model.graph)


def save_graph(model: Any, path: Path, *, embed_limit: int = EMBED_LIMIT) -> Path | None:
    """Write the graph to `path`; weights beyond `embed_limit` bytes go to a file beside it, which is returned.

    Raises `FileProblemError`.
    """
    ir = require("onnx_ir", extra="cpu")
    weights = [value.const_value for value in model.graph.initializers.values() if value.const_value is not None]
    embedded = sum(weight.nbytes for weight in weights) <= embed_limit
    # Named by a hash of the weights, so that a graph never meets those of another.
    data = None if embedded else path.with_name(f"{path.name}.{_digest(weights)}.data")
    try:
        ir.save(model, path, external_data=None if data is None else data.name)
    except OSError as error:
        raise cannot_write(path, error) from error
    return data


def graph_files(graph: Path) -> list[Path]:
    """The graph, and beside it the files of weights that are named after it."""
    return [graph, *sorted(graph.parent.glob(f"{graph.name}*.data"))]


def bytes_of_rows(graph: Path, rows: int) -> int:
    """Bytes that one row takes in all weights of the graph that have that number of rows, as the word embeddings do."""
    ir = require("onnx_ir", extra="cpu")
    weights = (value.const_value for value in ir.load(graph).graph.initializers.values())
    return sum(weight.nbytes // rows for weight in weights if weight is not None and weight.shape[0:1] == (rows,))


def _digest(weights: Sequence[Any]) -> str:
    digest = hashlib.sha256()
    for weight in weights:
        digest.update(weight.tobytes())
    return digest.hexdigest()[:12]
