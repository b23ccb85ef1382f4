"""sentence-transformers' ONNX backend in another interpreter, and vectors that are scored as they come."""

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

BATCH_SIZE = 32  # sentence-transformers' own default


class Peer:
    """The other interpreter with one model loaded."""

    def __init__(self, python: Path, model: Path, texts: Sequence[str], threads: int, level: str | None, folder: Path):
        self.process = subprocess.Popen(
            [python, Path(__file__).with_name("peer_onnx.py")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.folder = folder
        self.versions = self.ask(
            model=str(model.resolve()),
            texts=list(texts),
            threads=threads,
            batch_size=BATCH_SIZE,
            level=level,
            folder=str(folder / "peer"),
        )

    def ask(self, **order: Any) -> dict[str, Any]:
        """Send one order and wait for its answer."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()
        answer: dict[str, Any] = json.loads(self.process.stdout.readline())
        return answer

    def run(self) -> float:
        """Return the seconds of one pass, as that process measured them."""
        return float(self.ask(run=True)["seconds"])

    def vectors(self) -> np.ndarray:
        """Return the vectors of the last pass."""
        file = self.folder / "vectors.npy"
        self.ask(vectors=str(file))
        return np.load(file)


class Given:
    """Vectors that are already there, as `evaluate` wants them."""

    def __init__(self, texts: Sequence[str], vectors: np.ndarray) -> None:
        self.rows = dict(zip(texts, torch.from_numpy(np.asarray(vectors, np.float32)), strict=True))

    def encode(self, texts: Sequence[str]) -> torch.Tensor:
        """Return the vectors of these texts."""
        return torch.stack([self.rows[text] for text in texts])
