from dataclasses import replace
from pathlib import Path

import pytest

from truncate_kit.core.errors import DataError
from truncate_kit.data.pairs import PairSet, PairSplits, TextPair, complete_splits, load_pairs, read_pairs, split_pairs
from truncate_kit.report.view import data_sentences

PAIRS = PairSet(
    name="mine.csv",
    pairs=tuple(TextPair(f"a{i % 300}", f"b{i % 300}", float(i % 6)) for i in range(400)),  # a hundred pairs twice
    scale=(0, 5),
    scale_source="inferred",
)


def test_split_keeps_every_row_once_in_order_and_no_pair_on_two_sides():
    turned = TextPair("b7", "a7", 2.0)
    splits = split_pairs(replace(PAIRS, pairs=(*PAIRS.pairs, turned)))
    parts = {name: list(split) for name, split in splits.items()}
    assert sorted(str(pair) for part in parts.values() for pair in part) == sorted(map(str, (*PAIRS.pairs, turned)))
    assert {name: len(part) for name, part in parts.items()} == pytest.approx(
        {"train": 321, "dev": 40, "test": 40}, abs=2
    )
    overlap = splits.overlap
    assert overlap.train_test == (0, 0)
    order = {pair: position for position, pair in reversed(list(enumerate(PAIRS.pairs)))}
    firsts = [order[pair] for pair in dict.fromkeys(parts["dev"]) if pair in order]
    assert firsts == sorted(firsts)
    assert all(split.scale == (0, 5) for _, split in splits.items())
    assert data_sentences(splits)[2] == (
        "mine.csv was split into "
        f"train {len(splits.train)}, dev {len(splits.dev)}, test {len(splits.test)} "
        "(80/10/10 %, seed 0); repeated pairs stay together."
    )


def test_split_depends_on_seed_and_content_not_on_row_order():
    def dev_of(pairs: PairSet, seed: int) -> set[TextPair]:
        return set(split_pairs(pairs, seed).dev)

    assert dev_of(PAIRS, 1) == dev_of(replace(PAIRS, pairs=PAIRS.pairs[::-1]), 1)
    assert dev_of(PAIRS, 1) != dev_of(PAIRS, 2)
    assert split_pairs(PAIRS, 1) == split_pairs(PAIRS, 1)


def test_complete_splits_takes_only_what_is_missing():
    test = replace(PAIRS, pairs=PAIRS.pairs[:5])
    splits = complete_splits(PairSplits(name="x", train=PAIRS, test=test), seed=3)
    assert splits.test is test
    assert len(splits.train) + len(splits.dev) == 400
    assert len(splits.dev) == pytest.approx(40, abs=2)
    assert f"train {len(splits.train)}, dev {len(splits.dev)} (90/10 %, seed 3)" in splits.notes[0]
    assert complete_splits(splits) is splits
    whole = complete_splits(PairSplits(name="x", train=PAIRS))
    assert [len(split) for _, split in whole.items()] == pytest.approx([320, 40, 40], abs=2)


def test_what_cannot_be_split():
    few = replace(PAIRS, pairs=PAIRS.pairs[:9])
    with pytest.raises(DataError, match=r"mine\.csv has too few pairs \(9\)"):
        split_pairs(few)
    with pytest.raises(DataError, match="x has no train split, only test"):
        complete_splits(PairSplits(name="x", test=PAIRS))


@pytest.fixture
def named_file(tmp_path):
    """A file of 100 pairs, by the name it is to have."""

    def write(name: str) -> Path:
        lines = [f"a{row},b{row},{row % 6}" for row in range(100)]
        (tmp_path / name).write_text("\n".join(["sentence1,sentence2,score", *lines]), encoding="utf-8")
        return tmp_path / name

    return write


def test_a_single_file_is_divided_as_the_commands_divide_it(named_file):
    file = named_file("one.csv")
    splits = load_pairs(file)
    assert splits == complete_splits(load_pairs(file, divide=False))
    assert [(name, len(pairs)) for name, pairs in splits.items()] == [("train", 80), ("dev", 10), ("test", 10)]
    assert "was split into train " in splits.notes[0]
    assert len(read_pairs(file)) == 100
