"""Trace an encoder into one ONNX graph: token ids in, sentence vectors out."""

import copy
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

from truncate_kit.core.errors import ModelError, errors_only, first_line, require
from truncate_kit.core.precisions import Target
from truncate_kit.export.graph import INPUTS, OUTPUT, SCORE, STATES
from truncate_kit.models.encoder import Encoder, forget_capturing
from truncate_kit.models.pipeline import Normalize

LENGTH = 7  # of the texts that are traced, at most


def with_normalization(encoder: Encoder, normalize: bool | None) -> Encoder:
    """Return the encoder as it goes into the graph, sharing its weights.

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
    """Say whether the last thing the encoder does is to scale vectors to length 1."""
    return bool(len(encoder.tail)) and isinstance(encoder.tail[-1], Normalize)


class WithScores(nn.Module):
    """An encoder with heads, as it goes into the graph: vectors (n, out), and scores of pairs of them, (n // 2,).

    Text i is scored with text i + n // 2: put the first texts of all pairs before the second ones.
    """

    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> tuple[Tensor, Tensor]:
        """Vectors and scores."""
        heads = self.encoder.heads
        assert heads is not None
        vectors: Tensor = self.encoder(input_ids, attention_mask)
        half = vectors.shape[0] // 2
        # Scored all round and cut at the end: kernels choke on no pairs at all, which is what one text has.
        return vectors, heads.similarities(vectors, torch.cat([vectors[half:], vectors[:half]]))[:half]


def build_graph(encoder: Encoder, target: Target = "cpu", *, fused: bool = True) -> Any:
    """Trace the encoder with any batch and length and fuse what ONNX Runtime has kernels for; an `onnx_ir.Model`.

    Args:
        encoder: Is traced.
        target: Whose kernels.
        fused: False leaves every graph as traced.

    Raises:
        MissingExtraError: onnxscript is not installed.
        ModelError: Tracing or fusing fails.
    """
    require("onnxscript", extra="cpu")
    # Where attention has no fused kernel, ONNX Runtime fuses the rest itself at load.
    fusing = fused and encoder.family.fused_attention
    try:
        with _quiet(), _frozen(encoder), _constant_positions(encoder):
            model = _trace(encoder)
            if fusing:
                import_module("transformers.exporters.onnxruntime_fusions").fuse_for_onnxruntime(model, target)
                if target == "cpu":
                    _split_skip_norms(model)
            # The tracer leaves weights that two products read to be turned in every run.
            _fold(model, lambda node: node.op_type == "Transpose")
    except Exception as error:  # the tracer raises anything, from its own errors to AssertionError
        raise ModelError(
            f"{encoder.name} cannot be traced: {type(error).__name__}: {first_line(error)}.",
            hint="Check the versions of torch, transformers and onnxscript against constraints.txt.",
        ) from error
    return model


def fold_constants(model: Any) -> set[str]:
    """Compute, in place, what depends on weights alone, as DeBERTa's products with its table of positions; their names.

    A session does so where the CPU has kernels for it: in float32, which no other precision is.
    """
    before = set(model.graph.initializers)
    _fold(model, lambda node: node.op_type != "Concat")  # queries, keys and values that blocks share stay shared
    return set(model.graph.initializers) - before


def _fold(model: Any, wanted: Callable[[Any], bool]) -> None:
    folding = require("onnxscript.optimizer", extra="cpu").fold_constants
    with _quiet():
        folding(model, should_fold=wanted, output_size_limit=sys.maxsize)


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
    length = min(LENGTH, encoder.max_length)
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
    """No dropout, gradients or hooks for hidden states while the encoder is traced; the first two come back."""
    training, wanted = encoder.training, [weight.requires_grad for weight in encoder.parameters()]
    encoder.eval().requires_grad_(False)
    # Tracing installs the hooks again where a call had installed them: each layer would be captured twice, also later.
    forget_capturing(encoder.backbone)
    try:
        yield
    finally:
        forget_capturing(encoder.backbone)
        encoder.train(training)
        for weight, want in zip(encoder.parameters(), wanted, strict=True):
            weight.requires_grad_(want)


@contextmanager
def _constant_positions(encoder: Encoder) -> Iterator[None]:
    """Tables of relative positions are constants after their norm, which `fold_constants` cannot compute."""
    name = "get_rel_embedding"
    tables = {module: getattr(module, name)() for module in encoder.modules() if hasattr(type(module), name)}
    for module, table in tables.items():
        setattr(module, name, lambda table=table: None if table is None else table.detach())
    try:
        yield
    finally:
        for module in tables:
            delattr(module, name)


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence exporters that report every missing optional operator."""
    with warnings.catch_warnings(action="ignore"), errors_only("torch.onnx", "onnxscript", "onnx_ir"):
        yield


def _split_skip_norms(model: Any) -> None:
    """Turn each SkipLayerNormalization back into Add and LayerNormalization."""
    # On the CPU its kernel takes about twice as long as the parts (benchmarks/encoding).
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
        for place, new in ((0, made[-1].outputs[0]), (3, total)):  # where the graph's output stood, under its name
            if place < len(node.outputs):
                old = node.outputs[place]
                name, output = old.name, old.is_graph_output()
                if new.shape is None:
                    new.shape, new.dtype = old.shape, old.dtype
                old.replace_all_uses_with(new, replace_graph_outputs=True)
                if output:
                    old.name, new.name = f"{name}_split", name
        model.graph.remove(node, safe=True)
