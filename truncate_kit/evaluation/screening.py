"""Ranking subsets of layers for a classifier without fitting one: ridge regression on class indicators, closed form.

The mean over the layers of a subset D is linear in the states, so its second moments are sums of blocks that all
subsets share: X_D' X_D = (1 / |D|²) Σ_{l,m ∈ D} X_l' X_m. The blocks are computed once; every subset then costs one
small factorisation. A fixed random orthonormal projection to `WIDTH` numbers, the same for every layer and drawn
without looking at the data, bounds the cost for wide models.
"""

from collections.abc import Callable, Sequence
from itertools import combinations

import torch
from torch import Tensor

from truncate_kit.evaluation.settings import Layers

Fold = tuple[Tensor, Tensor]  # rows to fit on and rows held out, as places

WIDTH = 256
RIDGE = 1e-3  # share of the mean variance of a feature that is added to each: enough to keep the factorisation stable

_CHUNK = 64  # subsets solved at a time: their matrices fit in some tens of megabytes


def layer_subsets(num_layers: int, max_size: int) -> list[Layers]:
    """All subsets of 1 … `max_size` layers, small ones first: 1,092 of 13 layers up to 4."""
    return [subset for size in range(1, max_size + 1) for subset in combinations(range(num_layers), size)]


def projected(states: Tensor) -> Tensor:
    """States (L', n, d) in float64, (L', n, min(d, WIDTH)), for `screen_means`."""
    size = states.shape[2]
    if size <= WIDTH:
        return states.double()
    drawn = torch.randn(size, WIDTH, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    axes = torch.linalg.qr(drawn).Q
    return torch.stack([layer.double() @ axes for layer in states])


def few_coordinates(states: Tensor, number: int = WIDTH // 2) -> Tensor:
    """At most `number` coordinates of states (L', n, d), drawn at random, the same for every layer, in float64."""
    # What is not linear in them does not survive a projection; of pairs there are two features for each coordinate.
    kept = torch.randperm(states.shape[2], generator=torch.Generator().manual_seed(0))[:number]
    return states[:, :, kept].double()


def screen_means(states: Tensor, labels: Tensor, folds: Sequence[Fold], subsets: Sequence[Layers]) -> list[float]:
    """Accuracy (0 … 1) over all rows held out of a ridge classifier on the mean of each subset of layers.

    Args:
        states: (L', n, k) in float64.
        labels: (n,) from 0.
        folds: What one does not hold out is fitted on.
        subsets: Of layers.
    """
    indicators = torch.nn.functional.one_hot(labels).double()
    # No ridge regression depends on the mean of all rows; where all are equal, as the CLS states of the embeddings,
    # moments of large numbers would leave nothing but rounding errors.
    states = states - states.mean(dim=1, keepdim=True)
    total = _moments(states, indicators)
    weights = _averaging(subsets, len(states))
    correct = torch.zeros(len(subsets), dtype=torch.float64)
    for _, held_out in folds:
        held = _moments(states[:, held_out], indicators[held_out])
        fitted = [whole - part for whole, part in zip(total, held, strict=True)]
        for start in range(0, len(subsets), _CHUNK):
            chunk = weights[start : start + _CHUNK]
            slopes, offsets = _ridge(*_averaged(fitted, chunk))
            scores = _scores(states[:, held_out], chunk, slopes) + offsets[:, None]
            correct[start : start + _CHUNK] += (scores.argmax(dim=2) == labels[held_out]).double().sum(dim=1)
    shares: list[float] = (correct / sum(len(held_out) for _, held_out in folds)).tolist()
    return shares


def screen_features(
    features: Callable[[Layers], Tensor], labels: Tensor, folds: Sequence[Fold], subsets: Sequence[Layers]
) -> list[float]:
    """`screen_means` for features (n, p) that are not linear in the states, such as those of pairs."""
    return [screen_means(features(subset)[None], labels, folds, [(0,)])[0] for subset in subsets]


def _moments(states: Tensor, indicators: Tensor) -> list[Tensor]:
    """Blocks X_l' X_m (L', L', k, k), X_l' Y (L', k, c), sums of X_l (L', k), and sums of Y (c,)."""
    layers, _, width = states.shape
    blocks = torch.empty(layers, layers, width, width, dtype=torch.float64)
    for lower in range(layers):
        for upper in range(lower, layers):
            block = states[lower].T @ states[upper]
            blocks[lower, upper], blocks[upper, lower] = block, block.T
    return [blocks, states.transpose(1, 2) @ indicators, states.sum(dim=1), indicators.sum(dim=0)]


def _averaging(subsets: Sequence[Layers], layers: int) -> Tensor:
    weights = torch.zeros(len(subsets), layers, dtype=torch.float64)
    for row, subset in enumerate(subsets):
        weights[row, list(subset)] = 1 / len(subset)
    return weights


def _averaged(moments: Sequence[Tensor], weights: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The moments of each subset's mean: (s, k, k), (s, k, c), (s, k), (c,)."""
    blocks, products, sums, counts = moments
    pairs = (weights[:, :, None] * weights[:, None, :]).flatten(1)
    size = blocks.shape[2]
    return (
        (pairs @ blocks.reshape(-1, size * size)).reshape(-1, size, size),
        torch.einsum("sl,lkc->skc", weights, products),
        weights @ sums,
        counts,
    )


def _ridge(gram: Tensor, products: Tensor, sums: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
    """Slopes (s, k, c) and offsets (s, c) of ridge regression on the indicators, the intercept not penalised."""
    rows = counts.sum()
    gram = gram - sums[:, :, None] * sums[:, None, :] / rows
    products = products - sums[:, :, None] * counts / rows
    variance = gram.diagonal(dim1=1, dim2=2).mean(dim=1)
    penalty = RIDGE * variance.clamp(min=1e-12)  # a layer whose states are all equal must not end in a division by 0
    factor = torch.linalg.cholesky(gram + penalty[:, None, None] * torch.eye(gram.shape[1], dtype=gram.dtype))
    slopes = torch.cholesky_solve(products, factor)
    return slopes, counts / rows - torch.einsum("sk,skc->sc", sums / rows, slopes)


def _scores(states: Tensor, weights: Tensor, slopes: Tensor) -> Tensor:
    """(s, n, c): each layer's part of the mean is multiplied once for all subsets."""
    subsets, width, classes = slopes.shape
    scores = torch.zeros(states.shape[1], subsets * classes, dtype=torch.float64)
    for layer, values in enumerate(states):
        used = weights[:, layer].nonzero().flatten()
        columns = (used[:, None] * classes + torch.arange(classes)).flatten()
        scaled = slopes[used] * weights[used, layer][:, None, None]
        scores[:, columns] += values @ scaled.permute(1, 0, 2).reshape(width, -1)
    return scores.view(-1, subsets, classes).transpose(0, 1)
