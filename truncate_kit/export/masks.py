"""How a fused attention learns which tokens are padding; on CUDA the form decides which kernel runs."""

from typing import Any, Literal

import numpy as np

from truncate_kit.errors import require
from truncate_kit.export.graph_files import MICROSOFT
from truncate_kit.precisions import Target

MaskForm = Literal["bias", "tokens", "lengths", "lengths_starts"]
_BIAS_PLACE, _MASK_PLACE = 5, 3  # inputs of com.microsoft Attention

REASONS: dict[str, str] = {
    "tokens": "a 2-D mask of the tokens: the CPU kernels take it as fast as an additive one or lengths, one node makes "
    "it, and padding may stand on either side",
    "lengths": "1-D lengths: by ONNX Runtime's selection rules CUDA's fused kernels take lengths or no mask at all, "
    "and a 2-D mask runs unfused: TensorRT's kernels on GPUs of SM 70 to 89, cuDNN's from SM 90 on (H100, H200), "
    "those since ONNX Runtime 1.30; padding has to stand on the right (chosen by these rules, not by a measurement)",
    "unfused": "no fused attention takes a mask in this graph; it is added to the scores as traced",
}


def choose_mask(target: Target) -> MaskForm:
    """The form of the mask that suits a target; `REASONS` says why."""
    return "lengths" if target == "cuda" else "tokens"


def set_mask(model: Any, form: MaskForm) -> str:
    """Give every fused attention of an `onnx_ir.Model` its mask in this form, in place; returns what it has.

    bias: the additive mask that the trace left. tokens: the attention mask itself, (b, t), in its place. lengths: its
    sums, (b,); right only where padding stands on the right. lengths_starts: those and twice 0, t, … b·t, the places
    where queries and keys of each text start, (3b + 2,), the only mask that CUTLASS's kernel takes. Returns "unfused"
    for a graph without fused attention.
    """
    # Whether the additive mask held more than padding is not asked here: `check_graph` compares with the encoder.
    ir = require("onnx_ir", extra="cpu")
    attentions = [node for node in model.graph if node.op_type == "Attention" and node.domain == MICROSOFT]
    if not attentions:
        return "unfused"
    if form == "bias":
        return form
    mask = next(value for value in model.graph.inputs if value.name == "attention_mask")
    made = []
    if form != "tokens":
        axis = _constant(ir, model, "mask_axis", [1])
        made.append(ir.node("ReduceSum", [mask, axis], attributes={"keepdims": 0}, name="mask_sum"))
        if form == "lengths_starts":
            made += _with_starts(ir, model, mask, made[-1].outputs[0])
        for node in made:
            node.outputs[0].dtype = ir.DataType.INT64
        mask = made[-1].outputs[0]
    made.append(ir.node("Cast", [mask], attributes={"to": ir.DataType.INT32.value}, name=f"mask_{form}"))
    made[-1].outputs[0].dtype = ir.DataType.INT32
    model.graph.insert_before(attentions[0], made)
    for node in attentions:
        node.replace_input_with(_MASK_PLACE, made[-1].outputs[0])
        node.replace_input_with(_BIAS_PLACE, None)
        node.attributes.add(ir.AttrFloat32("mask_filter_value", float(np.finfo(np.float32).min)))
    require("onnx_ir.passes.common", extra="cpu").RemoveUnusedNodesPass()(model)
    return form


def _with_starts(ir: Any, model: Any, mask: Any, lengths: Any) -> list[Any]:
    """The nodes that put 0, t, 2t, … b·t behind the lengths twice, for a padded mask (b, t); the last gives them."""
    one, axis = _constant(ir, model, "mask_one", 1), _constant(ir, model, "mask_first_axis", [0])
    zero = _constant(ir, model, "mask_zero", 0)
    width = ir.node("Shape", [mask], attributes={"start": 1}, name="mask_width")
    step = ir.node("Squeeze", [width.outputs[0], axis], name="mask_step")
    size = ir.node("Size", [mask], name="mask_size")
    end = ir.node("Add", [size.outputs[0], one], name="mask_end")
    starts = ir.node("Range", [zero, end.outputs[0], step.outputs[0]], name="mask_starts")
    parts = [lengths, starts.outputs[0], starts.outputs[0]]
    return [width, step, size, end, starts, ir.node("Concat", parts, attributes={"axis": 0}, name="mask_parts")]


def _constant(ir: Any, model: Any, name: str, value: Any) -> Any:
    made = ir.Value(name=name, const_value=ir.tensor(np.array(value, np.int64)))
    model.graph.register_initializer(made)
    return made
