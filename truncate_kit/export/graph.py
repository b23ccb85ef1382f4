"""Trace an encoder into an ONNX graph, fuse operators for ONNX Runtime, convert to float16, and save.

Importing this module needs the extra `cpu`.
"""

import hashlib
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnx_ir as ir
import onnxruntime
import torch
from numpy.typing import NDArray
from onnx_ir.passes.common import RemoveUnusedNodesPass
from onnxscript import optimizer
from torch import Tensor, nn

from truncate_kit.core.errors import ModelError, cannot_write, errors_only, failed_check, first_line, require
from truncate_kit.core.hardware import Precision, Target
from truncate_kit.export.sessions import INPUTS, OUTPUT, SCORE, STATES, Feeds
from truncate_kit.models.encoder import Encoder, evaluating, forget_capturing
from truncate_kit.models.families import Family

Array = NDArray[np.float32]
Watch = Callable[[Feeds], dict[str, NDArray[Any]]]
MICROSOFT = "com.microsoft"  # domain of ONNX Runtime's own operators
EMBED_LIMIT = 1_900_000_000  # bytes: larger weights get their own file; protobuf ends at 2 GiB
LENGTH = 7  # tokens of traced texts, at most
_BIAS_PLACE, _MASK_PLACE = 5, 3  # inputs of com.microsoft Attention
_JOINED, PART = "position_bias_and_mask", "part"
_WORDS, _POSITIONS, _TYPES = (f"embeddings.{kind}_embeddings.weight" for kind in ("word", "position", "token_type"))
_NORM = "embeddings.LayerNorm.weight"
_SMALLEST, _LARGEST = 5.96e-8, 65504.0  # smallest (subnormal) and largest float16
_LARGE = 1024  # entries of a constant worth storing in float16
# Operators that compute values; others only move or mask values.
_VALUES = frozenset(
    ("MatMul", "Gemm", "Add", "Mul", "Div", "Attention", "LayerNormalization", "BiasGelu", "Gelu", "FastGelu", "Conv",
     "SkipLayerNormalization", "EmbedLayerNormalization", "MultiHeadAttention", "RMSNormalization",
     "SimplifiedLayerNormalization")
)  # fmt: skip
_MASKED = -1e30  # scores below it are masked
# In float32: squares and sums, as in unfused norms, and operators without a float16 kernel.
_WIDE_OPERATORS = frozenset(
    ("Pow", "ReduceL2", "ReduceMean", "ReduceSum", "Reciprocal", "Sqrt", "Range", "CumSum", "Max", "Min")
)
# Pooling without sums (max, cls, last): only nodes after the pooling stay in float32.
_CHOOSING = frozenset(("GatherND", "ReduceMax"))


# Tracing


class Traced(nn.Module):
    """An encoder that also returns token states or, with heads, scores (n // 2,) of texts i and i + n // 2."""

    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> tuple[Tensor, Tensor]:
        """Return vectors (n, out), and states or scores."""
        heads = self.encoder.heads
        if heads is None:
            states = self.encoder.token_states(input_ids, attention_mask)
            return self.encoder.from_states(states, attention_mask), states
        vectors: Tensor = self.encoder(input_ids, attention_mask)
        half = vectors.shape[0] // 2
        # Score all rows, then cut: a single text has 0 pairs, and kernels fail on empty inputs.
        return vectors, heads.similarities(vectors, torch.cat([vectors[half:], vectors[:half]]))[:half]


