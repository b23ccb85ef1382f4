"""Pairs with classes, and word similarity sets merged; splits drawn anew for every seed."""

import csv

import pytest

from tests.support.files import write_table as write
from truncate_kit.core.errors import DataError
from truncate_kit.data.pairs import complete_splits, load_pairs, splits_for
from truncate_kit.report.view import data_sentences


def nli(folder, train, test):
    header = ("premise", "hypothesis", "label")
    write(folder / "train.csv", header, train)
    write(folder / "test.csv", header, test)
    return folder


def test_classes_are_places_in_the_sorted_names_of_train(tmp_path):
    folder = nli(tmp_path, [("a", "b", "yes"), ("c", "d", "maybe"), ("e", "f", "no")], [("g", "h", "no")])
    splits = load_pairs(folder, classes=True)
    assert splits.train.classes == splits.test.classes == ("maybe", "no", "yes")
    assert splits.train.scores() == [2.0, 0.0, 1.0]
    assert splits.test.scores() == [1.0]
    assert data_sentences(splits)[0].endswith(" Classes: maybe, no, yes.")


@pytest.mark.parametrize(
    ("train", "test", "words"),
    [
        ([("a", "b", "x"), ("c", "d", "y")], [("e", "f", "w")], "'w' does not occur in train"),
        ([("a", "b", "x"), ("c", "d", "x")], [("e", "f", "x")], "1 different classes"),
        ([("a", "b", "x"), ("c", "d", " ")], [("e", "f", "x")], "line 3"),
        ([("a", str(n), f"{n / 100}") for n in range(50)], [("e", "f", "x")], "50 different classes"),
    ],
)
def test_bad_classes_are_named(tmp_path, train, test, words):
    with pytest.raises(DataError, match=words):
        load_pairs(nli(tmp_path, train, test), classes=True)


def test_the_real_entailment_set(shared_data):
    splits = load_pairs(shared_data / "sick", classes=True)
    assert splits.train.classes == ("contradiction", "entailment", "neutral")
    assert [len(pairs) for _, pairs in splits.items()] == [4500, 500, 4927]
    assert load_pairs(shared_data / "sick").train.scale == (1.0, 5.0)  # without classes it is the relatedness score


def test_word_sets_are_merged_to_the_published_count(shared_data):
    """4,562 distinct unordered pairs, RG-65 divided by 4 and the others by 10, as the data's own page counts them."""
    splits = load_pairs(shared_data / "wordsim")
    assert len(splits.train) == 4562
    scores = {frozenset((pair.first, pair.second)): pair.target for pair in splits.train}
    with (shared_data / "wordsim/rg65.csv").open() as handle:
        rg65 = {frozenset((row["word1"], row["word2"])): float(row["score"]) for row in csv.DictReader(handle)}
    with (shared_data / "wordsim/wordsim353_sim.csv").open() as handle:
        wordsim = {frozenset((row["word1"], row["word2"])): float(row["score"]) for row in csv.DictReader(handle)}
    alone = next(key for key in rg65 if key not in wordsim)
    both = next(key for key in rg65 if key in wordsim)
    assert scores[alone] == pytest.approx(rg65[alone] / 4)
    assert scores[both] == pytest.approx((rg65[both] / 4 + wordsim[both] / 10) / 2)
    assert complete_splits(splits) is splits


def test_the_whole_of_wordsim_is_read_where_its_part_is_not(tmp_path):
    columns = ("word1", "word2", "score")
    write(tmp_path / "wordsim353.csv", columns, [("love", "sex", 6.77), ("tiger", "cat", 7.35)])
    whole = load_pairs(tmp_path)
    assert [pair.first for pair in whole.train] == ["love", "tiger"]
    assert [pair.target for pair in whole.train] == pytest.approx([0.677, 0.735])
    write(tmp_path / "wordsim353_sim.csv", columns, [("tiger", "cat", 7.35)])
    part = load_pairs(tmp_path)
    assert [pair.first for pair in part.train] == ["tiger"]


def test_every_seed_draws_its_own_splits(tmp_path):
    rows = [(f"a{n}", f"b{n}", n % 11) for n in range(100)]
    write(tmp_path / "simlex999.csv", ("word1", "word2", "score"), rows)
    splits = load_pairs(tmp_path)
    first, again, other = splits_for(splits, 0), splits_for(splits, 0), splits_for(splits, 1)
    assert [len(pairs) for _, pairs in first.items()] == [70, 15, 15]
    assert first == again
    assert first.test.pairs != other.test.pairs
    everything = {pair for _, pairs in first.items() for pair in pairs}
    assert everything == set(splits.train.pairs)
