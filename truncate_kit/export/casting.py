"""From float32 to float16, node by node; what is to stay wide stays so from edge to edge.

ONNX Runtime's own converter is not used: between two neighbouring nodes that shall stay in float32 it goes down to
float16 and up again, so that a masked score becomes infinite in the middle of an island.
"""

from collections.abc import Collection, Iterator
from typing import Any

import numpy as np

from truncate_kit.errors import require

_SMALLEST, _LARGEST = 5.96e-8, 65504.0  # float16, subnormal and normal
_LARGE = 1024  # numbers of a constant that is worth storing in half
_INTEGER = frozenset(("Shape", "Size", "ArgMax", "ArgMin", "NonZero"))
_BOOLEAN = frozenset(("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "And", "Or", "Not", "Xor", "IsNaN"))


def narrow(model: Any, wide: set[str]) -> None:
    """Turn an `onnx_ir.Model` to float16, in place, but for the nodes named in `wide`; inputs and outputs stay."""
    ir = require("onnx_ir", extra="cpu")
    full, half = ir.DataType.FLOAT, ir.DataType.FLOAT16
    nodes = list(model.graph)
    for value in model.graph.initializers.values():
        value.dtype = value.const_value.dtype
    for node in nodes:
        _fill_types(ir, node)
    floats = {value for value in _values(model, nodes) if value.dtype == full}
    small = {value for node in nodes if node.name not in wide for value in _made_by(node) if value in floats}
    crossed: dict[tuple[Any, Any], Any] = {}

    def as_type(value: Any, kind: Any, before: Any) -> Any:
        """The value in another type: an initializer converted, anything else through one Cast for all its readers."""
        if (value, kind) not in crossed:
            name = f"{value.name}_{kind.name.lower()}"
            if value.const_value is not None and value.producer() is None:
                made = ir.Value(name=name, const_value=ir.tensor(_cut(value.const_value.numpy()), name=name))
                model.graph.register_initializer(made)
            else:
                cast = ir.node("Cast", [value], attributes={"to": kind.value}, name=f"{name}_cast")
                made = cast.outputs[0]
                made.name, made.shape, made.dtype = name, value.shape, kind
                model.graph.insert_before(before, cast)
            crossed[value, kind] = made
        return crossed[value, kind]

    for node in nodes:
        for place, value in enumerate(node.inputs):
            if value is None or value not in floats:
                continue
            if node.name in wide and value in small:
                node.replace_input_with(place, as_type(value, full, node))
            elif node.name not in wide and value not in small:
                node.replace_input_with(place, as_type(value, half, node))
        if node.name not in wide:
            _narrow_attributes(ir, node)
    for value in small:
        value.dtype = half
    for place, value in enumerate(model.graph.outputs):
        if value in small:
            cast = ir.node("Cast", [value], attributes={"to": full.value}, name=f"{value.name}_cast")
            cast.outputs[0].name, value.name = value.name, f"{value.name}_{half.name.lower()}"
            cast.outputs[0].shape, cast.outputs[0].dtype = value.shape, full
            model.graph.append(cast)
            model.graph.outputs[place] = cast.outputs[0]
    unused = [name for name, value in model.graph.initializers.items() if not value.uses()]
    for name in unused:
        del model.graph.initializers[name]


def store_half(model: Any, names: Collection[str]) -> None:
    """Keep those of these constants that are large and in float32 as float16 in the file, in place.

    A session widens them when it is made.
    """
    ir = require("onnx_ir", extra="cpu")
    for name in sorted(names):  # the same file each time
        value = model.graph.initializers.get(name)
        if value is None or value.const_value.dtype != ir.DataType.FLOAT or value.const_value.size < _LARGE:
            continue
        stored = ir.Value(name=f"{name}_stored", const_value=ir.tensor(_cut(value.const_value.numpy())))
        cast = ir.node("Cast", [stored], attributes={"to": ir.DataType.FLOAT.value}, name=f"{name}_cast")
        cast.outputs[0].shape, cast.outputs[0].dtype = value.shape, ir.DataType.FLOAT
        value.replace_all_uses_with(cast.outputs[0])
        del model.graph.initializers[name]
        cast.outputs[0].name = name
        model.graph.register_initializer(stored)
        model.graph.insert_before(next(iter(model.graph)), cast)


def _values(model: Any, nodes: list[Any]) -> Iterator[Any]:
    yield from model.graph.inputs
    yield from model.graph.initializers.values()
    for node in nodes:
        yield from node.outputs


def _made_by(node: Any) -> list[Any]:
    """The outputs that have the type of the inputs: a norm gives its mean and spread in float32 whatever it gets."""
    return [value for place, value in enumerate(node.outputs) if not (place in (1, 2) and "LayerNorm" in node.op_type)]


def _fill_types(ir: Any, node: Any) -> None:
    """The type of outputs that fusing left without one: mostly that of the first input."""
    for value in node.outputs:
        if value.dtype is not None:
            continue
        if node.op_type in _INTEGER:
            value.dtype = ir.DataType.INT64
        elif node.op_type in _BOOLEAN:
            value.dtype = ir.DataType.BOOL
        elif node.op_type == "Cast":
            value.dtype = ir.DataType(node.attributes["to"].as_int())
        else:
            source = node.inputs[1 if node.op_type == "Where" else 0] if node.inputs else None
            value.dtype = source.dtype if source is not None else None


def _narrow_attributes(ir: Any, node: Any) -> None:
    """What a node itself says about type: a Cast's target, the tensor of a constant."""
    if node.op_type == "Cast" and node.attributes["to"].as_int() == ir.DataType.FLOAT.value:
        node.attributes["to"] = ir.AttrInt64("to", ir.DataType.FLOAT16.value)
    if node.op_type in ("Constant", "ConstantOfShape") and "value" in node.attributes:
        tensor = node.attributes["value"].as_tensor()
        if tensor.dtype == ir.DataType.FLOAT:
            node.attributes["value"] = ir.AttrTensor("value", ir.tensor(_cut(tensor.numpy())))


def _cut(array: Any) -> Any:
    """In float16: what lies beyond its ends on them, what is smaller than its smallest on that, 0 as 0."""
    small = (np.abs(array) < _SMALLEST) & (array != 0)
    return np.where(small, np.copysign(_SMALLEST, array), np.clip(array, -_LARGEST, _LARGEST)).astype(np.float16)