def build_graph(encoder: Encoder, target: Target = "cpu", *, fused: bool = True) -> Any:
    """Trace the encoder into an `onnx_ir.Model` for any batch size and length.

    fused: Fuse operators for the target. Raises `MissingExtraError`, and `ModelError` if tracing fails.
    """
    try:
        with _quiet(), _frozen(encoder):
            model = _trace(encoder)
            # ONNX Runtime fuses other families at load.
            if fused and encoder.family.fused_attention:
                _join_biases(model)
                require("transformers.exporters.onnxruntime_fusions", extra="cpu").fuse_for_onnxruntime(model, target)
                if target == "cpu":
                    _split_skip_norms(model)
                    _split_attentions(model)
            # Without this, some weights are transposed in every run.
            _fold(model, lambda node: node.op_type == "Transpose")
            for value in (made for node in model.graph for made in node.outputs):
                value.dtype = value.dtype or ir.DataType.FLOAT  # fused norms set no type
    except Exception as error:  # the tracer raises anything
        raise ModelError(
            f"{encoder.name} cannot be traced: {type(error).__name__}: {first_line(error)}.",
            hint="Check the versions of torch, transformers and onnxscript against constraints.txt.",
        ) from error
    return model


def fold_constants(model: Any) -> set[str]:
    """Compute the nodes that depend on weights only (DeBERTa's positions) in place; return their names.

    ONNX Runtime does this in float32 only.
    """
    known = set(model.graph.initializers)
    _fold(model, lambda node: node.op_type != "Concat")  # projections that blocks share stay shared
    return set(model.graph.initializers) - known


def _fold(model: Any, wanted: Callable[[Any], bool]) -> None:
    with _quiet():
        optimizer.fold_constants(model, should_fold=wanted, output_size_limit=sys.maxsize)


def _trace(encoder: Encoder) -> Any:
    # The tracer could fix sizes of 1 or equal sizes as constants.
    ids = torch.ones((5, min(LENGTH, encoder.max_length)), dtype=torch.long, device=encoder.device)
    mask = torch.ones_like(ids)
    mask[1, 2:] = 0
    second = [SCORE] if encoder.heads is not None else [STATES] if encoder.pools_tokens else []
    program = torch.onnx.export(
        Traced(encoder) if second else encoder,
        (ids, mask),
        dynamo=True,
        dynamic_shapes={name: {0: "batch", 1: "sequence"} for name in INPUTS},
        input_names=list(INPUTS),
        output_names=[OUTPUT, *second],
        verbose=False,
    )
    assert program is not None
    return program.model


@contextmanager
def _frozen(encoder: Encoder) -> Iterator[None]:
    """Make weights, and normalised tables of relative positions, constant."""
    name, trained = "get_rel_embedding", [weight for weight in encoder.parameters() if weight.requires_grad]
    with evaluating(encoder.requires_grad_(False)):
        tables = {module: getattr(module, name)() for module in encoder.modules() if hasattr(type(module), name)}
        for module, table in tables.items():
            setattr(module, name, lambda table=table: table)
        # Tracing installs these hooks again; two would capture layers twice.
        forget_capturing(encoder.backbone)
        try:
            yield
        finally:
            forget_capturing(encoder.backbone)
            for module in tables:
                delattr(module, name)
            for weight in trained:
                weight.requires_grad_()


@contextmanager
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings(action="ignore"), errors_only("torch.onnx", "onnxscript", "onnx_ir"):
        yield


def _join_biases(model: Any) -> None:
    """Add mask and position bias (MPNet) once for all blocks: fused attention has one bias."""
    joined: dict[tuple[Any, Any], Any] = {}
    for node in [node for node in model.graph if node.op_type == "Softmax"]:
        masked = _adding(node.inputs[0])
        biased = None if masked is None else _adding(masked.inputs[0])
        if masked is not None and biased is not None:
            key = biased.inputs[1], masked.inputs[1]
            if key not in joined:
                wide = key[0].producer()
                bias = wide.inputs[0] if wide is not None and wide.op_type == "Expand" else key[0]
                made = ir.node("Add", [bias, key[1]], name=_JOINED)
                made.outputs[0].shape, made.outputs[0].dtype = key[0].shape, key[0].dtype
                model.graph.insert_before(masked, made)
                joined[key] = made.outputs[0]
            masked.replace_input_with(0, biased.inputs[0])
            masked.replace_input_with(1, joined[key])


