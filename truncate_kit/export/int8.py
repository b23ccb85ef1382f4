"""Dynamic int8: weights in 8 bits with one scale per channel, activations in 8 bits with one scale per token.

Weights are symmetric: signed, because ONNX Runtime multiplies unsigned ones at less than half the speed, and without
zero points. The scale of activations is found for each token while the graph runs; how their bytes are shared between
the signs, and which channels are made smaller before rounding, is calibrated. Then as many layers are in int8 as the
score allows, tried on pairs that are not the ones reported on.
The usual way, which ONNX Runtime's own quantiser takes, gives a whole batch one range: the vector of a text then
depends on its neighbours and its padding. A scale per token costs about a tenth of the speed, makes the error less than
half as large, and makes the vector depend on its text alone.
"""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from truncate_kit.core.errors import DataError, failed_check, require
from truncate_kit.core.hardware import int8_instructions, multiplies_narrow
from truncate_kit.core.progress import Progress, silent
from truncate_kit.core.wording import in_points
from truncate_kit.data.pairs import PairSet
from truncate_kit.evaluation.graded import evaluate
from truncate_kit.export.graph import MICROSOFT, Feeds, Watch, save_graph, watching
from truncate_kit.export.record import Quantization
from truncate_kit.export.runtime import OnnxEncoder
from truncate_kit.models.layer_heads import LayerHeads
from truncate_kit.models.tokenizer import TextReader, padded

Array = NDArray[np.float32]
_SCOPES = "pkg.torch.onnx.name_scopes"
_PLAIN_GEMM = {"alpha": 1.0, "beta": 1.0, "transA": 0}
_KEPT_ATTRIBUTES = ("num_heads", "scale", "mask_filter_value", "unidirectional")
_ZEROS = np.arange(1, 255)
_OUTLYING = 3.0  # times the median channel
_HARM_TEXTS = 128


@dataclass(frozen=True, slots=True)
class Rounding:
    """How a value turns to bytes."""

    zero: int = 128  # the byte, 1 … 254, that represents 0
    # What each channel is divided by before, and the rows of the weights are multiplied with, (in,).
    divisor: Array | None = None


_PLAIN = Rounding()


def quantizable(model: Any) -> dict[str, tuple[str, int]]:
    """Find the products with constant weights, fused attentions and the word embeddings of an `onnx_ir.Model`.

    Returns by the name of the node the module that it comes from and the number of its weights.
    """
    weights = ((node, _weight(node)) for node in model.graph)
    return {str(node.name): (layer_of(node), int(weight.size)) for node, weight in weights if weight is not None}


def layer_of(node: Any) -> str:
    """The module that a node was traced from, such as `encoder.layer.0.output.dense`; its own name where unknown."""
    scopes = [part.strip(" '\"") for part in node.metadata_props.get(_SCOPES, "").strip("[]").split(",")]
    return scopes[-2].removeprefix("encoder.backbone.") if len(scopes) > 1 and scopes[-2] else str(node.name)


def quantized_inputs(model: Any) -> dict[str, Array | None]:
    """Names of the values that `quantize` turns to bytes, and the weights (in, out) that read each, side by side."""
    found: dict[str, list[Array]] = {}
    tied = set()  # whose weights another value's product shares: they cannot follow one value's divisor
    for node in model.graph:
        weight = _weight(node)
        if node.op_type != "Gather" and weight is not None:
            found.setdefault(str(node.inputs[0].name), []).append(weight)
            if _shared(node.inputs[1]):
                tied.add(str(node.inputs[0].name))
    return {name: None if name in tied else np.hstack(weights) for name, weights in found.items()}


def _shared(value: Any) -> bool:
    """Whether a weight, or a part that it is put together from, has more than one reader."""
    if value.const_value is not None or value.producer() is None:
        return len(value.uses()) > 1
    return len(value.uses()) > 1 or any(_shared(part) for part in value.producer().inputs)


