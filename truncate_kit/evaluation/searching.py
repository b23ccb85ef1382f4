"""Exact search, and the scores of ranked documents."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from truncate_kit.core.errors import UsageError
from truncate_kit.core.progress import Progress, silent
from truncate_kit.core.settings import Bounds, check_number
from truncate_kit.core.vectors import RESAMPLES, TextEncoder, VectorFormat, draws, interval
from truncate_kit.data.retrieval import RetrievalSet, SearchMetric
from truncate_kit.evaluation.graded import MEASURES, encode_distinct, measure_of
from truncate_kit.models.encoder import DOCUMENT_PROMPTS, QUERY_PROMPTS, side_prompt

Places = NDArray[np.int64]  # (queries, top), best first, −1 if there are no more
Array = NDArray[np.float64]
QueryScores = dict[SearchMetric, Array]  # by metric, (queries,)
Reader = Callable[[Sequence[str]], Tensor]  # states of all layers, (L', n, d)
TOP = 10
DOCUMENTS_AT_A_TIME = 4_096  # 160 MB for 13 layers of width 768
# 64 MiB of similarities, and twice that in float64 while they are computed.
QUERY_BLOCK = 512
DOCUMENT_BLOCK = 32_768
_TOP = Bounds(1, 10_000)


def encode_prompted(encoder: TextEncoder, prompt: str | None, texts: Sequence[str], progress: Progress) -> Tensor:
    """Encode each distinct text once with a prompt (None: the model's own)."""
    distinct = list(dict.fromkeys(texts))
    place = {text: index for index, text in enumerate(distinct)}
    return encode_distinct(encoder, distinct, progress, prompt)[[place[text] for text in texts]]


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchVectors:
    """Float32 vectors of queries (q, d) and documents (n, d), and their measure."""

    queries: Tensor
    documents: Tensor
    measure: str

    def stored(self, form: VectorFormat) -> "SearchVectors":
        """Store both sides and read them again; vectors of length 1 keep it with fewer dimensions.

        Raises `UsageError` if the measure needs lengths, which int8, binary and `normalize` lose.
        """
        sides, measure, width = (self.queries, self.documents), self.measure, self.documents.shape[1]
        unit = all(bool((side.norm(dim=1) - 1).abs().max() < 1e-3) for side in sides)
        if unit and form.kept(width) < width:
            form = replace(form, normalize=True)  # as `encode_file` writes them
        scaled = form.precision in ("int8", "binary")
        if measure != "cosine" and (scaled or (form.normalize and not unit)):
            if measure == "manhattan" or not unit:
                cause = form.precision if scaled else "`normalize`"
                raise UsageError(
                    f"This model compares vectors by {measure} and their length, which {cause} does not keep.",
                    hint='Use `precision="float32"` or `precision="float16"`.' if scaled else "Use `normalize=False`.",
                )
            measure = "cosine"
        queries, documents = (form.numbers(form.store(side), width) for side in sides)
        return SearchVectors(queries=queries, documents=documents, measure=measure)


def encode_set(encoder: TextEncoder, data: RetrievalSet, *, progress: Progress = silent) -> SearchVectors:
    """Encode queries and documents with the model's prompt for each side, not its default one.

    Raises `ModelError` for an unknown measure, `DataError` for vectors that are not finite.
    """
    measure = measure_of(encoder)
    asked, searched = side_prompt(encoder, QUERY_PROMPTS), side_prompt(encoder, DOCUMENT_PROMPTS)
    if asked == searched:
        both = encode_prompted(encoder, asked, (*data.queries, *data.documents), progress)
        queries, documents = both[: len(data.queries)], both[len(data.queries) :]
    else:
        queries = encode_prompted(encoder, asked, data.queries, progress)
        documents = encode_prompted(encoder, searched, data.documents, progress)
    return SearchVectors(queries=queries, documents=documents, measure=measure)


def compared(measure: str, queries: Tensor, documents: Tensor) -> Tensor:
    """Compare queries (q, d) and documents (n, d), (q, n), equal for equal documents.

    In float64: the last digit of float32 products depends on a column's position.
    """
    return MEASURES[measure](queries.double(), documents.double()).float()


def search(vectors: SearchVectors, *, top: int, own: Sequence[int | None] | None = None) -> Places:
    """Find the `top` most similar documents of each query, best first, of equal ones the earlier first.

    own: the document that each query is itself, skipped. Raises `UsageError` unless `top` is 1 to 10,000.
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
    return without_own(torch.cat(places), top=top, own=own)


class Nearest:
    """The `top` documents most like each query, and one more, as one may be the query itself."""

    def __init__(self, num_queries: int, top: int) -> None:
        self._count = top + 1
        self._scores = torch.empty(num_queries, 0)
        self.places = torch.empty(num_queries, 0, dtype=torch.long)

    def add(self, scores: Tensor, first: int) -> None:
        """Add the similarities (q, n) of documents from place `first` on."""
        values, indices = _top(scores, min(self._count, scores.shape[1]))
        self._scores, self.places = torch.cat([self._scores, values], 1), torch.cat([self.places, indices + first], 1)
        self._take(self.places.argsort(dim=1))
        self._take(self._scores.argsort(dim=1, descending=True, stable=True)[:, : self._count])

    def _take(self, order: Tensor) -> None:
        self._scores, self.places = self._scores.gather(1, order), self.places.gather(1, order)


def _top(scores: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the `count` largest of each row (q, n), best first, and places; of equal ones the earliest.

    `topk` takes any of these; a full sort is many times slower.
    """
    values, indices = scores.topk(count, dim=1)
    equal = scores == values[:, -1:]
    taken = (values == values[:, -1:]).sum(dim=1)
    rows = (equal.sum(dim=1) > taken).nonzero()[:, 0]
    if len(rows):
        # Counted down: the largest numbers are the earliest places.
        downwards = torch.arange(scores.shape[1], 0, -1, dtype=torch.int32)
        earliest = torch.where(equal[rows], downwards, 0).topk(count, dim=1).indices
        rank = torch.arange(count) - (count - taken[rows, None])  # equal ones stand last
        indices[rows] = torch.where(rank < 0, indices[rows], earliest.gather(1, rank.clamp(min=0)))
    return values, indices


def without_own(places: Tensor, *, top: int, own: Sequence[int | None] | None) -> Places:
    """Return the first `top` places of each row (q, n) but the query's own."""
    others = np.full((len(places), top), -1, np.int64)
    for number, row in enumerate(places.tolist()):
        kept = [place for place in row if own is None or place != own[number]][:top]
        others[number, : len(kept)] = kept
    return others


def score_queries(places: Places, relevance: Sequence[Mapping[int, float]]) -> QueryScores:
    """Score each query at the depth of `places`, in points (× 100); relevance: grades above 0 by place.

    ndcg: `ndcg_cut` of trec_eval, as in BEIR (Järvelin and Kekäläinen 2002): gain = grade, discount log₂(rank + 1).
    mrr: 1 / rank of the first relevant document, else 0. recall: share of the relevant documents.
    """
    top = places.shape[1]
    discounts = 1 / np.log2(np.arange(2, top + 2))
    rows = zip(places.tolist(), relevance, strict=True)
    gains = np.array([[grades.get(place, 0.0) for place in row] for row, grades in rows])
    best = np.zeros_like(gains)
    for row, grades in zip(best, relevance, strict=True):
        ideal = sorted(grades.values(), reverse=True)[:top]
        row[: len(ideal)] = ideal
    hits = gains > 0
    first = np.where(hits.any(axis=1), 1 / (hits.argmax(axis=1) + 1), 0.0)
    return {
        "ndcg": 100 * (gains @ discounts) / (best @ discounts),
        "mrr": 100 * first,
        "recall": 100 * hits.sum(axis=1) / np.array([len(grades) for grades in relevance]),
    }


def overlaps(places: Places, others: Places) -> Array:
    """Return the percentage of each query's other documents that are among `places`."""
    pairs = zip(places.tolist(), ({*row} - {-1} for row in others.tolist()), strict=True)
    return np.array([100 * len({*row} & other) / max(1, len(other)) for row, other in pairs])


def estimated(values: Array, *, seed: int = 0) -> tuple[float, tuple[float, float]]:
    """Return the mean over queries and its 95 % bootstrap percentile interval; differences give a paired one."""
    return float(values.mean()), interval([values[drawn].mean() for drawn in draws(len(values), RESAMPLES, seed)])


def search_layers(data: RetrievalSet, read_queries: Reader, read_documents: Reader) -> list[QueryScores]:
    """Score each layer by cosine at depth `TOP`."""
    queries = read_queries(data.queries)
    nearest = [Nearest(len(data.queries), TOP) for _ in queries]
    for first in range(0, len(data.documents), DOCUMENTS_AT_A_TIME):
        documents = read_documents(data.documents[first : first + DOCUMENTS_AT_A_TIME])
        for layer, best in enumerate(nearest):
            best.add(compared("cosine", queries[layer], documents[layer]), first)
    places = (without_own(best.places, top=TOP, own=data.own_documents) for best in nearest)
    return [score_queries(layer, data.relevance) for layer in places]
