"""Anchors, positives and negatives from files of every kind, and built from NLI sets."""

import json

import pytest
from datasets import ClassLabel, Dataset, Features, Value

from tests.support.files import write_table as write
from truncate_kit.core.errors import DataError
from truncate_kit.data.retrieval import read_retrieval
from truncate_kit.data.seen import pair_key
from truncate_kit.data.suites import read_trained_pairs
from truncate_kit.data.tables import iter_texts
from truncate_kit.data.triplets import load_triplets, raw_texts

ROWS = [("a cat", "one cat", "no cat"), ("a dog", "one dog", "no dog"), ("it rains", "rain falls", "it is dry")]
NLI = [
    ("p1", "p1 entails a", "entailment"),
    ("p1", "p1 against a", "contradiction"),
    ("p1", "p1 entails b", "entailment"),
    ("p2", "p2 neutral", "neutral"),
    ("p1", "p1 entails c", "entailment"),
    ("p1", "p1 against b", "contradiction"),
    ("p3", "p3 entails", "entailment"),
    ("p4", "p4 against", "contradiction"),
]


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".jsonl", ".parquet"])
@pytest.mark.parametrize("columns", [("anchor", "pos", "negative"), ("question", "positive_ctxs", "hard_neg_ctxs")])
def test_three_texts_a_row(tmp_path, suffix, columns):
    found = load_triplets(write(tmp_path / f"rows{suffix}", columns, ROWS), negatives=True)
    assert found.rows == tuple(ROWS)
    assert f"3 rows of {', '.join(columns)})" in found.note
    assert "only hard-negatives learns from the negatives" in load_triplets(tmp_path / f"rows{suffix}").note


def test_two_texts_a_row_and_told_columns(tmp_path):
    path = write(tmp_path / "rows.csv", ("anchor", "positive"), [row[:2] for row in ROWS])
    assert load_triplets(path).rows == tuple(row[:2] for row in ROWS)
    path = write(tmp_path / "odd.csv", ("x", "y", "z"), ROWS)
    assert load_triplets(path, columns=("z", "x")).rows[0] == ("no cat", "a cat")
    assert load_triplets(path, columns=("x", "y", "z"), negatives=True).rows[0][2] == "no cat"


@pytest.mark.parametrize("values", [(0, 2), (0, 1), ("yes", "no")])
def test_labels_that_are_no_nli_classes_are_not_taken_for_texts(tmp_path, values):
    rows = [("p", f"h{place}", values[place % 2]) for place in range(4)]
    path = write(tmp_path / "nli.csv", ("premise", "hypothesis", "label"), rows)
    for columns in (None, ("premise", "hypothesis", "label")):
        with pytest.raises(DataError, match="'label'"):
            load_triplets(path, columns=columns, negatives=True)
    path = write(tmp_path / "texts.csv", ("premise", "entailment"), [row[:2] for row in ROWS])
    assert load_triplets(path, columns=("premise", "entailment")).rows == tuple(row[:2] for row in ROWS)


@pytest.mark.parametrize("numbers", [False, True])
def test_built_from_nli(tmp_path, numbers):
    place = {"entailment": 0, "neutral": 1, "contradiction": 2}
    rows = [(a, b, place[c] if numbers else c) for a, b, c in NLI]
    rows += [("p1", "nobody agrees", -1 if numbers else "-")]
    path = write(tmp_path / "nli.jsonl", ("premise", "hypothesis", "label"), rows)
    found = load_triplets(path, negatives=True)
    assert found.rows == (
        ("p1", "p1 entails a", "p1 against a"),
        ("p1", "p1 entails b", "p1 against b"),
        ("p1", "p1 entails c", "p1 against a"),
    )
    assert "3 rows built from 9 NLI pairs; 1 premises without a contradiction are skipped" in found.note
    assert ("the labels 0, 1 and 2 are read as entailment, neutral, contradiction" in found.note) is numbers
    both = load_triplets(path)
    assert both.rows[-1] == ("p3", "p3 entails")
    assert both.fingerprint() != found.fingerprint()


ORDERS = [
    ("entailment", "neutral", "contradiction"),  # SNLI
    ("entailment", "contradiction", "neutral"),  # CommitmentBank
    ("contradiction", "entailment", "neutral"),  # the scripts of sentence-transformers
]


@pytest.mark.parametrize("order", ORDERS, ids=" ".join)
def test_numbers_of_classes_are_read_by_the_names_in_a_parquet_file(tmp_path, order):
    named = {name: [row[place] for row in NLI] for place, name in enumerate(("premise", "hypothesis", "label"))}
    features = Features(premise=Value("string"), hypothesis=Value("string"), label=ClassLabel(names=[*order]))
    Dataset.from_dict(named, features=features).to_parquet(tmp_path / "nli.parquet")
    rows = write(tmp_path / "nli.csv", ("premise", "hypothesis", "label"), NLI)
    found = load_triplets(tmp_path / "nli.parquet", negatives=True)
    assert found.rows == load_triplets(rows, negatives=True).rows
    assert "are read as" not in found.note
    features["label"] = ClassLabel(names=["negative", "neutral", "positive"])  # numbered alike, but no NLI set
    named["label"] = [order.index(label) for label in named["label"]]
    Dataset.from_dict(named, features=features).to_parquet(tmp_path / "mood.parquet")
    with pytest.raises(DataError, match="'label' grades or classifies"):
        load_triplets(tmp_path / "mood.parquet")


