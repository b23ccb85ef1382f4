"""How well the states of every layer find the documents that answer queries, before any training."""

from collections.abc import Callable, Sequence

from torch import Tensor

from truncate_kit.data import RetrievalSet
from truncate_kit.evaluation.evaluating import TOP
from truncate_kit.evaluation.scores import QueryScores, score_queries
from truncate_kit.evaluation.searching import Nearest, compared, found_places

DOCUMENTS_AT_A_TIME = 4_096
"""Documents whose states of all layers are held at a time: of 13 layers of width 768, 160 MB."""

Reader = Callable[[Sequence[str]], Tensor]
"""Texts to the states of all layers, (L', n, d)."""


def search_layers(data: RetrievalSet, read_queries: Reader, read_documents: Reader) -> list[QueryScores]:
    """The scores of each layer at depth `TOP`: its states compared by cosine."""
    queries = read_queries(data.queries)
    nearest = [Nearest(len(data.queries), TOP) for _ in queries]
    for first in range(0, len(data.documents), DOCUMENTS_AT_A_TIME):
        documents = read_documents(data.documents[first : first + DOCUMENTS_AT_A_TIME])
        for layer, best in enumerate(nearest):
            best.add(compared("cosine", queries[layer], documents[layer]), first)
    found = [found_places(best.places, top=TOP, own=data.own_documents) for best in nearest]
    return [score_queries(places, data.relevance) for places in found]
