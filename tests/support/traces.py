"""Each architecture is traced once a run: a trace takes seconds, and many tests export models of the same few shapes.

A graph holds the weights of its model as they are, or turned over; only a few families multiply some of them while they
are traced. So a stand-in with other weights is traced, and the model's own take their places in a copy of its graph.
"""

import copy
import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir
import pytest
import torch
from filelock import FileLock
from torch import Tensor

from truncate_kit.core.hardware import Target
from truncate_kit.export import graph as tracing
from truncate_kit.models.encoder import Encoder
from truncate_kit.models.store import encoder_digest

traced_anew, built_anew = tracing._trace, tracing.build_graph

# Types of models whose graphs hold values that the tracer computed from weights, as heads with a score `exp` do.
COMPUTED = ("deberta-v2", "gemma3_text")
LARGE = 10_000_000  # parameters: only real models have as many, and each of them is exported as it is
ROWS = 16  # of a stand-in's table of words: its graph looks up rows, however many there are


def _stand_in(encoder: Encoder) -> Encoder:
    """The same encoder with weights that depend on nothing but their shapes, few words, and without its tokenizer.

    Where positions do not start after that of the padding, a graph knows no special tokens.
    """
    other = copy.deepcopy(encoder, {id(encoder.tokenizer): None})
    config = other.backbone.config
    if not encoder.family.position_offset:
        config.pad_token_id = config.bos_token_id = config.eos_token_id = 0
    words: Any = other.backbone.get_input_embeddings()
    if words.num_embeddings > ROWS:
        words.weight = torch.nn.Parameter(torch.empty(ROWS, words.embedding_dim), requires_grad=False)
        words.num_embeddings = config.vocab_size = ROWS
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in _weights(other):
            weight.copy_(torch.randn(weight.shape, generator=generator))
    return other


def _weights(encoder: Encoder) -> list[Tensor]:
    """Parameters, and what heads have measured."""
    return [*encoder.parameters(), *(encoder.heads.buffers() if encoder.heads is not None else ())]


def _bytes(values: Tensor) -> bytes:
    return values.detach().numpy().tobytes()


def _give_weights(graph: Any, stand_in: Encoder, encoder: Encoder) -> bool:
    """Put the encoder's weights where those of its stand-in are; False where it has values that come from several."""
    own: dict[bytes, Tensor] = {}
    for theirs, weight in zip(_weights(stand_in), _weights(encoder), strict=True):
        own[_bytes(theirs)] = weight
        if theirs.ndim == 2:
            own[_bytes(theirs.T)] = weight.T
    constants = {_bytes(values) for values in stand_in.buffers()}
    for value in graph.initializers.values():
        found = value.const_value.numpy()
        taken = own.get(found.tobytes())
        if taken is not None:
            shape = found.shape if taken.numel() == found.size else taken.shape  # there are more words than stand-ins
            value.const_value = onnx_ir.tensor(taken.detach().numpy().reshape(shape).copy(), name=value.name)
            value.shape = onnx_ir.Shape(shape)
        elif found.ndim and np.issubdtype(found.dtype, np.floating) and found.tobytes() not in constants:
            return False
    return True


@contextmanager
def remembered_traces(folder: Path) -> Iterator[None]:
    """Keep each trace, and each graph that exports build, in `folder`, under a digest of all that it depends on.

    Processes may share the folder.
    """

    def kept(encoder: Encoder, make: Callable[[], Any], *options: object) -> Any:
        attention = encoder.backbone.config._attn_implementation
        parts = (encoder_digest(encoder), attention, min(encoder.max_length, tracing.LENGTH), *options)
        file = folder / f"{hashlib.sha256(repr(parts).encode()).hexdigest()}.onnx"
        with FileLock(file.with_suffix(".lock")):
            if not file.exists():
                begun = file.with_suffix(".part")  # whoever writes it may be killed
                begun.write_bytes(onnx_ir.serde.serialize_model(make()).SerializeToString())
                begun.rename(file)
        return onnx_ir.serde.deserialize_model(onnx.ModelProto.FromString(file.read_bytes()))

    def remembered(encoder: Encoder) -> Any:
        return kept(encoder, lambda: traced_anew(encoder))

    def graph(encoder: Encoder, target: Target = "cpu", *, fused: bool = True) -> Any:
        if encoder.num_parameters > LARGE:
            return built_anew(encoder, target, fused=fused)
        return kept(encoder, lambda: built_anew(encoder, target, fused=fused), target, fused)

    def trace(encoder: Encoder) -> Any:
        model_type = encoder.backbone.config.model_type
        computed = model_type in COMPUTED or (encoder.heads is not None and encoder.heads.kind == "exp")
        if computed or encoder.num_parameters > LARGE:
            return remembered(encoder)
        stand_in = _stand_in(encoder)
        model = remembered(stand_in)
        if _give_weights(model.graph, stand_in, encoder):
            return model
        return remembered(encoder)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tracing, "_trace", trace)
        patch.setattr(tracing, "build_graph", graph)
        yield