def _adding(value: Any) -> Any:
    node = value.producer()
    return node if node is not None and node.op_type == "Add" else None


def _split_skip_norms(model: Any) -> None:
    """Split each SkipLayerNormalization into its parts, faster on the CPU (benchmarks/encoding)."""
    for node in [node for node in model.graph if node.op_type == "SkipLayerNormalization"]:
        total, skip, scale, shift, *bias = node.inputs
        made = []
        for other in (*bias, skip):
            if other is not None:
                made.append(ir.node("Add", [total, other]))
                total = made[-1].outputs[0]
                total.shape, total.dtype = node.outputs[0].shape, node.outputs[0].dtype
        epsilon = node.attributes["epsilon"].as_float()
        made.append(ir.node("LayerNormalization", [total, scale, shift], attributes={"axis": -1, "epsilon": epsilon}))
        model.graph.insert_before(node, made)
        for place, new in ((0, made[-1].outputs[0]), (3, total)):
            if place < len(node.outputs):
                old = node.outputs[place]
                name, output = old.name, old.is_graph_output()
                if new.shape is None:
                    new.shape, new.dtype = old.shape, old.dtype
                old.replace_all_uses_with(new, replace_graph_outputs=True)
                if output:
                    old.name, new.name = f"{name}_split", name
        model.graph.remove(node, safe=True)


def _split_attentions(model: Any) -> None:
    """Split each Attention into products and ONNX's own Attention, as above."""
    for node in [node for node in model.graph if node.op_type == "Attention" and node.domain == MICROSOFT]:
        weight: Any = _weights(node.inputs[1])
        shift: Any = _weights(node.inputs[2])
        sizes = node.attributes["qkv_hidden_sizes"].as_ints()
        ends = np.cumsum(sizes)[:2]
        made, parts = [], []
        for place, part in enumerate(("query", "key", "value")):
            name = f"{node.name}_{part}"
            matrix = _constant(model, f"{name}_weight", np.split(weight, ends, axis=1)[place])
            made.append(ir.node("MatMul", [node.inputs[0], matrix], name=name))
            made[-1].metadata_props.update(node.metadata_props | {PART: part})
            if shift is not None:
                bias = _constant(model, f"{name}_bias", np.split(shift, ends)[place])
                made.append(ir.node("Add", [made[-1].outputs[0], bias], name=f"{name}_shifted"))
            parts.append(made[-1].outputs[0])
        heads = dict.fromkeys(("q_num_heads", "kv_num_heads"), node.attributes["num_heads"].as_int())
        kept = {name: node.attributes[name].value for name in ("scale",) if name in node.attributes}
        made.append(ir.node("Attention", [*parts, node.inputs[_BIAS_PLACE]], attributes=heads | kept, name=node.name))
        ir.convenience.replace_nodes_and_values(model.graph, node, [node], made, node.outputs[:1], made[-1].outputs[:1])
        model.graph.opset_imports[""] = 23
    RemoveUnusedNodesPass()(model)


# Passes


