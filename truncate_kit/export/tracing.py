"""From an encoder to one ONNX graph: token ids in, sentence vectors out."""

import copy
import hashlib
import logging
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from truncate_kit.encoders import Encoder
from truncate_kit.encoders.pipeline import Normalize
from truncate_kit.errors import CannotWriteError, ExportError
from truncate_kit.export.precision import GRAPH_FILES, Target
from truncate_kit.export.scores import SCORE, WithScores
from truncate_kit.extras import require

INPUTS = ("input_ids", "attention_mask")
OUTPUT = "sentence_embedding"
STATES = "last_hidden_state"  # what loaders that pool by themselves ask for; never computed apart, nor fetched here
GRAPH_FILE = GRAPH_FILES["fp32"]
EMBED_LIMIT = 1_900_000_000  # bytes of weights inside the graph's own file; protobuf ends at 2 GiB
_FUSED_ATTENTION = ("Attention", "MultiHeadAttention", "GroupQueryAttention")
_FUSING_SINCE = (5, 23)
_MICROSOFT = "com.microsoft"
_LOUD_LOGGERS = ("torch.onnx", "onnxscript", "onnx_ir")


def with_normalization(encoder: Encoder, normalize: bool | None) -> Encoder:
    """The encoder as it goes into the graph, sharing its weights.

    normalize: True ends it in unit vectors, False leaves a final Normalize module out, None keeps what it has.
    """
    tail = list(encoder.tail)
    if normalize and not ends_normalized(encoder):
        tail.append(Normalize())
    while normalize is False and tail and isinstance(tail[-1], Normalize):
        tail.pop()
    changed = copy.copy(encoder)
    changed._modules = {**encoder._modules, "tail": nn.ModuleList(tail)}
    return changed


def ends_normalized(encoder: Encoder) -> bool:
    """Whether the last thing the encoder does is to scale vectors to length 1."""
    return bool(len(encoder.tail)) and isinstance(encoder.tail[-1], Normalize)


def require_fusions(version: str) -> None:
    """Raise `ExportError` if this version of transformers cannot fuse graphs for ONNX Runtime."""
    parts = tuple(int(part) for part in version.split(".")[:2])
    if parts < _FUSING_SINCE:
        raise ExportError(
            f"Fused export needs transformers >= {'.'.join(map(str, _FUSING_SINCE))}; here is {version}.",
            hint="Upgrade it with: pip install -U 'truncate-kit[cpu]'",
        )


def build_graph(encoder: Encoder, target: Target = "cpu", *, fused: bool = True) -> Any:
    """Trace the encoder with any batch and length and fuse what ONNX Runtime has kernels for; an `onnx_ir.Model`.

    target: whose kernels. fused: False leaves every graph as traced.
    Families whose attention has no fused kernel are left as traced: ONNX Runtime fuses the rest itself at load.
    Raises `MissingExtraError` without onnxscript, `ExportError` where tracing or fusing fails.
    """
    import transformers

    require("onnxscript", extra="cpu")
    fusing = fused and encoder.family.fused_attention
    if fusing:
        require_fusions(transformers.__version__)
    try:
        with _quiet(), _frozen(encoder):
            model = _trace(encoder)
            if fusing:
                import_module("transformers.exporters.onnxruntime_fusions").fuse_for_onnxruntime(model, target)
                if target == "cpu":
                    _split_skip_norms(model)
    except Exception as error:  # the tracer raises anything, from its own errors to AssertionError
        reason = (str(error).strip().splitlines() or [""])[0]
        raise ExportError(
            f"{encoder.name} cannot be traced: {type(error).__name__}: {reason}",
            hint="Check the versions of torch, transformers and onnxscript against constraints.txt.",
        ) from error
    return model


class _WithStates(nn.Module):
    """An encoder that gives its token states as well."""

    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> tuple[Tensor, Tensor]:
        states = self.encoder.token_states(input_ids, attention_mask)
        return self.encoder.from_states(states, attention_mask), states


