"""How the inputs of int8 products turn to bytes: what a run over some texts shows of their channels and signs."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from truncate_kit.export.graph_files import EMBED_LIMIT
from truncate_kit.export.graph_values import Feeds, Watch, watching
from truncate_kit.export.quantizing import Rounding, quantized_inputs

Array = NDArray[np.float32]
_ZEROS = np.arange(1, 255)
_OUTLYING = 3.0  # times the median channel


def calibrate(model: Any, inputs: Sequence[Feeds], *, embed_limit: int = EMBED_LIMIT) -> dict[str, Rounding]:
    """How `quantize` should round each value that it turns to bytes.

    Args:
        model: The float graph.
        inputs: Texts without padding.
        embed_limit: As in `watching`.
    """
    # The step is found for each token when the graph runs. Fixed here is what each channel is divided by, where some
    # reach much farther than others, as after a layer norm, and how the bytes are shared between values above and
    # below zero: after a GELU nearly all of them go upward.
    weights = quantized_inputs(model)
    names = list(weights)
    if not names:  # of a model cut at its embeddings
        return {}
    channels: dict[str, Array] = {}
    reaches: dict[str, list[Array]] = {name: [] for name in names}
    with watching(model, names, embed_limit=embed_limit) as watch:
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
