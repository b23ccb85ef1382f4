"""Every format gives the same rows, and each bad file one clear error: file, place, what is wrong, and a hint."""

import contextlib
import csv
import gzip
import lzma
import re
import tracemalloc

import pyarrow
import pyarrow.parquet
import pytest

from tests.support.files import write_table
from truncate_kit.core.errors import DataError
from truncate_kit.data.pairs import SPLIT_NAMES, load_pairs, read_pairs
from truncate_kit.data.tables import iter_texts, read_texts
from truncate_kit.data.triplets import load_triplets

HEAD = "sentence1,sentence2,score\n"
GOOD = "a cat,a dog,2.5\n"
CUT = gzip.compress((HEAD + GOOD * 500).encode(), mtime=0)[:-30]
JSON = '{"sentence1": "a", "sentence2": "b", "score": 1}\n'

# name, content, what its message says after the file's path
BAD = [
    ("empty.csv", "", " is empty"),
    ("latin1.csv", (HEAD + GOOD + "caf\xe9,b,1\n").encode("latin-1"), ": the text is not UTF-8"),
    ("headless.csv", GOOD + GOOD, ": two columns|: no column has a known name for"),
    ("few.csv", HEAD + GOOD + "a,b\n", ", line 3: 2 fields, but 3 in the header"),
    ("nan.csv", HEAD + GOOD + "a,b,nan\n", ", line 3: the score 'nan' is not a finite"),
    ("comma.csv", HEAD + 'a,b,"3,5"\n', ", line 2: the score '3,5' is not a finite"),
    ("range.csv", HEAD + GOOD + "a,b,45\n" + GOOD, ", line 3: the score 45 is outside the scale"),
    ("space.csv", HEAD + "  ,b,1\n", ", line 2: the text in column 'sentence1' is empty"),
    # Line breaks inside quotes count as an editor counts them.
    ("breaks.csv", HEAD + '"one\n\ntwo",b,1\n\na,b,x1\n', ", line 6: the score 'x1' is not a finite"),
    ("open.csv", HEAD + GOOD + '"a,b,1\n' + GOOD * 3, ", line 3: "),
    ("bad.jsonl", JSON + "\n{'sentence1': 1}\n", ", line 3: not valid JSON"),
    ("key.jsonl", JSON + '{"sentence1": "a", "score": 1}\n', ", line 2: the text in column 'sentence2' is"),
    ("int.jsonl", JSON.replace('"b"', "7"), ", line 1: column 'sentence2' holds int 7, not a text"),
    ("half.jsonl", JSON + JSON.replace('"b"', '"b \\ud83d"'), ", line 2: not valid JSON .*surrogates not allowed"),
    ("huge.jsonl", JSON.replace("1}", "1" + "0" * 400 + "}"), ", line 1: the score '1000"),
    ("empty text.json", f"[{JSON}, {JSON.replace('a', ' ', 1)}]", ", row 2: the text"),
    ("texts.json", '["a", "b"]', ", row 1: not valid JSON .an object"),
    ("open.json", "[{]", ": not valid JSON"),
    ("none.json", "[]", " is empty"),
    ("text.parquet", HEAD + GOOD, " is damaged or not a Parquet file"),
    ("pairs.xlsx", "PK", ": cannot read files that end in '.xlsx'"),
    ("comma.tsv", "sentence1\tsentence2\tscore\na\tb\t1.234,5\n", ", line 2: the score '1.234.5' is not a finite"),
    ("zip.csv", b"PK\x03\x04\0\0\xff" * 9, " is a binary file"),
    ("qrels/test.tsv", "query-id\tcorpus-id\tscore\na\tb\t1\n", ": no column has a known name"),
    ("cut.csv.gz", CUT, ": cannot be read"),
]


