"""The embeddings of BERT's kin in few nodes; a trace leaves a dozen, each a call of its own for every text."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from truncate_kit.errors import require
from truncate_kit.export.graph_files import MICROSOFT
from truncate_kit.models.families import Family
from truncate_kit.precisions import Precision

_WORDS, _POSITIONS, _TYPES = (f"embeddings.{kind}_embeddings.weight" for kind in ("word", "position", "token_type"))
_NORM = "embeddings.LayerNorm.weight"


def fuse_embeddings(model: Any, family: Family, precision: Precision) -> bool:
    """Shorten what comes before the first block of an `onnx_ir.Model`, in place; whether there was something to do."""
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
    (norm,) = norms
    ir = require("onnx_ir", extra="cpu")
    positions = ir.Value(name="positions_of_type_0", const_value=ir.tensor(_positions(tables)))
    model.graph.register_initializer(positions)
    write = _looked_up if precision == "int8" else _fused
    made = write(ir, model, norm, tables[_WORDS], positions)
    ir.convenience.replace_nodes_and_values(model.graph, norm, [norm], made, norm.outputs[:1], made[-1].outputs[:1])
    require("onnx_ir.passes.common", extra="cpu").RemoveUnusedNodesPass()(model)
    return True


def _positions(tables: Mapping[str, Any]) -> NDArray[np.float32]:
    """The position table, (positions, width), with the first row of the type table added where there is one."""
    positions: NDArray[np.float32] = tables[_POSITIONS].const_value.numpy()
    return positions + tables[_TYPES].const_value.numpy()[0] if _TYPES in tables else positions


def _input_ids(model: Any) -> Any:
    return next(value for value in model.graph.inputs if value.name == "input_ids")


def _fused(ir: Any, model: Any, norm: Any, words: Any, positions: Any) -> list[Any]:
    model.graph.opset_imports.setdefault(MICROSOFT, 1)
    narrow = ir.node(
        "Cast", [_input_ids(model)], attributes={"to": ir.DataType.INT32.value}, name="input_ids_int32"
    )  # the kernel takes no other integers
    narrow.outputs[0].dtype = ir.DataType.INT32
    inputs = [narrow.outputs[0], None, words, positions, None, norm.inputs[1], norm.inputs[2]]
    kept = [norm.attributes["epsilon"]]
    return [narrow, ir.Node(MICROSOFT, "EmbedLayerNormalization", inputs, kept, num_outputs=2, name="embeddings")]


def _looked_up(ir: Any, model: Any, norm: Any, words: Any, positions: Any) -> list[Any]:
    (rows,) = (node for node, _ in words.uses() if node.op_type == "Gather")
    start = ir.Value(name="first_position", const_value=ir.tensor(np.array([0], np.int64)))
    model.graph.register_initializer(start)
    length = ir.node("Shape", [_input_ids(model)], attributes={"start": 1}, name="text_length")
    places = ir.node("Slice", [positions, start, length.outputs[0], start], name="positions")
    total = ir.node("Add", [rows.outputs[0], places.outputs[0]], name="embeddings_sum")
    attributes = dict(norm.attributes.items())
    again = ir.Node("", "LayerNormalization", [total.outputs[0], *norm.inputs[1:]], attributes.values(), name=norm.name)
    return [length, places, total, again]