def set_mask(model: Any, form: Literal["tokens", "lengths"]) -> str:
    """Connect the mask to fused attentions in place; return its form, or "unfused" without fused attentions.

    "tokens": the mask itself (b, t), for the CPU. "lengths": its sums (b,). It needs padding on the right;
    then CUDA uses kernels of TensorRT (SM 70 to 89) or cuDNN (from SM 90, ONNX Runtime 1.30).
    """
    attentions = [node for node in model.graph if node.op_type == "Attention"]
    if not attentions:
        return "unfused"
    mask, made = _input(model, "attention_mask"), []
    if attentions[0].domain != MICROSOFT:
        made = _whole_mask(model, mask)
        model.graph.insert_before(next(iter(model.graph)), made)
        for node in attentions:
            joined = node.inputs[_MASK_PLACE].producer()
            reader, place = (joined, 1) if joined.name == _JOINED else (node, _MASK_PLACE)
            reader.replace_input_with(place, made[-1].outputs[0])
        RemoveUnusedNodesPass()(model)
        return form
    if form == "lengths":
        axis = _constant(model, "mask_axis", np.array([1], np.int64))
        made.append(ir.node("ReduceSum", [mask, axis], attributes={"keepdims": 0}, name="mask_sum"))
        mask = made[0].outputs[0]
        mask.dtype = ir.DataType.INT64
    made.append(_cast(mask, ir.DataType.INT32, f"mask_{form}", mask.shape))
    model.graph.insert_before(attentions[0], made)
    for node in attentions:
        node.replace_input_with(_MASK_PLACE, made[-1].outputs[0])
        joined = node.inputs[_BIAS_PLACE].producer()
        bias = joined.inputs[0] if joined.name == _JOINED else None
        node.replace_input_with(_BIAS_PLACE, bias)
        node.attributes.add(ir.AttrFloat32("mask_filter_value", float(np.finfo(np.float32).min)))
    RemoveUnusedNodesPass()(model)
    return form


def _whole_mask(model: Any, mask: Any) -> list[Any]:
    one, axes = (_constant(model, f"mask_{n}", np.array(n, np.int64)) for n in ([1], [1, 2]))
    low, zero = (_constant(model, f"mask_{n:.0}", np.array(n, np.float32)) for n in (np.finfo(np.float32).min, 0.0))
    texts = ir.node("Shape", [mask], attributes={"end": 1}, name="mask_texts").outputs[0]
    tokens = ir.node("Shape", [mask], attributes={"start": 1}, name="mask_tokens").outputs[0]
    shape = ir.node("Concat", [texts, one, tokens, tokens], attributes={"axis": 0}, name="mask_shape").outputs[0]
    real = _cast(mask, ir.DataType.BOOL, "mask_real", mask.shape).outputs[0]
    scores = ir.node("Where", [real, zero, low], name="mask_scores").outputs[0]
    wide = ir.node("Unsqueeze", [scores, axes], name="mask_wide").outputs[0]
    whole = ir.node("Expand", [wide, shape], name="mask_whole")
    whole.outputs[0].dtype = ir.DataType.FLOAT
    return [value.producer() for value in (texts, tokens, shape, real, scores, wide)] + [whole]


def fuse_embeddings(model: Any, family: Family, precision: Precision) -> bool:
    """Fuse the embedding nodes in place; return False if the graph does not fit."""
    # Token type 0, the only one used, is added to the positions. For int8, words stay a Gather, to be quantized.
    # RoBERTa does not fit: its positions depend on the mask.
    ends, weights = (_WORDS, _POSITIONS, _TYPES, _NORM), model.graph.initializers.items()
    tables = {end: value for name, value in weights for end in ends if name.endswith(end)}
    if not family.fused_attention or family.position_offset or not {_WORDS, _POSITIONS, _NORM} <= tables.keys():
        return False
    norms = [node for node, place in tables[_NORM].uses() if node.op_type == "LayerNormalization" and place == 1]
    if len(norms) != 1:
        return False
    (norm,), words = norms, tables[_WORDS]
    rows: NDArray[np.float32] = tables[_POSITIONS].const_value.numpy()
    if _TYPES in tables:
        rows = rows + tables[_TYPES].const_value.numpy()[0]
    positions = _constant(model, "positions_of_type_0", rows)
    ids = _input(model, "input_ids")
    if precision == "int8":
        (looked_up,) = (node for node, _ in words.uses() if node.op_type == "Gather")
        start = _constant(model, "first_position", np.array([0], np.int64))
        length = ir.node("Shape", [ids], attributes={"start": 1}, name="text_length")
        places = ir.node("Slice", [positions, start, length.outputs[0], start], name="positions")
        total = ir.node("Add", [looked_up.outputs[0], places.outputs[0]], name="embeddings_sum")
        inputs, kept = [total.outputs[0], *norm.inputs[1:]], norm.attributes.values()
        made = [length, places, total, ir.Node("", "LayerNormalization", inputs, kept, name=norm.name)]
    else:
        model.graph.opset_imports.setdefault(MICROSOFT, 1)
        narrow = _cast(ids, ir.DataType.INT32, "input_ids_int32", ids.shape)
        inputs = [narrow.outputs[0], None, words, positions, None, norm.inputs[1], norm.inputs[2]]
        kept = [norm.attributes["epsilon"]]
        made = [narrow, ir.Node(MICROSOFT, "EmbedLayerNormalization", inputs, kept, num_outputs=2, name="embeddings")]
        made[-1].outputs[1].dtype = ir.DataType.INT32
    ir.convenience.replace_nodes_and_values(model.graph, norm, [norm], made, norm.outputs[:1], made[-1].outputs[:1])
    RemoveUnusedNodesPass()(model)
    return True


