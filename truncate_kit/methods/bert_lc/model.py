"""A combination of layers as an encoder of its own."""

import copy
from collections.abc import Sequence
from typing import Any

from torch import nn

from truncate_kit.errors import LayerOutOfRangeError, ModelError
from truncate_kit.models import Encoder, truncate
from truncate_kit.models.layer_pooling import LayerPooling, Over
from truncate_kit.models.tail import Dense, Normalize


def combined_encoder(
    encoder: Encoder, layers: Sequence[int], *, over: Over = "mean", head: Dense | None = None
) -> Encoder:
    """The encoder cut above the highest of `layers`, whose vectors are the mean or maximum over just these layers.

    One layer alone is an ordinary truncated model. A mean over layers is one that sentence-transformers has itself, if
    the model does not end in a norm and its tokens are not pooled by their maximum; otherwise, and for a maximum over
    layers, a `LayerPooling` travels with the saved folder. A final Normalize is kept; heads and other modules after
    pooling were trained for other states and are left out. `save_encoder`, `export_onnx` and everything else take it
    like any encoder.

    Args:
        encoder: Is cut above the highest of `layers`.
        layers: Over which vectors are the mean or maximum.
        over: Mean or maximum.
        head: The trained pooler the mean goes through.

    Raises:
        ModelError: No layers, or a norm of an unknown kind.
        LayerNotHeldError: A layer exists, but a model cut there cannot be saved exactly.
        LayerOutOfRangeError: A layer does not exist.
    """
    chosen = tuple(sorted(set(layers)))
    if not chosen:
        raise ModelError("A combination of no layers has no vectors.", hint="Name one layer or more.")
    if chosen[0] < 0:
        raise LayerOutOfRangeError(chosen[0], encoder.depth)
    cut = truncate(encoder, chosen[-1])
    cut.heads = None  # they would take the place of the combination
    if len(chosen) == 1:
        cut.pool_with(None)
    elif over == "mean" and cut.pooling != "max" and cut.final_norm is None:
        cut.combine_layers(chosen)
    else:
        cut.pool_with(_layer_pooling(cut, chosen, over))
    tail: list[nn.Module] = [copy.deepcopy(head)] if head is not None else []
    if len(encoder.tail) and isinstance(encoder.tail[-1], Normalize):
        tail.append(Normalize())
    cut.tail = nn.ModuleList(tail).to(cut.device)
    return cut


def _layer_pooling(encoder: Encoder, layers: Sequence[int], over: Over) -> LayerPooling:
    """The pooling over these layers, with a copy of the norm that the model ends in."""
    norm = encoder.final_norm
    pooling = LayerPooling(encoder.width, layers=layers, over=over, tokens=encoder.pooling, **norm_settings(norm))
    if norm is not None and pooling.norm is not None:
        pooling.norm.load_state_dict(norm.state_dict())
    return pooling.to(encoder.device).train(encoder.training)


def norm_settings(norm: nn.Module | None) -> dict[str, Any]:
    """What `LayerPooling` has to know to hold a copy of this norm. Raises `ModelError` for a kind it does not know."""
    if norm is None:
        return {}
    if isinstance(norm, nn.LayerNorm):
        return {"norm": "layer", "eps": norm.eps, "bias": norm.bias is not None}
    if isinstance(eps := getattr(norm, "variance_epsilon", None), float):  # what qwen2 and llama call it
        return {"norm": "rms", "eps": eps}
    raise ModelError(
        f"The model ends in a {type(norm).__name__}, which a combination of its layers cannot take with it.",
        hint="Use `up_to=1` to find the best single layer: that can be saved.",
    )
