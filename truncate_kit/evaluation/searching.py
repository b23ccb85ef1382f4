"""Queries and documents as vectors, each with its prompt, and exact search in blocks."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from truncate_kit.data import RetrievalSet
from truncate_kit.errors import ModelError, UsageError
from truncate_kit.evaluation.graded import TextEncoder, check_text_encoder
from truncate_kit.evaluation.prompts import encode_sides, settings_of
from truncate_kit.evaluation.scores import Found
from truncate_kit.models import Encoder
from truncate_kit.models.tail import Normalize
from truncate_kit.progress import Progress, silent
from truncate_kit.settings import Bounds, check_number
from truncate_kit.vectors import VectorFormat

MEASURES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "cosine": lambda queries, documents: _unit(queries) @ _unit(documents).T,
    "dot": lambda queries, documents: queries @ documents.T,
    "euclidean": lambda queries, documents: -torch.cdist(queries, documents),
    "manhattan": lambda queries, documents: -torch.cdist(queries, documents, p=1),
}
"""How alike queries (q, d) and documents (n, d) are, (q, n), by the name that a model's settings have for it."""

_TOP = Bounds(1, 10_000)
QUERY_BLOCK = 512
DOCUMENT_BLOCK = 32_768
"""Compared at a time: 64 MiB of similarities, and twice as much in float64 while they are computed."""


def _unit(vectors: Tensor) -> Tensor:
    return torch.nn.functional.normalize(vectors)


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchVectors:
    """Vectors of both sides of a set, float32: queries (q, d) and documents (n, d), and how they are compared."""

    queries: Tensor
    documents: Tensor
    measure: str

    @property
    def width(self) -> int:
        """d."""
        return int(self.documents.shape[1])

    def stored(self, form: VectorFormat) -> "SearchVectors":
        """Both sides stored in that form and read again; vectors of length 1 have it also with fewer dimensions.

        Raises `UsageError` where the measure depends on lengths, which 8 bits, bits and `normalize` do not keep.
        """
        measure, unit = self.measure, self._of_length_1()
        if unit and form.kept(self.width) < self.width:
            form = replace(form, normalize=True)  # as `encode_file` is asked to write those of such a model
        scaled = form.precision in ("int8", "binary")
        if measure != "cosine" and (scaled or (form.normalize and not unit)):
            if measure == "manhattan" or not unit:
                cause = form.precision if scaled else "`normalize`"
                raise UsageError(
                    f"This model compares vectors by {measure} and their length, which {cause} does not keep.",
                    hint='Use `precision="float32"` or `precision="float16"`.' if scaled else "Use `normalize=False`.",
                )
            measure = "cosine"
        queries, documents = (form.numbers(form.store(side), self.width) for side in (self.queries, self.documents))
        return SearchVectors(queries=queries, documents=documents, measure=measure)

    def _of_length_1(self) -> bool:
        return all(bool((side.norm(dim=1) - 1).abs().max() < 1e-3) for side in (self.queries, self.documents))


def encode_set(encoder: TextEncoder, data: RetrievalSet, *, progress: Progress = silent) -> SearchVectors:
    """Vectors of queries and documents with the model's prompt for each side; each distinct text is encoded once.

    A side without a prompt has none, not the model's default one, as in sentence-transformers. Raises `ModelError` for
    a measure that is not known, `DataError` where vectors are no numbers, `UsageError` for what cannot encode.
    """
    check_text_encoder(encoder)
    measure = measure_of(encoder)
    queries, documents = encode_sides(encoder, data.queries, data.documents, progress)
    return SearchVectors(queries=queries, documents=documents, measure=measure)


def measure_of(encoder: TextEncoder) -> str:
    """How the model's settings compare vectors, a name in `MEASURES`. Raises `ModelError` for one that is not known."""
    measure: str = settings_of(encoder).get("similarity_fn_name") or "cosine"
    if measure not in MEASURES:
        raise ModelError(
            f"The model's settings compare vectors by {measure!r}.", hint=f"Known measures: {', '.join(MEASURES)}."
        )
    return measure


