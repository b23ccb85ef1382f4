"""Folders as a clone of a hub set leaves them, and JSON in each of its layouts."""

import gzip
import json

import pytest

from tests.support.files import write_table
from truncate_kit.core.errors import DataError
from truncate_kit.data.pairs import load_pairs, read_pairs
from truncate_kit.data.suites import find_sts, read_trained_pairs
from truncate_kit.data.tables import iter_texts

NAMES = ("sentence1", "sentence2", "score")
ROWS = [(f"a {n}", f"b {n}", n % 6) for n in range(30)]
SPLITS = {"train": ROWS[:10], "dev": ROWS[10:20], "test": ROWS[20:]}

LAYOUTS = [
    "data/{}-00000-of-00001-0a1b2c3d4e5f6071.parquet",
    "data/{}.jsonl.gz",
    "plain_text/{}/0000.parquet",
    "default/{}/part-00000-of-00001.ndjson",
    "snli_1.0/snli_1.0_{}.jsonl",
    "en/sts-{}.tsv",
    "{}.csv",
]


def texts(splits):
    return {name: [pair.first for pair in pairs] for name, pairs in splits.items()}


def test_a_cloned_set_has_the_splits_that_load_dataset_finds(shared_cases):
    datasets = pytest.importorskip("datasets")
    folder = shared_cases / "hub-clone"
    splits = load_pairs(folder)
    for name, theirs in (("train", "train"), ("dev", "validation"), ("test", "test")):
        files = sorted(map(str, (folder / "data").glob(f"{theirs}-*.parquet")))
        rows = datasets.Dataset.from_parquet(files, keep_in_memory=True)
        wanted = [(row["sentence1"], row["sentence2"], row["score"]) for row in rows]
        assert [(pair.first, pair.second, pair.target) for pair in splits.split(name)] == wanted


@pytest.mark.parametrize("names", ["dev test", "validation eval", "trial evaluation", "valid test"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_splits_of_a_clone(tmp_path, layout, names):
    for name, rows in zip(["train", *names.split()], SPLITS.values(), strict=True):
        write_table(tmp_path / "stsb" / layout.format(name), NAMES, rows)
    (tmp_path / "stsb" / "dataset_infos.json").write_text("{}")
    write_table(tmp_path / "stsb" / ".cache" / "train.csv", NAMES, ROWS)
    assert texts(load_pairs(tmp_path / "stsb")) == {name: [row[0] for row in rows] for name, rows in SPLITS.items()}
    assert [pair.first for pair in find_sts(tmp_path)[0]] == [row[0] for row in SPLITS["test"]]
    assert len(read_trained_pairs(tmp_path / "stsb")) == 20


@pytest.mark.parametrize("name", ["train.parquet", "train.csv", "train.txt"])
def test_a_pointer_in_a_clone_without_git_lfs(tmp_path, name):
    (tmp_path / name).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0a1b\nsize 12345\n")
    with pytest.raises(DataError, match=f"{name} is a Git LFS pointer") as caught:
        list(iter_texts(tmp_path / name))
    assert "git lfs pull" in caught.value.hint


def test_shards_are_one_split(tmp_path):
    for part in range(3):
        write_table(tmp_path / f"data/train-0000{part}-of-00003.parquet", NAMES, ROWS[10 * part : 10 * part + 10])
    assert [pair.first for pair in load_pairs(tmp_path).train] == [row[0] for row in ROWS]
    write_table(tmp_path / "data/train-00001-of-00003.parquet", NAMES, [*ROWS[10:13], ("a", " ", 1)])
    with pytest.raises(DataError, match=r"train-00001-of-00003\.parquet, row 4: the text in column 'sentence2'"):
        load_pairs(tmp_path)
    (tmp_path / "data/train-00001-of-00003.parquet").unlink()
    with pytest.raises(DataError, match="holds 2 of 3 files for train"):
        load_pairs(tmp_path)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("de/train.csv", "en/train.csv"),
        ("data/dev_matched.csv", "data/dev_mismatched.csv"),
        ("data/train.csv", "data/train.jsonl"),
        ("dev.csv", "validation.csv"),
    ],
)
def test_two_sets_are_not_joined(tmp_path, one, other):
    for name in (one, other):
        write_table(tmp_path / name, NAMES, ROWS)
    with pytest.raises(DataError, match=r"holds several files for (train|dev): ") as caught:
        load_pairs(tmp_path)
    assert all(name in str(caught.value) for name in (one, other))


@pytest.mark.parametrize("name", ["pairs.tsv", "data/pairs.tsv"])
def test_a_folder_with_one_table(tmp_path, name):
    (tmp_path / "dataset_infos.json").write_text("{}")
    rows = [("dev" if n > 20 else "train", *row) for n, row in enumerate(ROWS)]
    write_table(tmp_path / name, ("split", *NAMES), rows)
    assert texts(load_pairs(tmp_path))["dev"] == [row[0] for row in ROWS[21:]]
    assert len(read_trained_pairs(tmp_path)) == 30
    write_table(tmp_path / name, NAMES, ROWS)
    assert len(load_pairs(tmp_path).train) == len(read_trained_pairs(tmp_path)) == 30


OBJECTS = [dict(zip(NAMES, row, strict=True)) for row in ROWS]


@pytest.mark.parametrize("name", ["p.json", "p.ndjson", "p.jsonl", "p.json.gz"])
@pytest.mark.parametrize(
    "text",
    [
        "".join(json.dumps(row) + "\n" for row in OBJECTS),
        json.dumps(OBJECTS),
        json.dumps(OBJECTS, indent=2),
        "[" + ",\n".join(map(json.dumps, OBJECTS)) + "]",
        json.dumps({"version": "1.0", "data": OBJECTS}),
        json.dumps({"version": 1, "data": OBJECTS, "authors": ["a", "b"]}, indent=1),
    ],
)
def test_json_in_lines_in_an_array_or_in_an_object(tmp_path, name, text):
    (tmp_path / name).write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    assert [(pair.first, pair.second, pair.target) for pair in read_pairs(tmp_path / name)] == ROWS
    assert list(iter_texts(tmp_path / name, column="sentence2", by_row=True)) == [row[1] for row in ROWS]
