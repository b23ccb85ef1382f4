"""Whether the lean model is as good as the full one: a paired bootstrap over the test pairs."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from truncate_kit.bench.bench_report import QualityDifference
from truncate_kit.evaluation import correlate

Array = NDArray[np.float64]
RESAMPLES = 2000
LEVEL = 0.95


def draw_counts(num_pairs: int, resamples: int, seed: int) -> NDArray[np.int64]:
    """How often each pair is drawn in each resample with replacement: (resamples, num_pairs), rows sum to num_pairs."""
    drawn = np.random.default_rng(seed).integers(num_pairs, size=(resamples, num_pairs))
    offset = np.arange(resamples)[:, None] * num_pairs
    return np.bincount((drawn + offset).ravel(), minlength=resamples * num_pairs).reshape(resamples, num_pairs)


def resampled_spearman(
    first: Sequence[float], second: Sequence[float], counts: NDArray[np.int64], *, cells: int = 4_000_000
) -> Array:
    """Spearman correlation of each resample, (resamples,); NaN where a resample holds one value only.

    Ranks are those of the resample itself, repeats and ties sharing their mean rank. cells: counts worked on at once.
    """
    blocks = max(1, counts.size // cells)
    return np.concatenate([_spearman(first, second, block) for block in np.array_split(counts, blocks)])


def _spearman(first: Sequence[float], second: Sequence[float], counts: NDArray[np.int64]) -> Array:
    total = counts.sum(axis=1, keepdims=True)
    centre = (total + 1) / 2
    x, y = _ranks(first, counts) - centre, _ranks(second, counts) - centre
    with np.errstate(invalid="ignore", divide="ignore"):
        products: Array = (counts * x * y).sum(axis=1)
        correlation: Array = products / np.sqrt((counts * x * x).sum(axis=1) * (counts * y * y).sum(axis=1))
    return correlation


def _ranks(values: Sequence[float], counts: NDArray[np.int64]) -> Array:
    """Mean rank of each original value within each resample: a value's copies and its ties lie side by side."""
    group = np.unique(np.asarray(values, dtype=np.float64), return_inverse=True)[1]
    order = np.argsort(group, kind="stable")
    starts = np.flatnonzero(np.diff(group[order], prepend=-1))
    sizes = np.add.reduceat(counts[:, order], starts, axis=1)
    ranks: Array = np.cumsum(sizes, axis=1) - (sizes - 1) / 2
    return ranks[:, group]


def quality_difference(
    backend: str,
    lean: Sequence[float],
    full: Sequence[float],
    targets: Sequence[float],
    *,
    numbers: NDArray[np.int64] | None = None,
    resamples: int = RESAMPLES,
    level: float = LEVEL,
    seed: int = 0,
) -> QualityDifference:
    """Spearman (× 100) of the similarities of both models against the same targets, and the interval of lean − full.

    Percentile interval of a paired bootstrap: pairs are drawn with replacement, the same for both models, and all rows
    of one pair together, for they say the same. numbers: of each row its pair, as `numbers_of` gives them; None where
    none repeats another. Raises `DataError` where a correlation is not defined.
    """
    scores = [correlate(cosines, targets).spearman for cosines in (lean, full)]
    numbers = np.arange(len(targets)) if numbers is None else numbers
    num_pairs = int(numbers.max()) + 1
    counts = draw_counts(num_pairs, resamples, seed)[:, numbers]
    differences = 100 * (resampled_spearman(lean, targets, counts) - resampled_spearman(full, targets, counts))
    defined = differences[np.isfinite(differences)]
    low, high = np.percentile(defined, [50 * (1 - level), 50 * (1 + level)])
    return QualityDifference(
        backend=backend,
        lean=scores[0],
        full=scores[1],
        difference=scores[0] - scores[1],
        low=float(low),
        high=float(high),
        level=level,
        resamples=len(defined),
        seed=seed,
        num_pairs=num_pairs,
    )
