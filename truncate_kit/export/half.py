"""float16 for CUDA, with float32 islands for sums and scores.

ONNX Runtime's own converter narrows between neighbouring float32 nodes, so that masked scores become infinite.
"""

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np

from truncate_kit.core.errors import failed_check, require
from truncate_kit.export.graph import Feeds, watching
from truncate_kit.export.int8 import quantizable
from truncate_kit.models.families import Family

_SMALLEST, _LARGEST = 5.96e-8, 65504.0  # float16, subnormal and normal
_LARGE = 1024  # size of a constant worth storing in half
_INTEGER = frozenset(("Shape", "Size", "ArgMax", "ArgMin", "NonZero"))
_BOOLEAN = frozenset(("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "And", "Or", "Not", "Xor", "IsNaN"))
# The others only move or mask values.
_VALUES = frozenset(
    ("MatMul", "Gemm", "Add", "Mul", "Div", "Attention", "LayerNormalization", "BiasGelu", "Gelu", "FastGelu", "Conv",
     "SkipLayerNormalization", "EmbedLayerNormalization", "MultiHeadAttention", "RMSNormalization",
     "SimplifiedLayerNormalization")
)  # fmt: skip
_MASKED = -1e30  # scores below it are masked
# Squares and sums, as in unfused norms, and operators without a float16 kernel.
_WIDE_OPERATORS = frozenset(
    ("Pow", "ReduceL2", "ReduceMean", "ReduceSum", "Reciprocal", "Sqrt", "Range", "CumSum", "Max", "Min")
)
# Pooling without sums: only its readers are wide.
_CHOOSING = frozenset(("GatherND", "ReduceMax"))


def to_half(model: Any, family: Family, odd_inputs: Sequence[Feeds]) -> tuple[Any, dict[str, int], float]:
    """Copy an `onnx_ir.Model` in float16 with the same inputs and outputs.

    Also return the float32 operators by number, and the largest other value on `odd_inputs`. Raises `ModelError` if
    that exceeds float16.
    """
    wide = _wide_nodes(model)
    if family.float32_scores:
        wide |= _score_nodes(model)
    largest, where = _largest_value(model, wide, odd_inputs)
    if largest > _LARGEST:
        raise failed_check(f"a value of {largest:.3g} at {where} does not fit into float16, which ends at 65,504")
    half = model.clone()
    _narrow(half, wide)
    kept = (node for node in model.graph if node.name in wide and any(map(_is_float, node.outputs)))
    return half, dict(Counter(str(node.op_type) for node in kept)), largest


def _wide_nodes(model: Any) -> set[str]:
    """Name the float32 nodes of every family: squares, sums, and all after pooling."""
    nodes = list(model.graph)
    pooling = [node for node in nodes if node.op_type == "ReduceSum" and _is_float(node.inputs[0])]
    for node in nodes:
        pooling += _readers(node) if node.op_type in _CHOOSING and _is_float(node.inputs[0]) else []
    wide = {str(node.name) for node in nodes if node.op_type in _WIDE_OPERATORS} | _reached(pooling, _readers)
    for node in nodes:
        above = {str(maker.name) for maker in _makers(node)}
        below = {str(reader.name) for reader in _readers(node)}
        if above & wide and below and below <= wide:  # between two, such as an epsilon before a root
            wide.add(str(node.name))
    return wide


def _is_float(value: Any) -> bool:
    return str(value.dtype) == "FLOAT" if value.dtype is not None else not value.is_graph_input()


def _reached(nodes: Sequence[Any], step: Callable[[Any], Sequence[Any]]) -> set[str]:
    waiting, names = list(nodes), set[str]()
    while waiting:
        node = waiting.pop()
        if node.name not in names:
            names.add(str(node.name))
            waiting.extend(step(node))
    return names


def _readers(node: Any) -> list[Any]:
    return [reader for value in node.outputs for reader, _ in value.uses()]


def _makers(node: Any) -> list[Any]:
    return [maker for value in node.inputs if value is not None and (maker := value.producer()) is not None]


def _score_nodes(model: Any) -> set[str]:
    """Name the nodes from the projections to each Softmax, included."""
    projections = quantizable(model)
    return _reached(
        [node for node in model.graph if node.op_type == "Softmax"],
        lambda node: [
            maker for maker in _makers(node) if maker.name not in projections and maker.op_type != "LayerNormalization"
        ],
    )


def _largest_value(model: Any, islands: set[str], inputs: Sequence[Feeds]) -> tuple[float, str]:
    """Find the largest magnitude outside the islands, and its node."""
    shown = dict.fromkeys(str(value.name) for value in model.graph.outputs)
    for node in model.graph:
        if node.name not in islands and node.op_type in _VALUES:
            shown |= dict.fromkeys(str(value.name) for value in node.outputs[:1])
    largest, where = 0.0, ""
    with watching(model, list(shown)) as watch:
        for name, array in (item for feeds in inputs for item in watch(feeds).items()):
            if array.dtype == np.float32:
                peak = float(np.abs(array[~(array < _MASKED)]).max(initial=0.0))  # NaN stays
                if not peak <= largest:
                    largest, where = peak if np.isfinite(peak) else float("inf"), name
    return largest, where


def _narrow(model: Any, wide: set[str]) -> None:
    """Narrow all but the nodes in `wide`, inputs and outputs, in place."""
    ir = require("onnx_ir", extra="cpu")
    full, half = ir.DataType.FLOAT, ir.DataType.FLOAT16
    nodes = list(model.graph)
    for value in model.graph.initializers.values():
        value.dtype = value.const_value.dtype
    for node in nodes:
        _fill_types(ir, node)
    sources = (*model.graph.inputs, *model.graph.initializers.values())
    floats = {value for value in (*sources, *(made for node in nodes for made in node.outputs)) if value.dtype == full}
    small = {
        value
        for node in nodes
        if node.name not in wide
        for place, value in enumerate(node.outputs)
        # A norm's mean and spread are float32 always.
        if value in floats and not (place in (1, 2) and "LayerNorm" in node.op_type)
    }
    crossed: dict[tuple[Any, Any], Any] = {}

    def as_type(value: Any, kind: Any, before: Any) -> Any:
        """Convert an initializer, else share one Cast between readers."""
        if (value, kind) not in crossed:
            name = f"{value.name}_{kind.name.lower()}"
            if value.const_value is not None and value.producer() is None:
                made = ir.Value(name=name, const_value=ir.tensor(_cut(value.const_value.numpy()), name=name))
                model.graph.register_initializer(made)
            else:
                cast = _cast(ir, value, kind, f"{name}_cast", value.shape)
                made = cast.outputs[0]
                made.name = name
                model.graph.insert_before(before, cast)
            crossed[value, kind] = made
        return crossed[value, kind]

    for node in nodes:
        for place, value in enumerate(node.inputs):
            if value in floats and (node.name in wide) == (value in small):
                node.replace_input_with(place, as_type(value, full if node.name in wide else half, node))
        if node.name not in wide:
            _narrow_attributes(ir, node)
    for value in small:
        value.dtype = half
    for place, value in enumerate(model.graph.outputs):
        if value in small:
            cast = _cast(ir, value, full, f"{value.name}_cast", value.shape)
            cast.outputs[0].name, value.name = value.name, f"{value.name}_{half.name.lower()}"
            model.graph.append(cast)
            model.graph.outputs[place] = cast.outputs[0]
    for name in [name for name, value in model.graph.initializers.items() if not value.uses()]:
        del model.graph.initializers[name]


def store_half(model: Any, names: Collection[str]) -> None:
    """Store large float32 constants as float16, in place; a session widens them at load."""
    ir = require("onnx_ir", extra="cpu")
    for name in sorted(names):  # for the same file each time
        value = model.graph.initializers.get(name)
        if value is None or value.const_value.dtype != ir.DataType.FLOAT or value.const_value.size < _LARGE:
            continue
        stored = ir.Value(name=f"{name}_stored", const_value=ir.tensor(_cut(value.const_value.numpy())))
        cast = _cast(ir, stored, ir.DataType.FLOAT, f"{name}_cast", value.shape)
        value.replace_all_uses_with(cast.outputs[0])
        del model.graph.initializers[name]
        cast.outputs[0].name = name
        model.graph.register_initializer(stored)
        model.graph.insert_before(next(iter(model.graph)), cast)


def _cast(ir: Any, value: Any, kind: Any, name: str, shape: Any) -> Any:
    cast = ir.node("Cast", [value], attributes={"to": kind.value}, name=name)
    cast.outputs[0].shape, cast.outputs[0].dtype = shape, kind
    return cast


def _fill_types(ir: Any, node: Any) -> None:
    """Set types that fusing dropped."""
    if node.op_type in _INTEGER:
        kind = ir.DataType.INT64
    elif node.op_type in _BOOLEAN:
        kind = ir.DataType.BOOL
    elif node.op_type == "Cast":
        kind = ir.DataType(node.attributes["to"].as_int())
    else:
        source = node.inputs[1 if node.op_type == "Where" else 0] if node.inputs else None
        kind = source.dtype if source is not None else None
    for value in node.outputs:
        value.dtype = kind if value.dtype is None else value.dtype


def _narrow_attributes(ir: Any, node: Any) -> None:
    if node.op_type == "Cast" and node.attributes["to"].as_int() == ir.DataType.FLOAT.value:
        node.attributes["to"] = ir.AttrInt64("to", ir.DataType.FLOAT16.value)
    if node.op_type in ("Constant", "ConstantOfShape") and "value" in node.attributes:
        tensor = node.attributes["value"].as_tensor()
        if tensor.dtype == ir.DataType.FLOAT:
            node.attributes["value"] = ir.AttrTensor("value", ir.tensor(_cut(tensor.numpy())))


def _cut(array: Any) -> Any:
    """Convert to float16, clipped to its range; only 0 becomes 0."""
    small = (np.abs(array) < _SMALLEST) & (array != 0)
    return np.where(small, np.copysign(_SMALLEST, array), np.clip(array, -_LARGEST, _LARGEST)).astype(np.float16)