@pytest.mark.parametrize(("name", "content", "said"), BAD, ids=[bad[0] for bad in BAD])
def test_a_bad_file_is_one_clear_error(tmp_path, name, content, said):
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(DataError) as caught:
        load_pairs(path)
    assert re.match(f"{re.escape(str(path))}({said})", str(caught.value)), str(caught.value)
    assert "\n" not in str(caught.value)
    assert f"folder of queries and documents, {tmp_path} " in caught.value.hint or path.parent == tmp_path
    assert caught.value.hint.strip()


@pytest.mark.parametrize("name", ["no.csv", "no/such/folder", "no.parquet", "a.txt"])
def test_a_missing_file_or_a_folder_in_its_place(tmp_path, name):
    with pytest.raises(DataError, match=r"does not exist\.$"):
        read_texts(tmp_path / name)
    with pytest.raises(DataError, match="is a folder"):
        read_texts(tmp_path)


def test_parquet_values_that_python_cannot_hold_are_refused_where_they_are_used(tmp_path):
    path = tmp_path / "p.parquet"
    unused = {"day": pyarrow.array([-(10**15)], pyarrow.timestamp("ms"))}  # before year 1
    pyarrow.parquet.write_table(pyarrow.table({"sentence1": ["a"], "sentence2": ["b"], "score": [1.0]} | unused), path)
    assert [pair.first for pair in read_pairs(path)] == ["a"]
    with pytest.raises(DataError, match="holds a value that cannot be read"):
        read_pairs(path, columns=("sentence1", "sentence2", "day"))
    texts = pyarrow.array([b"\xf4"]).view(pyarrow.string())  # not UTF-8
    pyarrow.parquet.write_table(pyarrow.table({"sentence1": texts, "sentence2": ["b"], "score": [1.0]}), path)
    with pytest.raises(DataError, match="holds a value that cannot be read"):
        read_pairs(path)


def test_parquet_rows_are_counted(tmp_path):
    path = tmp_path / "p.parquet"
    columns = {"sentence1": ["a", "b", None], "sentence2": ["c", "d", "e"], "score": [1.0, 2.0, 3.0]}
    for rows, message in ((3, r"p\.parquet, row 3: the text in column 'sentence1' is empty"), (0, "no rows")):
        pyarrow.parquet.write_table(pyarrow.table(columns).slice(0, rows), path)
        with pytest.raises(DataError, match=message):
            read_pairs(path)


def test_parquet_is_not_read_through_a_python_file(tmp_path, monkeypatch):
    """pyarrow's threads may still read when Python ends; through a Python file, they abort the process."""
    sources = set()

    class Watched(pyarrow.parquet.ParquetFile):
        def __init__(self, source, **options):
            sources.add(type(source))
            super().__init__(source, **options)

    monkeypatch.setattr(pyarrow.parquet, "ParquetFile", Watched)
    path = write_table(tmp_path / "p.parquet", ("sentence1", "sentence2", "score"), [("a", "b", 1.0)])
    assert len(read_pairs(path)) == 1
    assert sources == {pyarrow.OSFile}


def repeated(value, number):
    """A column of one value, which a Parquet file keeps once."""
    return pyarrow.DictionaryArray.from_arrays(pyarrow.nulls(number, pyarrow.int32()).fill_null(0), [value])


