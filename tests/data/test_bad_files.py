"""Each bad file gets one clear error: file, place, what is wrong, and a hint."""

import gzip
import lzma
import math
import re

import datasets
import pandas
import pyarrow
import pyarrow.parquet
import pytest

from truncate_kit.data import load_pairs, read_pairs, read_texts
from truncate_kit.errors import ColumnsError, DataError, RowError, UsageError

HEAD = "sentence1,sentence2,score\n"
GOOD = "a cat,a dog,2.5\n"
CUT = gzip.compress((HEAD + GOOD * 500).encode(), mtime=0)[:-30]
JSON = '{"sentence1": "a", "sentence2": "b", "score": 1}\n'

# name, content, kind of error, what its message says after the file's path
BAD = [
    ("empty.csv", "", DataError, " is empty"),
    ("empty.tsv", "", DataError, " is empty"),
    ("empty.jsonl", "\n\n", DataError, " is empty"),
    ("header.csv", HEAD, DataError, " has a header but no rows"),
    ("latin1.csv", (HEAD + GOOD + "caf\xe9,b,1\n").encode("latin-1"), RowError, ", line 3: byte 0xE9 is not UTF-8"),
    ("utf16.csv", (HEAD + GOOD).encode("utf-16"), RowError, ", line 1: byte 0xFF is not UTF-8"),
    ("headless.csv", GOOD + GOOD, ColumnsError, ": two columns|: no column name says"),
    ("few.csv", HEAD + GOOD + "a,b\n", RowError, ", line 3: 2 fields where the header names 3"),
    ("many.csv", HEAD + "one, two,b,1\n", RowError, ", line 2: 4 fields where the header names 3"),
    ("many.tsv", "sentence1\tsentence2\tscore\na\tb\tc\t1\n", RowError, ", line 2: 4 fields"),
    ("nan.csv", HEAD + GOOD + "a,b,nan\n", RowError, ", line 3: the score nan is not finite"),
    ("inf.csv", HEAD + "a,b,-inf\n", RowError, ", line 2: the score -inf is not finite"),
    ("word.csv", HEAD + GOOD + "a,b,high\n", RowError, ", line 3: the score 'high' is not a number"),
    ("comma.csv", HEAD + 'a,b,"3,5"\n', RowError, ", line 2: the score '3,5' is not a number"),
    ("none.csv", HEAD + "a,b,\n", RowError, ", line 2: the score in column 'score' is missing"),
    ("range.csv", HEAD + GOOD + "a,b,45\n" + GOOD, RowError, ", line 3: the score 45 fits no usual scale"),
    ("negative.csv", HEAD + "a,b,-1\n" + GOOD, RowError, ", line 2: the score -1 fits no usual scale"),
    ("blank.csv", HEAD + "a,,1\n", RowError, ", line 2: the text in column 'sentence2' is empty"),
    ("space.csv", HEAD + "  ,b,1\n", RowError, ", line 2: the text in column 'sentence1' is empty"),
    # Line breaks inside quotes count as an editor counts them.
    ("breaks.csv", HEAD + '"one\n\ntwo",b,1\n\na,b,x1\n', RowError, ", line 6: the score 'x1' is not a number"),
    ("breaks2.csv", HEAD + 'a,b,1\r\n"one\r\ntwo",b,x1\r\n', RowError, ", line 3: the score 'x1' is not a number"),
    ("open.csv", HEAD + GOOD + '"a,b,1\n' + GOOD * 3, RowError, ", line 3: a quote that opens in this row is never"),
    ("long.csv", HEAD + '"a,b,1\n' + GOOD * 20000, RowError, ", line 2: a quote that opens in this row is never"),
    ("stray.csv", HEAD + GOOD + '"a" b,c,1\n', RowError, ", line 3: text follows a closing quote"),
    ("bad.jsonl", JSON + "\n{'sentence1': 1}\n", RowError, ", line 3: not valid JSON"),
    ("cut.jsonl", JSON + JSON[:20], RowError, ", line 2: not valid JSON"),
    ("deep.jsonl", JSON + "[" * 100_000, RowError, ", line 2: not valid JSON"),
    ("list.jsonl", JSON + "[1, 2]\n", RowError, ", line 2: a JSON list where an object is needed"),
    ("key.jsonl", JSON + '{"sentence1": "a", "score": 1}\n', RowError, ", line 2: the key 'sentence2' is missing"),
    ("key1.jsonl", '{"sentence1": "a", "sentence2": "b"}\n' + JSON, RowError, ", line 1: the key 'score' is missing"),
    ("null.jsonl", JSON.replace('"b"', "null"), RowError, ", line 1: column 'sentence2' is null"),
    ("int.jsonl", JSON.replace('"b"', "7"), RowError, ", line 1: column 'sentence2' holds int 7, not a text"),
    ("true.jsonl", JSON.replace("1}", "true}"), RowError, ", line 1: column 'score' holds bool True, not a number"),
    ("nan.jsonl", JSON + JSON.replace("1}", "NaN}"), RowError, ", line 2: the score nan is not finite"),
    ("huge.jsonl", JSON.replace("1}", "1" + "0" * 400 + "}"), RowError, ", line 1: the score '1000"),
    ("half.jsonl", JSON.replace('"b"', r'"b\ud83d"'), RowError, r", line 1: .* half a character \(\\ud83d\)"),
    ("twice.jsonl", JSON + JSON.replace("1}", '1, "score": 0}'), RowError, ", line 2: the key 'score' is there twice"),
    ("null.csv", HEAD + "a\0b,c,1\n", RowError, ", line 2: the text in column 'sentence1' holds a null character"),
    ("under.csv", HEAD + GOOD + "a,b,1_5\n", RowError, ", line 3: the score '1_5' is not a number"),
    ("text.parquet", HEAD + GOOD, DataError, " is not a whole Parquet file"),
    ("pairs.xlsx", "PK", DataError, ": cannot read files that end in '.xlsx'"),
    ("pairs", HEAD + GOOD, DataError, ": no file extension"),
    ("plain.csv.gz", HEAD + GOOD, DataError, ": the packed data is broken"),
    ("cut.csv.gz", CUT, DataError, ": the packed data is broken"),
]


