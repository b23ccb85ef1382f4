"""Texts in, vectors out, and for an encoder in torch the states of every layer from the same pass."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from truncate_kit.errors import DataError
from truncate_kit.evaluation.graded import TextEncoder, check_text_encoder
from truncate_kit.models import Encoder
from truncate_kit.progress import Progress, silent
from truncate_kit.representations import iter_states, layer_states
from truncate_kit.vectors import one_row_each

CHUNK = 4096  # texts encoded between two reports of progress: enough for batches of like length


@dataclass(frozen=True, slots=True)
class TextFeatures:
    """Vectors (n, out) as the model gives them, and the states of all layers (L', n, d), None where there are none."""

    vectors: Tensor
    states: Tensor | None


def encode_distinct(encoder: TextEncoder, texts: Sequence[str], progress: Progress = silent) -> Tensor:
    """Vectors (n, d) float32 of distinct texts, in their order.

    Raises `DataError` where they are no numbers, `ModelError` where they are not one for each text, `UsageError` for
    what cannot encode.
    """
    check_text_encoder(encoder)
    task = f"Encoding {len(texts):,} texts"
    parts: list[Tensor] = []
    for start in range(0, len(texts), CHUNK):
        chunk = list(texts[start : start + CHUNK])
        parts.append(one_row_each(encoder.encode(chunk), len(chunk)).float().cpu())
        progress(task, start + len(chunk), len(texts))
    return _finite(torch.cat(parts))


def text_features(encoder: TextEncoder, texts: Sequence[str], progress: Progress = silent) -> TextFeatures:
    """Vectors and, for an `Encoder`, the states of all its layers with its own pooling. Raises `DataError`."""
    if not isinstance(encoder, Encoder):
        return TextFeatures(encode_distinct(encoder, texts, progress), None)
    states = layer_states(encoder, texts, progress=progress)
    # One pass gives both, unless the vectors are made of other states than these.
    other_heads = encoder.heads is not None and encoder.heads.raw
    if encoder.combination is not None or encoder.pooler is not None or other_heads:
        return TextFeatures(encode_distinct(encoder, texts, progress), states)
    with torch.inference_mode():
        vectors = states[-1] if encoder.heads is None else encoder.heads(states[1:].to(encoder.device)).cpu()
        for module in encoder.tail:
            vectors = module(vectors.to(encoder.device)).cpu()
    return TextFeatures(_finite(vectors.clone()), states)


def first_tokens(encoder: Encoder, texts: Sequence[str]) -> Tensor:
    """States (n, d) of the first token after the last layer."""
    found = torch.empty(len(texts), encoder.width, dtype=torch.float32)
    for batch in iter_states(encoder, texts, pooling="cls"):
        found[batch.places] = batch.states[-1]
    return found


def _finite(vectors: Tensor) -> Tensor:
    bad = int((~vectors.isfinite().all(dim=1)).sum())
    if bad:
        raise DataError(
            f"The model gives vectors that are not numbers for {bad:,} of {len(vectors):,} texts.",
            hint="Check the model: its weights may hold NaN, or overflow in half precision.",
        )
    return vectors
