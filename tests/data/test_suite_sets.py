"""The sets of the suites are found under their usual names and hold what was published."""

import csv

import numpy as np
import pytest

from tests.support.files import write_table
from truncate_kit.core.errors import DataError
from truncate_kit.data.retrieval import read_retrieval
from truncate_kit.data.seen import pair_key, pair_keys
from truncate_kit.data.suites import find_sts, find_transfer, read_trained_pairs
from truncate_kit.evaluation.graded import STS_PAIRS

PAIRS = "sentence1,sentence2,score\na cat,a dog,2\nthe sun,a star,4\na tree,a mat,1\n"


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_pairs_are_the_published_rows_of_their_files(shared_data):
    files = {"STS12": "sts12/*", "STS14": "sts14/*", "STS15": "sts15/*", "STSB": "stsb/en/test.csv", "SICK-R": "sick/*"}
    found = find_sts(shared_data)
    assert {one.name: len(one.pairs) for one in found} == {name: STS_PAIRS[name] for name in files}
    for one in found:
        rows = []
        for file in sorted(shared_data.glob(files[one.name])):
            with file.open(newline="") as handle:
                rows += csv.DictReader(handle)
        expected = [(row["sentence1"], row["sentence2"], float(row["score"])) for row in rows]
        assert sorted((pair.first, pair.second, pair.target) for pair in one.pairs) == sorted(expected)


def test_published_numbers_of_labelled_rows(shared_data):
    found = find_transfer(shared_data)
    assert {one.name: (len(one), len(one.classes)) for one in found} == {
        "MR": (10662, 2), "SUBJ": (10000, 2), "MPQA": (10606, 2), "SST2": (6920 + 872 + 1821, 2),
        "SST5": (8544 + 1101 + 2210, 5), "TREC": (5452 + 500, 6), "MRPC": (5801, 2),
    }  # fmt: skip
    assert {one.name for one in found if any(pair.second for pair in one)} == {"MRPC"}
    assert sum(found[-1].scores()) == 3900  # paraphrases in MRPC, Dolan et al. 2004


def test_sets_are_files_or_folders_in_any_spelling(tmp_path):
    write(tmp_path / "STS-12.csv", PAIRS)
    write(tmp_path / "sts16" / "train.csv", PAIRS)
    write(tmp_path / "sts16" / "test.csv", PAIRS.replace("a cat", "one cat"))
    write(tmp_path / "sts16" / "more.csv", PAIRS)
    write(tmp_path / "sts_benchmark" / "en" / "train.csv", PAIRS)
    write(tmp_path / "sts_benchmark" / "en" / "test.csv", PAIRS)
    write(tmp_path / "sts_benchmark" / "de" / "test.csv", PAIRS.replace("a cat", "eine Katze"))
    found = {one.name: [pair.first for pair in one.pairs] for one in find_sts(tmp_path)}
    first, other = (["a cat", "the sun", "a tree"], ["one cat", "the sun", "a tree"])
    assert found == {"STS12": first, "STS16": first + other, "STSB": first}  # train is left out


@pytest.mark.parametrize("find", [find_sts, find_transfer])
def test_a_folder_without_sets_names_those_that_are_looked_for(find, tmp_path):
    with pytest.raises(DataError, match="holds none of the sets") as problem:
        find(tmp_path)
    assert "test.csv" in problem.value.hint
    with pytest.raises(DataError, match="not a folder"):
        find(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("train", "test", "classes"),
    [
        ((-1, 1), ("-1.0", "1.0"), ("-1", "1")),
        ((False, True), ("false", "true"), ("false", "true")),
        (("v1", 1), ("v1.0", "1.0"), ("1", "v1", "v1.0")),
    ],
)
def test_a_class_is_one_in_any_spelling(train, test, classes, tmp_path):
    for name, labels in (("train.jsonl", train), ("test.csv", test)):
        write_table(tmp_path / "mr" / name, ("text", "label"), [(f"text {label}", label) for label in labels])
    assert find_transfer(tmp_path)[0].classes == classes


def test_queries_with_several_answers_and_more_texts(tmp_path):
    rows = "query,relevant\nwhat barks,a dog\nwhat barks,a seal\nwhat meows,a cat\na cat,a cat\n"
    found = read_retrieval(write(tmp_path / "q.csv", rows), corpus=write(tmp_path / "more.txt", "a tree\na dog\n"))
    assert found.queries == ("what barks", "what meows")  # a text that answers only itself is no query
    assert found.documents == ("a dog", "a seal", "a cat", "a tree")
    assert [set(grades) for grades in found.relevance] == [{0, 1}, {2}]


