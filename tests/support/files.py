"""Files that commands and studies read, and write."""

import contextlib
import csv
import gzip
import json
import resource
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import torch

from truncate_kit.core.results import unsealed
from truncate_kit.data.pairs import TextPair
from truncate_kit.models.loading import load_encoder

NOUNS = ["cat", "dog", "tree", "mat", "red", "blue", "big", "small"]
PHRASES = ["the cat sat", "a red dog", "the big tree", "not a mat", "a small blue cat", "the dog ran", "under a tree"]
SENTENCES = [
    f"{subject} {deed}"
    for subject in ("the cat", "a dog", "the small dog", "a red cat", "the big tree", "a mat")
    for deed in ("sat", "ran", "sat on the mat", "ran to the tree", "is not red", "is big", "is blue")
]


def write_table(path: Path, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> Path:
    """Write rows in the format of the extension, through the format's own library; `.gz` packs."""
    path.parent.mkdir(parents=True, exist_ok=True)
    kind = path.name.removesuffix(".gz").rpartition(".")[2].lower()
    if kind == "parquet":
        table = pyarrow.table(dict(zip(columns, map(list, zip(*rows, strict=True)), strict=True)))
        pyarrow.parquet.write_table(table, path, row_group_size=700)
        return path
    with (gzip.open if path.suffix == ".gz" else open)(path, "wt", encoding="utf-8", newline="") as stream:
        if kind in ("jsonl", "ndjson"):
            stream.writelines(json.dumps(dict(zip(columns, row, strict=True))) + "\n" for row in rows)
        else:
            writer = csv.writer(stream, dialect="excel-tab" if kind == "tsv" else "excel", lineterminator="\n")
            writer.writerows([columns, *rows])
    return path


def edit_json(path: Path, **values: Any) -> None:
    """Set values of a JSON file, which need not be there."""
    known = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(known | values, default=str))


@contextlib.contextmanager
def small_disk(limit: int) -> Iterator[None]:
    """No file may grow beyond `limit` bytes, here and in processes that start meanwhile: as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def pairs_file(path: Path, column: str, values: Sequence[object]) -> Path:
    """A file of 64 pairs with these values in turn."""
    numbered = [(a, b, values[(3 * i + j) % len(values)]) for i, a in enumerate(NOUNS) for j, b in enumerate(NOUNS)]
    rows = [(f"the {a} sat on the {b}", f"a {b} ran to the {a}", value) for a, b, value in numbered]
    return write_table(path, ("sentence1", "sentence2", column), rows)


def graded_file(path: Path, pairs: Iterable[TextPair]) -> Path:
    """A file of these pairs."""
    rows = [(pair.first, pair.second, round(pair.target, 3)) for pair in pairs]
    return write_table(path, ("sentence1", "sentence2", "score"), rows)


def model_graded_file(folder: Path, model: Path) -> Path:
    """`pairs.csv`: pairs that the model itself grades from -1 to 1, so that rounding has something to keep."""
    encoder = load_encoder(model)
    texts = [f"{first} and {second}" for first in PHRASES for second in PHRASES]
    vectors = torch.nn.functional.normalize(encoder.vectors(texts), dim=1)
    places = [(i, (i + step) % len(texts)) for step in (1, 5, 11) for i in range(len(texts))]
    rows = [(texts[i], texts[j], f"{float(vectors[i] @ vectors[j]):.5f}") for i, j in places]
    return write_table(folder / "pairs.csv", ("sentence1", "sentence2", "score"), rows)


def words_folder(folder: Path) -> Path:
    """A folder with one set of word similarities."""
    rows = [(one, other, (3 * i + j) % 5) for i, one in enumerate(NOUNS) for j, other in enumerate(NOUNS) if i < j]
    return write_table(folder / "rg65.csv", ("word1", "word2", "score"), rows).parent


def write_study(home: Path, **parts: Any) -> Path:
    """`study.toml` in a folder: parts by their keys, models, priors and tasks as lists of their own keys."""
    text = "\n".join(f"{key} = {_toml(value)}" for key, value in parts.items())
    (home / "study.toml").write_text(text, encoding="utf-8")
    return home / "study.toml"


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return f"{{ {', '.join(f'{key} = {_toml(one)}' for key, one in value.items())} }}"
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    return json.dumps(str(value) if isinstance(value, Path) else value)


def study_file(model: Path, home: Path, *, epochs: int = 12, seeds: int = 2, layers: str = "all") -> Path:
    """A study of `pairs.csv`, written beside it; by default a trial takes half a second."""
    rows = [(f"the {a} sat", f"a {b} ran", (3 * i + j) % 6) for i, a in enumerate(NOUNS) for j, b in enumerate(NOUNS)]
    write_table(home / "pairs.csv", ("sentence1", "sentence2", "score"), rows)
    training = {"epochs": epochs, "batch_size": 8, "learning_rate": 1e-3}
    models, tasks = [{"model": model, "name": "bert"}], [{"data": "pairs.csv", "name": "pairs"}]
    return write_study(home, seeds=seeds, layers=layers, training=training, models=models, tasks=tasks)


def kept_in(path: Path) -> dict[str, Any]:
    """The values of a result in a file, whose digest is checked."""
    return unsealed(json.loads(path.read_text(encoding="utf-8")), path)
