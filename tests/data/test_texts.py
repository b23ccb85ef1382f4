import gzip
import lzma

import pytest

from truncate_kit.data import iter_texts, read_texts

LINES = "one cat\n\n  zwei Bäume \r\none cat\nNA"
TEXTS = ["one cat", "zwei Bäume", "one cat", "NA"]


@pytest.mark.parametrize(("name", "pack"), [("t.txt", bytes), ("t.txt.gz", gzip.compress), ("t.txt.xz", lzma.compress)])
def test_lines_of_a_text_file(tmp_path, name, pack):
    path = tmp_path / name
    path.write_bytes(pack(b"\xef\xbb\xbf" + LINES.encode()))
    assert list(iter_texts(path)) == TEXTS
    assert read_texts(path) == ["one cat", "zwei Bäume", "NA"]


def test_text_file_is_streamed(tmp_path):
    path = tmp_path / "t.txt"
    path.write_bytes(b"good\n" * 100_000 + b"\xff\n")
    texts = iter_texts(path)
    assert [next(texts) for _ in range(3)] == ["good"] * 3  # the bad last line is not reached


def test_columns_of_a_table(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("text,label,other\none,1,x\ntwo,0,y\n")
    assert read_texts(path) == ["one", "two"]
    assert read_texts(path, column="other") == ["x", "y"]


def test_both_texts_of_pairs_without_scores(tmp_path):
    path = tmp_path / "t.jsonl"
    path.write_text('{"premise": "a", "hypothesis": "b"}\n{"premise": "b", "hypothesis": "c"}\n')
    assert list(iter_texts(path)) == ["a", "b", "b", "c"]
    assert read_texts(path) == ["a", "b", "c"]


def test_captions_are_read_whole(shared_data):
    path = shared_data / "captions" / "sentences.en.txt.gz"
    with gzip.open(path, "rt", encoding="utf-8") as stream:
        assert list(iter_texts(path)) == [line.strip() for line in stream]
