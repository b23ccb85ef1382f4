"""Files of users, damaged at random: each reader refuses them in one sentence, or gives what it promises."""

import math
import shutil
from itertools import pairwise
from pathlib import Path
from random import Random, SystemRandom

import pytest

from tests.fuzz.mutating import mutated
from tests.support.files import write_table
from truncate_kit.core.errors import TruncateKitError
from truncate_kit.data.pairs import load_pairs, load_words
from truncate_kit.data.retrieval import read_retrieval
from truncate_kit.data.tables import iter_texts
from truncate_kit.data.triplets import load_triplets
from truncate_kit.methods.study.plan import read_study
from truncate_kit.models.loading import load_encoder

INPUTS = 25
FRESH = SystemRandom().randrange(10**9)
WORDS = ["the", "cat", "sat", "under", "a", "big", "red", "tree", "and", "small", "dog", "ran", "on", "blue", "mat"]
ROWS = [
    (f"the {one} sat", f"a {other} ran on it", (3 * i + j) % 6)
    for i, one in enumerate(WORDS)
    for j, other in enumerate(WORDS[:3])
]
STUDY = """
seeds = 2
layers = "1..2"
[training]
epochs = 3
[[models]]
model = "mini-bert"
blocks = [1, 4]
[[priors]]
texts = "p.csv"
layer = 2
[[tasks]]
data = "p.csv"
scale = [0, 5]
"""


def check_pairs(path: Path) -> None:
    for _, pairs in load_pairs(path, divide=False).items():
        low, high = pairs.scale
        assert all(math.isfinite(score) and low <= score <= high for score in pairs.scores())
        assert all(pair.first.strip() and pair.second.strip() for pair in pairs)


def check_texts(path: Path) -> None:
    assert len(list(iter_texts(path, by_row=True))) == len(path.read_bytes().removesuffix(b"\n").split(b"\n"))


def check_triplets(path: Path) -> None:
    assert all(row[0].strip() and row[1].strip() for row in load_triplets(path).rows)


def check_words(path: Path) -> None:
    for _, pairs in load_words(path.parent).items():
        assert all(map(math.isfinite, pairs.scores01()))


def check_retrieval(path: Path) -> None:
    folder = path.parent.parent if path.parent.name == "qrels" else path.parent
    found = read_retrieval(folder)
    grades = [grade for row in found.relevance for grade in row.values()]
    assert all(found.relevance)
    assert all(math.isfinite(grade) and grade > 0 for grade in grades)
    assert len(set(found.document_ids)) == len(found.document_ids)


def check_study(path: Path) -> None:
    for task in read_study(path).tasks:
        assert 1 <= task.training.epochs <= 10**6


def check_model(path: Path) -> None:
    assert load_encoder(path.parent).depth >= 1


TABLES = {
    **dict.fromkeys(("p.csv", "p.jsonl", "p.parquet", "z.csv.gz"), (("sentence1", "sentence2", "score"), ROWS)),
    "t.jsonl": (("anchor", "positive", "negative"), [(a, b, f"{c} x") for a, b, c in ROWS]),
    "words/rg65.csv": (("word1", "word2", "score"), [(*pair, n % 5) for n, pair in enumerate(pairwise(WORDS))]),
    "r/corpus.jsonl": (("_id", "title", "text"), [(f"d{n}", "", row[1]) for n, row in enumerate(ROWS)]),
    "r/queries.jsonl": (("_id", "text"), [(f"q{n}", row[0]) for n, row in enumerate(ROWS[:9])]),
    "r/qrels/test.tsv": (("query-id", "corpus-id", "score"), [(f"q{n}", f"d{n}", 1 + n % 2) for n in range(9)]),
}
TEXTS = {"t.txt": "".join(f"{row[0]}\n" for row in ROWS), "study.toml": STUDY}
CHECKS = {
    "t.txt": check_texts,
    "t.jsonl": check_triplets,
    "words/rg65.csv": check_words,
    "r/corpus.jsonl": check_retrieval,
    "r/queries.jsonl": check_retrieval,
    "r/qrels/test.tsv": check_retrieval,
    "study.toml": check_study,
}
MODEL_FILES = ("config.json", "tokenizer.json", "model.safetensors")


def damage(folder: Path, name: str, check, seed: int, inputs: int = INPUTS) -> None:
    """Read changed copies of a file; the name of the test's failure says seed and number of the one that breaks."""
    content = (folder / name).read_bytes()
    check(folder / name)
    for number in range(inputs):
        (folder / name).write_bytes(mutated(content, Random(f"{seed} {name} {number}")))
        try:
            check(folder / name)
        except TruncateKitError:
            continue
        except Exception as error:
            raise AssertionError(f"seed {seed}, {name}, {number}: {error!r}") from error


@pytest.mark.parametrize("seed", [20261123, FRESH], ids=["fixed", "fresh"])
@pytest.mark.parametrize("name", [*TABLES, *TEXTS])
def test_damaged_data_is_refused_or_keeps_its_promises(name, seed, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for other, (columns, rows) in TABLES.items():
        write_table(tmp_path / other, columns, rows)
    for other, text in TEXTS.items():
        (tmp_path / other).write_text(text)
    damage(tmp_path, name, CHECKS.get(name, check_pairs), seed)


@pytest.mark.parametrize("seed", [20261123, FRESH], ids=["fixed", "fresh"])
@pytest.mark.parametrize("name", MODEL_FILES)
def test_a_damaged_model_is_refused_or_loads(name, seed, tiny_folder, tmp_path):
    shutil.copytree(tiny_folder("bert"), tmp_path / "m")
    damage(tmp_path / "m", name, check_model, seed, inputs=8)
