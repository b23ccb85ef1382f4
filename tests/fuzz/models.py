"""Readers of model folders, which come from outside: what is accepted gives finite vectors of the known width."""

import shutil
import tempfile
from functools import cache
from pathlib import Path

import numpy as np

from tests.fuzz.readers import Make, Reader, WrongError


@cache
def _model(family: str) -> Path:
    """A tiny model of a family, saved as a sentence-transformers folder."""
    from tests.support.families import make_tiny
    from truncate_kit.models import load_encoder, save_encoder

    home = Path(tempfile.mkdtemp(prefix="fuzz-models-"))
    make_tiny(family, home / "plain")
    save_encoder(load_encoder(home / "plain"), home / "saved")
    return home / "saved"


def _copy_of(family: str) -> Make:
    return lambda folder: shutil.copytree(_model(family), folder / "m")


def _encode(folder: Path) -> None:
    from truncate_kit.models import load_encoder

    vectors = load_encoder(folder / "m").vectors(["the cat", "a dog sat on the mat"]).numpy()
    if not np.isfinite(vectors).all():
        raise WrongError("vectors that are not finite")
    if len(vectors) != 2:
        raise WrongError("another number of vectors than of texts")


def _header(folder: Path) -> None:
    """A copy whose weights' header, which alone is changed, is a file of its own."""
    shutil.copytree(_model("bert"), folder / "m")
    content = (folder / "m/model.safetensors").read_bytes()
    size = 8 + int.from_bytes(content[:8], "little")
    (folder / "header.bin").write_bytes(content[:size])
    (folder / "weights.bin").write_bytes(content[size:])


def _join_and_encode(folder: Path) -> None:
    parts = [(folder / name).read_bytes() for name in ("header.bin", "weights.bin")]
    (folder / "m/model.safetensors").write_bytes(b"".join(parts))
    _encode(folder)


def _reader(name: str, family: str, *files: str) -> Reader:
    return Reader(name=name, files=tuple(f"m/{file}" for file in files), make=_copy_of(family), read=_encode, cost=60)


MODELS = (
    _reader("config.json, bert", "bert", "config.json"),
    _reader("config.json, gpt2", "gpt2", "config.json"),
    _reader("config.json, modernbert", "modernbert", "config.json"),
    _reader("tokenizer files", "bert", "tokenizer.json", "tokenizer_config.json"),
    _reader("modules and pooling", "bert", "modules.json", "1_Pooling/config.json", "sentence_bert_config.json",
            "config_sentence_transformers.json"),
    Reader(name="header of weights", files=("header.bin",), make=_header, read=_join_and_encode, cost=60),
)  # fmt: skip
