"""Every file of a workspace, a model and a study, in the place of which something else lies."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from tests.fuzz.attacks.attack import Attack, Change

_LIMITED = (
    "import resource; most = int(open('/proc/self/statm').read().split()[0]) * 4096 + (3 << 30)\n"
    "resource.setrlimit(resource.RLIMIT_AS, (most, most))"
)
_CONTENTS: dict[str, bytes] = {
    "nothing": b"",
    "an empty object": b"{}",
    "a list": b"[1]",
    "null": b"null",
    "zeros": bytes(1000),
    "a great depth": b"[" * 200_000,
    "UTF-16": '{"format": 2}'.encode("utf-16"),
    "a number of thousands of digits": b'{"format": ' + b"9" * 10_000 + b"}",
    "NaN": b'{"format": NaN, "digest": NaN}',
    "a lone surrogate": b'{"format": "\\ud800", "model": "\\ud800"}',
    "control characters": b'{"format": 2, "model": "\\u001b[31m\\u202e<script>"}',
}


def _replaced(name: str, kind: str) -> Change:
    def change(place: Path) -> None:
        file = place / name
        shutil.rmtree(file) if file.is_dir() else file.unlink(missing_ok=True)
        if kind == "a folder":
            file.mkdir()
        elif kind == "a pipe":
            os.mkfifo(file)
        elif kind == "a link to a device":
            file.symlink_to("/dev/zero")
        elif kind == "a link to itself":
            file.symlink_to(file.name)
        elif kind == "a link to a file of others":
            file.symlink_to(place.parent / "valid/p.csv")
        elif kind == "8 GB of nothing":
            with file.open("wb") as empty:
                empty.truncate(8 << 30)
        else:
            file.write_bytes(_CONTENTS[kind])

    return change


_OTHERS = (
    "a folder", "a pipe", "a link to a device", "a link to itself", "a link to a file of others", "8 GB of nothing",
)  # fmt: skip
_ON_WORKSPACE = (
    "report done --out report.html", "status done", "status done --clean",
    "evaluate --data p.csv --scale 0,5 --workspace done",
    "encode t.txt --out v.npy --workspace done", "export --onnx --workspace done",
    "finetune m --data p.csv --scale 0,5 --layer 2 --seeds 1 --epochs 1 --workspace done",
)  # fmt: skip
_MODEL_FILES = (
    "config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "modules.json",
    "1_Pooling/config.json", "sentence_bert_config.json", "config_sentence_transformers.json",
)  # fmt: skip


def attacks(home: Path) -> Iterator[Attack]:
    """Each with one file replaced."""
    kinds = (*_OTHERS, *_CONTENTS)
    inside = sorted(file for file in (home / "done").rglob("*") if file.is_file())
    tables = [(str(file.relative_to(home)), _ON_WORKSPACE) for file in inside]
    tables += [
        (f"st/{name}", ("encode t.txt --model st --out v.npy", "cut st --layer 2 --workspace w"))
        for name in _MODEL_FILES
    ]
    tables += [
        ("s.toml", ("study s.toml --workspace w",)),
        ("t.txt", ("encode t.txt --model m --out v.npy", "cut m --layer 2 --vocabulary-from t.txt --workspace w")),
    ]
    tables += [
        (f"r/{name}", ("evaluate m --data r", "compare m m --data r"))
        for name in ("corpus.jsonl", "queries.jsonl", "qrels/test.tsv")
    ]
    tables += [
        ("p.csv", ("evaluate m --data p.csv --workspace w",)),
        ("t.jsonl", ("contrast m --data p.csv --scale 0,5 --triplets t.jsonl --workspace w",)),
    ]
    tables += [
        (name, ("encode t.txt --model m --out v.npy",))
        for name in ("v.npy", "v.npy.json", ".v.npy.parts", "v.npy.lock", ".v.npy.lock")
    ]
    for name, commands in tables:
        for kind in kinds:
            for words in commands:
                code = _LIMITED if kind in ("8 GB of nothing", "a link to a device") else ""
                yield Attack(
                    name=f"{words[:24]}: {name}: {kind}",
                    words=tuple(words.split()),
                    change=_replaced(name, kind),
                    before=code,
                )
