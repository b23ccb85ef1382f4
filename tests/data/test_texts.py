import gzip
import lzma

import pytest

from truncate_kit.data import iter_rows, iter_texts, read_texts
from truncate_kit.errors import ColumnsError, DataError, RowError

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


def write_rows(path, texts):
    """A file of the kind that its name says, with other columns around the texts."""
    import json

    import pyarrow
    import pyarrow.parquet

    if path.suffix == ".parquet":
        table = pyarrow.table({"id": list(range(len(texts))), "text": texts})
        pyarrow.parquet.write_table(table, path, row_group_size=700)
        return path
    lines = {
        ".txt": texts,
        ".csv": ["id,text", *(f'{n},"{text}"' for n, text in enumerate(texts))],
        ".tsv": ["id\ttext", *(f"{n}\t{text}" for n, text in enumerate(texts))],
        ".jsonl": [json.dumps({"id": n, "text": text}) for n, text in enumerate(texts)],
    }[path.suffix]
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.parametrize("kind", [".txt", ".csv", ".tsv", ".jsonl", ".parquet"])
def test_rows_stream_in_order_with_repeats(tmp_path, kind):
    texts = [f"text {n % 900}, ä" for n in range(3000)]
    path = write_rows(tmp_path / f"t{kind}", texts)
    assert list(iter_rows(path)) == texts
    if kind != ".txt":
        assert list(iter_rows(path, column="text")) == texts
        assert list(iter_texts(path)) == texts  # read whole, whatever the row groups


@pytest.mark.parametrize("kind", [".txt", ".csv", ".tsv", ".jsonl", ".parquet"])
def test_a_blank_row_far_down_is_named_after_those_before_it_were_given(tmp_path, kind):
    texts = ["word"] * 2500
    texts[2100] = " "
    rows = iter_rows(write_rows(tmp_path / f"t{kind}", texts))
    assert [next(rows) for _ in range(2000)] == texts[:2000]
    place = {".csv": "line 2102", ".tsv": "line 2102", ".parquet": "row 2101"}.get(kind, "line 2101")
    with pytest.raises(RowError, match=f"{place}: .*empty"):
        list(rows)


@pytest.mark.parametrize(("kind", "blank"), [(".csv", ""), (".csv", '""'), (".tsv", ""), (".tsv", '""')])
def test_a_blank_line_of_a_single_column_is_an_empty_cell(tmp_path, kind, blank):
    """Passed over, it would move the vectors of all that follows up a row."""
    path = tmp_path / f"t{kind}"
    path.write_text(f"text\na\n{blank}\nb\n")
    with pytest.raises(RowError, match=r"line 3: .*empty"):
        list(iter_rows(path))
    path.write_text("\ntext\na\nb\n\n\n")
    assert list(iter_rows(path)) == ["a", "b"]
    between = "," if kind == ".csv" else "\t"
    path.write_text(f"id{between}text\n1{between}a\n\n2{between}b\n")
    assert list(iter_rows(path)) == ["a", "b"]  # nothing else can be meant where rows have two fields


@pytest.mark.parametrize(("kind", "blank"), [(".csv", ""), (".tsv", ""), (".tsv", '""')])
def test_raw_texts_may_have_blank_lines_between_them(tmp_path, kind, blank):
    """As in a .txt file: nothing is counted by their rows."""
    path, between = tmp_path / f"t{kind}", "," if kind == ".csv" else "\t"
    for head, rows in (("text", ("a", "b")), (f"id{between}text", (f"1{between}a", f"2{between}b"))):
        path.write_text(f"{head}\n{rows[0]}\n{blank}\n{rows[1]}\n{blank}\n")
        assert list(iter_texts(path)) == ["a", "b"]


def test_rows_need_one_column_of_texts(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("sentence1,sentence2\na,b\n")
    with pytest.raises(ColumnsError, match="'sentence1', 'sentence2'"):
        list(iter_rows(path))
    with pytest.raises(ColumnsError, match="no column 'body'"):
        list(iter_rows(path, column="body"))
    with pytest.raises(ColumnsError, match="no column 'body'"):
        list(iter_rows(write_rows(tmp_path / "t.txt", ["a"]), column="body"))
    assert list(iter_rows(path, column="sentence2")) == ["b"]
    (tmp_path / "none.csv").write_text("A plane is taking off.\nA man plays.\n")
    for read in (iter_rows, iter_texts):
        with pytest.raises(ColumnsError) as caught:
            list(read(tmp_path / "none.csv"))
        assert caught.value.hint.endswith("to have no header: add a first line that names its columns, such as text.")
    (tmp_path / "t.jsonl").write_text('{"text": "a"}\n' * 1024 + '{"other": "a"}\n')
    with pytest.raises(RowError, match="line 1025: the key 'text' is missing"):
        list(iter_rows(tmp_path / "t.jsonl"))


def test_rows_of_an_empty_file(tmp_path):
    (tmp_path / "t.txt").write_text("")
    with pytest.raises(DataError, match="is empty"):
        list(iter_rows(tmp_path / "t.txt"))
