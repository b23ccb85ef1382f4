"""What is in graphs, how they are written, and the passes that fit them to ONNX Runtime's own operators."""

import hashlib
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from truncate_kit.core.errors import cannot_write, require
from truncate_kit.core.precisions import GRAPH_FILES, Precision
from truncate_kit.export.settings import EMBED_LIMIT
from truncate_kit.models.families import Family

Feeds = Mapping[str, NDArray[np.int64]]
Watch = Callable[[Feeds], dict[str, NDArray[Any]]]
INPUTS = ("input_ids", "attention_mask")
OUTPUT = "sentence_embedding"
SCORE = "score"  # of pairs, where the encoder has heads
STATES = "last_hidden_state"  # what loaders that pool by themselves ask for; never computed apart, nor fetched here
GRAPH_FILE = GRAPH_FILES["fp32"]
MICROSOFT = "com.microsoft"  # the domain of ONNX Runtime's own operators
FUSED_ATTENTION = ("Attention", "MultiHeadAttention", "GroupQueryAttention")
_BIAS_PLACE, _MASK_PLACE = 5, 3  # inputs of com.microsoft Attention
_WORDS, _POSITIONS, _TYPES = (f"embeddings.{kind}_embeddings.weight" for kind in ("word", "position", "token_type"))
_NORM = "embeddings.LayerNorm.weight"


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
    """Count ONNX Runtime's own operators in the graph; those of `FUSED_ATTENTION` compute a whole attention."""
    return dict(Counter(str(node.op_type) for node in model.graph if node.domain == MICROSOFT))


def save_graph(model: Any, path: Path, *, embed_limit: int = EMBED_LIMIT) -> Path | None:
    """Write the graph to `path`; weights beyond `embed_limit` bytes go to a file beside it, which is returned.

    Raises `FileProblemError`.
    """
    ir = require("onnx_ir", extra="cpu")
    weights = [value.const_value for value in model.graph.initializers.values() if value.const_value is not None]
    embedded = sum(weight.nbytes for weight in weights) <= embed_limit
    digest = hashlib.sha256()  # names the file, so that a graph never meets the weights of another
    for weight in [] if embedded else weights:
        digest.update(weight.tobytes())
    data = None if embedded else path.with_name(f"{path.name}.{digest.hexdigest()[:12]}.data")
    try:
        ir.save(model, path, external_data=None if data is None else data.name)
    except OSError as error:
        raise cannot_write(path, error) from error
    return data


def graph_files(graph: Path) -> list[Path]:
    """List the graph, and beside it the files of weights that are named after it."""
    return [graph, *sorted(graph.parent.glob(f"{graph.name}*.data"))]


