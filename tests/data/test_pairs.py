import csv
import subprocess
import sys
from functools import partial
from pathlib import Path

import datasets
import pandas
import polars
import pytest

from tests.support.files import write_table
from truncate_kit.core.errors import DataError, UsageError
from truncate_kit.data.pairs import PairSet, PairSplits, TextPair, complete_splits, load_pairs, read_pairs, spread
from truncate_kit.report.view import data_sentences, overlap_warning

ROWS = [
    ("A cat sleeps.", 'It says "meow", loudly.', 2.5),
    ("NA", "null", 0.0),
    ("Zwei Bäume — 木", "two trees", 5.0),
]
PAIRS = tuple(TextPair(*row) for row in ROWS)
NAMES = ("sentence1", "sentence2", "score")


FRAME = pandas.DataFrame(ROWS, columns=NAMES)
WRITERS = {
    "p.csv": partial(FRAME.to_csv, sep=";", decimal=",", index=False),
    "t.csv": partial(FRAME.to_csv, sep="\t"),
    "p.json": FRAME.to_json,
    "index.json": partial(FRAME.to_json, orient="index"),
    "p.ndjson": partial(FRAME.to_json, orient="records", lines=True),
}
TWICE = pandas.concat([FRAME, FRAME], axis=1)
REVERSED = datasets.Dataset.from_pandas(FRAME[::-1])
POLARS = polars.from_pandas(FRAME).with_columns(polars.col("sentence1").cast(polars.Categorical))
TABLES = [
    FRAME,
    FRAME.astype({"sentence2": "category"}),
    POLARS,
    REVERSED.select([2, 1, 0]),
    FRAME.to_dict("list"),
    ROWS,
    PAIRS,
]


def write(path: Path, rows=ROWS, names=NAMES) -> Path:
    return write_table(path, names, rows)


@pytest.mark.parametrize("name", ["p.csv", "p.tsv", "p.jsonl", "p.parquet", "p.csv.gz", "p.tsv.gz", "P.CSV"])
def test_every_format_gives_the_same_pairs(tmp_path, name):
    read = read_pairs(write(tmp_path / name))
    assert read.pairs == PAIRS
    assert load_pairs(tmp_path / name, divide=False).train == read


@pytest.mark.parametrize("name", WRITERS)
def test_files_are_read_as_pandas_wrote_them(tmp_path, name):
    WRITERS[name](tmp_path / name)
    assert read_pairs(tmp_path / name).pairs == PAIRS


@pytest.mark.parametrize("table", TABLES, ids=lambda table: type(table).__name__)
def test_tables_in_memory_are_read_like_files(tmp_path, table):
    assert read_pairs(table).pairs == PAIRS
    splits = load_pairs({"train": table, "validation": table})
    assert [(name, pairs.pairs) for name, pairs in splits.items()] == [("train", PAIRS), ("dev", PAIRS)]


@pytest.mark.parametrize(
    "table", [3, {"a": [1], "b": []}, {"a": "b"}, [("a",)], [], FRAME[:0], [("a", "b", "NA")], TWICE]
)
def test_tables_that_hold_no_pairs(table):
    with pytest.raises(DataError) as caught:
        load_pairs(table, skip_bad_rows=True)
    assert caught.value.hint


def test_bad_rows_are_left_out_counted_and_shown_if_asked(tmp_path):
    path = write(tmp_path / "p.csv", [*ROWS, ("a", "b", "n/a"), (" ", "b", 1), ("a", "b", "")])
    with pytest.raises(DataError, match="line 5: the score") as caught:
        load_pairs(path)
    assert "`skip_bad_rows`" in caught.value.hint
    splits = load_pairs(path, skip_bad_rows=True, divide=False)
    assert splits.train.pairs == PAIRS
    assert [note.partition(", such as: ")[0] for note in splits.notes] == ["3 of 6 rows are left out"]
    assert all(f"line {line}: the " in splits.notes[0] for line in (5, 6, 7))
    columns = pandas.read_csv(
        path, keep_default_na=False, na_values={"score": ["n/a", ""], "sentence1": [" "]}
    ).to_dict("list")
    assert read_pairs(columns, skip_bad_rows=True).pairs == PAIRS


