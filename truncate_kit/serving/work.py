"""Encoding as work for an engine: a chunk of texts in, the bytes to be stored out."""

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch

from truncate_kit.engines import Send
from truncate_kit.errors import ModelError
from truncate_kit.export.graph_files import graph_files
from truncate_kit.export.runtime import OnnxEncoder
from truncate_kit.files import all_below
from truncate_kit.models import Encoder
from truncate_kit.models.pipeline import read_pipeline
from truncate_kit.vectors import VectorFormat


class Chunk(NamedTuple):
    """Texts that are encoded together."""

    start: int  # number of texts before them
    texts: list[str]

    def __str__(self) -> str:
        return f"the texts {self.start + 1:,} to {self.start + len(self.texts):,}"


class Encoded(NamedTuple):
    """What becomes of a chunk."""

    rows: bytes
    num_cut: int  # texts that are longer than the model takes


class EncodingWork:
    """The encoder and the form of its stored vectors."""

    def __init__(self, encoder: Encoder | OnnxEncoder, form: VectorFormat) -> None:
        self._encoder: Encoder | OnnxEncoder | _Graph = encoder
        self._form = form
        self._home: tempfile.TemporaryDirectory[str] | None = None

    def move(self, device: str) -> None:
        """Go to another device; a graph, which has travelled as files, is opened there."""
        if isinstance(self._encoder, _Graph):
            self._home = self._encoder.unfolded()
            self._encoder = OnnxEncoder.load(
                Path(self._home.name) / self._encoder.name, threads=torch.get_num_threads(), device=device
            )
        elif isinstance(self._encoder, Encoder):
            self._encoder.to(device)

    def perform(self, chunk: Chunk, send: Send) -> Encoded:
        """Rows as they are stored, in the order of the texts."""
        assert not isinstance(self._encoder, _Graph)
        rows = self._form.store(self._encoder.vectors(chunk.texts)).tobytes()
        reader = self._encoder.reader
        return Encoded(rows, 0 if reader is None else reader.num_cut(chunk.texts))

    def __getstate__(self) -> dict[str, Any]:
        """With the files of a graph in the place of its sessions, which belong to this process."""
        graph = isinstance(self._encoder, OnnxEncoder)
        return self.__dict__ | ({"_encoder": _Graph.of(self._encoder)} if graph else {})  # type: ignore[arg-type]


_SETTINGS = (".json", ".jinja", ".model", ".txt")  # of model, modules and tokenizer


@dataclass(frozen=True, slots=True)
class _Graph:
    """The files that an exported encoder needs, by their place in its folder."""

    name: str  # of its graph
    files: dict[str, bytes]

    @classmethod
    def of(cls, encoder: OnnxEncoder) -> "_Graph":
        name, folder = encoder.file.name, encoder.file.parent
        found = graph_files(encoder.file)
        found += [file for file in folder.iterdir() if file.suffix in _SETTINGS]
        modules = [place for place in read_pipeline(folder).folders if place != folder]
        found += [file for place in modules for file in all_below(place)]
        files = {str(file.relative_to(folder)): file.read_bytes() for file in found if file.is_file()}
        encoder.check_unreplaced()
        return cls(name, files)

    def unfolded(self) -> "tempfile.TemporaryDirectory[str]":
        """The files in a folder of their own, which goes with what is returned."""
        folder = tempfile.TemporaryDirectory(prefix="truncate-kit-")
        for name, content in self.files.items():
            file = Path(folder.name) / name
            if not file.resolve().is_relative_to(Path(folder.name).resolve()):  # whoever sent it
                raise ModelError(f"The file {name!r} leads out of the model's folder.", hint="Do not use this model.")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)
        return folder
