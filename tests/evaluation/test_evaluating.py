"""Search and its scores against sentence-transformers, a plain search, and published figures."""

import json
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.evaluation import InformationRetrievalEvaluator

from truncate_kit.core.errors import ModelError, UsageError
from truncate_kit.core.vectors import VectorFormat
from truncate_kit.data.retrieval import read_retrieval
from truncate_kit.evaluation import SuiteReport, retrieval
from truncate_kit.evaluation.graded import MEASURES
from truncate_kit.evaluation.retrieval import evaluate_retrieval, search
from truncate_kit.models.loading import load_encoder


def by_sentence_transformers(folder, data):
    """nDCG@10, MRR@10 and recall@10 × 100."""
    evaluator = InformationRetrievalEvaluator(
        queries=dict(zip(data.query_ids, data.queries, strict=True)),
        corpus=dict(zip(data.document_ids, data.documents, strict=True)),
        relevant_docs={
            query: {data.document_ids[place] for place in grades}
            for query, grades in zip(data.query_ids, data.relevance, strict=True)
        },
        write_csv=False,
    )
    model = SentenceTransformer(str(folder), device="cpu")
    found = evaluator(model)
    kind = model.similarity_fn_name
    return [100 * found[f"{kind}_{score}@10"] for score in ("ndcg", "mrr", "recall")]


PROMPTS = {"query": "the red ", "document": "a tree and ", "other": "not "}


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"prompts": PROMPTS, "default_prompt_name": "other"},
        {"prompts": {"query": "", "document": ""}, "similarity_fn_name": "dot"},
        {"prompts": {"query": "the red "}, "default_prompt_name": "query", "similarity_fn_name": "euclidean"},
        {"similarity_fn_name": "manhattan"},
    ],
)
def test_as_sentence_transformers_searches(prompting, data, settings):
    folder = prompting(**settings)
    data = replace(data, relevance=tuple(dict.fromkeys(grades, 1.0) for grades in data.relevance))  # as the peer counts
    found = evaluate_retrieval(load_encoder(folder), data, model="tiny")
    expected = by_sentence_transformers(folder, data)
    assert 5 < expected[0] < 60
    assert [*found.means.values()] == pytest.approx(expected, abs=1e-3)
    assert f"by {settings.get('similarity_fn_name', 'cosine')}, " in found.title
    assert (found.rows[0].intervals, found.notes) == ({}, ("19 queries: too few for an interval.",))
    assert SuiteReport.from_dict(json.loads(found.to_json())) == found


@pytest.mark.parametrize("measure", MEASURES)
def test_blocks_change_nothing(monkeypatch, measure):
    drawn = torch.Generator().manual_seed(5)
    sides = {name: torch.randn(size, 6, generator=drawn) for name, size in (("queries", 23), ("documents", 70))}
    find = partial(search, **sides, measure=measure)
    plain = np.argsort(-MEASURES[measure](**sides).numpy(), axis=1, kind="stable")
    np.testing.assert_array_equal(find(top=10), plain[:, :10])
    monkeypatch.setattr(retrieval, "QUERY_BLOCK", 4)
    monkeypatch.setattr(retrieval, "DOCUMENT_BLOCK", 9)
    np.testing.assert_array_equal(find(top=10), plain[:, :10])
    np.testing.assert_array_equal(find(top=100)[:, :70], plain)
    assert (find(top=100)[:, 70:] == -1).all()
    own = [int(row[0]) if place % 2 else None for place, row in enumerate(plain)]
    expected = [row[1:11] if place % 2 else row[:10] for place, row in enumerate(plain)]
    np.testing.assert_array_equal(find(top=10, own=own), expected)


@pytest.mark.parametrize("measure", MEASURES)
@pytest.mark.parametrize("number", [40, 301, 4099])
def test_equal_documents_at_the_cut_off_are_taken_in_order(measure, number):
    """Also where the product of matrices is computed otherwise for its last columns."""
    drawn = torch.Generator().manual_seed(2)
    one = torch.randn(1, 100, generator=drawn)
    sides = torch.randn(3, 100, generator=drawn), one.repeat(number, 1)
    assert search(*sides, measure, top=10).tolist() == [list(range(10))] * 3
    own = search(*sides, measure, top=10, own=[0, None, 4]).tolist()
    assert own == [[*range(1, 11)], [*range(10)], [0, 1, 2, 3, *range(5, 11)]]


def test_stored_vectors_keep_directions(prompting, data):
    encoder = load_encoder(prompting())
    plain = evaluate_retrieval(encoder, data, model="tiny")
    small = evaluate_retrieval(encoder, data, model="tiny", form=VectorFormat(precision="int8", dimensions=8))
    assert plain.rows[0].size == small.rows[0].size == (len(data.queries), len(data.documents))
    assert stored_as(small) == ("int8", 8, 8)
    assert small.means["nDCG@10"] != plain.means["nDCG@10"]
    lengths = load_encoder(prompting(similarity_fn_name="dot"))
    for form in (VectorFormat(precision="int8"), VectorFormat(dimensions=8, normalize=True)):
        with pytest.raises(UsageError, match="depends on vector lengths"):
            evaluate_retrieval(lengths, data, model="tiny", form=form)
    fewer = evaluate_retrieval(lengths, data, model="tiny", form=VectorFormat(dimensions=8))
    assert "by dot, " in fewer.title
    assert stored_as(fewer) == ("float32", 8, 32)
    lengths.tail.append(UnitLength())
    found = evaluate_retrieval(lengths, data, model="tiny", form=VectorFormat(precision="int8"))
    assert "by cosine, " in found.title
    assert found.means["nDCG@10"] == pytest.approx(plain.means["nDCG@10"], abs=5)


def stored_as(report):
    (row,) = report.rows
    return row.labels["vectors"], row.values["dimensions"], row.values["bytes per vector"]


class UnitLength(torch.nn.Module):
    def forward(self, vectors):
        return torch.nn.functional.normalize(vectors)


def test_what_cannot_be_searched(prompting, data):
    with pytest.raises(ModelError, match="'hamming'"):
        evaluate_retrieval(load_encoder(prompting(similarity_fn_name="hamming")), data, model="tiny")
    with pytest.raises(UsageError, match="0 is out of range"):
        evaluate_retrieval(load_encoder(prompting()), data, model="tiny", top=0)


def test_published_scores_of_minilm(minilm_vectors, shared_data):
    """The figures of ../shared/data/README.md, measured there with sentence-transformers; Cranfield's are in
    benchmarks/lean."""
    data = read_retrieval(shared_data / "retrieval" / "trecqa-test")
    found = evaluate_retrieval(minilm_vectors, data, model="all-MiniLM-L6-v2")
    assert [*found.means.values()] == pytest.approx([59.99, 59.86, 78.22], abs=0.006)
    (row,) = found.rows
    assert all(low < row.values[metric] < high for metric, (low, high) in row.intervals.items())
    assert len(row.intervals) == 3
