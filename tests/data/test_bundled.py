import csv

import pytest

from truncate_kit.data.pairs import BUNDLED_FOLDER, load_pairs
from truncate_kit.report.view import data_sentences

EDITS = {"paraphrase", "modifier", "party", "verb", "swap", "negation", "topic"}


@pytest.fixture(scope="module")
def bundled():
    return load_pairs("bundled")


@pytest.fixture(scope="module")
def edits() -> dict[str, list[set[str]]]:
    found = {}
    for split in ("train", "dev", "test"):
        with (BUNDLED_FOLDER / f"{split}.csv").open(encoding="utf-8", newline="") as stream:
            found[split] = [set(row["edits"].split("+")) for row in csv.DictReader(stream)]
    return found


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


def test_every_edit_is_there_and_costs_what_the_note_says(bundled, edits):
    for name, split in bundled.items():
        assert set().union(*edits[name]) == EDITS
        assert min(sum(edit in row for row in edits[name]) for edit in EDITS) >= len(split) // 20
        for pair, row in zip(split, edits[name], strict=True):
            if row == {"paraphrase"}:
                assert pair.target == 5, pair
            if row in ({"swap"}, {"negation"}, {"paraphrase", "swap"}, {"paraphrase", "negation"}):
                assert pair.target == 3, pair
            if "negation" in row and "topic" not in row:
                assert pair.target <= 3, pair
