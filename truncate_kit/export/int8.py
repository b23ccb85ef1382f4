"""int8 quantization, with one scale per channel of weights, and one calibrated or one per token for activations.

Weights are signed: ONNX Runtime multiplies unsigned weights at less than half the speed. ONNX Runtime's own quantizer
uses one range per batch, so vectors depend on other texts and padding. A scale per token costs a third of the speed;
it stays where the error of a calibrated scale is large.
"""

import math
from bisect import bisect_left
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import torch
from numpy.typing import NDArray
from onnx_ir.passes.common import RemoveUnusedNodesPass
from torch import Tensor

from truncate_kit.core.errors import DataError, failed_check, in_points
from truncate_kit.core.hardware import multiplies_narrow
from truncate_kit.core.progress import Progress, silent
from truncate_kit.data.pairs import PairSet, spread
from truncate_kit.evaluation.graded import evaluate
from truncate_kit.export.graph import MICROSOFT, PART, Array, constant_weight, save_graph, watching
from truncate_kit.export.record import Quantization
from truncate_kit.export.runtime import OnnxEncoder
from truncate_kit.export.sessions import INPUTS, Feeds
from truncate_kit.models.encoder import Encoder, TextReader, padded

_SCOPES = "pkg.torch.onnx.name_scopes"
_ZEROS = np.arange(1, 255)
_OUTLYING = 3.0  # times the median channel
_SMOOTHING = 0.75  # α
_MOST_OUTLIERS = 8  # channels in float
_CALIBRATION_TEXTS, _MOST_TOKENS = 512, 4096  # a quarter of the texts lost 0.2 points on SICK-R
# A scale per token, if one scale errs more than this × the error per token and this × the product's variance.
_WORSE, _NEGLIGIBLE = 2.0, 5e-4
_HARM_TEXTS = 128  # to measure the error of each layer


# Layers that can be quantised


def quantizable(model: Any) -> dict[str, tuple[str, int]]:
    """Map each quantizable node (product, word embedding) to its module and number of weights."""
    weights = ((node, constant_weight(node)) for node in model.graph)
    return {str(node.name): (_module_of(node), int(weight.size)) for node, weight in weights if weight is not None}


def _module_of(node: Any) -> str:
    """Return the node's module, such as `encoder.layer.0.output.dense`, else the node's name."""
    scopes = [part.strip(" '\"") for part in node.metadata_props.get(_SCOPES, "").strip("[]").split(",")]
    part = f".{node.metadata_props[PART]}" if PART in node.metadata_props else ""
    return scopes[-2].removeprefix("encoder.backbone.") + part if len(scopes) > 1 and scopes[-2] else str(node.name)


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Rounding:
    """Parameters that round an activation to bytes."""

    zero: int = 128  # point, 1 … 254
    divisor: Array | None = None  # of channels (in,); multiplies the rows of weights
    step: float | None = None  # None: one per token
    outliers: NDArray[np.int64] | None = None  # channels in float (arXiv:2208.07339)
    means: Array | None = None  # of divided channels before and after rounding, (2, in), to correct biases


def quantize(
    model: Any,
    *,
    in_float: Collection[str] = (),
    reduce_range: bool = False,
    roundings: Mapping[str, Rounding] | None = None,
) -> Any:
    """Return a copy of the model with its `quantizable` nodes in int8, except the nodes `in_float`.

    reduce_range: 7-bit weights, for processors that add pairs of 8-bit products in 16 bits.
    """
    copy = model.clone()
    copy.opset_imports.setdefault(MICROSOFT, 1)
    writer = _Writer(copy.graph, 63 if reduce_range else 127, roundings or {})
    for node in list(copy.graph):
        weight = constant_weight(node)
        if weight is not None and node.name not in in_float:
            made = (writer.embedding if node.op_type == "Gather" else writer.product)(node, weight)
            ir.convenience.replace_nodes_and_values(
                copy.graph, node, [node], made, node.outputs[:1], made[-1].outputs[:1]
            )
    for node in copy.graph:  # tanh errs far less than a step
        if node.op_type == "BiasGelu" and node.outputs[0] in writer.bytes:
            node.op_type = "FastGelu"
    RemoveUnusedNodesPass()(copy)
    return copy


def quantize_weight(weight: Array, axis: int, limit: int) -> tuple[NDArray[np.int8], Array]:
    """Quantize a weight to −limit … limit; return the integers, and the scales, of size 1 along `axis`."""
    scale = np.abs(weight).max(axis=axis, keepdims=True) / limit
    scale[scale == 0] = 1
    return np.clip(np.rint(weight / scale), -limit, limit).astype(np.int8), scale.astype(np.float32)


