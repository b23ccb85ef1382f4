"""Pairs of identical texts are one tie, in torch and as a graph."""

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import stats

from tests.support.pairs import make_pairs
from truncate_kit.analysis.profile import profile
from truncate_kit.analysis.result import AnalysisSettings
from truncate_kit.core.errors import DataError, ModelError
from truncate_kit.core.vectors import VectorFormat
from truncate_kit.data.pairs import PairSet, TextPair, index_texts
from truncate_kit.evaluation.graded import evaluate, pair_similarities, score_pairs, score_sts, spearman
from truncate_kit.models.loading import load_encoder
from truncate_kit.training.examples import PairEvaluator


@pytest.fixture(scope="module")
def pairs():
    """Every other pair has the same text twice, under scores that differ."""
    found = make_pairs(40, seed=6)
    rows = [TextPair(row.first, row.first if place % 2 else row.second, row.target) for place, row in enumerate(found)]
    return dataclasses.replace(found, pairs=tuple(rows))


def tied(encoder, pairs):
    """Return Spearman with a cosine of exactly 1 for equal texts."""
    first, second = (encoder.vectors([getattr(pair, side) for pair in pairs]).double() for side in ("first", "second"))
    cosines = np.array([float(a @ b / (a.norm() * b.norm())) for a, b in zip(first, second, strict=True)])
    cosines[[pair.first == pair.second for pair in pairs]] = 1.0
    return 100 * stats.spearmanr(cosines, [pair.target for pair in pairs]).statistic


def test_every_way_to_a_spearman_counts_identical_texts_as_one_tie(encoder, pairs):
    expected = pytest.approx(tied(encoder, pairs), abs=1e-9)
    assert evaluate(encoder, pairs.pairs).spearman == expected
    assert PairEvaluator(encoder, pairs).score(encoder)[0] == expected
    (sts,) = score_sts(encoder, [pairs], model="bert").rows
    assert sts.values["Spearman"] == expected
    assert profile(encoder, pairs=pairs.pairs, settings=AnalysisSettings(intervals=0)).spearman[-1] == expected
    texts, places = index_texts(pairs.pairs, [*reversed(pairs.texts()), "one more"])
    vectors = encoder.vectors(texts)
    assert spearman(pair_similarities(vectors, places), pairs.scores()) == expected
    assert [texts[place] for place in places[0]] == [pair.first for pair in pairs]
    assert [texts[place] for place in places[1]] == [pair.second for pair in pairs]


def test_a_correlation_that_is_not_defined_is_none():
    assert spearman([0.5, 0.5, 0.5], [1.0, 2.0, 3.0]) is None
    assert spearman([0.1, 0.2, 0.3], [1.0, 1.0, 1.0]) is None
    assert spearman([0.1, 0.2], [1.0, 2.0]) is None
    assert spearman([0.1, 0.2, 0.3], [1.0, 2.0, 3.0]) == pytest.approx(100)


@pytest.mark.parametrize("score", [float("nan"), float("inf")])
def test_a_score_that_is_no_number_is_named_before_anything_is_computed(encoder, pairs, score):
    wrong = [dataclasses.replace(pair, target=score) if place == 3 else pair for place, pair in enumerate(pairs)]
    with pytest.raises(DataError, match=r"pair 4: the score \S+ is not finite"):
        evaluate(encoder, wrong)
    with pytest.raises(DataError, match="pair 4: the score"):
        dataclasses.replace(pairs, pairs=tuple(wrong))
    assert spearman([0.1, 0.2, 0.3], [1.0, 2.0, float("nan")]) is None


@pytest.mark.parametrize("count", [0, 1, 2])
def test_too_few_pairs_are_refused_in_words(tiny_folder, pairs, count):
    with pytest.raises(DataError, match=rf"too few pairs or scores for a correlation: {count} pairs"):
        evaluate(load_encoder(tiny_folder("bert")), pairs.pairs[:count])


@pytest.mark.parametrize("shape", [(79, 4), (81, 4), (80,), (4,)])
def test_an_encoder_gives_one_vector_for_each_text(shape):
    pairs = [TextPair(f"first {number}", f"second {number}", number) for number in range(40)]
    encoder = SimpleNamespace(encode=lambda texts: np.ones(shape))
    sets = [PairSet(name="words", pairs=tuple(pairs), scale=(0, 39))]
    for use in (
        lambda: evaluate(encoder, pairs),
        lambda: score_pairs(encoder, pairs, model="m", data="words", form=VectorFormat()),
        lambda: score_sts(encoder, sets, model="m"),
    ):
        with pytest.raises(ModelError, match=r"`encode` returned the shape \(\d+,( \d+)?\) for 80 texts\."):
            use()