def quantize(
    model: Any,
    *,
    keep: Collection[str] = (),
    reduce_range: bool = False,
    roundings: Mapping[str, Rounding] | None = None,
) -> Any:
    """A copy of an `onnx_ir.Model` with its `quantizable` nodes in int8, but for those named in `keep`.

    Args:
        model: The `onnx_ir.Model` that is copied.
        keep: Names of the nodes that stay as they are.
        reduce_range: Weights in 7 bits, for processors that add pairs of 8-bit products in 16 bits.
        roundings: Of `quantized_inputs` (`calibrate` in calibrating.py); None shares bytes evenly and divides nothing.
    """
    ir = require("onnx_ir", extra="cpu")
    passes = require("onnx_ir.passes.common", extra="cpu")
    copy = model.clone()
    copy.opset_imports.setdefault(MICROSOFT, 1)
    writer = _Writer(ir, copy.graph, 63 if reduce_range else 127, roundings or {})
    for node in list(copy.graph):
        weight = _weight(node)
        if weight is None or node.name in keep:
            continue
        write = {"Attention": writer.attention, "Gather": writer.embedding}.get(node.op_type, writer.product)
        write(node, weight)
    writer.quicken_gelu()
    passes.RemoveUnusedNodesPass()(copy)
    return copy


def _weight(node: Any) -> Array | None:
    """The constant matrix of a node that int8 can take over, None for any other node."""
    if node.op_type == "Attention" and node.domain == MICROSOFT:
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
    """Symmetric rounding to −limit … limit, and the scales, one along `axis`, which is kept with size 1."""
    scale = np.abs(weight).max(axis=axis, keepdims=True) / limit
    scale[scale == 0] = 1
    return np.clip(np.rint(weight / scale), -limit, limit).astype(np.int8), scale.astype(np.float32)


class _Writer:
    """Puts int8 nodes in place of float ones; weights that nodes share are rounded once."""

    def __init__(self, ir: Any, graph: Any, limit: int, roundings: Mapping[str, Rounding]) -> None:
        self.ir, self.graph, self.limit, self.roundings = ir, graph, limit, roundings
        self._made: dict[str, Any] = {}
        self._bytes: dict[Any, tuple[Any, Any]] = {}

    def _initializer(self, name: str, array: NDArray[Any] | np.generic) -> Any:
        if name not in self._made:
            self._made[name] = self.ir.Value(name=name, const_value=self.ir.tensor(array, name=name))
            self.graph.register_initializer(self._made[name])
        return self._made[name]

    def product(self, node: Any, weight: Array) -> None:
        """A MatMul, or a Gemm with its bias; the bias stays in float."""
        bias = node.inputs[2] if len(node.inputs) > 2 else None
        made = self._rounded_product(node, node.inputs[0], node.inputs[1].name, weight, bias, str(node.name))
        self._replace(node, made)

    def attention(self, node: Any, weight: Array) -> None:
        """Projections in int8, each a product; scores and softmax stay in float inside the fused operator."""
        made, parts = [], []
        for name, matrix in zip("qkv", np.split(weight, 3, axis=1), strict=True):
            source = f"{node.inputs[1].name}_{name}"
            made += self._rounded_product(node, node.inputs[0], source, matrix, None, f"{node.name}_{name}")
            parts.append(made[-1].outputs[0])
        padding, extra = (node.inputs[place] if len(node.inputs) > place else None for place in (3, 5))
        kept = [node.attributes[name] for name in _KEPT_ATTRIBUTES if name in node.attributes]
        inputs = [*parts, node.inputs[2], padding, extra]
        made.append(self.ir.Node(MICROSOFT, "MultiHeadAttention", inputs, kept, name=node.name))
        self._replace(node, made)

    def _rounded_product(self, before: Any, states: Any, source: str, weight: Array, bias: Any, name: str) -> list[Any]:
        """Nodes that give states · weight + bias from bytes: the integer product, times the scales of both sides."""
        rounding = self.roundings.get(states.name, _PLAIN)
        if rounding.divisor is not None:
            weight = weight * rounding.divisor[:, None]
        values, scale = rounded(weight, 0, self.limit)
        small, step = self._rounded_states(before, states, weight.shape[0], rounding)
        inputs = [
            small,
            self._initializer(f"{source}_int8", values),
            self._initializer("one_step", np.float32(1)),
            self._initializer(f"{source}_scale", scale.reshape(-1)),
            self._initializer(f"zero_{rounding.zero}", np.uint8(rounding.zero)),
        ]
        product = self.ir.Node(MICROSOFT, "MatMulIntegerToFloat", inputs, name=f"{name}_product")
        made = [product, self.ir.node("Mul", [product.outputs[0], step], name=f"{name}_steps")]
        if bias is not None:
            made.append(self.ir.node("Add", [made[-1].outputs[0], bias], name=f"{name}_bias"))
        return made

    def _rounded_states(self, before: Any, states: Any, width: int, rounding: Rounding) -> tuple[Any, Any]:
        """Bytes of the states, and the step of each token (…, 1); once for all products that read the same states."""
        if states in self._bytes:
            return self._bytes[states]
        name, ir, last = states.name, self.ir, self._initializer("last_axis", np.array([-1], np.int64))
        made: list[Any] = []

        def node(kind: str, inputs: Sequence[Any], **attributes: Any) -> Any:
            made.append(ir.node(kind, inputs, attributes=attributes, name=f"{name}_{kind}_{len(made)}"))
            return made[-1].outputs[0]

        even, place = states, rounding.zero
        if rounding.divisor is not None:
            even = node("Mul", [states, self._initializer(f"{name}_multiplier", 1 / rounding.divisor)])
        up = self._initializer(f"up_{place}", np.float32(1 / (255 - place)))
        down = self._initializer(f"down_{place}", np.float32(-1 / place))
        least = self._initializer("least_step", np.float32(1e-30))  # for a token of zeros only
        # A token's step just covers what it reaches upward and downward, whatever other tokens do.
        high = node("Mul", [node("ReduceMax", [even, last], keepdims=1), up])
        low = node("Mul", [node("ReduceMin", [even, last], keepdims=1), down])
        step = node("Max", [high, low, least])
        # QuantizeLinear takes one scale per row of a matrix.
        rows = node("Reshape", [even, self._initializer(f"rows_{width}", np.array([-1, width], np.int64))])
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

    def quicken_gelu(self) -> None:
        """Compute each GELU whose result is rounded to bytes by tanh: its error is far below half a step of those."""
        for node in self.graph:
            if node.op_type == "BiasGelu" and node.outputs[0] in self._bytes:
                node.op_type = "FastGelu"

    def _replace(self, old: Any, made: list[Any]) -> None:
        """Put nodes in place of one; the last one's output replaces the old one's."""
        replace = self.ir.convenience.replace_nodes_and_values
        replace(self.graph, old, [old], made, old.outputs[:1], made[-1].outputs[:1])


