"""Spearman correlation of every layer's untrained states with graded pairs."""

from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity

from truncate_kit.data import TextPair
from truncate_kit.training.evaluation import correlate

PAIRS_AT_A_TIME = 4_096
"""Pairs whose states are held at a time: of 13 layers of width 768, 330 MB."""

CONSTANT_COSINES = 1e-9
"""Cosines that differ by less are all the same: states are float32, cosines of equal states differ by 1e-13."""


def layer_cosines(pairs: Sequence[TextPair], places: Mapping[str, int], states: Tensor) -> Tensor:
    """Cosine of the two states of each pair at each layer, (L', pairs) float64.

    places: where in states (L', n, d) each text stands.
    """
    first = torch.tensor([places[pair.first] for pair in pairs])
    second = torch.tensor([places[pair.second] for pair in pairs])
    return torch.stack([cosine_similarity(layer[first].double(), layer[second].double(), dim=-1) for layer in states])


def cosines_by_reading(pairs: Sequence[TextPair], read: Callable[[list[str]], Tensor]) -> Tensor:
    """`layer_cosines` of pairs whose states are read as needed. read: texts to states (L', n, d)."""
    found = []
    for chunk in _chunks(pairs):
        texts = list(dict.fromkeys(text for pair in chunk for text in (pair.first, pair.second)))
        found.append(layer_cosines(chunk, {text: place for place, text in enumerate(texts)}, read(texts)))
    return torch.cat(found, 1)


def layer_spearman(cosines: Tensor, pairs: Sequence[TextPair]) -> tuple[float | None, ...]:
    """Spearman × 100 between the cosines of each layer and the scores; None where all cosines are the same.

    Raises `DataError` for fewer than three pairs or one score only.
    """
    targets = [pair.target for pair in pairs]
    return tuple(
        None if float(layer.max() - layer.min()) < CONSTANT_COSINES else correlate(layer.tolist(), targets).spearman
        for layer in cosines
    )


def _chunks(pairs: Sequence[TextPair]) -> Iterator[Sequence[TextPair]]:
    for start in range(0, len(pairs), PAIRS_AT_A_TIME):
        yield pairs[start : start + PAIRS_AT_A_TIME]