@pytest.mark.parametrize(("name", "content", "kind", "said"), BAD, ids=[bad[0] for bad in BAD])
def test_bad_pair_file(tmp_path, name, content, kind, said):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(DataError) as caught:
        load_pairs(path)
    assert type(caught.value) is kind
    assert re.match(f"{re.escape(str(path))}({said})", str(caught.value)), str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.hint.strip()


def test_missing_file_and_folder_in_place_of_a_file(tmp_path):
    for wrong in ("no.csv", "no/such/folder"):
        with pytest.raises(DataError, match=r"does not exist\.$"):
            load_pairs(tmp_path / wrong)
    with pytest.raises(DataError, match="is a folder"):
        read_texts(tmp_path)


def test_truth_values_are_led_to_numbers(tmp_path):
    pandas.DataFrame({"sentence1": ["a"], "sentence2": ["b"], "label": [True]}).to_parquet(tmp_path / "p.parquet")
    with pytest.raises(RowError, match="holds bool True") as refused:
        load_pairs(tmp_path / "p.parquet", columns=("sentence1", "sentence2", "label"))
    assert refused.value.hint == "Write 1 for true and 0 for false."


@pytest.mark.parametrize("several", [True, False])
def test_what_datasets_saved_to_disk_is_called_that(tmp_path, several):
    one = datasets.Dataset.from_dict({"sentence1": ["a"], "sentence2": ["b"], "score": [1.0]})
    (datasets.DatasetDict(train=one) if several else one).save_to_disk(tmp_path / "saved")
    with pytest.raises(DataError, match="by save_to_disk of datasets") as refused:
        load_pairs(tmp_path / "saved")
    assert "to_parquet" in refused.value.hint


def test_folder_without_splits_or_with_two_for_one(tmp_path):
    (tmp_path / "all.csv").write_text(HEAD + GOOD)
    with pytest.raises(DataError, match="holds no splits"):
        load_pairs(tmp_path)
    for name in ("dev.csv", "validation.csv"):
        (tmp_path / name).write_text(HEAD + GOOD)
    with pytest.raises(DataError, match=r"two files for dev: dev\.csv and validation\.csv"):
        load_pairs(tmp_path)


def test_bad_row_in_a_split_names_that_split(tmp_path):
    (tmp_path / "train.csv").write_text(HEAD + GOOD)
    (tmp_path / "test.csv").write_text(HEAD + GOOD + "a,b,77\n")
    with pytest.raises(RowError, match=r"test\.csv, line 3: the score 77 fits no usual scale"):
        load_pairs(tmp_path)


