"""Dynamic int8 quantization, with one scale per channel of the weights and one per token of the activations.

Weights are signed: ONNX Runtime multiplies unsigned weights at less than half the speed. ONNX Runtime's own quantizer
uses one range per batch, so vectors depend on other texts and padding. A scale per token, computed in the graph, costs
10 % of the speed and halves the error.
"""

import math
from bisect import bisect_left
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import torch
from numpy.typing import NDArray
from onnx_ir.passes.common import RemoveUnusedNodesPass
from torch import Tensor

from truncate_kit.core.errors import DataError, failed_check, in_points
from truncate_kit.core.hardware import int8_instructions, multiplies_narrow
from truncate_kit.core.progress import Progress, silent
from truncate_kit.data.pairs import PairSet
from truncate_kit.evaluation.graded import evaluate
from truncate_kit.export.graph import KEPT_ATTRIBUTES, MICROSOFT, Array, constant_weight, save_graph, watching
from truncate_kit.export.runtime import Feeds, OnnxEncoder
from truncate_kit.models.encoder import Encoder, padded

# Zero point (1 … 254), and divisors of channels (in,), which multiply the rows of weights.
Rounding = tuple[int, Array | None]
_PLAIN: Rounding = (128, None)
_SCOPES = "pkg.torch.onnx.name_scopes"
_ZEROS = np.arange(1, 255)
_OUTLYING = 3.0  # outlier channels, as a multiple of the median
_HARM_TEXTS = 128  # to measure the error of each layer


# Layers that can be quantised


def quantizable(model: Any) -> dict[str, tuple[str, int]]:
    """Map each quantizable node (product, fused attention, word embedding) to its module and number of weights."""
    weights = ((node, constant_weight(node)) for node in model.graph)
    return {str(node.name): (_module_of(node), int(weight.size)) for node, weight in weights if weight is not None}


def _module_of(node: Any) -> str:
    """Return the node's module, such as `encoder.layer.0.output.dense`, else the node's name."""
    scopes = [part.strip(" '\"") for part in node.metadata_props.get(_SCOPES, "").strip("[]").split(",")]
    return scopes[-2].removeprefix("encoder.backbone.") if len(scopes) > 1 and scopes[-2] else str(node.name)


def quantized_inputs(model: Any) -> dict[str, Array | None]:
    """Map each activation that `quantize` rounds to its concatenated weights (in, out).

    Weights shared by several activations are omitted, as one divisor cannot suit all activations.
    """
    readers: dict[str, list[Array]] = {}
    tied = set()
    for node in model.graph:
        weight = constant_weight(node)
        if node.op_type != "Gather" and weight is not None:
            readers.setdefault(str(node.inputs[0].name), []).append(weight)
            if _shared(node.inputs[1]):
                tied.add(str(node.inputs[0].name))
    return {name: None if name in tied else np.hstack(weights) for name, weights in readers.items()}


def _shared(value: Any) -> bool:
    parts = () if value.const_value is not None or value.producer() is None else value.producer().inputs
    return len(value.uses()) > 1 or any(map(_shared, parts))


# Rounding


def quantize(
    model: Any,
    *,
    keep: Collection[str] = (),
    reduce_range: bool = False,
    roundings: Mapping[str, Rounding] | None = None,
) -> Any:
    """Return a copy of the model with its `quantizable` nodes in int8, except the nodes in `keep`.

    reduce_range: 7-bit weights, for processors that add pairs of 8-bit products in 16 bits.
    """
    copy = model.clone()
    copy.opset_imports.setdefault(MICROSOFT, 1)
    writer = _Writer(copy.graph, 63 if reduce_range else 127, roundings or {})
    for node in list(copy.graph):
        weight = constant_weight(node)
        if weight is not None and node.name not in keep:
            write = {"Attention": writer.attention, "Gather": writer.embedding}.get(node.op_type, writer.product)
            made = write(node, weight)
            ir.convenience.replace_nodes_and_values(
                copy.graph, node, [node], made, node.outputs[:1], made[-1].outputs[:1]
            )
    for node in copy.graph:  # the error of the tanh approximation is far below half a quantization step
        if node.op_type == "BiasGelu" and node.outputs[0] in writer.bytes:
            node.op_type = "FastGelu"
    RemoveUnusedNodesPass()(copy)
    return copy