def _input(model: Any, name: str) -> Any:
    return next(value for value in model.graph.inputs if value.name == name)


def _constant(model: Any, name: str, array: NDArray[Any]) -> Any:
    value = ir.Value(name=name, const_value=ir.tensor(array))
    model.graph.register_initializer(value)
    return value


def count_fused_nodes(model: Any) -> dict[str, int]:
    """Count ONNX Runtime's own operators, and ONNX's Attention, by name."""
    nodes = (node for node in model.graph if node.domain == MICROSOFT or node.op_type == "Attention")
    return dict(Counter(str(node.op_type) for node in nodes))


def constant_weight(node: Any) -> Array | None:
    """Return the node's constant matrix if int8 can store it."""
    match node.domain, node.op_type:
        case ("", "MatMul"):
            return _matrix(node.inputs[1])
        case (_, "Gemm"):
            array, turned = _matrix(node.inputs[1]), node.attributes.get("transB")
            return array.T if array is not None and turned is not None and turned.as_int() else array
        case (_, "Gather") if node.inputs[1] is not None and node.inputs[1].name == "input_ids":
            return _matrix(node.inputs[0])
    return None


def _matrix(value: Any) -> Array | None:
    array = _weights(value)
    return array if array is not None and array.ndim == 2 and array.dtype == np.float32 else None


def _weights(value: Any) -> Array | None:
    """Return the array of an initializer, or of a Concat of initializers (query, key and value)."""
    if value is None or value.const_value is not None:
        return None if value is None else value.const_value.numpy()
    producer = value.producer()
    if producer is None or producer.op_type != "Concat":
        return None
    parts = [part for part in map(_weights, producer.inputs) if part is not None]
    whole = len(parts) == len(producer.inputs)
    return np.concatenate(parts, axis=producer.attributes["axis"].as_int()) if whole else None


# float16


def to_half(model: Any, family: Family, odd_inputs: Sequence[Feeds]) -> tuple[Any, dict[str, int], float]:
    """Return a float16 copy of an `onnx_ir.Model`; inputs, outputs, sums and pair scores stay in float32.

    Between float32 nodes, ONNX Runtime's own converter makes masked scores infinite. Also returns the number of each
    float32 operator, and the largest value on `odd_inputs`. Raises `ModelError` if this exceeds float16.
    """
    wide = _wide_nodes(model)
    if family.float32_scores:
        wide |= _score_nodes(model)
    largest, name = _largest_value(model, wide, odd_inputs)
    if largest > _LARGEST:
        raise failed_check(f"a value of {largest:.3g} at {name} is too large for float16, which ends at 65,504")
    half = model.clone()
    _narrow(half, wide)
    kept = (node for node in model.graph if node.name in wide and any(map(_is_float, node.outputs)))
    return half, dict(Counter(str(node.op_type) for node in kept)), largest


