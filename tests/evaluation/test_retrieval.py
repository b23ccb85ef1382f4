"""Retrieval through FAISS against a plain search, and the rank that counts."""

import os
from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.support.retrieval import retrieval_folder
from truncate_kit.data.retrieval import RetrievalSet, read_retrieval
from truncate_kit.evaluation.retrieval import fitting_lists, score_retrieval
from truncate_kit.models.loading import load_encoder

if os.environ.get("CI") != "true":
    pytest.importorskip("faiss")


class Drawn:
    """An encoder of given vectors, one per text."""

    def __init__(self, vectors):
        self.vectors = vectors

    def encode(self, texts):
        return torch.tensor(np.array([self.vectors[text] for text in texts]), dtype=torch.float32)


@pytest.fixture(scope="module")
def searched():
    """900 texts; each of 90 queries lies near its one or two answers, and the first 30 are themselves texts."""
    drawn = np.random.default_rng(0)
    texts = [f"text {number}" for number in range(900)]
    vectors = {text: drawn.normal(size=12) for text in texts}
    queries, relevant = [], []
    for number in range(90):
        query = f"text {number}" if number < 30 else f"query {number}"
        answers = {300 + 5 * number, *([301 + 5 * number] if number % 2 else [])}
        if number >= 30:
            vectors[query] = vectors[f"text {min(answers)}"] + drawn.normal(size=12) * 0.8
        queries.append(query)
        relevant.append(frozenset(answers))
    data = RetrievalSet(
        name="set",
        document_ids=tuple(texts),
        documents=tuple(texts),
        query_ids=tuple(queries),
        queries=tuple(queries),
        relevance=tuple(dict.fromkeys(answers, 1.0) for answers in relevant),
    )
    return data, Drawn(vectors)


def plain_mrr(data, vectors):
    """Cosines of every text, sorted; a query does not find itself."""
    total = 0.0
    for query, answers in zip(data.queries, data.relevance, strict=True):
        q = vectors[query] / np.linalg.norm(vectors[query])
        cosines = [
            (-(q @ vectors[text]) / np.linalg.norm(vectors[text]), text) for text in data.documents if text != query
        ]
        best = [text for _, text in sorted(cosines)[:10]]
        ranks = [best.index(data.documents[answer]) + 1 for answer in answers if data.documents[answer] in best]
        total += 1 / min(ranks) if ranks else 0
    return 100 * total / len(data.queries)


def test_exact_search_and_an_index_that_looks_everywhere(searched):
    data, encoder = searched
    report = score_retrieval(encoder, data, model="drawn", probes=10_000)
    expected = plain_mrr(data, encoder.vectors)
    assert 20 < expected < 90
    assert [mrr(row) for row in report.rows] == pytest.approx([expected, expected], abs=1e-9)
    assert {row.size for row in report.rows} == {(90, 900)}
    assert f"{900 // 39} lists, {900 // 39} searched" in report.notes[1]


def mrr(row):
    return row.values["MRR@10 × 100"]


def test_each_side_has_its_prompt(prompting, tmp_path):
    data = read_retrieval(retrieval_folder(tmp_path / "set"))
    prompts = {"query": "the red ", "passage": "not "}

    def exact(encoder, data):
        return mrr(score_retrieval(encoder, data, model="tiny", lists=1, probes=1).rows[1])

    found = exact(load_encoder(prompting(prompts=prompts)), data)
    encoder = load_encoder(prompting(prompts={}))
    queries, documents = ([prompts[side] + text for text in texts] for side, texts in
                          (("query", data.queries), ("passage", data.documents)))  # fmt: skip
    by_hand = replace(data, queries=tuple(queries), documents=tuple(documents))
    assert found == pytest.approx(exact(encoder, by_hand))
    assert found != exact(encoder, data)


def test_as_many_lists_as_the_texts_can_place():
    assert fitting_lists(144_546) == 1024
    assert fitting_lists(39 * 1024) == 1024
    assert fitting_lists(39 * 1024 - 1) == 1023
    assert fitting_lists(5) == 1