def test_small_parquet_files_stay_small_in_memory(tmp_path):
    """2,000 times a text of a megabyte, ten million texts, and lists of as many: some kilobytes on disk."""
    path, memory = tmp_path / "p.parquet", pyarrow.default_memory_pool()
    row = {"sentence1": "a" * 2**20 + "\n", "sentence2": "b", "score": 1.0}
    table = {name: repeated(value, 2000) for name, value in row.items()}
    pyarrow.parquet.write_table(pyarrow.table(table), path, compression="zstd")
    assert path.stat().st_size < 10_000
    before = memory.max_memory()
    texts = [pair.first for pair in read_pairs(path)]
    assert (len(texts), {*map(len, texts)}, len({*map(id, texts)})) == (2000, {2**20}, 1)
    assert sum(map(len, iter_texts(path, column="sentence1"))) == 2000 * 2**20
    assert memory.max_memory() < max(before, 2**26)
    many = 10_000_001
    lists = pyarrow.ListArray.from_arrays([0, many], pyarrow.nulls(many, pyarrow.string()))
    for column, rows in ((pyarrow.nulls(many, pyarrow.string()), many), (lists, 1)):
        table = {"sentence1": column, "sentence2": repeated("b", rows), "score": repeated(1.0, rows)}
        pyarrow.parquet.write_table(pyarrow.table(table), path)
        assert path.stat().st_size < 100_000
        with pytest.raises(DataError, match="holds 10,000,001 values; at most 10,000,000"):
            read_pairs(path)
    assert memory.max_memory() < max(before, 2**29)


def peak_of(call):
    """Return the most bytes that Python holds during a call."""
    tracemalloc.start()
    call()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


@pytest.mark.parametrize("name", ["p.parquet", "p.jsonl"])
def test_columns_that_are_not_used_take_no_memory(tmp_path, name):
    """An embedding of 384 numbers in each of 2,000 rows would take 24 MB in Python."""
    vector = [0.125] * 384
    rows = [(f"a {n}", f"b {n}", n % 6, vector, {"vector": vector}) for n in range(2000)]
    path = write_table(tmp_path / name, ("sentence1", "sentence2", "score", "embedding", "more"), rows)
    read_pairs(path)  # imports
    assert peak_of(lambda: read_pairs(path)) < 2_500_000
    with pytest.raises(DataError, match="column 'embedding' holds float"):
        read_texts(path, column="embedding")


def test_repeated_passages_take_the_memory_of_one(tmp_path):
    path, passages = tmp_path / "p.parquet", pyarrow.struct([("docid", pyarrow.string()), ("text", pyarrow.string())])
    lists = pyarrow.array([[{"docid": f"{n}", "text": "a" * 2**20}] for n in range(50)], pyarrow.list_(passages))
    pyarrow.parquet.write_table(pyarrow.table({"query": ["q"] * 50, "pos": lists}), path)
    assert load_triplets(path).rows == (("q", "a" * 2**20),) * 50
    assert peak_of(lambda: load_triplets(path)) < 10 * 2**20


def test_rows_with_a_key_each_take_linear_memory(tmp_path):
    """Each key as a column of all rows would take 25 million cells."""
    path = tmp_path / "p.jsonl"
    row = '{{"sentence1": "a {0}", "sentence2": "b", "score": 1, "key {0}": 1}}\n'
    path.write_text("".join(row.format(n) for n in range(5000)))
    assert [pair.first for pair in read_pairs(path)] == [f"a {n}" for n in range(5000)]
    assert peak_of(lambda: read_pairs(path)) < 10_000_000
    with pytest.raises(DataError, match="and 1,007 more") as caught:
        read_texts(path, column="no")
    assert len(str(caught.value)) < 1000


TSV_TEXTS = ['"I am here."', '"No," he said.', 'The 5" disk', '"A" and "B"', "plain", "with, comma", '"Yes, you are."']


def test_quotes_of_an_unquoted_tsv_belong_to_the_texts(tmp_path, shared_data):
    """31 of the 8,628 rows of stsbenchmark.tsv hold a sentence in quotes."""
    with contextlib.ExitStack() as files:
        splits = (files.enter_context((shared_data / f"stsb/en/{name}.csv").open(newline="")) for name in SPLIT_NAMES)
        rows = [row for split in splits for row in csv.DictReader(split)]
    path = tmp_path / "stsbenchmark.tsv"
    lines = ["\t".join((row["score"], row["sentence1"], row["sentence2"])) for row in rows]
    path.write_text("\n".join(["score\tsentence1\tsentence2", *lines, ""]), encoding="utf-8")
    read = [(pair.first, pair.second) for pair in read_pairs(path)]
    assert read == [(row["sentence1"], row["sentence2"]) for row in rows]
    assert len(read) == 8628
    assert sum(any(re.fullmatch('"[^"]*"', text) for text in pair) for pair in read) == 31


