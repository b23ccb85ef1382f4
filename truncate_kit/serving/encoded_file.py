"""What an encoded file is, and what one run of encoding did."""

from dataclasses import dataclass
from pathlib import Path

from truncate_kit.results import Result
from truncate_kit.vectors import VectorFormat


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodingJob(Result):
    """All that the bytes of the output depend on."""

    model: str  # SHA-256 of the encoder
    texts: str  # SHA-256 of the texts in order
    num_texts: int
    width: int  # of the model's own vectors
    form: VectorFormat
    chunk: int  # rows that are encoded together


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodingNote(Result):
    """What is written beside an output as NAME.json: what it was made from, and the SHA-256 of its bytes."""

    job: EncodingJob
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedFile(Result):
    """One run of `encode_file`."""

    file: str
    source: str
    graph: str | None  # the file that ran in ONNX Runtime, None in torch
    shape: tuple[int, ...]  # of the stored array
    dtype: str
    file_bytes: int
    resumed_at: int  # rows that an earlier run had left
    seconds: float  # of this run, counting and encoding
    job: EncodingJob
    # texts whose ends were left out, being longer than the model takes, of those that this run encoded; None of none
    num_cut: int | None = None

    @property
    def rate(self) -> float:
        """Texts per second of this run; 0 where there was nothing left to do."""
        return (self.shape[0] - self.resumed_at) / self.seconds if self.resumed_at < self.shape[0] else 0.0


def job_file(out: Path) -> Path:
    """Where the note of an output is."""
    return out.with_name(f"{out.name}.json")