def _wide_nodes(model: Any) -> set[str]:
    """Return the names of nodes that stay in float32: squares, sums, and all nodes after pooling."""
    nodes = list(model.graph)
    pooling = [node for node in nodes if node.op_type == "ReduceSum" and _is_float(node.inputs[0])]
    for node in nodes:
        pooling += node.successors() if node.op_type in _CHOOSING and _is_float(node.inputs[0]) else []
    wide = {str(node.name) for node in nodes if node.op_type in _WIDE_OPERATORS}
    wide |= _reached(pooling, lambda node: node.successors())
    for node in nodes:
        above = {str(maker.name) for maker in node.predecessors()}
        below = {str(reader.name) for reader in node.successors()}
        if above & wide and below and below <= wide:  # between float32 nodes
            wide.add(str(node.name))
    return wide


def _is_float(value: Any) -> bool:
    return str(value.dtype) == "FLOAT"


def _reached(nodes: Sequence[Any], step: Callable[[Any], Sequence[Any]]) -> set[str]:
    waiting, names = list(nodes), set[str]()
    while waiting:
        node = waiting.pop()
        if node.name not in names:
            names.add(str(node.name))
            waiting.extend(step(node))
    return names


def _score_nodes(model: Any) -> set[str]:
    """Return the names of the nodes from the attention projections to each Softmax."""

    def scoring(node: Any) -> list[Any]:
        makers = [maker for maker in node.predecessors() if maker.op_type != "LayerNormalization"]
        return [maker for maker in makers if constant_weight(maker) is None]

    return _reached([node for node in model.graph if node.op_type == "Softmax"], scoring)


def _largest_value(model: Any, islands: set[str], inputs: Sequence[Feeds]) -> tuple[float, str]:
    """Return the largest magnitude outside `islands` (float32 nodes), and its name."""
    shown = dict.fromkeys(str(value.name) for value in model.graph.outputs)
    for node in model.graph:
        if node.name not in islands and node.op_type in _VALUES:
            shown |= dict.fromkeys(str(value.name) for value in node.outputs[:1])
    largest, largest_name = 0.0, ""
    with watching(model, list(shown)) as watch:
        for name, array in (item for feeds in inputs for item in watch(feeds).items()):
            if array.dtype == np.float32:
                peak = float(np.abs(array[~(array < _MASKED)]).max(initial=0.0))  # NaN stays
                if not peak <= largest:
                    largest, largest_name = peak if np.isfinite(peak) else float("inf"), name
    return largest, largest_name


def _narrow(model: Any, wide: set[str]) -> None:
    """Convert a model to float16 in place, except inputs, outputs and the nodes in `wide`."""
    full, half = ir.DataType.FLOAT, ir.DataType.FLOAT16
    nodes = list(model.graph)
    for value in model.graph.initializers.values():
        value.dtype = value.const_value.dtype
    sources = (*model.graph.inputs, *model.graph.initializers.values())
    floats = {value for value in (*sources, *(made for node in nodes for made in node.outputs)) if value.dtype == full}
    small = {
        value
        for node in nodes
        if node.name not in wide
        for place, value in enumerate(node.outputs)
        # A norm's mean and deviation are always float32.
        if value in floats and not (place in (1, 2) and "LayerNorm" in node.op_type)
    }
    crossed: dict[tuple[Any, Any], Any] = {}

    def as_type(value: Any, kind: Any, before: Any) -> Any:
        """Convert an initializer, or else return a Cast that all readers share."""
        if (value, kind) not in crossed:
            name = f"{value.name}_{kind.name.lower()}"
            if value.const_value is not None and value.producer() is None:
                made = ir.Value(name=name, const_value=ir.tensor(_cut(value.const_value.numpy()), name=name))
                model.graph.register_initializer(made)
            else:
                cast = _cast(value, kind, f"{name}_cast", value.shape)
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
            _narrow_attributes(node)
    for value in small:
        value.dtype = half
    for place, value in enumerate(model.graph.outputs):
        if value in small:
            cast = _cast(value, full, f"{value.name}_cast", value.shape)
            cast.outputs[0].name, value.name = value.name, f"{value.name}_{half.name.lower()}"
            model.graph.append(cast)
            model.graph.outputs[place] = cast.outputs[0]
    for name in [name for name, value in model.graph.initializers.items() if not value.uses()]:
        del model.graph.initializers[name]