@pytest.mark.parametrize("texts", [TSV_TEXTS, TSV_TEXTS[:1], TSV_TEXTS[-1:], TSV_TEXTS[1:4]])
@pytest.mark.parametrize("quoting", [csv.QUOTE_NONE, csv.QUOTE_MINIMAL, csv.QUOTE_ALL, csv.QUOTE_NONNUMERIC])
def test_tsv_is_read_as_it_was_written(tmp_path, texts, quoting):
    """Quotes enclose fields in the whole file or nowhere."""
    texts = [*texts, *(["a\ttab", "two\r\nlines", 'and "" twice'] if quoting != csv.QUOTE_NONE else [])]
    path = tmp_path / "p.tsv"
    with path.open("w", newline="") as stream:
        quotes = {"quoting": quoting, "quotechar": None if quoting == csv.QUOTE_NONE else '"'}
        writer = csv.writer(stream, delimiter="\t", **quotes)
        writer.writerows([("sentence1", "sentence2", "score"), *((text, "b", 1.5) for text in texts)])
    assert [pair.first for pair in read_pairs(path)] == texts


def test_sentences_in_quotes_from_one_row_to_another(tmp_path):
    """MRPC has such; each line has the fields of a row."""
    path = tmp_path / "p.tsv"
    for rows in ([('"He left', "a"), ("b", "c"), ('He came"', "d")], [("a", '"He left'), ("b", 'He came"')]):
        path.write_text("\n".join(["sentence1\tsentence2\tscore", *("\t".join((*row, "1")) for row in rows)]))
        assert [(pair.first, pair.second) for pair in read_pairs(path)] == rows


def test_a_writer_that_encloses_commas(tmp_path):
    path = tmp_path / "p.tsv"
    path.write_text("sentence1\tsentence2\tscore\n" + '"Yes, he did."\ta\t1\n' * 3)
    assert [pair.first for pair in read_pairs(path)] == ["Yes, he did."] * 3


def test_a_quote_that_never_ends(tmp_path):
    path = tmp_path / "p.tsv"
    path.write_text("sentence1\tsentence2\tscore\n" + '"open\tb\t1\n' + 'a\t"an ""old"" quote"\t2\n' * 2000)
    assert [pair.first for pair in read_pairs(path)][:2] == ['"open', "a"]


def test_csv_with_byte_order_mark_blank_lines_line_breaks_and_spaces(tmp_path):
    path = tmp_path / "p.csv"
    path.write_bytes(b'\xef\xbb\xbfsentence1, sentence2, score\r\n\r\n"one\r\ntwo", "b, c",1\r\n')
    assert [(pair.first, pair.second, pair.target) for pair in read_pairs(path)] == [("one\r\ntwo", "b, c", 1.0)]


LINES = "one cat\n\n  zwei Bäume \r\none cat\nNA"
TEXTS = ["one cat", "zwei Bäume", "one cat", "NA"]


@pytest.mark.parametrize(("name", "pack"), [("t.txt", bytes), ("t.txt.gz", gzip.compress), ("t.txt.xz", lzma.compress)])
def test_lines_of_a_text_file(tmp_path, name, pack):
    path = tmp_path / name
    path.write_bytes(pack(b"\xef\xbb\xbf" + LINES.encode()))
    assert list(iter_texts(path)) == TEXTS
    assert read_texts(path) == ["one cat", "zwei Bäume", "NA"]