class _Writer:
    """Makes int8 nodes that replace float nodes; shared weights are rounded once."""

    def __init__(self, graph: Any, limit: int, roundings: Mapping[str, Rounding]) -> None:
        self.graph, self.limit, self.roundings = graph, limit, roundings
        self.bytes: dict[Any, tuple[Any, Any]] = {}  # of activations, with their scales
        self._made: dict[str, Any] = {}

    def _initializer(self, name: str, array: NDArray[Any] | np.generic) -> Any:
        if name not in self._made:
            self._made[name] = ir.Value(name=name, const_value=ir.tensor(array, name=name))
            self.graph.register_initializer(self._made[name])
        return self._made[name]

    def embedding(self, node: Any, weight: Array) -> list[Any]:
        """Return nodes for a word embedding with one scale per row: rare words have wide ranges."""
        source, ids = node.inputs[0].name, node.inputs[1]
        values, scale = quantize_weight(weight, 1, 127)
        rows = ir.node("Gather", [self._initializer(f"{source}_int8", values), ids], name=f"{node.name}_rows")
        steps = ir.node("Gather", [self._initializer(f"{source}_scale", scale), ids], name=f"{node.name}_scale")
        wide = ir.node("Cast", [rows.outputs[0]], attributes={"to": ir.DataType.FLOAT.value}, name=f"{node.name}_wide")
        return [rows, steps, wide, ir.node("Mul", [wide.outputs[0], steps.outputs[0]], name=node.name)]

    def product(self, node: Any, weight: Array) -> list[Any]:
        """Return int8 nodes for a MatMul, or for a Gemm with its bias."""
        states, source, name = node.inputs[0], node.inputs[1].name, node.name
        rounding = self.roundings.get(states.name, Rounding())
        scaled = weight if rounding.divisor is None else weight * rounding.divisor[:, None]
        if rounding.outliers is not None:
            scaled = scaled.copy()
            scaled[rounding.outliers] = 0
        values, scale = quantize_weight(scaled, 0, self.limit)
        if states not in self.bytes:
            self.bytes[states] = self._quantize_states(node, states, rounding)
        small, step = self.bytes[states]
        bias = node.inputs[2] if len(node.inputs) > 2 else None
        if rounding.means is not None:
            lost = rounding.means[0] @ scaled - rounding.means[1] @ (values * scale)
            bias = self._corrected(node, bias, lost.astype(np.float32), absorbed=rounding.step is not None)
        inputs = [
            small,
            self._initializer(f"{source}_int8", values),
            self._initializer("one_step", np.float32(1)) if rounding.step is None else step,
            self._initializer(f"{source}_scale", scale.reshape(-1)),
            self._initializer(f"zero_{rounding.zero}", np.uint8(rounding.zero)),
        ]
        if rounding.step is not None:
            made = [ir.Node(MICROSOFT, "MatMulIntegerToFloat", [*inputs, None, bias], name=f"{name}_product")]
            if rounding.outliers is not None:
                places = self._initializer(f"{states.name}_outliers", rounding.outliers)
                few = ir.node("Gather", [states, places], attributes={"axis": -1}, name=f"{name}_few")
                inputs = [few.outputs[0], self._initializer(f"{source}_few", weight[rounding.outliers])]
                made += [few, ir.node("MatMul", inputs, name=f"{name}_exact")]
                made.append(ir.node("Add", [made[0].outputs[0], made[-1].outputs[0]], name=f"{name}_both"))
            return made
        product = ir.Node(MICROSOFT, "MatMulIntegerToFloat", inputs, name=f"{name}_product")
        made = [product, ir.node("Mul", [product.outputs[0], step], name=f"{name}_steps")]
        if bias is not None:
            made.append(ir.node("Add", [made[-1].outputs[0], bias], name=f"{name}_bias"))
        return made

    def _corrected(self, node: Any, bias: Any, lost: Array, *, absorbed: bool) -> Any:
        """Add the product's mean error `lost` (out,) to a bias; return the product's new bias.

        None if the next node's bias took it. absorbed: The product's bias takes the next node's bias as well.
        """
        total = lost if bias is None else lost + bias.const_value.numpy()
        readers: list[Any] = [*node.outputs[0].consumers()]
        reader = readers[0] if len(readers) == 1 else node
        if reader.op_type in ("Add", "BiasGelu") and not reader.outputs[0].is_graph_output():
            place = 1 - reader.inputs.index(node.outputs[0])
            shift = None if reader.inputs[place].const_value is None else reader.inputs[place].const_value.numpy()
            if shift is not None and shift.ndim == 1:
                total = self._initializer(f"{node.name}_corrected", total + shift)
                if not absorbed:
                    reader.replace_input_with(place, total)
                    return None
                if reader.op_type == "BiasGelu":
                    reader.op_type = "FastGelu"
                    reader.resize_inputs(1)
                else:
                    reader.outputs[0].replace_all_uses_with(node.outputs[0])
                    self.graph.remove(reader, safe=True)
                return total
        return self._initializer(f"{node.name}_corrected", total)

    def _quantize_states(self, before: Any, states: Any, rounding: Rounding) -> tuple[Any, Any]:
        name, last, zero = states.name, self._initializer("last_axis", np.array([-1], np.int64)), rounding.zero
        made: list[Any] = []

        def node(kind: str, inputs: Sequence[Any], **attributes: Any) -> Any:
            made.append(ir.node(kind, inputs, attributes=attributes, name=f"{name}_{kind}_{len(made)}"))
            return made[-1].outputs[0]

        divided = states
        if rounding.divisor is not None:
            divided = node("Mul", [states, self._initializer(f"{name}_multiplier", 1 / rounding.divisor)])
        middle = self._initializer(f"zero_{zero}", np.uint8(zero))
        if rounding.step is not None:
            step = self._initializer(f"{name}_step", np.float32(rounding.step))
            small = node("QuantizeLinear", [divided, step, middle])
        else:
            up = self._initializer(f"up_{zero}", np.float32(1 / (255 - zero)))
            down = self._initializer(f"down_{zero}", np.float32(-1 / zero))
            least = self._initializer("least_step", np.float32(1e-30))  # for tokens of zeros
            high = node("Mul", [node("ReduceMax", [divided, last], keepdims=1), up])
            low = node("Mul", [node("ReduceMin", [divided, last], keepdims=1), down])
            step = node("Max", [high, low, least])
            # OpenVINO cannot run QuantizeLinear by rows.
            unit = self._initializer("one_step", np.float32(1))
            small = node("QuantizeLinear", [node("Mul", [divided, node("Reciprocal", [step])]), unit, middle])
        self.graph.insert_before(before, made)
        return small, step