def rounded(weight: Array, axis: int, limit: int) -> tuple[NDArray[np.int8], Array]:
    """Quantize a weight to −limit … limit; return the integers, and the scales, of size 1 along `axis`."""
    scale = np.abs(weight).max(axis=axis, keepdims=True) / limit
    scale[scale == 0] = 1
    return np.clip(np.rint(weight / scale), -limit, limit).astype(np.int8), scale.astype(np.float32)


class _Writer:
    """Makes int8 nodes that replace float nodes; shared weights are rounded once."""

    def __init__(self, graph: Any, limit: int, roundings: Mapping[str, Rounding]) -> None:
        self.graph, self.limit, self.roundings = graph, limit, roundings
        self.bytes: dict[Any, tuple[Any, Any]] = {}  # by activation: its bytes, and its token scales (…, 1)
        self._made: dict[str, Any] = {}

    def _initializer(self, name: str, array: NDArray[Any] | np.generic) -> Any:
        if name not in self._made:
            self._made[name] = ir.Value(name=name, const_value=ir.tensor(array, name=name))
            self.graph.register_initializer(self._made[name])
        return self._made[name]

    def product(self, node: Any, weight: Array) -> list[Any]:
        """Return int8 nodes for a MatMul, or for a Gemm with its bias."""
        bias = node.inputs[2] if len(node.inputs) > 2 else None
        return self._rounded_product(node, node.inputs[0], node.inputs[1].name, weight, bias, str(node.name))

    def attention(self, node: Any, weight: Array) -> list[Any]:
        """Return nodes for a fused attention with int8 projections."""
        made, parts = [], []
        for name, matrix in zip("qkv", np.split(weight, 3, axis=1), strict=True):
            source = f"{node.inputs[1].name}_{name}"
            made += self._rounded_product(node, node.inputs[0], source, matrix, None, f"{node.name}_{name}")
            parts.append(made[-1].outputs[0])
        padding, extra = (node.inputs[place] if len(node.inputs) > place else None for place in (3, 5))
        kept = [node.attributes[name] for name in KEPT_ATTRIBUTES if name in node.attributes]
        inputs = [*parts, node.inputs[2], padding, extra]
        return [*made, ir.Node(MICROSOFT, "MultiHeadAttention", inputs, kept, name=node.name)]

    def embedding(self, node: Any, weight: Array) -> list[Any]:
        """Return nodes for a word embedding with one scale per row, because rare words have wide ranges."""
        source, ids = node.inputs[0].name, node.inputs[1]
        values, scale = rounded(weight, 1, 127)
        rows = ir.node("Gather", [self._initializer(f"{source}_int8", values), ids], name=f"{node.name}_rows")
        steps = ir.node("Gather", [self._initializer(f"{source}_scale", scale), ids], name=f"{node.name}_scale")
        wide = ir.node("Cast", [rows.outputs[0]], attributes={"to": ir.DataType.FLOAT.value}, name=f"{node.name}_wide")
        return [rows, steps, wide, ir.node("Mul", [wide.outputs[0], steps.outputs[0]], name=node.name)]

    def _rounded_product(self, before: Any, states: Any, source: str, weight: Array, bias: Any, name: str) -> list[Any]:
        zero, divisor = self.roundings.get(states.name, _PLAIN)
        if divisor is not None:
            weight = weight * divisor[:, None]
        values, scale = rounded(weight, 0, self.limit)
        if states not in self.bytes:
            self.bytes[states] = self._rounded_states(before, states, zero, divisor)
        small, step = self.bytes[states]
        inputs = [
            small,
            self._initializer(f"{source}_int8", values),
            self._initializer("one_step", np.float32(1)),
            self._initializer(f"{source}_scale", scale.reshape(-1)),
            self._initializer(f"zero_{zero}", np.uint8(zero)),
        ]
        product = ir.Node(MICROSOFT, "MatMulIntegerToFloat", inputs, name=f"{name}_product")
        made = [product, ir.node("Mul", [product.outputs[0], step], name=f"{name}_steps")]
        if bias is not None:
            made.append(ir.node("Add", [made[-1].outputs[0], bias], name=f"{name}_bias"))
        return made

    def _rounded_states(self, before: Any, states: Any, zero: int, divisor: Array | None) -> tuple[Any, Any]:
        name, last = states.name, self._initializer("last_axis", np.array([-1], np.int64))
        made: list[Any] = []

        def node(kind: str, inputs: Sequence[Any], **attributes: Any) -> Any:
            made.append(ir.node(kind, inputs, attributes=attributes, name=f"{name}_{kind}_{len(made)}"))
            return made[-1].outputs[0]

        even = states
        if divisor is not None:
            even = node("Mul", [states, self._initializer(f"{name}_multiplier", 1 / divisor)])
        up = self._initializer(f"up_{zero}", np.float32(1 / (255 - zero)))
        down = self._initializer(f"down_{zero}", np.float32(-1 / zero))
        least = self._initializer("least_step", np.float32(1e-30))  # for tokens of zeros
        high = node("Mul", [node("ReduceMax", [even, last], keepdims=1), up])
        low = node("Mul", [node("ReduceMin", [even, last], keepdims=1), down])
        step = node("Max", [high, low, least])
        # One scale per row in QuantizeLinear would spare a product, but OpenVINO cannot run it.
        unit, middle = self._initializer("one_step", np.float32(1)), self._initializer(f"zero_{zero}", np.uint8(zero))
        small = node("QuantizeLinear", [node("Mul", [even, node("Reciprocal", [step])]), unit, middle])
        self.graph.insert_before(before, made)
        return small, step