def test_texts_of_a_column_or_of_pairs(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("text,label,other\none,1,x\ntwo,0,y\n")
    assert read_texts(path) == ["one", "two"]
    assert read_texts(path, column="other") == ["x", "y"]
    path = tmp_path / "t.jsonl"
    path.write_text('{"premise": "a", "hypothesis": "b"}\n{"premise": "b", "hypothesis": "c"}\n')
    assert list(iter_texts(path)) == ["a", "b", "b", "c"]


def write_rows(path, texts):
    """A file of the kind that its name says, with a column before the texts."""
    if path.suffix == ".txt":
        path.write_text("\n".join(texts) + "\n")
        return path
    return write_table(path, ("id", "text"), list(enumerate(texts)))


@pytest.mark.parametrize("kind", [".txt", ".csv", ".tsv", ".jsonl", ".parquet"])
def test_rows_stream_in_order_and_a_blank_one_far_down_is_named(tmp_path, kind):
    texts = [f"text {n % 900}, ä" for n in range(3000)]
    path = write_rows(tmp_path / f"t{kind}", texts)
    assert list(iter_texts(path, by_row=True)) == list(iter_texts(path)) == texts
    texts[2100] = " "
    rows = iter_texts(write_rows(path, texts), by_row=True)
    assert [next(rows) for _ in range(2000)] == texts[:2000]
    place = {".csv": "line 2102", ".tsv": "line 2102", ".parquet": "row 2101"}.get(kind, "line 2101")
    with pytest.raises(DataError, match=f"{place}: .*empty"):
        list(rows)


@pytest.mark.parametrize(("kind", "blank"), [(".csv", ""), (".csv", '""'), (".tsv", ""), (".tsv", '""')])
def test_a_blank_line_of_a_single_column(tmp_path, kind, blank):
    """Skipping it would shift the vectors of all later rows."""
    path = tmp_path / f"t{kind}"
    path.write_text(f"text\na\n{blank}\nb\n")
    with pytest.raises(DataError, match=r"line 3: .*empty"):
        list(iter_texts(path))
    between = "," if kind == ".csv" else "\t"
    path.write_text(f"id{between}text\n1{between}a\n\n2{between}b\n")
    assert list(iter_texts(path)) == ["a", "b"]  # of two columns, it is no row


def test_rows_need_one_column_of_texts(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("sentence1,sentence2\na,b\n")
    for column in (None, "body"):
        with pytest.raises(DataError, match="'sentence1', 'sentence2'"):
            list(iter_texts(path, column=column, by_row=True))
    assert list(iter_texts(path, column="sentence2", by_row=True)) == ["b"]
    with pytest.raises(DataError, match="no column 'body'"):
        list(iter_texts(write_rows(tmp_path / "t.txt", ["a"]), column="body"))
    (tmp_path / "t.jsonl").write_text('{"text": "a"}\n' * 1024 + '{"other": "a"}\n')
    with pytest.raises(DataError, match="line 1025: the text in column 'text' is empty"):
        list(iter_texts(tmp_path / "t.jsonl"))
    (tmp_path / "empty.txt").write_text("")
    with pytest.raises(DataError, match="is empty"):
        list(iter_texts(tmp_path / "empty.txt"))


@pytest.mark.parametrize("name", ["p.csv", "p.jsonl", "p.parquet"])
def test_booleans_are_scores(tmp_path, name):
    path = write_table(tmp_path / name, ("sentence1", "sentence2", "score"), [("a", "b", True), ("c", "d", False)])
    assert [pair.target for pair in read_pairs(path)] == [1.0, 0.0]


@pytest.mark.parametrize("name", ["p.csv", "p.tsv"])
def test_fields_of_any_length_and_columns_without_a_name(tmp_path, name):
    """The csv module alone refuses 131,073 characters; spreadsheets write empty cells."""
    text = 'long, "text" ' * 20_000
    path = write_table(tmp_path / name, ("sentence1", "sentence2", "score", "", ""), [(text, "b", 1, "", "")])
    assert read_pairs(path).pairs[0].first == text.strip()
