"""Scores of sentence vectors on graded pairs."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from scipy.stats import pearsonr
from torch import Tensor

from truncate_kit.data import PlacedPairs, TextPair
from truncate_kit.data.types import check_scores
from truncate_kit.errors import DataError, UsageError
from truncate_kit.results import Result
from truncate_kit.statistics import rank_correlations, tied
from truncate_kit.vectors import Rows, one_row_each, similarities
from truncate_kit.wording import counted


class TextEncoder(Protocol):
    """Anything that turns texts into vectors: an `Encoder`, an ONNX session, a peer's model."""

    def encode(self, texts: Sequence[str]) -> Rows:
        """Vectors (n, d) in the order of the texts, as an array or a tensor."""


def check_text_encoder(encoder: object, name: str = "encoder") -> None:
    """Raise `UsageError` where this cannot encode texts, as a path cannot.

    Args:
        encoder: What has to encode texts.
        name: Of the parameter.
    """
    if isinstance(encoder, (str, bytes)) or not callable(getattr(encoder, "encode", None)):
        raise UsageError(
            f"A model that can `encode` is needed as `{name}`, not an object of the type {type(encoder).__name__}.",
            hint="load_encoder(path) gives one, by its folder or name.",
        )


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
    or one value only among targets or cosines, and for a score that is no number; `UsageError` for what are no pairs or
    cannot encode; `ModelError` where the encoder does not give one vector for each text.
    """
    check_text_encoder(encoder)
    if pairs and all(pair.first == pair.second for pair in pairs):
        raise DataError(
            "The two texts of every pair are the same.", hint="Check that the columns are those of two texts."
        )
    targets = [pair.target for pair in pairs]
    require_ranks(targets)
    places = PlacedPairs.of(pairs)
    vectors = one_row_each(encoder.encode(places.texts), len(places.texts))
    return correlate(pair_similarities(vectors, places, encoder), targets)


def pair_similarities(vectors: Tensor, places: PlacedPairs, encoder: object = None) -> list[float]:
    """Similarity of each pair by the encoder's own measure where it has one, else the cosine; vectors (n, d)."""
    first, second = vectors[torch.tensor(places.first)].double(), vectors[torch.tensor(places.second)].double()
    found: list[float] = similarities(encoder, first, second).tolist()
    return found


def require_ranks(targets: Sequence[float]) -> None:
    """Raise `DataError` for scores that nothing can be correlated with."""
    check_scores(targets)
    different = len(set(targets))
    if len(targets) < 3 or different < 2:
        found = counted(len(targets), "pair") + (f", all of the score {targets[0]:g}" if different == 1 else "")
        raise DataError(
            f"A correlation needs at least three pairs with two different scores; here: {found}.",
            hint="Use a larger set, or check that the score column is the right one.",
        )


def correlate(cosines: Sequence[float], targets: Sequence[float]) -> Evaluation:
    """The `Evaluation` of given similarities against given targets."""
    cosines = tied(cosines)
    require_ranks(targets)
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