def bytes_of_rows(graph: Path, rows: int) -> int:
    """Count the bytes of one row in all weights of the graph that have that number of rows, as word embeddings do."""
    ir = require("onnx_ir", extra="cpu")
    weights = (value.const_value for value in ir.load(graph).graph.initializers.values())
    return sum(weight.nbytes // rows for weight in weights if weight is not None and weight.shape[0:1] == (rows,))


@contextmanager
def watching(model: Any, names: Sequence[str]) -> Iterator[Watch]:
    """Give a function from inputs to the values of these names in an `onnx_ir.Model`, on the CPU.

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
    # Through a file: no protobuf holds a graph with weights of more than 2 GiB.
    with tempfile.TemporaryDirectory(prefix="truncate-kit-watch-") as scratch:
        file = Path(scratch) / GRAPH_FILE
        save_graph(watched, file)
        session = runtime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
        yield lambda feeds: dict(zip(names, session.run(names, feeds), strict=True))


def set_mask(model: Any, form: Literal["tokens", "lengths"]) -> str:
    """Give every fused attention of an `onnx_ir.Model` its mask in this form, in place; returns what it has.

    Tokens, the attention mask itself, (b, t), suit the CPU: its kernels take them as fast as an additive mask or
    lengths, one node makes them, and padding may stand on either side. Lengths, its sums, (b,), suit CUDA, where
    padding has to stand on the right: by ONNX Runtime's selection rules fused kernels take lengths or no mask at all,
    TensorRT's on GPUs of SM 70 to 89, cuDNN's from SM 90 on (since ONNX Runtime 1.30). Returns "unfused" for a graph
    without fused attention, to whose scores the mask is added as traced.
    """
    # Whether the additive mask held more than padding is not asked here: `check_graph` compares with the encoder.
    ir = require("onnx_ir", extra="cpu")
    attentions = [node for node in model.graph if node.op_type == "Attention" and node.domain == MICROSOFT]
    if not attentions:
        return "unfused"
    mask, made = _input(model, "attention_mask"), []
    if form == "lengths":
        axis = ir.Value(name="mask_axis", const_value=ir.tensor(np.array([1], np.int64)))
        model.graph.register_initializer(axis)
        made.append(ir.node("ReduceSum", [mask, axis], attributes={"keepdims": 0}, name="mask_sum"))
        mask = made[0].outputs[0]
        mask.dtype = ir.DataType.INT64
    made.append(ir.node("Cast", [mask], attributes={"to": ir.DataType.INT32.value}, name=f"mask_{form}"))
    made[-1].outputs[0].dtype = ir.DataType.INT32
    model.graph.insert_before(attentions[0], made)
    for node in attentions:
        node.replace_input_with(_MASK_PLACE, made[-1].outputs[0])
        node.replace_input_with(_BIAS_PLACE, None)
        node.attributes.add(ir.AttrFloat32("mask_filter_value", float(np.finfo(np.float32).min)))
    require("onnx_ir.passes.common", extra="cpu").RemoveUnusedNodesPass()(model)
    return form


def _input(model: Any, name: str) -> Any:
    return next(value for value in model.graph.inputs if value.name == name)


def fuse_embeddings(model: Any, family: Family, precision: Precision) -> bool:
    """Shorten what comes before the first block of an `onnx_ir.Model`, in place; returns whether there was something.

    A trace leaves a dozen nodes, each a call of its own for every text.
    """
    # Every text has tokens of type 0 only, so that row of the type table is added to all positions once and for all.
    # In fp32 and fp16 one EmbedLayerNormalization does the rest; in int8 the look-up of words stays a node, whose table
    # goes into bytes. RoBERTa's positions follow the mask, those of BERT, ELECTRA, ALBERT and DistilBERT do not.
    ends, weights = (_WORDS, _POSITIONS, _TYPES, _NORM), model.graph.initializers.items()
    tables = {end: value for name, value in weights for end in ends if name.endswith(end)}
    if not family.fused_attention or family.position_offset or not {_WORDS, _POSITIONS, _NORM} <= tables.keys():
        return False
    norms = [node for node, place in tables[_NORM].uses() if node.op_type == "LayerNormalization" and place == 1]
    if len(norms) != 1:
        return False
    (norm,), words = norms, tables[_WORDS]
    ir = require("onnx_ir", extra="cpu")
    rows: NDArray[np.float32] = tables[_POSITIONS].const_value.numpy()
    if _TYPES in tables:
        rows = rows + tables[_TYPES].const_value.numpy()[0]
    positions = ir.Value(name="positions_of_type_0", const_value=ir.tensor(rows))
    model.graph.register_initializer(positions)
    ids = _input(model, "input_ids")
    if precision == "int8":
        (looked_up,) = (node for node, _ in words.uses() if node.op_type == "Gather")
        start = ir.Value(name="first_position", const_value=ir.tensor(np.array([0], np.int64)))
        model.graph.register_initializer(start)
        length = ir.node("Shape", [ids], attributes={"start": 1}, name="text_length")
        places = ir.node("Slice", [positions, start, length.outputs[0], start], name="positions")
        total = ir.node("Add", [looked_up.outputs[0], places.outputs[0]], name="embeddings_sum")
        inputs, kept = [total.outputs[0], *norm.inputs[1:]], norm.attributes.values()
        made = [length, places, total, ir.Node("", "LayerNormalization", inputs, kept, name=norm.name)]
    else:
        model.graph.opset_imports.setdefault(MICROSOFT, 1)
        # The kernel takes no other integers.
        narrow = ir.node("Cast", [ids], attributes={"to": ir.DataType.INT32.value}, name="input_ids_int32")
        narrow.outputs[0].dtype = ir.DataType.INT32
        inputs = [narrow.outputs[0], None, words, positions, None, norm.inputs[1], norm.inputs[2]]
        kept = [norm.attributes["epsilon"]]
        made = [narrow, ir.Node(MICROSOFT, "EmbedLayerNormalization", inputs, kept, num_outputs=2, name="embeddings")]
    ir.convenience.replace_nodes_and_values(model.graph, norm, [norm], made, norm.outputs[:1], made[-1].outputs[:1])
    require("onnx_ir.passes.common", extra="cpu").RemoveUnusedNodesPass()(model)
    return True
