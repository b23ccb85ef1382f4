"""Queries of a retrieval set judge: nDCG@10 as by a loop, one half to choose by and the other to report."""

import math

import pytest
import torch

from truncate_kit.data import RetrievalSet
from truncate_kit.distillation.judges import halves
from truncate_kit.encoders import load_encoder
from truncate_kit.errors import DataError

WORDS = ["the", "cat", "dog", "sat", "ran", "on", "under", "a", "red", "blue", "big", "small", "tree", "mat", "and"]


def a_set(queries):
    documents = tuple(f"{one} {other}" for one in WORDS for other in WORDS[:4])
    return RetrievalSet(
        name="words",
        document_ids=tuple(f"d{place}" for place in range(len(documents))),
        documents=documents,
        query_ids=tuple(f"q{place}" for place in range(queries)),
        queries=tuple(f"{WORDS[place % 15]} {WORDS[place // 15]} tree" for place in range(queries)),
        relevance=tuple({place: 1.0, place + 3: 2.0} for place in range(queries)),
    )


def ndcg(similarities, grades):
    order = similarities.argsort(descending=True).tolist()[:10]
    gain = sum(grades.get(place, 0) / math.log2(rank + 2) for rank, place in enumerate(order))
    best = sorted(grades.values(), reverse=True)
    return 100 * gain / sum(grade / math.log2(rank + 2) for rank, grade in enumerate(best))


def test_the_halves_are_scored_as_by_a_loop(tiny_folder):
    encoder, data = load_encoder(tiny_folder("bert")), a_set(25)
    choosing, reporting = halves(encoder, data)
    found = {}
    for half in (choosing, reporting):
        texts = half.texts()
        queries = texts[: len(texts) - len(data.documents)]
        places = [encoder.token_ids(data.queries).index(query) for query in queries]
        similarities = (
            torch.nn.functional.normalize(encoder.encode(data.queries))
            @ torch.nn.functional.normalize(encoder.encode(data.documents)).T
        )
        expected = [ndcg(similarities[place], data.relevance[place]) for place in places]
        assert half.score(encoder)[0] == pytest.approx(sum(expected) / len(expected), abs=1e-3)
        found |= dict.fromkeys(places)
    assert len(found) == 25  # each query in one half


def test_lean_queries_may_search_the_full_models_documents(tiny_folder):
    encoder, data = load_encoder(tiny_folder("bert")), a_set(24)
    _, reporting = halves(encoder, data)
    vectors = encoder.encode_ids(reporting.texts())
    other = vectors + 0.3 * torch.randn(vectors.shape, generator=torch.Generator().manual_seed(0))
    own = reporting.query_scores(vectors, vectors).ndcg.mean()
    assert reporting.query_scores(2 * vectors, vectors).ndcg.mean() == pytest.approx(own)
    assert reporting.query_scores(other, vectors).ndcg.mean() != pytest.approx(own)


def test_a_handful_of_queries_is_refused(tiny_folder):
    with pytest.raises(DataError, match="19 judged queries"):
        halves(load_encoder(tiny_folder("bert")), a_set(19))