def test_parquet_rows_are_counted_from_one(tmp_path):
    path = tmp_path / "p.parquet"
    table = {"sentence1": ["a", "b", None], "sentence2": ["c", "d", "e"], "score": [1.0, 2.0, 3.0]}
    pyarrow.parquet.write_table(pyarrow.table(table), path)
    with pytest.raises(RowError, match=r"p\.parquet, row 3: column 'sentence1' is null"):
        read_pairs(path)
    pyarrow.parquet.write_table(pyarrow.table({**table, "sentence1": ["a", "b", "f"], "score": [1.0, None, 2.0]}), path)
    with pytest.raises(RowError, match=r"p\.parquet, row 2: column 'score' is null"):
        read_pairs(path)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(DataError, match="is not a whole Parquet file"):
        read_pairs(path)
    pyarrow.parquet.write_table(pyarrow.table({**table}).slice(0, 0), path)
    with pytest.raises(DataError, match="no rows"):
        read_pairs(path)


def test_empty_texts_of_a_real_set_are_found(shared_data):
    path = shared_data / "transfer" / "mpqa" / "all.csv"
    lines = path.read_text(encoding="utf-8").splitlines()
    first = next(number for number, line in enumerate(lines, start=1) if line.startswith((",", '"",')))
    with pytest.raises(RowError, match=rf"all\.csv, line {first}: the text in column 'text' is empty"):
        read_texts(path)


def test_a_carriage_return_inside_a_line_is_white_space(tmp_path):
    (tmp_path / "texts.txt").write_bytes(b"one\rmore\ntwo\r\n")
    assert read_texts(tmp_path / "texts.txt") == ["one\rmore", "two"]


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("latin1.txt", "one\ntwo\ncaf\xe9\n".encode("latin-1"), "line 3: byte 0xE9 is not UTF-8"),
        ("utf16.txt", "one\ntwo\n".encode("utf-16-le"), "line 1: the text holds a null character"),
        ("mac.txt", b"one\rtwo\r", "line 1: lines end in carriage returns"),
        ("mac-but-its-end.txt", b"one\rtwo\rthree\n", "line 1: lines end in carriage returns"),
        ("mac-from-the-second.txt", b"one\ntwo\rthree\r", "line 2: lines end in carriage returns"),
        ("mac.tsv", b"text\tb\rone\ttwo\rthree\tfour\r", "line 1: lines end in carriage returns"),
        ("empty.txt", b"\n \n", "is empty"),
        ("cut.txt.gz", gzip.compress(b"one\ntwo\n" * 999, mtime=0)[:-9], "the packed data is broken"),
        ("cut.txt.xz", b"\xfd7zXZ\x00\x00", "the packed data is broken"),
        ("pairs.csv", b"a,b\n1,2\n", "no column name says"),
    ],
)
def test_bad_text_file(tmp_path, name, content, said):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(DataError, match=said) as caught:
        read_texts(path)
    assert str(path) in str(caught.value)
    assert caught.value.hint


ODD_PARQUET = {
    "date before year 1": pyarrow.array([-800_000, 1, 2], pyarrow.date32()),
    "time after year 9999": pyarrow.array([10**12, 1, 2], pyarrow.timestamp("s")),
    "unknown zone": pyarrow.array([1, 2, 3], pyarrow.timestamp("s", tz="Mars/Olympus")),
    "bad UTF-8": pyarrow.StringArray.from_buffers(
        3, pyarrow.py_buffer(b"\0\0\0\0\1\0\0\0\2\0\0\0\3\0\0\0"), pyarrow.py_buffer(b"a\xffb")
    ),
}


@pytest.mark.parametrize("kind", ODD_PARQUET)
@pytest.mark.parametrize("where", ["extra", "sentence1", "score"])
def test_parquet_values_that_python_has_none_for(tmp_path, kind, where):
    path = tmp_path / "p.parquet"
    columns = {"sentence1": ["a", "b", "c"], "sentence2": ["d", "e", "f"], "score": [1.0, 2.0, 3.0]}
    pyarrow.parquet.write_table(pyarrow.table(columns | {where: ODD_PARQUET[kind]}), path)
    with pytest.raises(DataError, match=r"p\.parquet") as refused:
        read_pairs(path)
    assert where in str(refused.value) or "whole Parquet" in str(refused.value)
    assert "\n" not in str(refused.value)