def test_columns_are_found_by_name(tmp_path):
    known = (
        "sentence_A sentence_B relatedness_score|text1 text2 similarity|premise hypothesis label|query document score"
    )
    for names in known.split("|"):
        assert read_pairs(write(tmp_path / "p.csv", names=names.split())).pairs == PAIRS


BAD_COLUMNS = [
    ("a b score", None, "two texts.*'a', 'b', 'score'"), ("sentence1 sentence2 c", None, "the score"),
    ("score sentence1 sentence2 similarity", None, "several columns could be the score"),
    ("sentence1 sentence1 score", None, "two columns have the same name"),
    (" ".join(NAMES), ("sentence1", "sentence1", "score"), "three different columns are needed"),
    (" ".join(NAMES), ("sentence1", "sentence2", "Score"), "no column 'Score'.*'score'"),
]  # fmt: skip


@pytest.mark.parametrize(("names", "columns", "message"), BAD_COLUMNS)
def test_bad_columns_are_named(tmp_path, names, columns, message):
    path = write(tmp_path / "p.csv", [(1.0, "a", "b", 2.0)[: len(names.split())]], names.split())
    with pytest.raises(DataError, match=message):
        read_pairs(path, columns=columns)


def test_bad_folders_are_named(tmp_path):
    with pytest.raises(DataError, match="holds no train, dev or test file"):
        load_pairs(tmp_path)


@pytest.mark.parametrize(
    ("scores", "scale"),
    [((0.2, 1.0), (0, 1)), ((1.0, 4.9), (1, 5)), ((0.4, 4.0), (0, 5)), ((0, 9.8), (0, 10)), ((0.0, 5.0), (0, 5))],
)
def test_scale_is_inferred_from_all_splits_and_stated(tmp_path, scores, scale):
    for name, score in zip(("train", "dev"), scores, strict=True):
        write(tmp_path / f"{name}.csv", [("a", "b", score)])
    splits, (low, high) = load_pairs(tmp_path), scale
    assert splits.dev.scale == splits.train.scale == scale
    assert splits.dev.scores01() == [pytest.approx((scores[1] - low) / (high - low))]
    assert f"Scores run from {low} to {high} (inferred from 2 values)." in data_sentences(splits)[0]


@pytest.mark.parametrize(("classes", "hidden"), [(False, -1.0), (True, -1), (False, "")])
def test_a_split_with_hidden_labels_is_left_out(tmp_path, classes, hidden):
    for split, label in {"train": None, "validation": None, "test": hidden}.items():
        rows = [(f"a {place}", f"b {place}", place % 3 if label is None else label) for place in range(30)]
        column = "label" if label != "" else "none"  # as in test.tsv of GLUE
        write_table(tmp_path / f"{split}.parquet", ("sentence1", "sentence2", column), rows)
    splits = load_pairs(tmp_path, classes=classes)
    assert [name for name, _ in splits.items()] == ["train", "dev"]
    assert any("/test has no labels" in note for note in splits.notes)
    completed = complete_splits(splits)
    assert (len(completed.train), len(completed.dev), len(completed.test)) == (27, 30, 3)
    with pytest.raises(DataError, match=r"score -1|1 different classes|no column"):
        load_pairs(tmp_path / "test.parquet", classes=classes)


def test_given_scale_is_used_and_checked(tmp_path):
    path = write(tmp_path / "p.csv")
    read = read_pairs(path, scale=(0, 10))
    assert read.scores01() == [0.25, 0.0, 0.5]
    assert (read.scale, read.scale_source) == ((0, 10), "given")
    with pytest.raises(DataError, match=r"p\.csv, line 4: the score 5 is outside the scale 0 to 4 \(given\)"):
        read_pairs(path, scale=(0, 4))
    for wrong in ((5, 0), (0, float("nan")), (1, 1), (1,)):
        with pytest.raises(UsageError, match="is not a scale"):
            read_pairs(path, scale=wrong)


def test_fingerprint_follows_content_and_scale_only(tmp_path):
    one = read_pairs(write(tmp_path / "p.csv"))
    assert one.fingerprint() == read_pairs(write(tmp_path / "other.parquet")).fingerprint()
    others = [
        read_pairs(tmp_path / "p.csv", scale=(0, 6)),
        read_pairs(write(tmp_path / "q.csv", [ROWS[1], ROWS[0], ROWS[2]])),
        read_pairs(write(tmp_path / "r.csv", [("A cat sleeps.", 'It says "meow", loudly', 2.5), *ROWS[1:]])),
    ]
    assert len({one.fingerprint(), *(other.fingerprint() for other in others)}) == 4


