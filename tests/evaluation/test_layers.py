"""nDCG@10, MRR@10 and recall@10 of every layer against the model cut there."""

import dataclasses

import pytest

from tests.support.retrieval import retrieval_folder
from truncate_kit.analysis.profile import profile
from truncate_kit.analysis.result import AnalysisSettings, LayerProfile
from truncate_kit.data.retrieval import SEARCH_METRICS, read_retrieval
from truncate_kit.evaluation import searching
from truncate_kit.evaluation.retrieval import evaluate_retrieval
from truncate_kit.models.loading import load_encoder
from truncate_kit.models.truncation import truncate


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    found = read_retrieval(retrieval_folder(tmp_path_factory.mktemp("set") / "tiny"))
    return dataclasses.replace(found, documents=("", *found.documents[1:]))  # some sets have empty documents


def at_each_layer(encoder, data):
    found = [evaluate_retrieval(truncate(encoder, layer), data, model="cut") for layer in range(encoder.depth + 1)]
    return pytest.approx([score.means["nDCG@10"] for score in found], abs=1e-6)


@pytest.mark.parametrize(
    "how",
    [{}, {"max_texts": 20}, {"streamed": True}, {"pooling": "max"}],
    ids=["held", "some drawn", "streamed", "another pooling"],
)
@pytest.mark.parametrize("family", ["bert", "modernbert"])
def test_it_is_that_of_the_model_cut_there(tiny_folder, data, family, how, monkeypatch):
    monkeypatch.setattr(searching, "DOCUMENTS_AT_A_TIME", 17)
    encoder = load_encoder(tiny_folder(family))
    found = profile(encoder, retrieval=data, settings=AnalysisSettings(**how))
    encoder.pooling = how.get("pooling", encoder.pooling)
    expected = [evaluate_retrieval(_cut(encoder, layer), data, model="cut") for layer in range(1, encoder.depth + 1)]
    for metric in SEARCH_METRICS:
        values = [score.means[SEARCH_METRICS[metric]] for score in expected]
        assert found.searched[metric][1:] == pytest.approx(values, abs=1e-6)
    assert (found.num_queries, found.spearman, found.num_pairs) == (19, None, 0)
    assert found.num_texts == how.get("max_texts", 55 + 19)
    assert LayerProfile.from_dict(found.to_dict()) == found


def _cut(encoder, layer):
    cut = truncate(encoder, layer)
    cut.pooling = encoder.pooling
    return cut


def test_prompts_stand_before_each_side(tiny_folder, data):
    encoder = load_encoder(tiny_folder("bert"))
    plain = profile(encoder, retrieval=data).searched["ndcg"]
    encoder.settings |= {"prompts": {"query": "the red ", "passage": "not ", "all": "a"}, "default_prompt_name": "all"}
    found = profile(encoder, retrieval=data).searched["ndcg"]
    assert found == at_each_layer(encoder, data)
    assert found != plain
