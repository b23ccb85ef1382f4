"""Search and its scores against sentence-transformers, a plain search, and published figures."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.evaluation import InformationRetrievalEvaluator

from tests.support.retrieval import retrieval_folder
from truncate_kit.data import read_retrieval
from truncate_kit.errors import ModelError, UsageError
from truncate_kit.evaluation import searching
from truncate_kit.evaluation.retrieval import RetrievalScore, evaluate_retrieval
from truncate_kit.evaluation.searching import MEASURES, SearchVectors, encode_set, search
from truncate_kit.export.exporting import export_onnx
from truncate_kit.export.runtime import OnnxEncoder
from truncate_kit.models import load_encoder
from truncate_kit.report.search_tables import search_sentences, search_table
from truncate_kit.vectors import VectorFormat
from truncate_kit_cli.parameters import in_options


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return read_retrieval(retrieval_folder(tmp_path_factory.mktemp("set") / "tiny"))


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


def binary(data):
    """The same set with every answer graded 1, as that evaluator counts them."""
    return replace(data, relevance=tuple(dict.fromkeys(grades, 1.0) for grades in data.relevance))


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
    folder, data = prompting(**settings), binary(data)
    found = evaluate_retrieval(load_encoder(folder), data, model="tiny")
    expected = by_sentence_transformers(folder, data)
    assert 5 < expected[0] < 60
    assert [found.ndcg.value, found.mrr.value, found.recall.value] == pytest.approx(expected, abs=1e-3)
    assert found.measure == settings.get("similarity_fn_name", "cosine")
    assert found.ndcg.low < found.ndcg.value < found.ndcg.high
    assert RetrievalScore.from_dict(json.loads(found.to_json())) == found


@pytest.mark.parametrize(
    "prompts", [{"passage": "a big "}, {"passage": "a big ", "document": ""}, {"corpus": "a big "}]
)
def test_other_names_of_a_prompt_for_documents(prompting, data, prompts):
    plain = load_encoder(prompting())
    vectors = encode_set(load_encoder(prompting(prompts=prompts | {"all": "not "}, default_prompt_name="all")), data)
    torch.testing.assert_close(vectors.queries, plain.vectors(data.queries))
    torch.testing.assert_close(vectors.documents, plain.vectors([f"a big {text}" for text in data.documents]))


def test_a_graph_searches_alike(prompting, data, tmp_path):
    folder = prompting(prompts=PROMPTS, similarity_fn_name="dot")
    export_onnx(load_encoder(folder), tmp_path / "graph")
    found = evaluate_retrieval(OnnxEncoder.load(tmp_path / "graph"), data, model="tiny", runtime="onnx")
    expected = evaluate_retrieval(load_encoder(folder), data, model="tiny")
    assert (found.measure, found.ndcg.value) == ("dot", pytest.approx(expected.ndcg.value, abs=1e-3))


@pytest.mark.parametrize("measure", MEASURES)
def test_blocks_change_nothing(monkeypatch, measure):
    drawn = torch.Generator().manual_seed(5)
    sides = {name: torch.randn(size, 6, generator=drawn) for name, size in (("queries", 23), ("documents", 70))}
    vectors = SearchVectors(**sides, measure=measure)
    plain = np.argsort(-MEASURES[measure](**sides).numpy(), axis=1, kind="stable")
    np.testing.assert_array_equal(search(vectors, top=10), plain[:, :10])
    monkeypatch.setattr(searching, "QUERY_BLOCK", 4)
    monkeypatch.setattr(searching, "DOCUMENT_BLOCK", 9)
    np.testing.assert_array_equal(search(vectors, top=10), plain[:, :10])
    np.testing.assert_array_equal(search(vectors, top=100)[:, :70], plain)
    assert (search(vectors, top=100)[:, 70:] == -1).all()
    own = [int(row[0]) if place % 2 else None for place, row in enumerate(plain)]
    expected = [row[1:11] if place % 2 else row[:10] for place, row in enumerate(plain)]
    np.testing.assert_array_equal(search(vectors, top=10, own=own), expected)


def test_of_equal_documents_the_earlier_comes_first():
    vectors = SearchVectors(queries=torch.ones(1, 3), documents=torch.ones(4, 3), measure="dot")
    assert search(vectors, top=4).tolist() == [[0, 1, 2, 3]]


@pytest.mark.parametrize("measure", MEASURES)
@pytest.mark.parametrize("number", [40, 301, 4099])
def test_equal_documents_at_the_cut_off_are_taken_in_order(measure, number):
    """Also where the product of matrices is computed otherwise for its last columns."""
    drawn = torch.Generator().manual_seed(2)
    one = torch.randn(1, 100, generator=drawn)
    vectors = SearchVectors(
        queries=torch.randn(3, 100, generator=drawn), documents=one.repeat(number, 1), measure=measure
    )
    assert search(vectors, top=10).tolist() == [list(range(10))] * 3
    own = search(vectors, top=10, own=[0, None, 4]).tolist()
    assert own == [[*range(1, 11)], [*range(10)], [0, 1, 2, 3, *range(5, 11)]]


@pytest.mark.parametrize("precision", ["binary", "int8", "float16", "float32"])
@pytest.mark.parametrize("block", [32_768, 37])
def test_ties_of_stored_vectors_are_broken_by_place(monkeypatch, precision, block):
    """Bits give few values, so most queries have a tie at the cut-off; of the others each document is there twice."""
    monkeypatch.setattr(searching, "DOCUMENT_BLOCK", block)
    drawn = torch.Generator().manual_seed(1)
    documents = torch.randn(150, 12, generator=drawn).repeat(2, 1)
    raw = SearchVectors(queries=torch.randn(7, 12, generator=drawn), documents=documents, measure="cosine")
    vectors = raw.stored(VectorFormat(precision=precision))
    queries, documents = (side.double().numpy() for side in (vectors.queries, vectors.documents))
    lengths = np.outer(np.linalg.norm(queries, axis=1), np.linalg.norm(documents, axis=1))
    cosines = np.round((queries @ documents.T) / lengths, 7)
    for top in (5, 10):
        expected = np.argsort(-cosines, axis=1, kind="stable")[:, :top]
        np.testing.assert_array_equal(search(vectors, top=top), expected)


def test_stored_vectors_keep_directions(prompting, data):
    encoder = load_encoder(prompting())
    plain = evaluate_retrieval(encoder, data, model="tiny")
    small = evaluate_retrieval(encoder, data, model="tiny", form=VectorFormat(precision="int8", dimensions=8))
    assert (small.vectors, small.dimensions, small.bytes_per_vector) == ("int8", 8, 8)
    assert small.ndcg.value != plain.ndcg.value
    lengths = load_encoder(prompting(similarity_fn_name="dot"))
    with pytest.raises(UsageError, match="their length, which int8 does not keep") as refused:
        evaluate_retrieval(lengths, data, model="tiny", form=VectorFormat(precision="int8"))
    assert refused.value.hint == 'Use `precision="float32"` or `precision="float16"`.'  # fields of the form
    assert in_options(refused.value.hint, "evaluate") == "Use --vectors float32 or --vectors float16."
    with pytest.raises(UsageError, match="which `normalize` does not keep") as refused:
        evaluate_retrieval(lengths, data, model="tiny", form=VectorFormat(dimensions=8, normalize=True))
    assert refused.value.hint == "Use `normalize=False`."
    fewer = evaluate_retrieval(lengths, data, model="tiny", form=VectorFormat(dimensions=8))
    assert (fewer.measure, fewer.dimensions) == ("dot", 8)
    lengths.tail.append(UnitLength())
    found = evaluate_retrieval(lengths, data, model="tiny", form=VectorFormat(precision="int8"))
    assert (found.measure, found.ndcg.value) == ("cosine", pytest.approx(plain.ndcg.value, abs=5))


@pytest.mark.parametrize("measure", ["dot", "euclidean", "manhattan", "cosine"])
def test_fewer_dimensions_are_searched_as_they_are_written(prompting, data, measure, tmp_path):
    """A model that gives vectors of length 1 gives them also where they are cut: else some count more than others."""
    encoder = load_encoder(prompting(similarity_fn_name=measure))
    encoder.tail.append(UnitLength())
    form = VectorFormat(dimensions=5)
    found = evaluate_retrieval(encoder, data, model="tiny", form=form)
    assert found.measure == measure
    sides = encode_set(encoder, data)
    cut = [side[:, :5] / side[:, :5].norm(dim=1, keepdim=True) for side in (sides.queries, sides.documents)]
    expected = SearchVectors(queries=cut[0], documents=cut[1], measure=measure)
    stored = sides.stored(form)
    torch.testing.assert_close(stored.documents, expected.documents)
    assert search(stored, top=10).tolist() == search(expected, top=10).tolist()
    if measure in ("dot", "euclidean"):  # of length 1, they order as the cosine does
        by_cosine = evaluate_retrieval(encoder, data, model="tiny", form=replace(form, precision="int8"))
        assert (by_cosine.measure, by_cosine.ndcg.value) == ("cosine", pytest.approx(found.ndcg.value, abs=5))


class UnitLength(torch.nn.Module):
    def forward(self, vectors):
        return torch.nn.functional.normalize(vectors)


def test_few_queries_have_no_interval(tiny_folder, data):
    """Of three queries that all find their answer a bootstrap gives an interval without width."""
    whole = evaluate_retrieval(load_encoder(tiny_folder("bert")), data, model="m")
    for number in (1, 49, 50):
        score = replace(whole, num_queries=number)
        intervals, said = sum(" to " in str(cell) for cell in search_table(score).rows[0]), search_sentences(score)
        assert (intervals, said == []) == ((3, True) if number == 50 else (0, False))
        assert number != 1 or said == ["1 query is too few for an interval."]


def test_what_cannot_be_searched(prompting, data):
    with pytest.raises(ModelError, match="'hamming'"):
        evaluate_retrieval(load_encoder(prompting(similarity_fn_name="hamming")), data, model="tiny")
    for top, said in ((0, "0 is too small"), (10**20, "is too large")):
        with pytest.raises(UsageError, match=said):
            evaluate_retrieval(load_encoder(prompting()), data, model="tiny", top=top)


def test_published_scores_of_minilm(minilm_vectors, shared_data):
    """The figures of ../shared/data/README.md, measured there with sentence-transformers; Cranfield's are in
    benchmarks/lean."""
    data = read_retrieval(shared_data / "retrieval" / "trecqa-test")
    found = evaluate_retrieval(minilm_vectors, data, model="all-MiniLM-L6-v2", runtime="onnx")
    scores = (found.ndcg.value, found.mrr.value, found.recall.value)
    assert scores == pytest.approx((59.99, 59.86, 78.22), abs=0.006)