# Set, sizes, scale; test pairs also in train in the same and in either order; test sentences in train, and of how many:
# the table that comes with the evaluation data.
@pytest.mark.parametrize(
    ("name", "sizes", "scale", "pairs", "sentences"),
    [
        ("stsb/en", [5749, 1500, 1379], (0, 5), (7, 12), (257, 2552)),
        ("stsb/de", [5749, 1500, 1379], (0, 5), (10, 16), (272, 2513)),
        ("korsts", [5749, 1500, 1379], (0, 5), None, None),
        ("sick", [4500, 500, 4927], (1, 5), (49, 73), (3743, 5007)),
        ("mrpc", [3576, 500, 1725], (0, 1), (0, 0), (240, 3393)),
    ],
)
def test_published_sets_keep_every_row(shared_data, name, sizes, scale, pairs, sentences):
    splits = load_pairs(shared_data / name)
    if pairs:
        overlap, warning = splits.overlap, data_sentences(splits)[-1]
        assert overlap.train_test == pairs
        assert (overlap.test_sentences_in_train, overlap.test_sentences) == sentences
        assert warning == overlap_warning(overlap)
        assert f"{pairs[1]} test pairs ({pairs[0]} in the same order)" in warning
        assert "{:,} of the {:,} distinct test sentences".format(*sentences) in warning
    assert [len(split) for _, split in splits.items()] == sizes
    assert {split.scale for _, split in splits.items()} == {scale}
    assert f"(inferred from {sum(sizes):,} values)" in data_sentences(splits)[0]
    with (shared_data / name / "test.csv").open(encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    score = "score" if "score" in rows[0] else "label"
    wanted = [(row["sentence1"], row["sentence2"], float(row[score])) for row in rows]
    assert [(pair.first, pair.second, pair.target) for pair in splits.test] == wanted


def test_scores_that_look_like_classes_are_pointed_out():
    def said(*scores: float) -> bool:
        pairs = tuple(TextPair(f"a{place}", "b", score) for place, score in enumerate(scores))
        splits = PairSplits(name="x", train=PairSet(name="x", pairs=pairs, scale=(0, 1), scale_source="given"))
        return any("`objective=paraphrase`" in sentence for sentence in data_sentences(splits))

    assert (said(0, 1, 1), said(0, 0.5, 1), said(1, 1)) == (True, False, False)


def test_the_bundled_pairs_are_spread_evenly_and_none_occurs_twice():
    bundled = load_pairs("bundled")
    assert [(name, len(split)) for name, split in bundled.items()] == [("train", 2500), ("dev", 500), ("test", 500)]
    texts = [text for _, split in bundled.items() for pair in split for text in (pair.first, pair.second)]
    assert len(texts) == len(set(texts)) == 2 * 3500
    assert bundled.overlap.test_sentences_in_train == 0
    (shown,) = data_sentences(bundled)
    assert shown.endswith("pairs). Scores run from 0 to 5 (known for this set).")
    for _, split in bundled.items():
        bands = [min(int(2 * score), 9) for score in split.scores()]
        assert {bands.count(band) for band in range(10)} == {len(split) // 10}
        assert len(set(split.scores())) > 35


def test_importing_the_package_and_reading_csv_need_no_heavy_library(tmp_path):
    path = write(tmp_path / "p.csv")
    code = (
        "import sys; from truncate_kit.data.pairs import load_pairs, read_pairs\n"
        "read_pairs(sys.argv[1]); load_pairs('bundled')\n"
        "sys.exit(', '.join({'torch', 'datasets', 'pandas', 'pyarrow', 'numpy'} & set(sys.modules)) or None)"
    )
    ran = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")


def test_texts_are_spread_evenly_and_once_each():
    texts = [f"text {place}" for place in range(9)]
    assert spread([*texts, *texts], 5) == ["text 0", "text 1", "text 3", "text 5", "text 7"]
    assert spread(["a", "b", "a"], 5) == ["a", "b"]