def test_parquet_with_doubled_columns(tmp_path):
    path = tmp_path / "p.parquet"
    names = ["sentence1", "sentence2", "score", "score"]
    table = pyarrow.Table.from_arrays([pyarrow.array(v) for v in (["a"], ["b"], [1.0], [5.0])], names=names)
    pyarrow.parquet.write_table(table, path)
    with pytest.raises(ColumnsError, match=r"p\.parquet: two columns have the same name"):
        read_pairs(path)


def test_parquet_is_not_read_through_pythons_own_file(tmp_path, monkeypatch):
    """Threads of the reader that called back into Python at its end stopped the process with exit code 134."""
    path, kinds = tmp_path / "p.parquet", []
    columns = {"sentence1": ["a", "b"], "sentence2": ["d", "e"], "score": [1.0, 2.0]}
    pyarrow.parquet.write_table(pyarrow.table(columns), path)
    real = pyarrow.parquet.ParquetFile
    monkeypatch.setattr(pyarrow.parquet, "ParquetFile", lambda source: kinds.append(type(source)) or real(source))
    assert len(read_pairs(path)) == 2
    assert kinds == [pyarrow.OSFile]


@pytest.mark.parametrize(
    "scale",
    [(-1e308, 1e308), (0, 1e300), (-1e9, 1e9), (0, math.inf), (math.nan, 1), ("0", "5"), (False, 5)],
)
def test_a_scale_on_which_all_scores_would_be_equal(tmp_path, scale):
    path = tmp_path / "p.csv"
    path.write_text(HEAD + "a,b,1\nc,d,2\n")
    with pytest.raises(UsageError, match="scale"):
        read_pairs(path, scale=scale)
    assert read_pairs(path, scale=(0, 1000)).scores01() == [0.001, 0.002]


def test_a_long_text_is_not_called_an_open_quote(tmp_path):
    path = tmp_path / "p.csv"
    path.write_text(HEAD + GOOD + "a" * 200_000 + ",b,1\n")
    with pytest.raises(RowError, match=r"line 3: a field has more than 131,072 characters"):
        read_pairs(path)


@pytest.mark.parametrize("named", [("sentence1", "sentence1", "score"), ("score", "sentence2", "score")])
def test_one_column_for_two_things(tmp_path, named):
    path = tmp_path / "p.csv"
    path.write_text(HEAD + GOOD)
    with pytest.raises(ColumnsError, match="named twice"):
        read_pairs(path, columns=named)


@pytest.mark.parametrize(("name", "pack"), [("a.txt.gz", gzip.compress), ("a.txt.xz", lzma.compress)])
def test_a_packed_file_of_absurd_size_is_refused_before_all_is_read(tmp_path, monkeypatch, name, pack):
    monkeypatch.setattr("truncate_kit.data.files._PLENTY", 1_000_000)
    path = tmp_path / name
    path.write_bytes(pack(b"a" * 5_000_000 + b"\xff"))  # whose end is no text: that is not reached
    with pytest.raises(DataError, match="more than 200 times as large"):
        read_texts(path)
    path.write_bytes(pack(b"a cat\n" * 100_000))  # less than what is plenty
    assert read_texts(path) == ["a cat"]


def test_a_parquet_file_of_more_rows_than_bytes(tmp_path):
    column = pyarrow.array(["a"]).take(pyarrow.array([0] * 1_100_000))
    path = tmp_path / "p.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"sentence1": column, "sentence2": column}), path)
    with pytest.raises(DataError, match="1,100,000 rows in"):
        read_pairs(path)


def test_rows_behind_damage_in_a_packed_file_are_missed(tmp_path):
    path, one, other = tmp_path / "t.txt.xz", lzma.compress(b"a cat\n"), lzma.compress(b"a dog\n")
    path.write_bytes(one + bytes(8) + other + bytes(4))
    assert read_texts(path) == ["a cat", "a dog"]
    for damaged in (one + b"\x00x" + other[1:], one + other[:-20], one + other + b"left"):
        path.write_bytes(damaged)
        with pytest.raises(DataError, match="the packed data is broken"):
            read_texts(path)


def test_a_name_with_a_null_character_is_no_file():
    with pytest.raises(DataError, match="does not exist"):
        load_pairs("a\0b")
