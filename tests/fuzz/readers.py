"""Every reader of a file: valid files for it, how it is called, and what an accepted file must give."""

import csv
import gzip
import io
import json
import lzma
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet

Make = Callable[[Path], None]
Read = Callable[[Path], Any]

WORDS = ["the", "cat", "sat", "under", "a", "big", "red", "tree", "and", "small", "dog", "ran", "on", "blue", "mat"]
PAIRS = [(f"the {one} sat", f"a {other} ran on it", (3 * i + j) % 6) for i, one in enumerate(WORDS) for j, other in
         enumerate(WORDS[:3])]  # fmt: skip


class WrongError(AssertionError):
    """A file was taken that must not be, or as something that it is not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """A reader.

    Attributes:
        name: In the table.
        files: Names of those that are changed.
        make: Writes valid ones into a folder.
        read: Reads them from there; raises `WrongError` where what it is given breaks a promise.
        sealed: Whether anything but what was written is refused, or None.
        cost: How much longer it takes than the fastest ones; it gets that much fewer inputs.
    """

    name: str
    files: tuple[str, ...]
    make: Make
    read: Read
    sealed: bool = False
    cost: int = 1

    @property
    def as_json(self) -> bool:
        """Whether the files are JSON."""
        return all(name.endswith((".json", ".jsonl")) for name in self.files)


def _text(name: str, separator: str = ",", pack: Callable[[bytes], bytes] = bytes) -> Make:
    rows = [["sentence1", "sentence2", "score"], *PAIRS]
    text = "\n".join(separator.join(map(str, row)) for row in rows) + "\n"
    return lambda folder: _write(folder / name, pack(text.encode()))


def _write(file: Path, content: bytes) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content)


def _jsonl(file: Path, rows: Sequence[dict[str, Any]]) -> None:
    _write(file, "".join(json.dumps(row) + "\n" for row in rows).encode())


def _pairs(name: str, count: Callable[[bytes], int] | None) -> Read:
    """Read pairs; as many as an independent count of the rows finds, finite and on their scale."""

    def read(folder: Path) -> None:
        from truncate_kit.data import load_pairs

        found = load_pairs(folder / name, divide=False)
        for _, pairs in found.items():
            low, high = pairs.scale
            if not all(math.isfinite(score) and low <= score <= high for score in pairs.scores()):
                raise WrongError("a score that is not finite, or off the scale")
            if not all(pair.first.strip() and pair.second.strip() for pair in pairs):
                raise WrongError("an empty text")
            if count is not None and len(pairs) != (rows := count((folder / name).read_bytes())):
                raise WrongError(f"{len(pairs)} pairs from {rows} rows")

    return read


def _csv_rows(content: bytes) -> int:
    text = content.decode("utf-8-sig")
    return sum(bool(row) for row in csv.reader(io.StringIO(text, newline=""))) - 1


def _tsv_rows(content: bytes) -> int:
    return sum(bool(line.strip(b"\r")) for line in content.removeprefix(b"\xef\xbb\xbf").split(b"\n")) - 1


def _jsonl_rows(content: bytes) -> int:
    return sum(bool(line.strip()) for line in content.decode("utf-8-sig").split("\n"))


def _parquet(folder: Path) -> None:
    columns = zip(*PAIRS, strict=True)
    names = ("sentence1", "sentence2", "score")
    table = pyarrow.table(dict(zip(names, map(list, columns), strict=True)) | {"day": range(len(PAIRS))})
    pyarrow.parquet.write_table(table, folder / "p.parquet", row_group_size=20, compression="none")


def _read_texts(folder: Path) -> None:
    from truncate_kit.data import iter_rows

    found = list(iter_rows(folder / "t.txt"))
    rows = len((folder / "t.txt").read_bytes().removesuffix(b"\n").split(b"\n"))
    if len(found) != rows:
        raise WrongError(f"{len(found)} texts from {rows} lines")


def _read_triplets(folder: Path) -> None:
    from truncate_kit.data.triplets import load_triplets

    found = load_triplets(folder / "t.jsonl")
    if not all(row.anchor.strip() and row.positive.strip() for row in found.rows):
        raise WrongError("an empty text")


def _words(folder: Path) -> None:
    rows = "\n".join(f"{one},{other},{n % 5}" for n, (one, other) in enumerate(pairwise(WORDS)))
    _write(folder / "words" / "rg65.csv", f"word1,word2,score\n{rows}\n".encode())


def _read_words(folder: Path) -> None:
    from truncate_kit.data.pairs import load_words

    for _, pairs in load_words(folder / "words").items():
        if not all(math.isfinite(score) for score in pairs.scores01()):
            raise WrongError("a score that is not finite")


def _beir(folder: Path) -> None:
    _jsonl(folder / "r/corpus.jsonl", [{"_id": f"d{n}", "title": "", "text": row[1]} for n, row in enumerate(PAIRS)])
    _jsonl(folder / "r/queries.jsonl", [{"_id": f"q{n}", "text": row[0]} for n, row in enumerate(PAIRS[:9])])
    judged = "".join(f"q{n}\td{n}\t{1 + n % 2}\n" for n in range(9))
    _write(folder / "r/qrels/test.tsv", f"query-id\tcorpus-id\tscore\n{judged}".encode())


def _read_beir(folder: Path) -> None:
    from truncate_kit.data.retrieval import read_retrieval

    found = read_retrieval(folder / "r")
    grades = [grade for row in found.relevance for grade in row.values()]
    if not all(found.relevance) or not all(math.isfinite(grade) and grade > 0 for grade in grades):
        raise WrongError("a query without answers, or a grade that is not finite")
    if len(set(found.document_ids)) < len(found.document_ids):
        raise WrongError("two documents of one name")


_STUDY = """
seeds = 2
layers = "1..2"
read_earlier = true
[training]
epochs = 3
batch_size = 8
warmup = 0.1
max_gradient_norm = 1.0
[[models]]
model = "mini-bert"
blocks = [1, 4]
[[priors]]
texts = "pairs.csv"
layer = 2
[[tasks]]
data = "pairs.csv"
scale = [0, 5]
objective = "cosine"
"""


def _study(folder: Path) -> None:
    _write(folder / "study.toml", _STUDY.encode())
    _text("pairs.csv")(folder)


def _read_study(folder: Path) -> None:
    from truncate_kit.methods.study.study_file import read_study

    study = read_study(folder / "study.toml")
    for task in study.tasks:
        training = task.training
        numbers = (training.warmup, training.weight_decay, training.learning_rate or 1e-4)
        if not all(math.isfinite(number) and number >= 0 for number in numbers) or not training.max_gradient_norm > 0:
            raise WrongError("a number of the training that trains nothing")
        if not 1 <= training.epochs <= 10**6 or not 1 <= study.seeds <= 10**6:
            raise WrongError("a number that no run ends with")


def _published(folder: Path) -> None:
    head = "name,setting,dataset,layer,split,metric,mean\n"
    _write(folder / "f.csv", (head + "".join(f"bert,plain,sts,{n},test,spearman,0.{n}5\n" for n in range(9))).encode())


def _read_published(folder: Path) -> None:
    from truncate_kit.methods.study.published import read_published

    if not all(math.isfinite(value) for value in read_published(str(folder / "f.csv")).values()):
        raise WrongError("a figure that is not finite")


def _packed(name: str, pack: Callable[[bytes], bytes]) -> Reader:
    make = _text(name, pack=pack)
    return Reader(name=f"pairs, {name.rpartition('.')[2]}", files=(name,), make=make, read=_pairs(name, None), cost=2)


DATA = (
    Reader(name="pairs, csv", files=("p.csv",), make=_text("p.csv"), read=_pairs("p.csv", _csv_rows)),
    Reader(name="pairs, tsv", files=("p.tsv",), make=_text("p.tsv", "\t"), read=_pairs("p.tsv", _tsv_rows)),
    Reader(name="pairs, jsonl", files=("p.jsonl",), read=_pairs("p.jsonl", _jsonl_rows), make=lambda folder: _jsonl(
        folder / "p.jsonl", [{"sentence1": a, "sentence2": b, "score": c} for a, b, c in PAIRS])),
    _packed("p.csv.gz", lambda content: gzip.compress(content, mtime=0)),
    _packed("p.csv.xz", lzma.compress),
    Reader(name="pairs, parquet", files=("p.parquet",), make=_parquet, read=_pairs("p.parquet", None), cost=2),
    Reader(name="texts", files=("t.txt",), make=lambda folder: _write(
        folder / "t.txt", "".join(row[0] + "\n" for row in PAIRS).encode()), read=_read_texts),
    Reader(name="triplets", files=("t.jsonl",), read=_read_triplets, make=lambda folder: _jsonl(
        folder / "t.jsonl", [{"anchor": a, "positive": b, "negative": f"{c} x"} for a, b, c in PAIRS])),
    Reader(name="word similarities", files=("words/rg65.csv",), make=_words, read=_read_words),
    Reader(name="retrieval folder", files=("r/corpus.jsonl", "r/queries.jsonl", "r/qrels/test.tsv"), make=_beir,
           read=_read_beir, cost=2),
    Reader(name="study", files=("study.toml",), make=_study, read=_read_study, cost=4),
    Reader(name="published figures", files=("f.csv",), make=_published, read=_read_published),
)  # fmt: skip
