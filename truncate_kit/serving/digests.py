"""Whether two encoders give the same vectors, and two files the same texts: by SHA-256."""

import hashlib
from collections.abc import Iterable
from pathlib import Path

from truncate_kit.encoders import Encoder
from truncate_kit.encoders.reading import TextReader
from truncate_kit.export.runtime import OnnxEncoder
from truncate_kit.export.tracing import graph_files
from truncate_kit.progress import Progress, silent

_BLOCK = 2**20
_STEP = 100_000  # texts between two words about the progress


def encoder_digest(encoder: Encoder | OnnxEncoder) -> str:
    """SHA-256 over all that the vectors of an encoder hang on: weights, pooling, tokenizer, length, prompts."""
    digest = hashlib.sha256()
    if isinstance(encoder, OnnxEncoder):
        for file in graph_files(encoder.file):
            _add_file(digest, file)
    else:
        _add(digest, repr(encoder.backbone.config.to_dict()), *encoder.pooling_details, repr(encoder.tail))
        for name, weight in encoder.state_dict().items():
            _add(digest, name)
            digest.update(weight.detach().cpu().contiguous().numpy().data)
    if encoder.reader is not None:
        _add_reader(digest, encoder.reader)
    return digest.hexdigest()


def _add(digest: "hashlib._Hash", *parts: str) -> None:
    for part in parts:  # lengths first, so that no two lists of parts run together to the same bytes
        data = part.encode()
        digest.update(f"{len(data)} ".encode())
        digest.update(data)


def _add_file(digest: "hashlib._Hash", file: Path) -> None:
    with file.open("rb") as stream:
        while block := stream.read(_BLOCK):
            digest.update(block)


def _add_reader(digest: "hashlib._Hash", reader: TextReader) -> None:
    vocabulary = sorted(reader.tokenizer.get_vocab().items())
    _add(digest, type(reader.tokenizer).__name__, repr(vocabulary), str(reader.max_length), str(reader.lower_case))
    _add(digest, repr(reader.settings.get("prompts")), repr(reader.settings.get("default_prompt_name")))


def count_texts(texts: Iterable[str], *, progress: Progress = silent) -> tuple[int, str]:
    """How many texts there are, and the SHA-256 of them in order; also finds what is wrong with any of them."""
    digest, count = hashlib.sha256(), 0
    for count, text in enumerate(texts, start=1):
        _add(digest, text)
        if count % _STEP == 0:
            progress("Counting texts", count, count + 1)  # how many there are is what this finds out
    progress("Counting texts", count, count)
    return count, digest.hexdigest()
