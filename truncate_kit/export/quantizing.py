"""Dynamic int8: weights in 8 bits with one scale per channel, activations in 8 bits with one scale per token.

Weights are symmetric; how the bytes of activations are shared between the signs is calibrated, their scale is not. The
usual way, which ONNX Runtime's own quantiser takes, gives a whole batch one range: the vector
of a text then hangs on its neighbours and its padding. A scale per token costs about a tenth of the speed, makes the
error less than half as large, and leaves nothing to hang on.
"""

from collections.abc import Collection, Mapping, Sequence
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
_MIDDLE = 128  # zero among the bytes of activations where nothing is known of them


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


def quantized_inputs(model: Any) -> list[str]:
    """Names of the values that `quantize` turns to bytes, each once."""
    readers = (node for node in model.graph if node.op_type != "Gather" and _weight(node) is not None)
    return list(dict.fromkeys(str(node.inputs[0].name) for node in readers))


def quantize(
    model: Any, *, keep: Collection[str] = (), reduce_range: bool = False, zeros: Mapping[str, int] | None = None
) -> Any:
    """A copy of an `onnx_ir.Model` with its `quantizable` nodes in int8, but for those named in `keep`.

    reduce_range: weights in 7 bits, for
    processors that add pairs of 8-bit products in 16 bits. zeros: zero points of `quantized_inputs` (`zero_points` in
    calibrating.py), 1 … 254; None takes the middle.
    """
    ir = require("onnx_ir", extra="cpu")
    passes = require("onnx_ir.passes.common", extra="cpu")
    copy = model.clone()
    copy.opset_imports.setdefault(_MICROSOFT, 1)
    writer = _Writer(ir, copy.graph, 63 if reduce_range else 127, zeros or {})
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
        return _constant(node.inputs[1]) if node.inputs[2] is None or node.inputs[2].const_value is not None else None
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

    def __init__(self, ir: Any, graph: Any, limit: int, zeros: Mapping[str, int]) -> None:
        self.ir, self.graph, self.limit, self.zeros = ir, graph, limit, zeros
        self._made: dict[str, Any] = {}
        self._bytes: dict[Any, tuple[Any, Any]] = {}

    def _initializer(self, name: str, array: NDArray[Any] | np.generic) -> Any:
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
        bias = node.inputs[2] if len(node.inputs) > 2 else None
        made = self._rounded_product(node, node.inputs[0], node.inputs[1].name, weight, bias, str(node.name))
        self._replace(node, made)

    def attention(self, node: Any, weight: Array) -> None:
        """Projections in int8, each a product; scores and softmax stay in float inside the fused operator."""
        made, parts = [], []
        bias = node.inputs[2].const_value.numpy() if node.inputs[2] is not None else np.zeros(weight.shape[1], "f")
        for name, matrix, shift in zip("qkv", np.split(weight, 3, axis=1), np.split(bias, 3), strict=True):
            source = f"{node.inputs[1].name}_{name}"
            offset = self._initializer(f"{source}_bias", np.ascontiguousarray(shift))
            made += self._rounded_product(node, node.inputs[0], source, matrix, offset, f"{node.name}_{name}")
            parts.append(made[-1].outputs[0])
        padding, extra = (node.inputs[place] if len(node.inputs) > place else None for place in (3, 5))
        kept = [node.attributes[name] for name in _KEPT_ATTRIBUTES if name in node.attributes]
        inputs = [*parts, None, padding, extra]
        made.append(self.ir.Node(_MICROSOFT, "MultiHeadAttention", inputs, kept, name=node.name))
        self._replace(node, made)

    def _rounded_product(self, before: Any, states: Any, source: str, weight: Array, bias: Any, name: str) -> list[Any]:
        """Nodes that give states · weight + bias from bytes: the integer product, times the scales of both sides."""
        values, scale, zero = self._columns(source, weight)
        small, step = self._rounded_states(before, states, weight.shape[0])
        place = self.zeros.get(states.name, _MIDDLE)
        one, middle = self._initializer("one_step", np.float32(1)), self._initializer(f"zero_{place}", np.uint8(place))
        product = self.ir.Node(
            _MICROSOFT, "MatMulIntegerToFloat", [small, values, one, scale, middle, zero], name=f"{name}_product"
        )
        made = [product, self.ir.node("Mul", [product.outputs[0], step], name=f"{name}_steps")]
        if bias is not None:
            made.append(self.ir.node("Add", [made[-1].outputs[0], bias], name=f"{name}_bias"))
        return made

    def _rounded_states(self, before: Any, states: Any, width: int) -> tuple[Any, Any]:
        """Bytes of the states, and the step of each token (…, 1); once for all products that read the same states.

        A token's step just covers what it reaches upward and downward, whatever other tokens do.
        """
        if states not in self._bytes:
            name, ir, last = states.name, self.ir, self._initializer("last_axis", np.array([-1], np.int64))
            made: list[Any] = []

            def node(kind: str, inputs: Sequence[Any], **attributes: Any) -> Any:
                made.append(ir.node(kind, inputs, attributes=attributes, name=f"{name}_{kind}_{len(made)}"))
                return made[-1].outputs[0]

            place = self.zeros.get(name, _MIDDLE)
            up = self._initializer(f"up_{place}", np.float32(1 / (255 - place)))
            down = self._initializer(f"down_{place}", np.float32(-1 / place))
            least = self._initializer("least_step", np.float32(1e-30))  # for a token of zeros only
            high = node("Mul", [node("ReduceMax", [states, last], keepdims=1), up])
            low = node("Mul", [node("ReduceMin", [states, last], keepdims=1), down])
            step = node("Max", [high, low, least])
            # QuantizeLinear takes one scale per row of a matrix.
            rows = node("Reshape", [states, self._initializer(f"rows_{width}", np.array([-1, width], np.int64))])
            steps = node("Reshape", [step, last])
            zeros = node("ConstantOfShape", [node("Shape", [steps])], value=ir.tensor(np.array([place], np.uint8)))
            flat = node("QuantizeLinear", [rows, steps, zeros], axis=0)
            self._bytes[states] = node("Reshape", [flat, node("Shape", [states])]), step
            self.graph.insert_before(before, made)
        return self._bytes[states]

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

    def _replace(self, old: Any, made: list[Any]) -> None:
        """Put nodes in place of one; the last one's output stands for the old one's."""
        value = made[-1].outputs[0]
        value.name, value.shape, value.dtype = old.outputs[0].name, old.outputs[0].shape, old.outputs[0].dtype
        self.graph.insert_before(old, made)
        old.outputs[0].replace_all_uses_with(value, replace_graph_outputs=True)
        self.graph.remove(old, safe=True)