def calibrate(model: Any, inputs: Sequence[Feeds]) -> dict[str, Rounding]:
    """Find how `quantize` should round each value of a float graph that it turns to bytes; inputs: without padding."""
    # The step is found for each token when the graph runs. Fixed here is what each channel is divided by, where some
    # reach much farther than others, as after a layer norm, and how the bytes are shared between values above and
    # below zero: after a GELU nearly all of them go upward.
    weights = quantized_inputs(model)
    names = list(weights)
    if not names:  # of a model cut at its embeddings
        return {}
    channels: dict[str, Array] = {}
    reaches: dict[str, list[Array]] = {name: [] for name in names}
    with watching(model, names) as watch:
        for name, states in _states(watch, inputs):
            reach = np.abs(states).max(axis=0)
            channels[name] = np.maximum(channels.get(name, reach), reach)
        divisors = {name: divisor_of(channels[name], weights[name]) for name in names}
        for name, states in _states(watch, inputs):
            divisor = divisors[name]
            shown = states if divisor is None else states / divisor
            reaches[name].append(np.stack([shown.max(axis=1), -shown.min(axis=1)]).clip(min=0))
    return {
        name: Rounding(zero=best_zero(*np.concatenate(found, axis=1)), divisor=divisors[name])
        for name, found in reaches.items()
    }


def _states(watch: Watch, inputs: Sequence[Feeds]) -> Iterator[tuple[str, Array]]:
    for feeds in inputs:
        for name, array in watch(feeds).items():
            yield name, array.reshape(-1, array.shape[-1])


def divisor_of(channels: Array, weights: Array | None) -> Array | None:
    """What to divide each channel by, and to multiply its row of the weights with, so that both are easy to round.

    SmoothQuant's sqrt(max |x| / max |w|) per channel (arXiv:2211.10438, eq. 4 with α = 0.5). None where dividing does
    not pay.

    Args:
        channels: Largest magnitude of each, (in,).
        weights: All that read the value, (in, out).
    """
    reaching = channels[channels > 0]
    # Where the value is wider than what is made of it, dividing would cost more than it gives.
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
    """The zero point, 1 … 254, with the least mean squared step for tokens that reach from −low to high, each (n,)."""
    steps = np.maximum(high / (255 - _ZEROS[:, None]), low / _ZEROS[:, None])
    return int(_ZEROS[np.square(steps, dtype=np.float64).mean(axis=1).argmin()])


