"""nDCG@10, MRR@10 and recall@10 of every layer against the model cut there."""

import dataclasses

import pytest

from truncate_kit.analysis.profile import profile
from truncate_kit.analysis.result import AnalysisSettings, LayerProfile
from truncate_kit.core.results import SEARCH_METRICS
from truncate_kit.evaluation import retrieval
from truncate_kit.evaluation.retrieval import evaluate_retrieval
from truncate_kit.models.loading import load_encoder
from truncate_kit.models.truncation import truncate


@pytest.fixture(scope="module")
def some_empty(data):
    return dataclasses.replace(data, documents=("", *data.documents[1:]))  # some sets have empty documents


def at_each_layer(encoder, data, first=0):
    """Score the model cut at each layer."""
    scores = []
    for layer in range(first, encoder.depth + 1):
        cut = truncate(encoder, layer)
        cut.pooling = encoder.pooling
        scores.append(evaluate_retrieval(cut, data, model="cut").means)
    return scores


@pytest.mark.parametrize(
    ("family", "how"),
    [("modernbert", {}), ("bert", {"max_texts": 20}), ("bert", {"streamed": True}), ("bert", {"pooling": "max"})],
    ids=str,
)
def test_it_is_that_of_the_model_cut_there(tiny_folder, some_empty, family, how, monkeypatch):
    monkeypatch.setattr(retrieval, "DOCUMENTS_AT_A_TIME", 17)
    encoder = load_encoder(tiny_folder(family))
    found = profile(encoder, retrieval=some_empty, settings=AnalysisSettings(**how))
    encoder.pooling = how.get("pooling", encoder.pooling)
    expected = at_each_layer(encoder, some_empty, first=1)
    for metric, heading in SEARCH_METRICS.items():
        assert found.searched[metric][1:] == pytest.approx([row[heading] for row in expected], abs=1e-6)
    assert (found.num_queries, found.spearman, found.num_pairs) == (19, None, 0)
    assert found.num_texts == how.get("max_texts", 55 + 19)
    assert LayerProfile.from_dict(found.to_dict()) == found


def test_prompts_stand_before_each_side(encoder, some_empty):
    plain = profile(encoder, retrieval=some_empty).searched["ndcg"]
    encoder.settings |= {"prompts": {"query": "the red ", "passage": "not ", "all": "a"}, "default_prompt_name": "all"}
    found = profile(encoder, retrieval=some_empty).searched["ndcg"]
    assert found == pytest.approx([row["nDCG@10"] for row in at_each_layer(encoder, some_empty)], abs=1e-6)
    assert found != plain