# Calibration


def single_feeds(reader: TextReader, texts: Sequence[str]) -> list[Feeds]:
    """Return each text's inputs, without padding."""
    return [padded([row], reader.padding_id) for row in reader.token_ids(texts)]


def balance_values(model: Any, inputs: Sequence[Feeds]) -> None:
    """Even out channels of fused attentions in place: divide the value weights, multiply the next product's rows."""
    found = {}
    for node in model.graph:
        if node.op_type == "Attention" and len(readers := node.outputs[0].consumers()) == 1:
            made = [value for value in _makers(node.inputs[2]) if value.op_type in ("Add", "MatMul")]
            weights = [maker.inputs[1] for maker in (*made, *readers)]
            alone = all(weight.const_value is not None and len(weight.uses()) == 1 for weight in weights)
            if alone and made[-1].op_type == readers[0].op_type == "MatMul":
                found[str(node.outputs[0].name)] = weights
    if found:
        channels: dict[str, Any] = dict.fromkeys(found, 0)
        with watching(model, list(found)) as watch:
            for name, array in (item for feeds in inputs for item in watch(feeds).items()):
                channels[name] = np.maximum(channels[name], np.abs(array).max(axis=(0, 1)))
    for name, (*before, after) in found.items():
        rows = after.const_value.numpy()
        divisor = _divisor(channels[name], np.abs(rows).max(axis=1))
        for weight in before:
            weight.const_value = ir.tensor(weight.const_value.numpy() / divisor, name=weight.name)
        after.const_value = ir.tensor(rows * divisor[:, None], name=after.name)


def _makers(value: Any) -> list[Any]:
    node = value.producer()
    return [] if node is None else [node, *(_makers(node.inputs[0]) if node.op_type == "Add" else ())]


