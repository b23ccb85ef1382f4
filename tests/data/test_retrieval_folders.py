"""Folders in BEIR's layout, and one clear error for each thing that is wrong with them."""

import gzip
import lzma

import pytest

from tests.support.retrieval import write_lines
from truncate_kit.core.errors import DataError, UsageError
from truncate_kit.data.retrieval import read_retrieval
from truncate_kit.data.tables import is_retrieval_folder

CORPUS = [
    {"_id": "d1", "title": "A title", "text": " one text "},
    {"_id": 2, "text": "another"},
    {"_id": "d3", "title": None, "text": ""},
]
QUERIES = [{"_id": "q1", "text": "what"}, {"_id": "2", "text": "another"}, {"_id": "q3", "text": "why"}]
QRELS = "query-id\tcorpus-id\tscore\nq1\t2\t2\nq1\td1\t0.5\n2\td1\t1\nq3\td1\t0\n"


@pytest.fixture
def folder(tmp_path):
    home = tmp_path / "set"
    (home / "qrels").mkdir(parents=True)
    write_lines(home / "corpus.jsonl", CORPUS)
    write_lines(home / "queries.jsonl", QUERIES)
    (home / "qrels/test.tsv").write_text(QRELS)
    return home


def test_titles_stand_before_texts_and_grades_of_0_answer_nothing(folder):
    found = read_retrieval(folder)
    assert found.name.endswith("/set/test")
    assert found.document_ids == ("d1", "2", "d3")
    assert found.documents == ("A title one text", "another", "")
    assert (found.query_ids, found.queries) == (("q1", "2"), ("what", "another"))
    assert found.relevance == ({1: 2.0, 0: 0.5}, {0: 1.0})
    assert [set(grades) for grades in found.relevance] == [{0, 1}, {0}]
    assert found.own_documents == (None, 1)  # the same id and text


def test_a_first_line_of_names_and_packed_files_are_optional(folder):
    expected = read_retrieval(folder)
    (folder / "qrels/test.tsv").write_text(QRELS.partition("\n")[2] + "\n")
    assert read_retrieval(folder) == expected
    for name, pack in (("corpus.jsonl", gzip), ("queries.jsonl", lzma), ("qrels/test.tsv", gzip)):
        path = folder / name
        content = path.read_bytes()
        path.unlink()
        path.with_name(path.name + (".gz" if pack is gzip else ".xz")).write_bytes(pack.compress(content))
    assert is_retrieval_folder(folder)
    assert read_retrieval(folder) == expected


def test_splits_are_chosen_by_name(folder):
    qrels = folder / "qrels"
    (qrels / "dev.tsv").write_text("2\td1\t1\n")
    (qrels / "test.tsv~").write_text("no judgements")
    assert len(read_retrieval(folder).queries) == 2
    assert read_retrieval(folder, split="dev").query_ids == ("2",)
    found = read_retrieval(folder, chooses=True)
    assert found.query_ids == ("q1", "2")  # dev has too few
    write_lines(folder / "queries.jsonl", [*QUERIES, *({"_id": f"n{n}", "text": f"new {n}"} for n in range(20))])
    (qrels / "dev.tsv").write_text("".join(f"n{n}\td1\t1\n" for n in range(20)))
    found = read_retrieval(folder, chooses=True)
    assert found.query_ids == tuple(f"n{n}" for n in range(20))  # so that test stays unseen
    assert {*read_retrieval(folder).queries} <= found.held_out  # and nothing learns from it
    with pytest.raises(DataError, match=r"no train\.tsv") as problem:
        read_retrieval(folder, split="train")
    assert "dev, test" in problem.value.hint
    (qrels / "test.tsv").rename(qrels / "train.tsv")
    assert read_retrieval(folder, chooses=True).held_out < found.held_out  # what train asks may be learned
    (qrels / "dev.tsv").rename(qrels / "other.tsv")
    with pytest.raises(DataError, match=r"no test\.tsv or dev\.tsv"):
        read_retrieval(folder)
    (qrels / "other.tsv").unlink()
    assert read_retrieval(folder).name.endswith("/train")


BAD = [
    ("corpus.jsonl", None, r"holds no corpus\.jsonl"),
    ("qrels/test.tsv", None, r"holds no test\.tsv or dev\.tsv"),
    ("corpus.jsonl", '{"_id": "d1"}\n', "no column 'text'"),
    ("corpus.jsonl", '{"_id": "d", "text": "a"}\n{"_id": "d", "text": "b"}\n', "line 2: the id 'd' is"),
    ("corpus.jsonl", '{"_id": "", "text": "a"}\n', "line 1: the id '' is empty"),
    ("queries.jsonl", '{"_id": "q1", "text": 7}\n', "line 1: column 'text' holds int 7"),
    ("qrels/test.tsv", "q1\td1\t1\nq1\td1\n", "line 2: 'q1.td1' is not a judgement"),
    ("qrels/test.tsv", "q1\td1\t1\nq1\t2\tnan\n", "line 2: .* is not a judgement"),
    ("qrels/test.tsv", "q9\td1\t1\nq1\td9\t1\n", "holds no answers"),
    ("qrels/test.tsv", "q1\td1\t0\nq1\t2\t-1\n", "holds no answers"),
]


@pytest.mark.parametrize(("name", "content", "said"), BAD)
def test_what_is_wrong_is_said_in_one_sentence(folder, name, content, said):
    (folder / name).unlink() if content is None else (folder / name).write_text(content)
    with pytest.raises(DataError, match=said) as problem:
        read_retrieval(folder)
    assert problem.value.hint


def test_judgements_of_unknown_ids_are_left_out_and_counted(folder, caplog):
    """So are empty queries; a repeated row and a missing text do no harm."""
    known = read_retrieval(folder)
    assert not caplog.records
    write_lines(folder / "corpus.jsonl", [*CORPUS[:2], {"_id": "d3", "text": None}, CORPUS[0]])
    write_lines(folder / "queries.jsonl", [*QUERIES, {"_id": "q9", "text": " "}])
    with (folder / "qrels/test.tsv").open("a") as stream:
        stream.write("q9\td1\t1\nq1\td9\t1\nq3\tgone\t2\n")
    assert read_retrieval(folder) == known
    assert "3 judgements name an unknown query or document" in caplog.text


def test_options_of_the_other_kind_of_data(folder, tmp_path):
    with pytest.raises(UsageError, match="its own corpus"):
        read_retrieval(folder, corpus=tmp_path / "more.txt")
    (tmp_path / "pairs.csv").write_text("query,document\na,b\n")
    with pytest.raises(UsageError, match="no splits"):
        read_retrieval(tmp_path / "pairs.csv", split="dev")


def test_sets_beside_the_checkout(shared_data):
    counts = {}
    for name in ("cranfield", "trecqa-dev", "trecqa-test"):
        found = read_retrieval(shared_data / "retrieval" / name)
        counts[name] = (len(found.documents), len(found.queries), sum(map(len, found.relevance)))
        assert not any(found.own_documents)  # Cranfield numbers both documents and queries from 1
    assert counts == {"cranfield": (1400, 225, 1612), "trecqa-dev": (1038, 78, 222), "trecqa-test": (1393, 89, 284)}
