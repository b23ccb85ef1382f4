"""Pairs that were learned from, noted beside a result: known again in any order, and by that result alone."""

from dataclasses import replace

import numpy as np
import pytest

from tests.support.pairs import make_pairs
from truncate_kit.data import PairSplits, TextPair
from truncate_kit.data.learned import (
    learned_file,
    note_learned,
    pair_key,
    pair_keys,
    read_learned,
    seen_before,
    without_learned,
)
from truncate_kit.pair_keys import NO_KEYS

PAIRS = make_pairs(30)


def test_a_key_is_of_both_texts_whatever_their_sides_and_score():
    assert pair_key("a b", "c") == pair_key("c", "a b")
    assert len({pair_key(*texts) for texts in (("a b", "c"), ("a", "b c"), ("a", "b"), ("A", "b"), ("a ", "b"))}) == 5
    assert pair_key("\ud800", "a") != pair_key("\ud801", "a")  # halves of characters, which no codec takes
    swapped = [TextPair(pair.second, pair.first, 1.0) for pair in PAIRS]
    assert (pair_keys(swapped) == pair_keys(PAIRS)).all()


def test_what_was_noted_takes_eight_bytes_a_pair_and_comes_back(tmp_path):
    result = tmp_path / "sweep.json"
    assert read_learned(result, "fingerprint 0") is None
    note_learned(result, "fingerprint 0", PAIRS, PAIRS, texts=[frozenset(("x", "y")), frozenset(("x",))])
    found = read_learned(result, "fingerprint 0")
    assert (found == np.unique([*pair_keys(PAIRS), pair_key("x", "y")])).all()
    head, rest = learned_file(result).read_bytes().split(b"\n", 1)
    assert len(rest) == 8 * len(found)
    assert read_learned(result, "fingerprint 1") is None  # of another result
    for damaged in (head + b"\n" + rest[:-8], head + b"\n" + rest[:-3], b"", rest):
        learned_file(result).write_bytes(damaged)
        assert read_learned(result, "fingerprint 0") is None


@pytest.mark.parametrize("split", ["train", "dev", "test"])
def test_what_is_known_is_left_out_of_what_is_measured_on(split):
    others = {} if split == "train" else {"train": PAIRS}
    splits = PairSplits(name="pairs", **{**others, split: PAIRS})
    left, known = without_learned(splits, np.unique(pair_keys(PAIRS.pairs[4:])))
    distinct = {frozenset((pair.first, pair.second)) for pair in PAIRS.pairs[4:]}
    expected = [pair for pair in PAIRS if frozenset((pair.first, pair.second)) not in distinct]
    assert list(left.evaluation) == expected
    assert known == len(PAIRS) - len(expected)
    assert left == replace(splits, **{split: left.evaluation})


def test_what_a_model_had_seen_of_the_pairs_to_measure_on_is_said_of_each_model():
    some, all_of_them = np.unique(pair_keys(PAIRS.pairs[:4])), np.unique(pair_keys(PAIRS))
    said = seen_before(PAIRS, {"lean": some, "other": NO_KEYS, "teacher": all_of_them})
    number = int(np.isin(pair_keys(PAIRS), some).sum())
    rest = "before: the score there may flatter what is made from it."
    assert said == (
        f"lean was trained on or chosen by {number} of 30 pairs of {PAIRS.name} {rest} "
        f"teacher was trained on or chosen by 30 of 30 pairs of {PAIRS.name} {rest}"
    )
    assert seen_before(PAIRS, {"other": NO_KEYS}) == ""
