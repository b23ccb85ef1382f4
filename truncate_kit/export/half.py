"""float16 for CUDA, node by node, with islands in float32 where sums or scores may leave its range.

ONNX Runtime's own converter is not used: between two neighbouring nodes that shall stay in float32 it goes down to
float16 and up again, so that a masked score becomes infinite in the middle of an island.
"""

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np

from truncate_kit.core.errors import failed_check, require
from truncate_kit.export.graph import Feeds, watching
from truncate_kit.export.int8 import quantizable
from truncate_kit.models.families import Family

_SMALLEST, LARGEST = 5.96e-8, 65504.0  # float16, subnormal and normal
_LARGE = 1024  # numbers of a constant that is worth storing in half
_INTEGER = frozenset(("Shape", "Size", "ArgMax", "ArgMin", "NonZero"))
_BOOLEAN = frozenset(("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "And", "Or", "Not", "Xor", "IsNaN"))
# Operators that make new values; the others move or mask them.
_VALUES = frozenset(
    ("MatMul", "Gemm", "Add", "Mul", "Div", "Attention", "LayerNormalization", "BiasGelu", "Gelu", "FastGelu", "Conv",
     "SkipLayerNormalization", "EmbedLayerNormalization", "MultiHeadAttention", "RMSNormalization",
     "SimplifiedLayerNormalization")
)  # fmt: skip
_MASKED = -1e30  # below it, a score is masked
# Squares and sums, as in the norms that have no operator of their own; then what CUDA has no float16 kernel for.
_WIDE_OPERATORS = frozenset(
    ("Pow", "ReduceL2", "ReduceMean", "ReduceSum", "Reciprocal", "Sqrt", "Range", "CumSum", "Max", "Min")
)
# Pooling that takes the states as they are, of one token or the largest: nothing is gained by widening them before it.
_CHOOSING = frozenset(("GatherND", "ReduceMax"))


def to_half(model: Any, family: Family, odd_inputs: Sequence[Feeds]) -> tuple[Any, dict[str, int], float]:
    """Copy an `onnx_ir.Model` in float16, inputs and outputs as they are.

    Squares, sums over tokens and all after pooling stay in float32, and so do scores of disentangled attention, sums of
    three products that no kernel fuses. Returns the graph, the operators in float32 with their number, and the largest
    magnitude of other values of the float32 graph on these inputs, the longest and oddest batches. Raises `ModelError`
    where that does not fit into float16.
    """
    names = wide_nodes(model)
    if family.float32_scores:
        names |= score_nodes(model)
    largest, where = largest_value(model, names, odd_inputs)
    if largest > LARGEST:
        raise failed_check(f"a value of {largest:.3g} at {where} does not fit into float16, which ends at 65,504")
    half = model.clone()
    narrow(half, names)
    kept = (node for node in model.graph if node.name in names and any(_is_float(value) for value in node.outputs))
    return half, dict(Counter(str(node.op_type) for node in kept)), largest


def wide_nodes(model: Any) -> set[str]:
    """Name the nodes that stay in float32 in every family: squares, sums, and all that follows pooling."""
    nodes = list(model.graph)
    pooling = [node for node in nodes if node.op_type == "ReduceSum" and _is_float(node.inputs[0])]
    chosen = [node for node in nodes if node.op_type in _CHOOSING and _is_float(node.inputs[0])]
    pooling += [reader for node in chosen for reader in _readers(node)]
    found = {str(node.name) for node in nodes if node.op_type in _WIDE_OPERATORS} | _reached(pooling, _readers)
    for node in nodes:
        before = {str(maker.name) for maker in (value.producer() for value in node.inputs if value) if maker}
        after = {str(reader.name) for value in node.outputs for reader, _ in value.uses()}
        if before & found and after and after <= found:  # between two such nodes, as a small number before a root
            found.add(str(node.name))
    return found


def _is_float(value: Any) -> bool:
    """Whether a sum is one of states: the lengths of an attention's mask are sums of integers."""
    return str(value.dtype) == "FLOAT" if value.dtype is not None else not value.is_graph_input()


def _reached(nodes: Sequence[Any], step: Callable[[Any], Sequence[Any]]) -> set[str]:
    """Names of these nodes and of all that is reached from them step by step."""
    waiting, found = list(nodes), set()
    while waiting:
        node = waiting.pop()
        if node.name not in found:
            found.add(str(node.name))
            waiting.extend(step(node))
    return found


def _readers(node: Any) -> list[Any]:
    return [reader for value in node.outputs for reader, _ in value.uses()]


def score_nodes(model: Any) -> set[str]:
    """Name the nodes between the projections and each Softmax, the Softmax itself included."""
    projections = quantizable(model)

    def makers(node: Any) -> list[Any]:
        found = [value.producer() for value in node.inputs if value is not None]
        return [one for one in found if one and one.name not in projections and one.op_type != "LayerNormalization"]

    return _reached([node for node in model.graph if node.op_type == "Softmax"], makers)


def largest_value(model: Any, islands: set[str], inputs: Sequence[Feeds]) -> tuple[float, str]:
    """Find the largest magnitude outside the islands on these inputs, in float32, and the node that gave it."""
    # What a fused attention holds inside is not seen; its kernels sum in float32.
    shown = dict.fromkeys(str(value.name) for value in model.graph.outputs)
    for node in model.graph:
        if node.name not in islands and node.op_type in _VALUES:
            shown |= dict.fromkeys(str(value.name) for value in node.outputs[:1])
    largest, where = 0.0, ""
    with watching(model, list(shown)) as watch:
        for feeds in inputs:
            for name, array in watch(feeds).items():
                if array.dtype != np.float32:
                    continue
                values = array[~(array < _MASKED)]  # NaN stays
                peak = float(np.abs(values).max()) if values.size else 0.0
                if not peak <= largest:  # NaN as well
                    largest, where = peak if np.isfinite(peak) else float("inf"), name
    return largest, where


def narrow(model: Any, wide: set[str]) -> None:
    """Turn an `onnx_ir.Model` to float16, in place, but for the nodes named in `wide`; inputs and outputs stay."""
    ir = require("onnx_ir", extra="cpu")
    full, half = ir.DataType.FLOAT, ir.DataType.FLOAT16
    nodes = list(model.graph)
    for value in model.graph.initializers.values():
        value.dtype = value.const_value.dtype
    for node in nodes:
        _fill_types(ir, node)
    given = (*model.graph.inputs, *model.graph.initializers.values())
    floats = {value for value in (*given, *(made for node in nodes for made in node.outputs)) if value.dtype == full}
    small = {
        value
        for node in nodes
        if node.name not in wide
        for place, value in enumerate(node.outputs)
        # A norm gives its mean and spread in float32 whatever it gets.
        if value in floats and not (place in (1, 2) and "LayerNorm" in node.op_type)
    }
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
    return np.where(small, np.copysign(_SMALLEST, array), np.clip(array, -LARGEST, LARGEST)).astype(np.float16)
