"""float16 for CUDA, with islands in float32 where sums or scores may leave its range."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from truncate_kit.errors import failed_check
from truncate_kit.export.casting import narrow
from truncate_kit.export.export_report import HalfPrecision
from truncate_kit.export.graph_files import EMBED_LIMIT
from truncate_kit.export.graph_values import Feeds, watching
from truncate_kit.export.quantizing import quantizable
from truncate_kit.models.families import Family

LARGEST = 65_504.0  # the largest float16
_MASKED = -1e30  # below it, a score is masked
# Squares and sums, as in the norms that have no operator of their own; then what CUDA has no float16 kernel for.
_WIDE_OPERATORS = frozenset(
    ("Pow", "ReduceL2", "ReduceMean", "ReduceSum", "Reciprocal", "Sqrt", "Range", "CumSum", "Max", "Min")
)
# Pooling that takes the states as they are, of one token or the largest: nothing is gained by widening them before it.
_CHOOSING = frozenset(("GatherND", "ReduceMax"))


def to_half(
    model: Any, family: Family, odd_inputs: Sequence[Feeds], *, embed_limit: int = EMBED_LIMIT
) -> tuple[Any, HalfPrecision]:
    """A copy of an `onnx_ir.Model` in float16, inputs and outputs as they are, and what stayed in float32.

    Raises `ModelError` where a value of the float32 graph on the longest and oddest batches does not fit into float16.
    """
    names = wide_nodes(model)
    if family.float32_scores:
        names |= score_nodes(model)
    largest, where = largest_value(model, names, odd_inputs, embed_limit=embed_limit)
    if largest > LARGEST:
        raise failed_check(f"a value of {largest:.3g} at {where} does not fit into float16, which ends at 65,504")
    half = model.clone()
    narrow(half, names)
    reason = "squares, sums over tokens and all after pooling stay in float32"
    if family.float32_scores:
        reason += f"; so do the attention scores of {family.name}, sums of three products that no kernel fuses"
    kept = (node for node in model.graph if node.name in names and any(_is_float(value) for value in node.outputs))
    found = Counter(str(node.op_type) for node in kept)
    return half, HalfPrecision(islands=dict(found), why=f"{reason}.", largest_value=largest, largest_at=where)


def wide_nodes(model: Any) -> set[str]:
    """Names of the nodes that stay in float32 in every family: squares, sums, and all that follows pooling."""
    nodes = list(model.graph)
    pooling = [node for node in nodes if node.op_type == "ReduceSum" and _is_float(node.inputs[0])]
    chosen = [node for node in nodes if node.op_type in _CHOOSING and _is_float(node.inputs[0])]
    pooling += [reader for node in chosen for reader in _readers(node)]
    found = {str(node.name) for node in nodes if node.op_type in _WIDE_OPERATORS} | _downstream(pooling)
    for node in nodes:
        before = {str(maker.name) for maker in (value.producer() for value in node.inputs if value) if maker}
        after = {str(reader.name) for value in node.outputs for reader, _ in value.uses()}
        if before & found and after and after <= found:  # between two such nodes, as a small number before a root
            found.add(str(node.name))
    return found


def _is_float(value: Any) -> bool:
    """Whether a sum is one of states: the lengths of an attention's mask are sums of integers."""
    return str(value.dtype) == "FLOAT" if value.dtype is not None else not value.is_graph_input()


def _downstream(nodes: Sequence[Any]) -> set[str]:
    waiting, found = list(nodes), set()
    while waiting:
        node = waiting.pop()
        if node.name not in found:
            found.add(str(node.name))
            waiting.extend(_readers(node))
    return found


def _readers(node: Any) -> list[Any]:
    return [reader for value in node.outputs for reader, _ in value.uses()]


def score_nodes(model: Any) -> set[str]:
    """Names of the nodes between the projections and each Softmax, the Softmax itself included."""
    projections = {layer.node for layer in quantizable(model)}
    waiting = [node for node in model.graph if node.op_type == "Softmax"]
    found: set[str] = set()
    while waiting:
        node = waiting.pop()
        if node.name in found or node.name in projections or node.op_type == "LayerNormalization":
            continue
        found.add(str(node.name))
        waiting.extend(value.producer() for value in node.inputs if value is not None and value.producer() is not None)
    return found


def largest_value(
    model: Any, islands: set[str], inputs: Sequence[Feeds], *, embed_limit: int = EMBED_LIMIT
) -> tuple[float, str]:
    """The largest magnitude outside the islands on these inputs, computed in float32, and the node that gave it."""
    # What a fused attention holds inside is not seen; its kernels sum in float32.
    shown = dict.fromkeys(str(value.name) for value in model.graph.outputs)
    for node in model.graph:
        if node.name not in islands and node.op_type in _VALUES:
            shown |= dict.fromkeys(str(value.name) for value in node.outputs[:1])
    largest, where = 0.0, ""
    with watching(model, list(shown), embed_limit=embed_limit) as watch:
        for feeds in inputs:
            for name, array in watch(feeds).items():
                if array.dtype != np.float32:
                    continue
                values = array[~(array < _MASKED)]  # NaN stays
                peak = float(np.abs(values).max()) if values.size else 0.0
                if not peak <= largest:  # NaN as well
                    largest, where = peak if np.isfinite(peak) else float("inf"), name
    return largest, where


# Operators that make new values; the others move or mask them.
_VALUES = frozenset(
    ("MatMul", "Gemm", "Add", "Mul", "Div", "Attention", "LayerNormalization", "BiasGelu", "Gelu", "FastGelu", "Conv",
     "SkipLayerNormalization", "EmbedLayerNormalization", "MultiHeadAttention", "RMSNormalization",
     "SimplifiedLayerNormalization")
)  # fmt: skip