def _trace(encoder: Encoder) -> Any:
    # Sizes other than 0 and 1, and different ones, so that neither batch nor length is taken for a constant.
    length = min(7, encoder.max_length)
    ids = torch.ones((5, length), dtype=torch.long, device=encoder.device)
    mask = torch.ones_like(ids)
    mask[1, 2:] = 0
    free = {0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC}
    traced: nn.Module = encoder
    outputs = [OUTPUT]
    if encoder.heads is not None:
        traced, outputs = WithScores(encoder), [OUTPUT, SCORE]
    elif encoder.pools_tokens:
        traced, outputs = _WithStates(encoder), [OUTPUT, STATES]
    program = torch.onnx.export(
        traced,
        (ids, mask),
        dynamo=True,
        dynamic_shapes=dict.fromkeys(INPUTS, free),
        input_names=list(INPUTS),
        output_names=outputs,
        verbose=False,
    )
    assert program is not None  # it is None for the old exporter only
    return program.model


@contextmanager
def _frozen(encoder: Encoder) -> Iterator[None]:
    """No dropout and no gradients while the encoder is traced; both as before after it."""
    training, wanted = encoder.training, [weight.requires_grad for weight in encoder.parameters()]
    encoder.eval().requires_grad_(False)
    try:
        yield
    finally:
        encoder.train(training)
        for weight, want in zip(encoder.parameters(), wanted, strict=True):
            weight.requires_grad_(want)


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence exporters that report every missing optional operator."""
    levels = {name: logging.getLogger(name).level for name in _LOUD_LOGGERS}
    for name in levels:
        logging.getLogger(name).setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)


def _split_skip_norms(model: Any) -> None:
    """Turn each SkipLayerNormalization back into Add and LayerNormalization.

    On the CPU its kernel takes about twice as long as the parts (benchmarks/encoding); where it is faster, ONNX
    Runtime fuses it again when it loads the graph.
    """
    ir = require("onnx_ir", extra="cpu")
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
        for place, value in ((0, made[-1].outputs[0]), (3, total)):
            if place < len(node.outputs):
                _take_over(node.outputs[place], value)
        model.graph.remove(node, safe=True)


def _take_over(old: Any, new: Any) -> None:
    """Let `new` stand wherever `old` stood, under its name where it is the graph's output."""
    name, output = old.name, old.is_graph_output()
    if new.shape is None:
        new.shape, new.dtype = old.shape, old.dtype
    old.replace_all_uses_with(new, replace_graph_outputs=True)
    if output:
        old.name, new.name = f"{name}_split", name


def strip_notes(model: Any) -> None:
    """Take out the tracer's notes, in place: they hold source lines with paths of this machine."""
    for node in model.graph.all_nodes():
        node.metadata_props.clear()
        node.doc_string = None
        for value in node.outputs:
            value.metadata_props.clear()
    for value in (*model.graph.inputs, *model.graph.initializers.values()):
        value.metadata_props.clear()


def count_fused_nodes(model: Any) -> dict[str, int]:
    """ONNX Runtime's own operators in the graph, and how many of each."""
    return dict(Counter(str(node.op_type) for node in model.graph if node.domain == _MICROSOFT))


def count_fused_attention(model: Any) -> int:
    """Nodes of the graph that compute a whole attention."""
    return sum(node.op_type in _FUSED_ATTENTION and node.domain == _MICROSOFT for node in model.graph)


def save_graph(model: Any, path: Path, *, embed_limit: int = EMBED_LIMIT) -> Path | None:
    """Write the graph to `path`; weights beyond `embed_limit` bytes go to a file beside it, which is returned.

    That file's name holds a hash of the weights, so that a graph never meets the weights of another. Raises
    `CannotWriteError`.
    """
    ir = require("onnx_ir", extra="cpu")
    weights = [value.const_value for value in model.graph.initializers.values() if value.const_value is not None]
    embedded = sum(weight.nbytes for weight in weights) <= embed_limit
    data = None if embedded else path.with_name(f"{path.name}.{_digest(weights)}.data")
    try:
        ir.save(model, path, external_data=None if data is None else data.name)
    except OSError as error:
        raise CannotWriteError(path, error) from error
    return data


def graph_files(graph: Path) -> list[Path]:
    """The graph, and beside it the files of weights that are named after it."""
    return [graph, *sorted(graph.parent.glob(f"{graph.name}*.data"))]


def _digest(weights: Sequence[Any]) -> str:
    """The first twelve digits of the SHA-256 of weights in their order."""
    digest = hashlib.sha256()
    for weight in weights:
        digest.update(weight.tobytes())
    return digest.hexdigest()[:12]