# Calibration


def calibrate(model: Any, inputs: Sequence[Feeds]) -> dict[str, Rounding]:
    """Return the rounding of each activation in `quantized_inputs`, measured on `inputs` without padding."""
    # Divisors reduce outlier channels, as after layer norms. Zero points favour the frequent sign, as after a GELU.
    weights = quantized_inputs(model)
    if not weights:  # cut at the embeddings
        return {}
    with watching(model, list(weights)) as watch:

        def states() -> Iterator[tuple[str, Array]]:
            for feeds in inputs:
                yield from ((name, array.reshape(-1, array.shape[-1])) for name, array in watch(feeds).items())

        channels: dict[str, Array] = {}
        for name, array in states():
            channels[name] = np.maximum(channels.get(name, 0), np.abs(array).max(axis=0))
        divisors = {name: divisor_of(channels[name], weights[name]) for name in weights}
        reaches: dict[str, list[Array]] = {name: [] for name in weights}
        for name, array in states():
            even = array if (divisor := divisors[name]) is None else array / divisor
            reaches[name].append(np.stack([even.max(axis=1), -even.min(axis=1)]).clip(min=0))
    return {name: (best_zero(*np.concatenate(parts, axis=1)), divisors[name]) for name, parts in reaches.items()}


def divisor_of(channels: Array, weights: Array | None) -> Array | None:
    """Return SmoothQuant's divisor sqrt(max |x| / max |w|) of each channel (arXiv:2211.10438, eq. 4, α = 0.5).

    None for shared weights, without outlier channels, or if in > out. channels: max |x|, (in,). weights: (in, out).
    """
    reaching = channels[channels > 0]
    # Divisors cost too much before products that reduce the width.
    if weights is None or not reaching.size or weights.shape[0] > weights.shape[1]:
        return None
    if not reaching.max() > _OUTLYING * np.median(reaching):
        return None
    rows = np.abs(weights).max(axis=1)
    divisor = np.ones_like(channels)
    used = (channels > 0) & (rows > 0)
    divisor[used] = np.sqrt(channels[used] / rows[used])
    return divisor


