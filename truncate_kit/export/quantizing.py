"""Dynamic int8: weights in 8 bits per channel, activations in 8 bits by the range each batch shows.

Weights are symmetric (int8, one scale per output channel), activations asymmetric (uint8). ONNX Runtime's own quantiser
is not used: it drops the additive mask of a fused attention, and keeps that attention's weights to 7 bits everywhere.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from truncate_kit.extras import require

Array = NDArray[np.float32]
_MICROSOFT = "com.microsoft"
_SCOPES = "pkg.torch.onnx.name_scopes"
_PLAIN_GEMM = {"alpha": 1.0, "beta": 1.0, "transA": 0}
_KEPT_ATTRIBUTES = ("num_heads", "scale", "mask_filter_value", "unidirectional")


@dataclass(frozen=True, slots=True)
class Quantizable:
    """A node that int8 can take over. node: its name in the graph. layer: the module it comes from. size: weights."""

    node: str
    layer: str
    size: int


def quantizable(model: Any) -> tuple[Quantizable, ...]:
    """The products with constant weights, fused attentions and the word embeddings of an `onnx_ir.Model`."""
    found = []
    for node in model.graph:
        weight = _weight(node)
        if weight is not None:
            found.append(Quantizable(str(node.name), layer_of(node), int(weight.size)))
    return tuple(found)


def layer_of(node: Any) -> str:
    """The module that a node was traced from, such as `encoder.layer.0.output.dense`; its own name where unknown."""
    scopes = [part.strip(" '\"") for part in node.metadata_props.get(_SCOPES, "").strip("[]").split(",")]
    return scopes[-2].removeprefix("backbone.") if len(scopes) > 1 and scopes[-2] else str(node.name)


def quantize(model: Any, *, keep: Collection[str] = (), reduce_range: bool = False) -> Any:
    """A copy of an `onnx_ir.Model` with its `quantizable` nodes in int8, but for those named in `keep`.

    Fused attentions must have their mask as keys or lengths (`set_mask`). reduce_range: weights in 7 bits, for
    processors that add pairs of 8-bit products in 16 bits.
    """
    ir = require("onnx_ir", extra="cpu")
    passes = require("onnx_ir.passes.common", extra="cpu")
    copy = model.clone()
    copy.opset_imports.setdefault(_MICROSOFT, 1)
    writer = _Writer(ir, copy.graph, 63 if reduce_range else 127)
    for node in list(copy.graph):
        weight = _weight(node)
        if weight is None or node.name in keep:
            continue
        write = {"Attention": writer.attention, "Gather": writer.embedding}.get(node.op_type, writer.product)
        write(node, weight)
    passes.RemoveUnusedNodesPass()(copy)
    return copy


def _weight(node: Any) -> Array | None:
    """The constant matrix of a node that int8 can take over, None for any other node."""
    if node.op_type == "Attention" and node.domain == _MICROSOFT:
        sizes = node.attributes.get("qkv_hidden_sizes")
        if sizes is not None and len(set(sizes.as_ints())) > 1:
            return None
        return _constant(node.inputs[1])
    if node.op_type == "MatMul" and node.domain == "":
        return _matrix(node.inputs[1])
    if node.op_type == "Gemm" and all(
        name not in node.attributes or node.attributes[name].value == usual for name, usual in _PLAIN_GEMM.items()
    ):
        array = _matrix(node.inputs[1])
        turned = array is not None and "transB" in node.attributes and node.attributes["transB"].as_int()
        return np.ascontiguousarray(array.T) if array is not None and turned else array
    if node.op_type == "Gather" and node.inputs[1] is not None and node.inputs[1].name == "input_ids":
        return _matrix(node.inputs[0])
    return None


def _matrix(value: Any) -> Array | None:
    array = _constant(value)
    return array if array is not None and array.ndim == 2 and array.dtype == np.float32 else None


def _constant(value: Any) -> Array | None:
    """The array of an initializer, or of the Concat of initializers that holds query, key and value together."""
    if value is None:
        return None
    if value.const_value is not None:
        array: Array = value.const_value.numpy()
        return array
    producer = value.producer()
    if producer is None or producer.op_type != "Concat":
        return None
    parts = [_constant(part) for part in producer.inputs]
    if any(part is None for part in parts):
        return None
    return np.concatenate([part for part in parts if part is not None], axis=producer.attributes["axis"].as_int())


def rounded(weight: Array, axis: int, limit: int) -> tuple[NDArray[np.int8], Array]:
    """Symmetric rounding to −limit … limit with one scale for each row or column.

    axis: the axis that shares a scale. Returns the integers and the scales, the axis kept with size 1.
    """
    scale = np.abs(weight).max(axis=axis, keepdims=True) / limit
    scale[scale == 0] = 1
    return np.clip(np.rint(weight / scale), -limit, limit).astype(np.int8), scale.astype(np.float32)


class _Writer:
    """Puts int8 nodes in place of float ones; weights that nodes share are rounded once."""

    def __init__(self, ir: Any, graph: Any, limit: int) -> None:
        self.ir, self.graph, self.limit = ir, graph, limit
        self._made: dict[str, Any] = {}

    def _initializer(self, name: str, array: NDArray[Any]) -> Any:
        if name not in self._made:
            self._made[name] = self.ir.Value(name=name, const_value=self.ir.tensor(array, name=name))
            self.graph.register_initializer(self._made[name])
        return self._made[name]

    def _columns(self, source: str, weight: Array) -> tuple[Any, Any, Any]:
        """Integers, scales and zero points of a weight (in, out), one scale per output."""
        values, scale = rounded(weight, 0, self.limit)
        return (
            self._initializer(f"{source}_int8", values),
            self._initializer(f"{source}_scale", scale.reshape(-1)),
            self._initializer(f"{source}_zero", np.zeros(scale.size, np.int8)),
        )

    def product(self, node: Any, weight: Array) -> None:
        """A MatMul, or a Gemm with its bias; the bias stays in float."""
        values, scale, zero = self._columns(node.inputs[1].name, weight)
        inputs = [node.inputs[0], values, scale, zero, *node.inputs[2:]]
        self._replace(node, [self._node("DynamicQuantizeMatMul", inputs, node)])

    def attention(self, node: Any, weight: Array) -> None:
        """Projections in int8; scores and softmax stay in float inside the operator."""
        values, scale, zero = self._columns(node.inputs[1].name, weight)
        states = node.inputs[0]
        rounding = self.ir.node("DynamicQuantizeLinear", [states], num_outputs=3, name=f"{node.name}_input")
        small, step, offset = rounding.outputs
        mask = node.inputs[3] if len(node.inputs) > 3 else None
        kept = [node.attributes[name] for name in _KEPT_ATTRIBUTES if name in node.attributes]
        inputs = [small, values, node.inputs[2], step, scale, mask, offset, zero]
        self._replace(node, [rounding, self._node("QAttention", inputs, node, kept)])

    def embedding(self, node: Any, weight: Array) -> None:
        """One scale per row of the table, so that a rare word's wide row does not coarsen the others."""
        source, ids = node.inputs[0].name, node.inputs[1]
        values, scale = rounded(weight, 1, 127)
        rows = self.ir.node("Gather", [self._initializer(f"{source}_int8", values), ids], name=f"{node.name}_rows")
        steps = self.ir.node("Gather", [self._initializer(f"{source}_scale", scale), ids], name=f"{node.name}_scale")
        wide = self.ir.node(
            "Cast", [rows.outputs[0]], attributes={"to": self.ir.DataType.FLOAT.value}, name=f"{node.name}_wide"
        )
        product = self.ir.node("Mul", [wide.outputs[0], steps.outputs[0]], name=node.name)
        self._replace(node, [rows, steps, wide, product])

    def _node(self, kind: str, inputs: Sequence[Any], like: Any, attributes: Sequence[Any] = ()) -> Any:
        return self.ir.Node(_MICROSOFT, kind, inputs, attributes, name=like.name)

    def _replace(self, old: Any, made: list[Any]) -> None:
        """Put nodes in place of one; the last one's output stands for the old one's."""
        value = made[-1].outputs[0]
        value.name, value.shape, value.dtype = old.outputs[0].name, old.outputs[0].shape, old.outputs[0].dtype
        self.graph.insert_before(old, made)
        old.outputs[0].replace_all_uses_with(value, replace_graph_outputs=True)
        self.graph.remove(old, safe=True)
