"""A combination of layers as an encoder of its own."""

import copy
from collections.abc import Sequence

from torch import nn

from truncate_kit.encoders import Encoder, truncate
from truncate_kit.encoders.pipeline import Dense, Normalize
from truncate_kit.errors import ModelError


def combined_encoder(encoder: Encoder, layers: Sequence[int], *, head: Dense | None = None) -> Encoder:
    """The encoder cut above the highest of `layers`, whose vectors are the mean over just these layers.

    One layer alone is an ordinary truncated model. head: the trained pooler the mean goes through. A final Normalize
    is kept; heads and other modules after pooling were trained for other states and are left out. `save_encoder`,
    `export_onnx` and everything else take it like any encoder.
    Raises `ModelError` where no ordinary model can hold the combination, `LayerNotHeldError`, `LayerOutOfRangeError`.
    """
    chosen = tuple(sorted(set(layers)))
    if not chosen:
        raise ModelError("A combination of no layers has no vectors.", hint="Name one layer or more.")
    if len(chosen) > 1 and encoder.pooling == "max":
        raise ModelError(
            "The mean of max-pooled states over layers cannot be held: sentence-transformers averages layers first.",
            hint="Use --pooling mean, cls or last.",
        )
    cut = truncate(encoder, chosen[-1])
    cut.heads = None  # they would take the place of the combination
    cut.combine_layers(chosen if len(chosen) > 1 else None)
    tail: list[nn.Module] = [copy.deepcopy(head)] if head is not None else []
    if len(encoder.tail) and isinstance(encoder.tail[-1], Normalize):
        tail.append(Normalize())
    cut.tail = nn.ModuleList(tail).to(cut.device)
    return cut
