import pytest

from truncate_kit.data.pairs import load_pairs
from truncate_kit.report.view import data_sentences


@pytest.fixture(scope="module")
def bundled():
    return load_pairs("bundled")


def test_sizes_and_scale(bundled):
    assert [(name, len(split)) for name, split in bundled.items()] == [("train", 2500), ("dev", 500), ("test", 500)]
    assert data_sentences(bundled)[1] == "Scores run from 0 to 5 (known for this set)."


def test_no_sentence_occurs_twice(bundled):
    texts = [text for _, split in bundled.items() for pair in split for text in (pair.first, pair.second)]
    assert len(texts) == len(set(texts)) == 2 * 3500
    assert bundled.overlap.test_sentences_in_train == 0
    assert len(data_sentences(bundled)) == 2


def test_scores_are_graded_and_spread_evenly(bundled):
    for _, split in bundled.items():
        bands = [min(int(2 * score), 9) for score in split.scores()]
        assert {bands.count(band) for band in range(10)} == {len(split) // 10}
        assert len(set(split.scores())) > 35