def best_zero(high: Array, low: Array) -> int:
    """Return the zero point with the least mean squared quantization step for ranges −low … high, (n,)."""
    steps = np.maximum(high / (255 - _ZEROS[:, None]), low / _ZEROS[:, None])
    return int(_ZEROS[np.square(steps, dtype=np.float64).mean(axis=1).argmin()])


# The search


def open_trial(model: Any, encoder: Encoder, scratch: Path) -> OnnxEncoder:
    """Save this graph over the previous trial, and open it with the encoder's tokenizer and heads."""
    for old in scratch.glob("trial.onnx*"):
        old.unlink()
    save_graph(model, scratch / "trial.onnx")
    return OnnxEncoder(scratch / "trial.onnx", encoder.reader, heads=encoder.heads)


def search_layers(
    model: Any, encoder: Encoder, pairs: PairSet, scratch: Path, *, budget: float, progress: Progress = silent
) -> tuple[Any, dict[str, Any]]:
    """Return the graph with as many layers in int8 as possible without a loss above `budget` Spearman points.

    Also returns `ExportReport.quantization`: the number of quantizable layers; the layers kept `in_float`, each with
    the squared distance of vectors if only this layer is in int8; the weight bits; and the points lost against the
    float graph with all layers in int8 (if defined) and as returned. Raises `ModelError` if no layer can be in int8.
    """
    narrow, layers, texts, reader = multiplies_narrow(), quantizable(model), pairs.texts(), encoder.reader
    texts = texts[:: max(1, len(texts) // _HARM_TEXTS)][:_HARM_TEXTS]
    roundings = calibrate(model, [padded([row], reader.padding_id) for row in reader.token_ids(texts)])

    def quantized(keep: Collection[str]) -> Any:
        return quantize(model, keep=keep, reduce_range=narrow, roundings=roundings)

    def score(graph: Any) -> float:
        return evaluate(open_trial(graph, encoder, scratch), pairs.pairs).spearman

    def unit_vectors(graph: Any) -> Tensor:
        return torch.nn.functional.normalize(open_trial(graph, encoder, scratch).vectors(texts), dim=1)

    base, drops = score(model), dict[int, float]()
    harms, ranked = dict[str, float](), list[str]()

    def fits(number: int) -> bool:
        """Return whether the drop fits `budget` with the `number` most harmful layers in float."""
        try:
            drops[number] = base - score(quantized(ranked[:number]))
        except DataError:  # the score is undefined
            drops[number] = math.inf
        return drops[number] <= budget

    number = 0
    if not fits(0):
        expected = unit_vectors(model)
        for done, node in enumerate(layers, start=1):
            distance = unit_vectors(quantized(layers.keys() - {node})).sub(expected).square().sum(dim=1).mean()
            harms[node] = float(distance.nan_to_num(nan=4.0))  # the largest squared distance of unit vectors
            progress("Trying each layer in int8", done, len(layers))
        ranked = sorted(harms, key=lambda node: -harms[node] / layers[node][1])  # per weight
        number = bisect_left(range(len(layers)), True, lo=1, key=fits)
    if number == len(layers):
        raise failed_check(f"no layer can be in int8 without losing more than {in_points(budget)} on {pairs.name}")
    return quantized(ranked[:number]), {
        "layers": len(layers),
        "in_float": {layers[node][0]: harms[node] for node in ranked[:number]},
        "weight_bits": 7 if narrow else 8,
        "instructions": int8_instructions(),
        "budget": budget,
        "searched_on": pairs.name,
        "num_pairs": len(pairs),
        "drop_all_int8": None if math.isinf(drops[0]) else drops[0],
        "drop": drops[number],
    }
