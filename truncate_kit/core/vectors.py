"""Store and compare sentence vectors; compute correlations and intervals. Torch and numpy load on first use."""

from collections.abc import Iterator, Sequence
from math import comb
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

from truncate_kit.core.errors import ModelError, UsageError, counted
from truncate_kit.core.results import COUNT, Result, setting

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

VectorPrecision = Literal["float32", "float16", "int8", "binary"]
# Numpy types of stored numbers.
_TYPES: dict[VectorPrecision, str] = {
    "float32": "float32",
    "float16": "float16",
    "int8": "int8",
    "binary": "uint8",  # eight dimensions per byte
}
PRECISIONS = tuple(_TYPES)
_INT8_MOST = 127
Array: TypeAlias = "NDArray[np.float64]"
Counts: TypeAlias = "NDArray[np.int64]"
Span: TypeAlias = tuple[float, float | None]
"""Mean and standard deviation of a score over seeds or splits, in points."""


class TextEncoder(Protocol):
    """Anything that turns texts into vectors."""

    def encode(self, texts: Sequence[str]) -> "Rows":
        """Return vectors (n, d) as an array or a tensor."""


class VectorFormat(Result):
    """Format of stored vectors. Raises `UsageError`.

    Attributes:
        precision: `int8` scales each vector's largest entry to ±127 (keeps cosines approximately); `binary` keeps one
            bit per dimension, 1 if above 0, highest bit first.
        dimensions: Number of first dimensions to keep; by default all.
        normalize: Scale the kept dimensions to length 1.
    """

    precision: VectorPrecision = setting("float32", choices=PRECISIONS)
    dimensions: int | None = setting(None, bounds=COUNT)
    normalize: bool = False

    @property
    def dtype(self) -> "np.dtype[Any]":
        """Return the type of the stored array."""
        import numpy as np

        return np.dtype(_TYPES[self.precision])

    def kept(self, width: int) -> int:
        """Return the number of kept dimensions. Raises `UsageError`."""
        if self.dimensions is not None and self.dimensions > width:
            raise UsageError(
                f"{self.dimensions} dimensions cannot be kept: this model's vectors have {width}.",
                hint=f"Give at most {width} as `dimensions`.",
            )
        return self.dimensions or width

    def columns(self, width: int) -> int:
        """Return the number of stored columns for `width` dimensions."""
        kept = self.kept(width)
        return -(-kept // 8) if self.precision == "binary" else kept

    def bytes_per_vector(self, width: int) -> int:
        """Return the bytes of a stored vector of `width` dimensions."""
        return self.columns(width) * self.dtype.itemsize

    def store(self, vectors: "Rows") -> "NDArray[Any]":
        """Convert vectors (n, d) to the stored form (n, columns). Raises `ModelError` on NaN, infinity or overflow."""
        import numpy as np
        import torch

        values = torch.as_tensor(vectors).detach().float().cpu().numpy()
        values = values[:, : self.kept(values.shape[1])]
        if self.normalize:
            values = values / np.maximum(np.linalg.norm(values, axis=1, keepdims=True), np.finfo(np.float32).tiny)
        if not np.isfinite(values).all():
            raise ModelError("The model's vectors hold NaN or infinity.", hint="Run it in float32, or export it anew.")
        if self.precision == "binary":
            return np.packbits(values > 0, axis=1)
        if self.precision == "int8":
            largest = np.maximum(np.abs(values).max(axis=1, keepdims=True), np.finfo(np.float32).tiny)
            scaled: NDArray[np.float32] = np.rint(values / largest * _INT8_MOST)
            return scaled.astype(np.int8)
        if self.precision == "float16" and values.size and np.abs(values).max() > np.finfo(np.float16).max:
            raise ModelError("The model's vectors do not fit float16.", hint="Normalize them, or use float32.")
        stored: NDArray[Any] = values.astype(self.dtype)
        return stored

    def numbers(self, stored: "NDArray[Any]", width: int) -> "Tensor":
        """Convert stored vectors to float32 (n, kept); bits become ±1."""
        import numpy as np
        import torch

        if self.precision == "binary":
            bits = np.unpackbits(stored, axis=1, count=self.kept(width))
            return torch.from_numpy(bits.astype(np.float32) * 2 - 1)
        return torch.from_numpy(stored.astype(np.float32))


Rows: TypeAlias = "Tensor | NDArray[Any]"
"""Vectors (n, d)."""


def one_row_each(vectors: Rows, count: int) -> "Tensor":
    """Convert vectors to a tensor (count, d). Raises `ModelError`."""
    import torch

    rows = torch.as_tensor(vectors)
    if rows.ndim != 2 or len(rows) != count:
        raise ModelError(
            f"`encode` returned the shape {tuple(rows.shape)} for {counted(count, 'text')}.",
            hint="Return one vector for each text: the rows of an array or a tensor.",
        )
    return rows


def paired_rows(first: Rows, second: Rows) -> "tuple[Tensor, Tensor]":
    """Convert vectors of paired texts to tensors (n, d). Raises `UsageError`."""
    import torch

    rows = torch.as_tensor(first), torch.as_tensor(second)
    if rows[0].shape != rows[1].shape or rows[0].ndim != 2:
        raise UsageError(
            f"Vectors of the shapes {tuple(rows[0].shape)} and {tuple(rows[1].shape)} do not form pairs.",
            hint="Give both as (texts, width), one pair per row.",
        )
    return rows


def similarities(encoder: object, first: "Tensor", second: "Tensor") -> "Tensor":
    """Return each row pair's similarity, (n,), by the encoder's measure or else the cosine."""
    import torch

    own = getattr(encoder, "similarities", None)
    values: Tensor = own(first, second) if callable(own) else torch.cosine_similarity(*paired_rows(first, second))
    return values


# Statistics

LEVEL = 0.95
FEWEST_COMPARED = 20
"""Fewest pairs for a bootstrap interval."""
FEWEST_DIFFERING = 20
"""Fewest queries with different scores for an interval of the difference of two models."""
FEWEST_COMPARED_QUERIES = 50
"""Fewest queries for a bootstrap interval; on most queries, two models have equal scores."""
RESAMPLES = 2_000  # of pairs or queries
TEXT_RESAMPLES = 500  # of texts; fewer, since each ranks twenty pairs per text
_CELLS = 4_000_000  # counts held in memory at a time
_SAME_SCORE = 1e-9  # points
DRAWS = 200  # bootstrap resamples of a trial's dev pairs, stored in its record


def tied(cosines: Sequence[float]) -> list[float]:
    """Round cosines to 12 digits, so that pairs of identical texts tie."""
    return [round(value, 12) for value in cosines]


def rank_correlations(first: Sequence[float], second: Sequence[float], counts: "Counts | None" = None) -> Array:
    """Return the Spearman correlation of each resample, (resamples,); NaN if values are constant.

    This is Pearson's correlation of ranks within the resample; ties get their mean rank (Spearman 1904). Only equal
    values tie: see `tied`. Exact up to 100,000 pairs.

    counts: Occurrences of each pair, (resamples, pairs); by default one resample, each pair once.
    """
    import numpy as np

    counts = np.ones((1, len(first)), np.int64) if counts is None else counts
    correlations: list[Array] = []
    for block in np.array_split(counts, max(1, counts.size // _CELLS)):
        centre = (block.sum(axis=1, keepdims=True) + 1) / 2
        x, y = _ranks(first, block) - centre, _ranks(second, block) - centre
        with np.errstate(invalid="ignore", divide="ignore"):
            norms = np.sqrt((block * x * x).sum(axis=1) * (block * y * y).sum(axis=1))
            correlations.append((block * x * y).sum(axis=1) / norms)
    return np.concatenate(correlations)


def _ranks(values: Sequence[float], counts: Counts) -> Array:
    import numpy as np

    group = np.unique(np.asarray(values, dtype=np.float64), return_inverse=True)[1]
    order = np.argsort(group, kind="stable")
    starts = np.flatnonzero(np.diff(group[order], prepend=-1))
    sizes = np.add.reduceat(counts[:, order], starts, axis=1)
    ranks: Array = np.cumsum(sizes, axis=1) - (sizes - 1) / 2
    return ranks[:, group]


def draws(number: int, resamples: int, seed: int = 0) -> Iterator[Counts]:
    """Yield the drawn indices (number,) of each bootstrap resample."""
    import numpy as np

    generator = np.random.default_rng(seed)
    return (generator.integers(number, size=number) for _ in range(resamples))


def draw_counts(number: int, resamples: int, seed: int = 0) -> Counts:
    """Return the count of each index in each resample of `draws`, (resamples, number)."""
    import numpy as np

    return np.stack([np.bincount(drawn, minlength=number) for drawn in draws(number, resamples, seed)])


def interval(values: "Sequence[float] | Array", level: float = LEVEL) -> tuple[float, float]:
    """Return the percentile interval of (resamples,) values (Efron and Tibshirani 1993, ch. 13)."""
    import numpy as np

    low, high = np.quantile(values, ((1 - level) / 2, (1 + level) / 2))
    return float(low), float(high)


def mean_and_std(scores: Sequence[float]) -> Span:
    """Return the mean and, for several scores, the sample standard deviation."""
    return fmean(scores), stdev(scores) if len(scores) > 1 else None


def sign_test(higher: int, lower: int) -> float:
    """Return the two-sided p-value of the exact sign test, without ties (Dixon and Mood 1946)."""
    tail = sum(comb(higher + lower, count) for count in range(min(higher, lower) + 1))
    return min(1.0, 2 * tail / (1 << higher + lower))


def changed_queries(differences: Array) -> tuple[int, int]:
    """Return how many queries score higher and how many lower; lean less full, (queries,)."""
    return int((differences > _SAME_SCORE).sum()), int((differences < -_SAME_SCORE).sum())


def too_few(number: int | None, one: str, many: str, changed: tuple[int, int] | None = None) -> str | None:
    """Return the text instead of an interval if `number` pairs or queries are too few to compare models.

    changed: numbers of queries with a higher and a lower score. The bootstrap needs `FEWEST_DIFFERING` of them: with
    50 queries of which 5 % change, the 95 % interval covers 70 %.
    """
    if changed is not None:
        if (differing := sum(changed)) >= FEWEST_DIFFERING:
            return None
        value = sign_test(*changed)
        verdict = "no difference shown" if value > 1 - LEVEL else "better" if changed[0] > changed[1] else "worse"
        return (
            f"{differing:,} of {number:,} {many} differ, {changed[0]:,} of them higher: {verdict} (exact sign test, "
            f"p = {value:.2g})"
        )
    if number is None or number >= (FEWEST_COMPARED_QUERIES if one == "query" else FEWEST_COMPARED):
        return None
    return f"{number:,} {many} are too few to tell which model is better"
