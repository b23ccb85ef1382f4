from dataclasses import replace

import pytest

from tests.support.files import write_table
from truncate_kit.core.errors import DataError
from truncate_kit.data.pairs import PairSet, PairSplits, TextPair, complete_splits, load_pairs, read_pairs, split_pairs
from truncate_kit.data.retrieval import read_retrieval
from truncate_kit.data.seen import pair_key
from truncate_kit.data.suites import find_sts, read_trained_pairs
from truncate_kit.data.triplets import load_triplets
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
    assert [len(parts[name]) for name in ("train", "dev", "test")] == pytest.approx([321, 40, 40], abs=2)
    assert splits.overlap.train_test == (0, 0)
    order = {pair: position for position, pair in reversed(list(enumerate(PAIRS.pairs)))}
    firsts = [order[pair] for pair in dict.fromkeys(parts["dev"]) if pair in order]
    assert firsts == sorted(firsts)
    assert all(split.scale == (0, 5) for _, split in splits.items())
    sizes = f"train {len(splits.train)}, dev {len(splits.dev)}, test {len(splits.test)} (80/10/10 %, seed 0)"
    assert sizes in data_sentences(splits)[1]


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
def file(tmp_path):
    """A file of 100 pairs."""
    rows = [(f"a{row}", f"b{row}", row % 6) for row in range(100)]
    return write_table(tmp_path / "one.csv", ("sentence1", "sentence2", "score"), rows)


def test_a_single_file_is_divided_as_the_commands_divide_it(file):
    splits = load_pairs(file)
    assert splits == complete_splits(load_pairs(file, divide=False))
    assert [(name, len(pairs)) for name, pairs in splits.items()] == [("train", 80), ("dev", 10), ("test", 10)]
    assert "was split into train " in splits.notes[0]
    assert len(read_pairs(file)) == 100


STSB_COLUMNS = ("split", "genre", "dataset", "year", "sid", "score", "sentence1", "sentence2")


SPLITS = "split train dev test|SemEval_set TRAIN TRIAL TEST|fold training validation testing|split_name Train Val Test"


@pytest.mark.parametrize("words", [*SPLITS.split("|"), "phase train validation_matched eval"])
def test_a_column_of_splits_divides_a_file_as_published(tmp_path, words):
    """A split drawn at random puts published test rows into train."""
    column, *names = words.split()
    columns = tuple(column if name == "split" else name for name in STSB_COLUMNS)
    rows = [(names[n % 3], "news", "headlines", 2016, n, n % 6, f"first {n}", f"second {n}") for n in range(60)]
    file = write_table(tmp_path / "stsbenchmark.tsv", columns, rows)
    for splits in (load_pairs(file), load_pairs(file, divide=False)):
        wanted = [[row[6] for row in rows if row[0] == name] for name in names]
        assert [[pair.first for pair in splits.split(part)] for part in ("train", "dev", "test")] == wanted
        assert splits.notes == ()
        assert not splits.one_file
        assert splits.split("test") is splits.evaluation is splits.test
    assert load_triplets(file, columns=("sentence1", "sentence2")).rows == tuple(row[6:] for row in rows[::3])
    (found,) = find_sts(tmp_path)
    assert [pair.first for pair in found] == [row[6] for row in rows[2::3]]
    assert len(find_sts(tmp_path, joined=True)[0]) == 60
    assert {*read_trained_pairs(file).tolist()} == {pair_key(*row[6:]) for row in rows if row[0] != names[2]}
    answers = write_table(tmp_path / "q.csv", (column, "query", "relevant"), [(row[0], *row[6:]) for row in rows])
    assert read_retrieval(answers).queries == tuple(row[6] for row in rows[2::3])
    chosen = read_retrieval(answers, chooses=True)
    assert (chosen.queries, chosen.other_queries) == tuple(tuple(row[6] for row in rows[place::3]) for place in (1, 2))


def test_a_column_that_only_looks_like_splits(tmp_path, file):
    plain = load_pairs(file, divide=False).train
    rows = [(f"a{n}", f"b{n}", n % 6, ("news", "train")[n % 2], n) for n in range(100)]
    for name in ("dataset", "fold", "offset"):
        file = write_table(tmp_path / f"{name}.csv", ("sentence1", "sentence2", "score", name, "n"), rows)
        assert load_pairs(file, divide=False).train.pairs == plain.pairs
    file = write_table(tmp_path / "odd.csv", ("sentence1", "sentence2", "score", "split", "n"), rows)
    with pytest.raises(DataError, match=r"odd\.csv, line 2: 'news' in column 'split' does not name a split"):
        load_pairs(file)
    same = [(*rows[0][:3], "test")] * 30
    file = write_table(tmp_path / "test.csv", ("sentence1", "sentence2", "score", "split"), same)
    assert load_pairs(file, divide=False).one_file  # divided to train on, as any file