def calibrate(model: Any, inputs: Sequence[Feeds]) -> dict[str, Rounding]:
    """Return the rounding of each activation in `quantized_inputs`, measured on `inputs` without padding."""
    weights = quantized_inputs(model)
    if not weights:  # cut at the embeddings
        return {}
    parts: dict[str, list[Array]] = {name: [] for name in weights}
    stride = -(-sum(feeds[INPUTS[0]].size for feeds in inputs) // _MOST_TOKENS)
    with watching(model, list(weights)) as watch:
        for name, array in (item for feeds in inputs for item in watch(feeds).items()):
            parts[name].append(array.reshape(-1, array.shape[-1])[::stride])
    return {name: rounding_of(np.concatenate(parts.pop(name)), weights[name]) for name in weights}


def rounding_of(states: Array, weights: Array | None) -> Rounding:
    """Return the cheapest good rounding of activations (n, in) before weights (in, out), None if shared."""
    largest = np.abs(states).max(axis=0)
    divisor = divisor_of(largest, weights)
    divided = states if divisor is None else states / divisor
    per_token = Rounding(zero=best_zero(*_reaches(divided, 1)), divisor=divisor)
    if weights is None:
        return per_token
    cost = np.square(weights if divisor is None else weights * divisor[:, None]).sum(axis=1)

    def error(rounding: Rounding) -> float:
        return float(np.square(quantize_dequantize(divided, rounding) - divided).mean(axis=0) @ cost)

    plain = _one_step(divided, divisor)
    choices = [plain]
    most = min(weights.shape[0] // 64, _MOST_OUTLIERS)
    if most and weights.shape[0] > weights.shape[1]:
        choices.append(_one_step(divided, divisor, np.sort(np.argsort(-largest)[:most])))
    best = min(choices, key=lambda rounding: error(rounding) * (1 if rounding is plain else 2))
    if error(best) > max(_WORSE * error(per_token), _NEGLIGIBLE * float(divided.var(axis=0) @ cost)):
        best = per_token
    return replace(best, means=np.stack([divided.mean(axis=0), quantize_dequantize(divided, best).mean(axis=0)]))


def _reaches(divided: Array, axis: int | None) -> tuple[Array, Array]:
    return divided.max(axis=axis).clip(min=0), -divided.min(axis=axis).clip(max=0)


def _one_step(divided: Array, divisor: Array | None, outliers: NDArray[np.int64] | None = None) -> Rounding:
    high, low = map(float, _reaches(divided if outliers is None else np.delete(divided, outliers, axis=1), None))
    step = max(high + low, 1e-30) / 255
    return Rounding(zero=int(np.clip(round(low / step), 1, 254)), divisor=divisor, step=step, outliers=outliers)


def quantize_dequantize(divided: Array, rounding: Rounding) -> Array:
    """Return divided activations (n, in) after rounding."""
    step: Any = rounding.step
    if step is None:
        high, low = _reaches(divided, 1)
        step = np.maximum(np.maximum(high / (255 - rounding.zero), low / rounding.zero), 1e-30)[:, None]
    found: Array = (np.clip(np.rint(divided / step), -rounding.zero, 255 - rounding.zero) * step).astype(np.float32)
    if rounding.outliers is not None:
        found[:, rounding.outliers] = divided[:, rounding.outliers]
    return found


def divisor_of(channels: Array, weights: Array | None) -> Array | None:
    """Return SmoothQuant's divisor of each channel (arXiv:2211.10438, eq. 4, α = 0.75).

    None for shared weights, without outliers, or (too slow) if in > out. channels: max |x|, (in,). weights: (in, out).
    """
    reaching = channels[channels > 0]
    if weights is None or not reaching.size or weights.shape[0] > weights.shape[1]:
        return None
    if not reaching.max() > _OUTLYING * np.median(reaching):
        return None
    return _divisor(channels, np.abs(weights).max(axis=1))


def _divisor(channels: Array, rows: Array) -> Array:
    divisor = np.ones_like(channels)
    used = (channels > 0) & (rows > 0)
    divisor[used] = channels[used] ** _SMOOTHING / rows[used] ** (1 - _SMOOTHING)
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
) -> tuple[Any, Quantization]:
    """Return the graph with as many layers in int8 as possible without a loss above `budget` Spearman points.

    Raises `ModelError` if no layer can be in int8.
    """
    narrow, layers = multiplies_narrow(), quantizable(model)
    texts, calibrating = (spread(pairs.texts(), number) for number in (_HARM_TEXTS, _CALIBRATION_TEXTS))
    feeds = single_feeds(encoder.reader, calibrating)
    balance_values(model, feeds)
    roundings = calibrate(model, feeds)

    def quantized(in_float: Collection[str]) -> Any:
        return quantize(model, in_float=in_float, reduce_range=narrow, roundings=roundings)

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
    return quantized(ranked[:number]), Quantization.of(
        pairs,
        layers=len(layers),
        in_float={layers[node][0]: harms[node] for node in ranked[:number]},
        budget=budget,
        drop_all_int8=None if math.isinf(drops[0]) else drops[0],
        drop=drops[number],
    )
