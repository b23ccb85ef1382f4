"""What heads make of the pairs of test: where each block ranks them, and which are furthest off."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from truncate_kit.evaluation.graded import spearman
from truncate_kit.methods.frozen.frozen_report import WorstPair
from truncate_kit.methods.frozen.heads import StatePairs, pair_scores
from truncate_kit.methods.frozen.material import Material
from truncate_kit.models import LayerHeads

NUM_WORST = 20


def block_correlations(distances: Tensor, targets: Sequence[float]) -> tuple[float | None, ...]:
    """Spearman × 100 of 1 − distance and target at each block, from distances (n, L); None where it is not defined."""
    return tuple(spearman((-column).tolist(), targets) for column in distances.double().T)


def worst_pairs(heads: LayerHeads, material: Material, layer: int) -> tuple[WorstPair, ...]:
    """The largest errors on test, the mean difference on dev taken off: the loss does not see it."""
    dev, test = material.dev.lowest(layer), material.test.lowest(layer)
    predicted = pair_scores(heads, test)
    errors = _differences(predicted, test) - float(np.mean(_differences(pair_scores(heads, dev), dev)))
    order = np.argsort(-np.abs(errors), kind="stable")[:NUM_WORST]
    pairs = material.test_pairs.pairs
    return tuple(
        WorstPair(
            first=pairs[place].first,
            second=pairs[place].second,
            target=test.targets[place],
            predicted=predicted[place],
            error=float(errors[place]),
        )
        for place in order.tolist()
    )


def _differences(scores: Sequence[float], pairs: StatePairs) -> NDArray[np.float64]:
    return np.subtract(scores, pairs.targets)
