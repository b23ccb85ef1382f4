"""Queries of a retrieval set evaluate training: nDCG@10 of one half to choose by and of the other to report."""

import dataclasses

import numpy as np
import pytest
import torch

from tests.support.retrieval import judged_set
from truncate_kit.core.errors import DataError
from truncate_kit.core.results import SEARCH_METRICS
from truncate_kit.core.vectors import DRAWS
from truncate_kit.evaluation.retrieval import evaluate_retrieval
from truncate_kit.models.loading import load_encoder
from truncate_kit.training.queries import check_queries, choosing_queries, halves

WORDS = ["the", "cat", "dog", "sat", "ran", "on", "under", "a", "red", "blue", "big", "small", "tree", "mat", "and"]


def a_set(queries):
    documents = [f"{one} {other}" for one in WORDS for other in WORDS[:4]]
    asked = [f"{WORDS[place % 15]} {WORDS[place // 15]} tree" for place in range(queries)]
    return judged_set(documents, asked, ({place: 1.0, place + 3: 2.0} for place in range(queries)))


@pytest.mark.parametrize("metric", ["mrr", "recall"])
def test_another_metric_chooses(tiny_folder, metric):
    encoder, data = load_encoder(tiny_folder("bert")), a_set(25)
    by = dataclasses.replace(data, metric=metric)
    found = [half.score(encoder)[0] for half in halves(encoder, by)]
    counts = [len(half.texts()) - len(data.documents) for half in halves(encoder, data)]
    whole = evaluate_retrieval(encoder, data, model="whole")
    mean = sum(count * score for count, score in zip(counts, found, strict=True)) / sum(counts)
    assert mean == pytest.approx(whole.means[SEARCH_METRICS[metric]], abs=1e-3)
    assert halves(encoder, by)[0].metric == {"mrr": "MRR@10", "recall": "recall@10"}[metric] + " of half the queries"
    assert by.fingerprint() != data.fingerprint()  # so that trials are chosen anew


def test_prompts_and_measure_are_those_of_a_search(tiny_folder):
    """As `evaluate_retrieval` has them: a side without a prompt has none; vectors are compared as the model does."""
    encoder, data = load_encoder(tiny_folder("bert")), a_set(24)
    encoder.settings |= {"prompts": {"query": "the big ", "all": "not "}, "default_prompt_name": "all"}
    encoder.settings["similarity_fn_name"] = "dot"
    encoder.tail.append(torch.nn.Linear(16, 16))  # vectors of unlike lengths
    evaluators = halves(encoder, data)
    halved = sum(evaluator.score(encoder)[0] for evaluator in evaluators) / 2
    assert halved == pytest.approx(evaluate_retrieval(encoder, data, model="tiny").means["nDCG@10"], abs=1e-3)


def test_a_smaller_set_has_queries_with_all_of_their_answers(tiny_folder):
    encoder, data = load_encoder(tiny_folder("bert")), a_set(24)
    whole = halves(encoder, data)[0]
    count = len(whole.texts()) - len(data.documents)
    smaller = whole.fewer(encoder, 30, 4)
    ids = [encoder.reader.shortened(row, 4) for row in whole.texts()]
    assert len(smaller.texts()) == 30
    assert max(map(len, smaller.texts())) == 4
    used = len(smaller._relevance)
    assert 1 < used < count
    assert smaller.texts()[:used] == ids[:used]
    for grades, fewer in zip(whole._relevance, smaller._relevance, strict=False):
        answers = {tuple(ids[count + place]): grade for place, grade in grades.items()}
        assert {tuple(smaller.texts()[used + place]): grade for place, grade in fewer.items()} == answers
    everything = whole.fewer(encoder, 1000, 1000)
    assert everything.texts() == whole.texts()
    assert everything.score(encoder) == whole.score(encoder)


def test_queries_of_one_text_are_all_in_one_half():
    plain = a_set(24)
    twice = judged_set(plain.documents, plain.queries * 2, plain.relevance * 2)
    chose = choosing_queries(twice)
    assert len(chose) == 24
    assert len(set(chose)) == 12
    assert set(choosing_queries(plain)) == set(chose)  # a set without repeats is divided as before
    with pytest.raises(DataError, match="10 judged queries"):
        check_queries(dataclasses.replace(plain, queries=plain.queries[:10] * 2))


def test_resamples_are_means_over_the_drawn_queries(encoder):
    """By the draws of numpy's generator, as layers are compared on the same queries."""
    choosing = halves(encoder, a_set(25))[0]
    vectors = encoder.encode_ids(choosing.texts())
    scores = choosing.scores(vectors, vectors)
    rows = np.random.default_rng(0).integers(0, len(scores), (DRAWS, len(scores)))
    assert choosing.resampled(vectors) == pytest.approx(scores[rows].mean(1), abs=1e-3)