class Trials:
    """Scores of one float graph with some of its layers in int8. heads: what scores its vectors, None for cosines."""

    def __init__(
        self,
        model: Any,
        reader: TextReader,
        pairs: PairSet,
        scratch: Path,
        *,
        narrow: bool,
        heads: LayerHeads | None = None,
    ) -> None:
        self.model, self.reader, self.pairs, self.scratch, self.narrow = model, reader, pairs, scratch, narrow
        self.heads = heads
        self.layers = quantizable(model)
        self.base = evaluate(self._open(model), pairs.pairs).spearman
        texts = pairs.texts()
        self._texts = texts[:: max(1, len(texts) // _HARM_TEXTS)][:_HARM_TEXTS]
        self._expected = self._vectors(model)
        ids = reader.token_ids(self._texts)
        self._roundings = calibrate(model, [padded([row], reader.padding_id) for row in ids])

    def quantized(self, keep: Collection[str]) -> Any:
        """Put all layers into int8 but those of the nodes in `keep`."""
        return quantize(self.model, keep=keep, reduce_range=self.narrow, roundings=self._roundings)

    def drop(self, keep: Collection[str]) -> float:
        """Return the Spearman points lost against the float graph; infinite where the score is not defined any more."""
        try:
            return self.base - evaluate(self._open(self.quantized(keep)), self.pairs.pairs).spearman
        except DataError:
            return math.inf

    def harm(self, node: str) -> float:
        """Return the mean squared distance between unit vectors when only this layer is in int8."""
        found = self._vectors(self.quantized(self.layers.keys() - {node}))
        harm = float((found - self._expected).square().sum(dim=1).mean())
        return harm if math.isfinite(harm) else math.inf

    def _open(self, model: Any) -> OnnxEncoder:
        folder = self.scratch / "trial"
        folder.mkdir(exist_ok=True)
        for old in folder.iterdir():
            old.unlink()
        save_graph(model, folder / "model.onnx")
        return OnnxEncoder(folder / "model.onnx", self.reader, heads=self.heads)

    def _vectors(self, model: Any) -> Tensor:
        return torch.nn.functional.normalize(self._open(model).vectors(self._texts), dim=1)


def search_layers(
    model: Any,
    reader: TextReader,
    pairs: PairSet,
    scratch: Path,
    *,
    budget: float,
    heads: LayerHeads | None = None,
    progress: Progress = silent,
) -> tuple[Any, Quantization]:
    """Put as much of a float graph into int8 as costs at most `budget` Spearman points on `pairs`.

    Args:
        model: the float graph.
        reader: its tokenizer.
        pairs: on which it is scored.
        scratch: folder for graphs that are tried.
        budget: in points (× 100).
        heads: what scores the graph's vectors, None for their cosines.
        progress: called as the work goes on.

    Returns:
        The graph and how it was found.

    Raises:
        ModelError: no layer can be in int8.
    """
    narrow = multiplies_narrow()
    trials = Trials(model, reader, pairs, scratch, narrow=narrow, heads=heads)
    everything = trials.drop(())
    harms, kept, drop = dict[str, float](), list[str](), everything
    if everything > budget:  # layers go back to float, the most harmful per weight first, as few as suffice
        for done, node in enumerate(trials.layers, start=1):
            harms[node] = trials.harm(node)
            progress("Trying each layer in int8", done, len(trials.layers))
        ranked = sorted(harms, key=lambda node: -harms[node] / trials.layers[node][1])
        # Bisect the number in float: with none it is too much, with all of them nothing is lost.
        low, high, drop = 0, len(ranked), 0.0
        while high - low > 1:
            middle = (low + high) // 2
            lost = trials.drop(ranked[:middle])
            if lost <= budget:
                high, drop = middle, lost
            else:
                low = middle
        kept = ranked[:high]
    if len(kept) == len(trials.layers):
        raise failed_check(f"no layer can be in int8 within {in_points(budget)} on {pairs.name}")
    return trials.quantized(kept), Quantization(
        layers=len(trials.layers),
        in_float={trials.layers[node][0]: harms[node] if math.isfinite(harms[node]) else None for node in kept},
        weight_bits=7 if narrow else 8,
        instructions=int8_instructions(),
        budget=budget,
        searched_on=pairs.name,
        num_pairs=len(pairs),
        drop_all_int8=None if math.isinf(everything) else everything,
        drop=drop,
    )
