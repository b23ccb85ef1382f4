"""Exact search: queries and documents as vectors, each with its prompt, and the scores of what is found."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from truncate_kit.core.errors import ModelError, UsageError
from truncate_kit.core.progress import Progress, silent
from truncate_kit.core.settings import Bounds, check_number
from truncate_kit.core.statistics import RESAMPLES, draws, interval
from truncate_kit.core.vectors import VectorFormat
from truncate_kit.data.retrieval import RetrievalSet, SearchMetric
from truncate_kit.evaluation.graded import encode_distinct
from truncate_kit.evaluation.suite import TextEncoder
from truncate_kit.models.encoder import Encoder
from truncate_kit.models.pipeline import Normalize

Found = NDArray[np.int64]
"""Places of the documents found, best first, −1 where there are no more: (queries, top)."""
Array = NDArray[np.float64]
QueryScores = dict[SearchMetric, Array]
"""By metric the score of each query, (queries,)."""
TOP = 10
DOCUMENTS_AT_A_TIME = 4_096
"""Documents whose states of all layers are held at a time: of 13 layers of width 768, 160 MB."""

Reader = Callable[[Sequence[str]], Tensor]
"""Texts to the states of all layers, (L', n, d)."""

QUERY_PROMPTS = ("query",)
DOCUMENT_PROMPTS = ("document", "passage", "corpus")
"""Names of a model's prompts for each side, as in sentence-transformers.

That takes the first one that is there, also where it is empty, and writes an empty "document" into every folder that it
saves; here empty ones are passed over, so that a model with a prompt for passages gets it.
"""


def prompted_ids(encoder: Encoder, texts: Sequence[str], prompt: str | None) -> list[list[int]]:
    """Return token ids of the texts after this prompt, None for the model's default one."""
    if prompt is None:
        return encoder.token_ids(texts)
    return encoder.token_ids([prompt + text for text in texts], prompt=False)


def encode_prompted(encoder: TextEncoder, prompt: str | None, texts: Sequence[str], progress: Progress) -> Tensor:
    """Encode the texts after this prompt, None for the model's default one; each distinct text once."""
    distinct = list(dict.fromkeys(texts))
    place = {text: index for index, text in enumerate(distinct)}
    return encode_distinct(encoder, distinct, progress, prompt)[[place[text] for text in texts]]


def encode_sides(
    encoder: TextEncoder, queries: Sequence[str], documents: Sequence[str], progress: Progress
) -> tuple[Tensor, Tensor]:
    """Encode queries and documents, each after the model's prompt for its side; each text is encoded once."""
    asked, searched = (side_prompt(encoder, names) for names in (QUERY_PROMPTS, DOCUMENT_PROMPTS))
    if asked == searched:
        both = encode_prompted(encoder, asked, (*queries, *documents), progress)
        return both[: len(queries)], both[len(queries) :]
    return encode_prompted(encoder, asked, queries, progress), encode_prompted(encoder, searched, documents, progress)


def side_prompt(encoder: TextEncoder, names: Sequence[str]) -> str | None:
    """Return the first prompt of these names that is not empty, else ""; None for a model without prompts."""
    prompts = settings_of(encoder).get("prompts") or {}
    return next((prompts[name] for name in names if prompts.get(name)), "") if prompts else None


def settings_of(encoder: TextEncoder) -> Mapping[str, Any]:
    """Return the sentence-transformers settings of an encoder, in torch or as a graph; none of anything else."""
    settings: Mapping[str, Any] = getattr(getattr(encoder, "reader", None), "settings", {})
    return settings


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
        """Return d."""
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
    """Encode queries and documents with the model's prompt for each side; each distinct text once.

    A side without a prompt has none, not the model's default one, as in sentence-transformers. Raises `ModelError` for
    a measure that is not known, `DataError` where vectors are no numbers.
    """
    measure = measure_of(encoder)
    queries, documents = encode_sides(encoder, data.queries, data.documents, progress)
    return SearchVectors(queries=queries, documents=documents, measure=measure)


def measure_of(encoder: TextEncoder) -> str:
    """Return the name in `MEASURES` of how the model's settings compare vectors. Raises `ModelError`."""
    measure: str = settings_of(encoder).get("similarity_fn_name") or "cosine"
    if measure not in MEASURES:
        raise ModelError(
            f"The model's settings compare vectors by {measure!r}.", hint=f"Known measures: {', '.join(MEASURES)}."
        )
    return measure


def measure_of_lengths(encoder: Encoder) -> str:
    """Return `measure_of`, but cosine for a model whose vectors all have length 1."""
    normalized = any(isinstance(module, Normalize) for module in encoder.tail)
    return "cosine" if normalized else measure_of(encoder)


def compared(measure: str, queries: Tensor, documents: Tensor) -> Tensor:
    """Compare queries (q, d) and documents (n, d) by a measure of `MEASURES`, (q, n), equal for equal documents.

    Products of matrices in float32 differ in the last digit by where a column stands, so they are taken in float64.
    """
    return MEASURES[measure](queries.double(), documents.double()).float()


def search(vectors: SearchVectors, *, top: int, own: Sequence[int | None] | None = None) -> Found:
    """Find the `top` documents most like each query, best first; of equally like ones, the earlier first.

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
        """Take the similarities of the documents from place `first` on, (q, n)."""
        values, indices = _top(scores, min(self._count, scores.shape[1]))
        self._scores, self.places = torch.cat([self._scores, values], 1), torch.cat([self.places, indices + first], 1)
        self._take(self.places.argsort(dim=1))
        self._take(self._scores.argsort(dim=1, descending=True, stable=True)[:, : self._count])

    def _take(self, order: Tensor) -> None:
        self._scores, self.places = self._scores.gather(1, order), self.places.gather(1, order)


def _top(scores: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the `count` largest of each row (q, n), best first, and their places; of equal ones the earliest.

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
    """Return the first `top` places of each row (q, n) but the query's own; see `search`."""
    found = np.full((len(places), top), -1, np.int64)
    for number, row in enumerate(places.tolist()):
        kept = [place for place in row if own is None or place != own[number]][:top]
        found[number, : len(kept)] = kept
    return found


def score_queries(found: Found, relevance: Sequence[Mapping[int, float]]) -> QueryScores:
    """Score each query at the depth of `found`, in points (× 100), over the documents found for it.

    ndcg: with the grade as the gain, discounted by log₂(rank + 1), over the best order there is: the measure `ndcg_cut`
    of trec_eval, which BEIR reports (Järvelin and Kekäläinen 2002; the form with 2^grade − 1 is another one).
    mrr: 1 / rank of the first document that answers, 0 where none was found. recall: share of the documents that
    answer.

    Args:
        found: At whose depth scores are.
        relevance: Grades above 0 by place, none empty, as in `RetrievalSet`.
    """
    top = found.shape[1]
    discounts = 1 / np.log2(np.arange(2, top + 2))
    gains = np.array(
        [[grades.get(place, 0.0) for place in row] for row, grades in zip(found.tolist(), relevance, strict=True)]
    )
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


def overlaps(found: Found, others: Found) -> Array:
    """Return the share of the documents found for each query that are also among the others found for it, in points."""
    pairs = zip(found.tolist(), others.tolist(), strict=True)
    shared = [(len({*row} & {*other} - {-1}), len({*other} - {-1})) for row, other in pairs]
    return np.array([100 * both / max(1, wanted) for both, wanted in shared])


def estimated(values: Array, *, seed: int = 0) -> tuple[float, tuple[float, float]]:
    """Return the mean over the queries and its 95 % percentile interval of a bootstrap over queries.

    Differences between two models on the same queries give the paired bootstrap.
    """
    return float(values.mean()), interval([values[drawn].mean() for drawn in draws(len(values), RESAMPLES, seed)])


def search_layers(data: RetrievalSet, read_queries: Reader, read_documents: Reader) -> list[QueryScores]:
    """Score each layer at depth `TOP`: its states compared by cosine."""
    queries = read_queries(data.queries)
    nearest = [Nearest(len(data.queries), TOP) for _ in queries]
    for first in range(0, len(data.documents), DOCUMENTS_AT_A_TIME):
        documents = read_documents(data.documents[first : first + DOCUMENTS_AT_A_TIME])
        for layer, best in enumerate(nearest):
            best.add(compared("cosine", queries[layer], documents[layer]), first)
    found = [found_places(best.places, top=TOP, own=data.own_documents) for best in nearest]
    return [score_queries(places, data.relevance) for places in found]
