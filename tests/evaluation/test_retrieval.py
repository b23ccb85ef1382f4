"""Retrieval through FAISS against a plain search, and the rank that counts."""

import os
from dataclasses import replace

import pytest

from truncate_kit.evaluation.retrieval import evaluate_retrieval, score_retrieval
from truncate_kit.models.loading import load_encoder

if os.environ.get("CI") != "true":
    pytest.importorskip("faiss")


def test_exact_search_and_an_index_that_looks_everywhere(encoder, data):
    itself = replace(
        data, queries=(data.documents[3], *data.queries[1:]), query_ids=(data.document_ids[3], *data.query_ids[1:])
    )
    assert itself.own_documents[0] == 3
    for searched in (data, itself):
        report = score_retrieval(encoder, searched, model="drawn", lists=4, probes=10_000)
        expected = evaluate_retrieval(encoder, searched, model="plain").means["MRR@10"]
        assert [mrr(row) for row in report.rows] == pytest.approx([expected, expected], abs=1e-9)
    assert {row.size for row in report.rows} == {(19, len(data.documents))}
    assert "1 list, 1 searched" in report.notes[1]


def mrr(row):
    return row.values["MRR@10 × 100"]


def test_each_side_has_its_prompt(prompting, data):
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