def store_half(model: Any, names: Collection[str]) -> None:
    """Store large float32 constants as float16, in place; a session converts them back when it loads."""
    for name in sorted(names):  # sorted: the file is reproducible
        value = model.graph.initializers.get(name)
        if value is None or value.const_value.dtype != ir.DataType.FLOAT or value.const_value.size < _LARGE:
            continue
        stored = ir.Value(name=f"{name}_stored", const_value=ir.tensor(_cut(value.const_value.numpy())))
        cast = _cast(stored, ir.DataType.FLOAT, f"{name}_cast", value.shape)
        value.replace_all_uses_with(cast.outputs[0])
        del model.graph.initializers[name]
        cast.outputs[0].name = name
        model.graph.register_initializer(stored)
        model.graph.insert_before(next(iter(model.graph)), cast)


def _cast(value: Any, kind: Any, name: str, shape: Any) -> Any:
    cast = ir.node("Cast", [value], attributes={"to": kind.value}, name=name)
    cast.outputs[0].shape, cast.outputs[0].dtype = shape, kind
    return cast


def _narrow_attributes(node: Any) -> None:
    if node.op_type == "Cast" and node.attributes["to"].as_int() == ir.DataType.FLOAT.value:
        node.attributes["to"] = ir.AttrInt64("to", ir.DataType.FLOAT16.value)
    if node.op_type in ("Constant", "ConstantOfShape") and "value" in node.attributes:
        tensor = node.attributes["value"].as_tensor()
        if tensor.dtype == ir.DataType.FLOAT:
            node.attributes["value"] = ir.AttrTensor("value", ir.tensor(_cut(tensor.numpy())))


def _cut(array: Any) -> Any:
    """Convert to float16, clipped to its range; nonzero values stay nonzero."""
    small = (np.abs(array) < _SMALLEST) & (array != 0)
    return np.where(small, np.copysign(_SMALLEST, array), np.clip(array, -_LARGEST, _LARGEST)).astype(np.float16)


# Files


def save_graph(model: Any, path: Path) -> None:
    """Write the graph; weights beyond `EMBED_LIMIT` go to a second file. Raises `FileProblemError`."""
    weights = [value.const_value for value in model.graph.initializers.values() if value.const_value is not None]
    data = None
    if sum(weight.nbytes for weight in weights) > EMBED_LIMIT:
        digest = hashlib.sha256()  # in the file's name: a graph never loads other weights
        for weight in weights:
            digest.update(weight.tobytes())
        data = f"{path.name}.{digest.hexdigest()[:12]}.data"
    try:
        ir.save(model, path, external_data=data)
    except OSError as error:
        raise cannot_write(path, error) from error


def strip_notes(model: Any) -> None:
    """Remove the tracer's metadata, which contains local paths, in place."""
    for node in model.graph.all_nodes():
        node.doc_string = None
        for noted in (node, *node.outputs):
            noted.metadata_props.clear()
    for value in (*model.graph.inputs, *model.graph.initializers.values()):
        value.metadata_props.clear()


@contextmanager
def watching(model: Any, names: Sequence[str]) -> Iterator[Watch]:
    """Yield a function that runs the graph on the CPU and returns the named values."""
    watched = model.clone()
    values = {value.name: value for node in watched.graph for value in node.outputs}
    watched.graph.outputs[:] = [values[name] for name in names]
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    # Load from a file: protobuf ends at 2 GiB.
    with tempfile.TemporaryDirectory(prefix="truncate-kit-watch-") as scratch:
        file = Path(scratch) / "watched.onnx"
        save_graph(watched, file)
        session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
        yield lambda feeds: dict(zip(names, session.run(names, feeds), strict=True))
