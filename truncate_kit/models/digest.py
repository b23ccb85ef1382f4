"""Digests: two encoders of one digest give the same vectors, and are trained to the same ones."""

import functools
import hashlib
import json
import tempfile
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from truncate_kit.core.origin import settings_of
from truncate_kit.models.encoder import Encoder
from truncate_kit.models.tokenizer import TextReader

# Fields of a tokenizer that neither vectors nor training depend on; its maximum length is the encoder's.
_TOKENIZER_BOOKKEEPING = {
    "auto_map", "backend", "chat_template", "clean_up_tokenization_spaces", "is_local", "local_files_only",
    "model_max_length", "name_or_path", "processor_class", "tokenizer_class",
}  # fmt: skip


class Digest:
    """SHA-256 over parts, the size of each before it, so that no two lists of parts run together to the same bytes."""

    def __init__(self) -> None:
        self._sha = hashlib.sha256()

    def add(self, *parts: str | bytes | memoryview) -> None:
        """Add texts or bytes; no copy is made of bytes."""
        for part in parts:
            data = part.encode() if isinstance(part, str) else part
            self._sha.update(f"{len(data)} ".encode())
            self._sha.update(data)

    def add_values(self, values: Any) -> None:
        """Add what JSON can hold; the order of keys does not count, nor whether a sequence is a tuple or a list."""
        self.add(_in_order(values))

    def add_file(self, file: Path) -> None:
        """Add the content of a file."""
        with file.open("rb") as stream:
            self.add(hashlib.file_digest(stream, "sha256").digest())

    def add_weights(self, weights: dict[str, Tensor]) -> None:
        """Add names, types, shapes and bytes, in the order of names."""
        for name, weight in sorted(weights.items()):
            self.add(name, str(weight.dtype), repr(tuple(weight.shape)))
            self.add(weight.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)

    def add_reader(self, reader: TextReader) -> None:
        """Add all that the ids of a text depend on, under any of the prompts."""
        self.add_values([reader.max_length, reader.lower_case])
        prompts = {name: prompt for name, prompt in (reader.settings.get("prompts") or {}).items() if prompt}
        default = reader.settings.get("default_prompt_name")
        self.add_values([prompts, default if default in prompts else None])
        tokenizer = reader.tokenizer
        self.add_values([tokenizer.special_tokens_map, tokenizer.truncation_side])
        self.add_values(bool(getattr(tokenizer, "split_special_tokens", False)))
        if tokenizer.is_fast:
            self.add(_serialised(cast(Any, tokenizer).backend_tokenizer.to_str()))
            return
        settings = {
            name: value
            for name, value in tokenizer.init_kwargs.items()
            if name not in _TOKENIZER_BOOKKEEPING and not name.endswith(("_file", "_token"))
        }
        self.add_values([type(tokenizer).__name__, settings, tokenizer.added_tokens_decoder])
        with tempfile.TemporaryDirectory() as folder:  # writing it is all that every kind of vocabulary can do
            for file in sorted(tokenizer.save_vocabulary(folder)):
                self.add_file(Path(file))

    def hexdigest(self) -> str:
        """64 hexadecimal digits."""
        return self._sha.hexdigest()


def _in_order(values: Any) -> str:
    return json.dumps(values, sort_keys=True, default=repr)


# A command asks for the digests of a few models several times, and tables of words take longer than small weights.
@functools.lru_cache(maxsize=8)
def _serialised(tokenizer: str) -> bytes:
    """A tokenizer's own JSON with its keys in order, without what its last call left behind."""
    state = json.loads(tokenizer)
    kept = {name: part for name, part in state.items() if name not in ("truncation", "padding")}  # each call sets them
    return _in_order(kept).encode()


def encoder_digest(encoder: Encoder) -> str:
    """Return the SHA-256 over all that the vectors of an encoder, and training it, depend on, and over nothing else.

    Names, folders, versions, device and the way attention is computed do not count. Saving and loading keep it.
    """
    digest = Digest()
    digest.add_values(settings_of(encoder.backbone.config.to_dict()))
    digest.add_values([encoder.pooling, encoder.combination])
    for part in (encoder.tail, encoder.pooler, encoder.heads):
        # Kind and settings of a module and of all in it: the plain values among their public attributes.
        found = [] if part is None else part.named_modules()
        kinds = [(name, type(inner).__name__, _public(inner)) for name, inner in found]
        digest.add_values(None if part is None else kinds)
    digest.add_weights(encoder.state_dict())
    if encoder.tokenizer is not None:
        digest.add_reader(encoder.reader)
    return digest.hexdigest()


def _public(module: nn.Module) -> dict[str, Any]:
    return {key: value for key, value in vars(module).items() if key[0] != "_" and key != "training"}


def folder_digest(folder: Path) -> str:
    """Return the SHA-256 of all files in a folder and the folders in it, with their names."""
    digest = Digest()
    for file in sorted(path for path in folder.rglob("*") if path.is_file()):
        digest.add(str(file.relative_to(folder)))
        digest.add_file(file)
    return digest.hexdigest()