def test_a_real_nli_set(shared_data):
    found = load_triplets(shared_data / "sick")  # the train split, with a score column beside the labels
    assert len(found) == 1299  # the entailments of SICK's train split
    assert all(len(row) == 3 for row in load_triplets(shared_data / "sick", negatives=True).rows)


def test_texts_are_their_own_positives_once_each():
    assert raw_texts("mine", ["a", "b", "a"]).rows == (("a", "a"), ("b", "b"))


def test_lists_of_positives_and_negatives(shared_cases, tmp_path):
    """FlagEmbedding's layout: each text of each list is used."""
    file = shared_cases / "positives-and-negatives-in-lists.jsonl"
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    found = load_triplets(file, negatives=True)
    assert found.rows == tuple((one["query"], one["pos"][0], text) for one in lines for text in one["neg"])
    assert load_triplets(file).rows == tuple((one["query"], one["pos"][0], one["neg"][0]) for one in lines)
    searched = read_retrieval(file)
    assert searched.queries == tuple(one["query"] for one in lines)
    assert {*searched.documents} == {text for one in lines for text in (*one["pos"], *one["neg"])}
    assert [[searched.documents[place] for place in own] for own in searched.relevance] == [one["pos"] for one in lines]
    assert {*iter_texts(file)} == {text for one in lines for text in (one["query"], *one["pos"], *one["neg"])}
    keys = {pair_key(one["query"], text) for one in lines for text in (*one["pos"], *one["neg"])}
    assert keys <= {*read_trained_pairs(file).tolist()}


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.parquet", "rows.json"])
def test_lists_of_different_lengths(tmp_path, name):
    rows = [("q1", ["p1", "p2", "p3"], ["n1", "n2"]), ("q2", ["p4"], []), ("q3", ["p5"], ["n3", "n4"])]
    columns = ("query", "positives", "hard_negatives")
    if name == "rows.json":
        (tmp_path / name).write_text(json.dumps([dict(zip(columns, row, strict=True)) for row in rows]))
    else:
        write(tmp_path / name, columns, rows)
    found = load_triplets(tmp_path / name, negatives=True)
    triples = ["q1 p1 n1", "q1 p2 n2", "q1 p3 n1", "q3 p5 n3", "q3 p5 n4"]
    assert found.rows == tuple(tuple(row.split()) for row in triples)
    assert "1 anchors without a negative are skipped" in found.note
    pairs = load_triplets(tmp_path / name, columns=columns[:2])
    assert [row[1] for row in pairs.rows] == ["p1", "p2", "p3", "p4", "p5"]


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.parquet"])
def test_empty_negatives_in_a_list_are_skipped(tmp_path, name):
    path = write(tmp_path / name, ("query", "pos", "neg"), [("q", ["p"], [None, "n1", "", "n2"])])
    assert load_triplets(path, negatives=True).rows == (("q", "p", "n1"), ("q", "p", "n2"))


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.parquet"])
def test_passages_are_their_titles_and_texts(tmp_path, name):
    """Tevatron's layout."""
    passages = [[{"docid": str(n), "title": "t" if n else "", "text": f"p{n}"}] for n in range(2)]
    rows = [("q", *passages), ("r", *passages[::-1])]
    write(tmp_path / name, ("query", "positive_passages", "negative_passages"), rows)
    assert load_triplets(tmp_path / name, negatives=True).rows == (("q", "p0", "t p1"), ("r", "t p1", "p0"))


def test_numbered_negatives_are_all_used(tmp_path):
    columns = ("anchor", "positive", "negative_1", "negative_2", "negative_3")
    rows = [("a", "p", "n1", "n2", "n3"), ("b", "q", "m1", "", "")]
    for name in ("rows.csv", "rows.jsonl"):
        found = load_triplets(write(tmp_path / name, columns, rows), negatives=True)
        assert found.rows == (("a", "p", "n1"), ("a", "p", "n2"), ("a", "p", "n3"), ("b", "q", "m1"))


PLAIN = ("anchor", "positive")
LABELLED = ("premise", "hypothesis", "label")


@pytest.mark.parametrize(
    ("columns", "rows", "options", "message"),
    [
        (PLAIN, [("a", "b")], {"negatives": True}, "no column holds hard negatives"),
        (PLAIN, [("a", "b")], {"columns": ("x", "positive")}, "no column 'x'"),
        (PLAIN, [("a", "b"), ("c", " ")], {}, "line 3: the text in column 'positive' is empty"),
        (("sentence1", "sentence2", "score"), [("a", "b", 3)], {}, "column 'score' grades or classifies"),
        (LABELLED, NLI[1:2] + NLI[3:4], {}, "no pair of the class entailment"),
        (LABELLED, NLI[:1] + NLI[3:4], {"negatives": True}, "no pair of the class contradiction"),
        (LABELLED, NLI[6:], {"negatives": True}, "no premise with both an entailment and a contradiction"),
    ],
)
def test_what_cannot_be_learned_from(tmp_path, columns, rows, options, message):
    with pytest.raises(DataError, match=message):
        load_triplets(write(tmp_path / "rows.csv", columns, rows), **options)
