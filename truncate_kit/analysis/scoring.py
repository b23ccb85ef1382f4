"""Spearman correlation of every layer's untrained states with graded pairs."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from truncate_kit.data import PlacedPairs, TextPair
from truncate_kit.evaluation.graded import correlate, pair_similarities

PAIRS_AT_A_TIME = 4_096  # pairs whose states are held at a time: of 13 layers of width 768, 330 MB
# Cosines that differ by less are all the same: states are float32, cosines of equal states differ by 1e-13. It is wider
# than `statistics.tied`: no layer that reads something has all of its cosines so near, single pairs of it may.
CONSTANT_COSINES = 1e-9


def layer_cosines(places: PlacedPairs, states: Tensor) -> Tensor:
    """Cosine of the two states of each pair at each layer, (L', pairs) float64.

    Args:
        places: Of both texts of each pair.
        states: (L', n, d).
    """
    return torch.tensor([pair_similarities(layer, places) for layer in states], dtype=torch.float64)


def cosines_by_reading(pairs: Sequence[TextPair], read: Callable[[list[str]], Tensor]) -> Tensor:
    """`layer_cosines` of pairs whose states are read as needed.

    Args:
        pairs: Whose states are read as needed.
        read: Texts to states (L', n, d).
    """
    found = []
    for start in range(0, len(pairs), PAIRS_AT_A_TIME):
        places = PlacedPairs.of(pairs[start : start + PAIRS_AT_A_TIME])
        found.append(layer_cosines(places, read(places.texts)))
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
