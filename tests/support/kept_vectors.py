"""Vectors of a real model: each text is encoded once a run, by whichever worker asks for it first."""

from collections.abc import Sequence
from pathlib import Path

import torch
from filelock import FileLock
from torch import Tensor

from truncate_kit.export.runtime import OnnxEncoder


class KeptVectors:
    """A graph whose vectors stay in a file that processes share; it encodes what is not in there."""

    def __init__(self, graph: OnnxEncoder, file: Path) -> None:
        self.reader = graph.reader
        self._graph = graph
        self._file = file
        self._kept: dict[str, Tensor] = {}

    def encode(self, texts: Sequence[str]) -> Tensor:
        """Vectors (n, d) in the order of the texts."""
        with FileLock(f"{self._file}.lock"):
            if self._file.exists() and not self._kept.keys() >= set(texts):
                self._kept |= torch.load(self._file)
            lacking = [text for text in dict.fromkeys(texts) if text not in self._kept]
            if lacking:
                self._kept |= zip(lacking, self._graph.vectors(lacking), strict=True)
                torch.save(self._kept, self._file)
        return torch.stack([self._kept[text] for text in texts])