def test_rows_labelled_0_are_searched_but_answer_nothing(shared_data, tmp_path):
    rows = "question1,question2,is_duplicate\nhow,in what way,1\nwhy,where,0\n"
    found = read_retrieval(write(tmp_path / "q.csv", rows))
    assert (found.queries, found.documents, found.relevance) == (("how",), ("in what way", "where"), ({0: 1.0},))
    mrpc = read_retrieval(shared_data / "mrpc/test.csv")
    assert sum(map(len, mrpc.relevance)) == 1147  # the paraphrases among the 1,725 pairs
    graded = write(tmp_path / "graded/pairs.csv", "sentence1,sentence2,score\na dog,a cat,0.4\na dog,a hound,4.8\n")
    with pytest.raises(DataError, match="column 'score' grades the pairs"):
        read_retrieval(graded)
    with pytest.raises(DataError, match="no row with an answer"):
        read_retrieval(write(tmp_path / "same.csv", "query,relevant\na,a\n"))
    with pytest.raises(DataError, match="is not a retrieval folder"):
        read_retrieval(tmp_path)


@pytest.mark.parametrize(("yes", "no"), [("1", "0"), ("1.0", "0.0"), ("True", "false")])
def test_truth_is_read_as_tables_write_it(tmp_path, yes, no):
    rows = f"query,relevant,label\nwhere,here,{yes}\nwhere,there,{no}\nwho,me,{no}\n"
    assert read_retrieval(write(tmp_path / "answers.csv", rows)).queries == ("where",)
    for wrong, message in (
        (rows.replace(yes, "2", 1), "column 'label' does not mark"),
        (f"query,relevant,label\nwhere,there,{no}\n", "no row with an answer"),
        (rows + "who,you,\n", "does not mark which rows"),
    ):
        with pytest.raises(DataError, match=message):
            read_retrieval(write(tmp_path / "wrong.csv", wrong))


@pytest.mark.parametrize(
    ("find", "files", "message"),
    [
        (find_sts, {"sts12/test.csv": PAIRS, "STS-12/test.csv": PAIRS}, r"STS12 was found several times: .* and "),
        (find_sts, {"sts12/test.csv": PAIRS, "sts2012.tsv": PAIRS}, r"STS12 was found several times: .* and "),
        (find_sts, {"sts12/test.csv": PAIRS, "sts12/Test.jsonl.xz": ""}, "sts12 holds the same table in two formats"),
        (find_sts, {"stsb/train.csv": PAIRS, "stsb/dev.csv": PAIRS}, "no test split"),
        (find_sts, {"sts12/test.csv": PAIRS, "stsb/notes.md": ""}, "stsb holds no tables of STSB"),
        (find_transfer, {"mr/all.csv": "text,label\na,1\n", "mr/all.tsv": ""}, "mr holds the same table in two"),
        (find_transfer, {"mr/all.csv": "text,score\ngood,1\n"}, "no column has a known name for the label"),
        (find_transfer, {"mr/all.csv": "text,label,class\ngood,1,1\n"}, "several columns could be the label"),
    ],
)
def test_broken_sets_are_named(find, files, message, tmp_path):
    for name, text in files.items():
        write(tmp_path / name, text)
    with pytest.raises(DataError, match=message):
        find(tmp_path)


def test_seen_pairs_are_those_of_train_and_dev_in_either_order(shared_data, tmp_path):
    for split, word in (("train", "sat"), ("dev", "ran"), ("test", "lay")):
        write(tmp_path / f"{split}.csv", PAIRS.replace("a cat", f"a cat {word}"))
    seen = read_trained_pairs(tmp_path)
    assert pair_key("a dog", "a cat sat") in seen
    assert pair_key("a cat ran", "a dog") in seen
    assert len(seen) == 4
    two = write(tmp_path / "two.csv", "sentence1,sentence2\nx,y\ny,x\n")
    assert read_trained_pairs(two).tolist() == [pair_key(*"xy")]
    rows = write(tmp_path / "three.csv", "anchor,positive,negative\nx,y,z\n")
    assert {*read_trained_pairs(rows).tolist()} == {pair_key(*pair) for pair in ("xy", "xz", "yz")}
    (tmp_path / "only").mkdir()
    write(tmp_path / "only" / "test.csv", PAIRS)
    with pytest.raises(DataError, match="no train or dev split"):
        read_trained_pairs(tmp_path / "only")
    # as counted beside the data: pairs of STS12 and STS14 in STSB train, in either order
    train = read_trained_pairs(shared_data / "stsb/en/train.csv")
    counts = {one.name: np.isin(pair_keys(one), train).sum() for one in find_sts(shared_data)}
    assert (counts["STS12"], counts["STS14"]) == (1002, 1861)
