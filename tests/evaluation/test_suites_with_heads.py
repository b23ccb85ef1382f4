"""Suites take the codes and the score of a model with heads."""

import pytest
import torch
from scipy import stats

from tests.support.heads import with_heads
from truncate_kit.data.pairs import TextPair
from truncate_kit.data.suites import StsSet
from truncate_kit.evaluation.graded import score_sts
from truncate_kit.evaluation.transfer import text_features

FIRST = ["the cat sat", "a dog", "the big red dog ran", "not a mat", "the small blue cat and the dog"]
SECOND = ["the cat sat on the mat", "a dog", "a tree", "the big tree", "under the tree"]
SCORES = (4.0, 5.0, 0.0, 1.0, 2.0)


@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_vectors_for_classifiers_are_the_codes(tiny_folder, name):
    encoder = with_heads(tiny_folder(name))
    vectors, states = text_features(encoder, FIRST)
    torch.testing.assert_close(vectors, encoder.vectors(FIRST), atol=1e-6, rtol=1e-5)
    assert states.shape == (4, 5, 16)


def test_similarity_is_the_score_of_the_heads(tiny_folder):
    encoder = with_heads(tiny_folder("bert"))
    pairs = tuple(TextPair(*row) for row in zip(FIRST, SECOND, SCORES, strict=True))
    report = score_sts(encoder, [StsSet(name="STSB", pairs=pairs, published_pairs=5)], model="m")
    scores = encoder.similarities(encoder.vectors(FIRST), encoder.vectors(SECOND))
    assert report.rows[0].values["Pearson"] == pytest.approx(100 * stats.pearsonr(scores, SCORES).statistic, abs=1e-3)
