"""Scores of sentence vectors on graded pairs."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from scipy.stats import pearsonr
from torch import Tensor

from truncate_kit.data import PlacedPairs, TextPair
from truncate_kit.data.types import check_ranks
from truncate_kit.errors import DataError
from truncate_kit.progress import Progress, silent
from truncate_kit.results import Result
from truncate_kit.statistics import rank_correlations, tied
from truncate_kit.vectors import Rows, one_row_each, similarities

_CHUNK = 4096  # texts encoded between two reports of progress: enough for batches of like length


class TextEncoder(Protocol):
    """Anything that turns texts into vectors: an `Encoder`, an ONNX session, a peer's model."""

    def encode(self, texts: Sequence[str]) -> Rows:
        """Vectors (n, d) in the order of the texts, as an array or a tensor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation(Result):
    """Correlation of cosine similarity with the graded scores, in points (× 100)."""

    spearman: float
    pearson: float
    num_pairs: int
    # Of each pair, by the encoder's own measure where it has one, in the order of the file; for paired comparisons.
    cosines: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelScore(Result):
    """How one model scores on one set, without the single similarities."""

    model: str
    runtime: str  # `torch` or `onnx`
    data: str
    split: str
    num_pairs: int
    spearman: float  # as pearson: of cosine similarity and target, in points (× 100)
    pearson: float
    vectors: str  # the precision they were stored in before
    dimensions: int  # what was left of each
    bytes_per_vector: int


def evaluate(encoder: TextEncoder, pairs: Sequence[TextPair]) -> Evaluation:
    """Spearman and Pearson correlation (× 100) between target and cosine, or the encoder's own measure if it has one.

    Each distinct text is encoded once. Raises `DataError` where a correlation is not defined: fewer than three pairs,
    or one value only among targets or cosines, and for a score that is no number; `ModelError` where the encoder does
    not give one vector for each text.
    """
    if pairs and all(pair.first == pair.second for pair in pairs):
        raise DataError(
            "The two texts of every pair are the same.", hint="Check that the columns are those of two texts."
        )
    targets = [pair.target for pair in pairs]
    check_ranks(targets)
    places = PlacedPairs.of(pairs)
    vectors = one_row_each(encoder.encode(places.texts), len(places.texts))
    return correlate(pair_similarities(vectors, places, encoder), targets)


def pair_similarities(vectors: Tensor, places: PlacedPairs, encoder: object = None) -> list[float]:
    """Similarity of each pair by the encoder's own measure where it has one, else the cosine; vectors (n, d)."""
    first, second = vectors[torch.tensor(places.first)].double(), vectors[torch.tensor(places.second)].double()
    found: list[float] = similarities(encoder, first, second).tolist()
    return found


def correlate(cosines: Sequence[float], targets: Sequence[float]) -> Evaluation:
    """The `Evaluation` of given similarities against given targets."""
    cosines = tied(cosines)
    check_ranks(targets)
    if len(set(cosines)) < 2 or not all(map(math.isfinite, cosines)):
        raise DataError(
            "The model gives every pair the same similarity, or one that is not a number.",
            hint="Check the model: its vectors may be constant or hold NaN.",
        )
    return Evaluation(
        spearman=100 * float(rank_correlations(cosines, targets)[0]),
        pearson=100 * float(pearsonr(cosines, targets).statistic),
        num_pairs=len(targets),
        cosines=tuple(cosines),
    )


def spearman(cosines: Sequence[float], targets: Sequence[float]) -> float | None:
    """As `correlate`, None where it is not defined."""
    try:
        return correlate(cosines, targets).spearman
    except DataError:
        return None


def encode_distinct(encoder: TextEncoder, texts: Sequence[str], progress: Progress = silent) -> Tensor:
    """Return the vectors (n, d) in float32 of distinct texts, in their order.

    Raises `DataError` if they are not finite, `ModelError` if there is not one for each text.
    """
    task = f"Encoding {len(texts):,} texts"
    parts: list[Tensor] = []
    for start in range(0, len(texts), _CHUNK):
        chunk = list(texts[start : start + _CHUNK])
        parts.append(one_row_each(encoder.encode(chunk), len(chunk)).float().cpu())
        progress(task, start + len(chunk), len(texts))
    return check_finite_vectors(torch.cat(parts))


def check_finite_vectors(vectors: Tensor) -> Tensor:
    """Return the vectors; raises `DataError` if one holds NaN or infinity."""
    bad = int((~vectors.isfinite().all(dim=1)).sum())
    if bad:
        raise DataError(
            f"The model gives vectors that are not numbers for {bad:,} of {len(vectors):,} texts.",
            hint="Check the model: its weights may hold NaN, or overflow in half precision.",
        )
    return vectors
