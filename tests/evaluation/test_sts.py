"""The similarity suite gives published figures, and leaves out what a model has seen."""

import numpy as np
import pytest
import torch
from scipy import stats

from tests.support.heads import with_heads
from tests.support.pairs import make_pairs
from truncate_kit.core.errors import DataError
from truncate_kit.data.pairs import PairSet, TextPair
from truncate_kit.data.seen import text_keys
from truncate_kit.data.suites import find_sts
from truncate_kit.evaluation import SuiteReport
from truncate_kit.evaluation.graded import evaluate, score_sts

# sentence-transformers/all-MiniLM-L6-v2 as MTEB publishes it. The pairs of the other sets are compared in
# tests/data/test_suite_sets.py.
PUBLISHED = {"STSB": 82.03}


class Table:
    """An encoder of given vectors, one per text; it notes what it was asked."""

    def __init__(self, texts):
        drawn = np.random.default_rng(0).normal(size=(len(texts), 5))
        self.vectors = dict(zip(texts, drawn, strict=True))
        self.asked: list[str] = []

    def encode(self, texts):
        self.asked += texts
        return torch.tensor(np.array([self.vectors[text] for text in texts]))


@pytest.fixture
def two_sets():
    texts = [f"text {number}" for number in range(40)]
    pairs = [TextPair(texts[i], texts[(3 * i + 1) % 40], float((7 * i) % 6)) for i in range(40)]
    sets = [
        PairSet(name="STS12", pairs=tuple(pairs[:25]), scale=(0, 5)),
        PairSet(name="STS13", pairs=tuple(pairs[15:]), scale=(0, 5)),
    ]
    return texts, sets


def plain_spearman(encoder, pairs):
    cosines = []
    for pair in pairs:
        u, v = encoder.vectors[pair.first], encoder.vectors[pair.second]
        cosines.append(u @ v / np.sqrt(u @ u * (v @ v)))
    return 100 * stats.spearmanr(cosines, [pair.target for pair in pairs]).statistic


def test_published_figures_of_a_real_model(minilm_vectors, shared_data):
    sets = [one for one in find_sts(shared_data) if one.name in PUBLISHED]
    report = score_sts(minilm_vectors, sets, model="all-MiniLM-L6-v2")
    assert {row.task: row.values["Spearman"] for row in report.rows} == pytest.approx(PUBLISHED, abs=0.02)
    assert "Spearman unseen" not in report.means


def test_each_set_as_a_whole_and_without_what_was_seen(two_sets):
    texts, sets = two_sets
    encoder = Table(texts)
    seen = text_keys((pair.second, pair.first) for pair in sets[0].pairs[:9])
    report = score_sts(encoder, sets, model="table", seen=seen, seen_name="train.csv")
    for row, one, first in zip(report.rows, sets, (9, 0), strict=True):
        assert row.values["Spearman"] == pytest.approx(plain_spearman(encoder, one.pairs))
        assert row.values["unseen pairs"] == len(one.pairs) - first
        assert row.values["Spearman unseen"] == pytest.approx(plain_spearman(encoder, one.pairs[first:]))
    unseen = [row.values["Spearman unseen"] for row in report.rows]
    assert report.means["Spearman"] == pytest.approx(np.mean([plain_spearman(encoder, one.pairs) for one in sets]))
    assert report.means["Spearman unseen"] == pytest.approx(np.mean(unseen))
    assert sorted(encoder.asked) == sorted(texts)  # no text twice, though the sets overlap
    assert SuiteReport.from_dict(report.to_dict()) == report


def test_vectors_that_are_no_numbers_are_an_error(two_sets):
    texts, sets = two_sets
    encoder = Table(texts)
    encoder.vectors["text 3"] = np.full(5, np.nan)
    with pytest.raises(DataError, match="not numbers for 1 of 40 texts"):
        score_sts(encoder, sets, model="table")


def test_empty_sets_are_refused_in_words():
    with pytest.raises(DataError, match="STS12 has too few pairs"):
        score_sts(Table([]), [PairSet(name="STS12", pairs=(), scale=(0, 5))], model="table")


def test_similarity_is_the_score_of_the_heads(tiny_folder):
    encoder, pairs = with_heads(tiny_folder("bert")), make_pairs(20)
    (row,) = score_sts(encoder, [pairs], model="m").rows
    assert row.values["Pearson"] == pytest.approx(evaluate(encoder, pairs.pairs).pearson, abs=1e-3)