def measure_of_lengths(encoder: Encoder) -> str:
    """The same, but cosine for a model whose vectors all have length 1: their directions are all it compares."""
    normalized = any(isinstance(module, Normalize) for module in encoder.tail)
    return "cosine" if normalized else measure_of(encoder)


def compared(measure: str, queries: Tensor, documents: Tensor) -> Tensor:
    """How alike queries (q, d) and documents (n, d) are by a measure of `MEASURES`, (q, n), equal for equal documents.

    Products of matrices in float32 differ in the last digit by where a column stands, so they are taken in float64.
    """
    return MEASURES[measure](queries.double(), documents.double()).float()


def search(vectors: SearchVectors, *, top: int, own: Sequence[int | None] | None = None) -> Found:
    """The places of the `top` documents most like each query, best first; of equally like ones, the earlier first.

    Args:
        vectors: Of documents and queries.
        top: Number of documents for each query.
        own: The document that each query itself is, which it does not find; None, as a whole or of a query: there is
            none.

    Raises:
        UsageError: Less than one document, or more than 10,000.
    """
    top = check_number("top", top, _TOP)
    places = []
    for start in range(0, len(vectors.queries), QUERY_BLOCK):
        queries = vectors.queries[start : start + QUERY_BLOCK]
        nearest = Nearest(len(queries), top)
        for first in range(0, len(vectors.documents), DOCUMENT_BLOCK):
            some = vectors.documents[first : first + DOCUMENT_BLOCK]
            nearest.add(compared(vectors.measure, queries, some), first)
        places.append(nearest.places)
    return found_places(torch.cat(places), top=top, own=own)


class Nearest:
    """The documents most like each of a number of queries: `top` and one more, as one may be the query itself."""

    def __init__(self, num_queries: int, top: int) -> None:
        self._count = top + 1
        self._scores = torch.empty(num_queries, 0)
        self.places = torch.empty(num_queries, 0, dtype=torch.long)  # best first, of equal ones the earlier

    def add(self, scores: Tensor, first: int) -> None:
        """How alike the documents from place `first` on are, (q, n)."""
        values, indices = _top(scores, min(self._count, scores.shape[1]))
        self._scores, self.places = torch.cat([self._scores, values], 1), torch.cat([self.places, indices + first], 1)
        self._take(self.places.argsort(dim=1))
        self._take(self._scores.argsort(dim=1, descending=True, stable=True)[:, : self._count])

    def _take(self, order: Tensor) -> None:
        self._scores, self.places = self._scores.gather(1, order), self.places.gather(1, order)


def _top(scores: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` largest of each row (q, n), best first, and their places; of those equal to the last, the earliest.

    `topk` takes any of these. A sort of all would be right and many times slower.
    """
    values, indices = scores.topk(count, dim=1)
    equal = scores == values[:, -1:]
    taken = (values == values[:, -1:]).sum(dim=1)
    rows = (equal.sum(dim=1) > taken).nonzero()[:, 0]
    if len(rows):
        # Places counted down, so that the largest of these numbers are the earliest places.
        downwards = torch.arange(scores.shape[1], 0, -1, dtype=torch.int32)
        earliest = torch.where(equal[rows], downwards, 0).topk(count, dim=1).indices
        rank = torch.arange(count) - (count - taken[rows, None])  # among the equal ones, which stand last
        indices[rows] = torch.where(rank < 0, indices[rows], earliest.gather(1, rank.clamp(min=0)))
    return values, indices


def found_places(places: Tensor, *, top: int, own: Sequence[int | None] | None) -> Found:
    """The first `top` places of each row (q, n) but the query's own; see `search`."""
    found = np.full((len(places), top), -1, np.int64)
    for number, row in enumerate(places.tolist()):
        kept = [place for place in row if own is None or place != own[number]][:top]
        found[number, : len(kept)] = kept
    return found
