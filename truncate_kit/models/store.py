"""The store of runs: killed work continues and ends with the same result."""

import logging
import os
import shutil
import zlib
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from truncate_kit.core.errors import UsageError, cannot_write
from truncate_kit.core.files import (
    local_path,
    real_path,
    remove_leftovers,
    replacing,
    run_lock,
    unfinished,
    write_text,
)
from truncate_kit.core.results import FORMAT, RECORDS_FILE, Result, append_records, check_format, read_records
from truncate_kit.models.encoder import Encoder
from truncate_kit.models.loading import load_encoder
from truncate_kit.models.model_folder import read_weights, write_module
from truncate_kit.models.pipeline import Digest, encoder_digest, folder_digest, save_encoder

_SETTINGS = "settings"  # kind of the first line of a store

_logger = logging.getLogger(__name__)
_DATA_ENDINGS = {".csv", ".tsv", ".jsonl", ".parquet", ".txt"}  # of files that are no part of a model
Record = TypeVar("Record", bound=Result)
Weights = TypeVar("Weights")


def run_key(encoder: Encoder, *parts: str) -> str:
    """Return the SHA-256 of an encoder and of all else that runs depend on, such as data and settings."""
    digest = Digest()
    digest.add(encoder_digest(encoder), *parts)
    return digest.hexdigest()


@dataclass(frozen=True, slots=True)
class Checkpoints:
    """Files with the state of unfinished runs, by name; names have no dot."""

    folder: Path

    def of(self, name: str, stage: str = "") -> Path | None:
        """Return the file of a run, or of a stage before it such as "prior"; None on machines without the folder."""
        return self.folder / f"{name}.{stage and stage + '.'}checkpoint" if self.folder.is_dir() else None

    def remove(self, name: str) -> None:
        """Remove the files of a run, at all its stages."""
        for file in self.folder.glob(f"{name}.*checkpoint"):
            file.unlink(missing_ok=True)
        remove_leftovers(self.folder, name)  # of a lost worker

    def tidy(self, finished: Callable[[str], bool]) -> None:
        """Remove the files of finished runs, left by a process that was killed in between."""
        for name in {file.name.partition(".")[0] for file in self.folder.glob("*.checkpoint")}:
            if finished(name):
                self.remove(name)


class RunStore:
    """The runs of one model, data and settings: records, and in a folder of their own weights and checkpoints.

    The records of all stores in a folder are lines of one file. A record is written once, after its weights. Damaged
    records and weights are logged and computed again. One process writes a store, within `open`; others may read it.

    Args:
        description: Facts about all runs, for the first record.
    """

    def __init__(self, folder: Path, key: str, description: dict[str, Any] | None = None) -> None:
        self.key = key[:16]
        self.folder = local_path(folder).absolute() / self.key  # workers may have another working directory
        self.checkpoints = Checkpoints(self.folder)
        self._journal = self.folder.parent / RECORDS_FILE
        self._settings = {"store": self.key, "kind": _SETTINGS, "format": FORMAT} | (description or {})
        self._loaded: dict[str, dict[str, Any]] | None = None
        self._whole: set[str] = set()  # names of runs with verified weights

    @contextmanager
    def open(self) -> Iterator[None]:
        """Lock the folder and tidy up after a killed process. Raises `FileProblemError` if another process has it."""
        with run_lock(self.folder):
            self._loaded = None
            remove_leftovers(self.folder)
            # A run with a record but no weights may be running again for its weights.
            self.checkpoints.tidy(lambda name: name in self._records and self.has_weights(name))
            with unfinished(self.folder):
                yield
            self.checkpoints.tidy(self._records.__contains__)

    @property
    def _records(self) -> dict[str, dict[str, Any]]:
        if self._loaded is None:
            lines, damaged = read_records(self._journal)
            if damaged:
                _logger.warning(f"{self._journal}: {damaged} damaged lines. What they held is computed again.")
            own = [record for record in lines if record.get("store") == self.key]
            for record in own:
                check_format(record.get("format", FORMAT), self._journal)
            self._loaded = {record["name"]: record for record in own if "name" in record}
        return self._loaded

    def read(self, name: str, kind: type[Record]) -> Record | None:
        """Return the record of that name and kind, None without one."""
        values = self._records.get(name, {"kind": ""})
        return kind.from_dict(values) if values["kind"] == kind.__name__ else None

    def all(self, kind: type[Record]) -> dict[str, Record]:
        """Return all records of a kind by their names, in the order in which they were written."""
        return {name: record for name in self._records if (record := self.read(name, kind)) is not None}

    def write(self, name: str, record: Record, weights: Callable[[Path], object] | None = None) -> Record:
        """Store weights and record of a finished run, and remove its checkpoints; return the record that stays.

        Args:
            name: Of the run.
            record: Its result.
            weights: Writes the weights to a path, as a whole or not at all; by default they are not stored.

        Raises:
            FileProblemError: The folder cannot be written.
        """
        if weights is not None:
            self._write_weights(name, weights)
        # A run that was done again for its weights keeps its first record.
        first = self.read(name, type(record))
        if first is None:
            values = {"store": self.key, "name": name, "kind": type(record).__name__} | record.to_dict()
            append_records(self._journal, *([] if self._records else [self._settings]), values)
            self._records[name] = values
        self.checkpoints.remove(name)
        return first or record

    def weights(self, name: str) -> Path:
        """Return the folder for the weights of a run."""
        return self.folder / name

    def _write_weights(self, name: str, write: Callable[[Path], object]) -> None:
        write(self.weights(name))
        write_text(self._seal(name), self._digest(name))
        self._whole.add(name)

    def has_weights(self, name: str) -> bool:
        """Return whether the weights of a run are kept as they were written; damaged ones are computed again."""
        if name not in self._whole and self.weights(name).is_dir():
            seal = self._seal(name)
            if seal.is_file() and seal.read_bytes() == self._digest(name).encode():
                self._whole.add(name)
            else:
                _logger.warning(f"{self.weights(name)} was damaged: that run is done again.")
        return name in self._whole

    def _digest(self, name: str) -> str:
        """Return the digest of the weights of a run, its name and its store."""
        digest = Digest()
        digest.add(self.key, name, folder_digest(self.weights(name)))
        return digest.hexdigest()

    def _seal(self, name: str) -> Path:
        """Return the file that holds this digest."""
        return self.folder / f"{name}.sha256"

    def load(self, name: str, read: Callable[[Path], Weights]) -> Weights | None:
        """Read the stored weights of a run by `read`; None if they are gone or damaged."""
        return read(self.weights(name)) if self.has_weights(name) else None

    def write_encoder(self, name: str, record: Record, encoder: Encoder | None) -> Record:
        """Write a record as `write`, with the trained encoder as weights."""
        return self.write(name, record, None if encoder is None else partial(save_encoder, encoder))

    def encoder(self, name: str, device: torch.device) -> Encoder:
        """Load the stored encoder of a run."""
        return load_encoder(self.weights(name), device=str(device))

    def forget_weights(self, keep: Collection[str]) -> None:
        """Remove the weights of all runs but these; records and tensors stay."""
        for name in self._records.keys() - set(keep):
            shutil.rmtree(self.weights(name), ignore_errors=True)
            self._seal(name).unlink(missing_ok=True)
            self._whole.discard(name)

    def read_tensor(self, name: str) -> Tensor | None:
        """Read the tensor of that name; None if there is none, or it is damaged."""
        return self.load(name, lambda folder: read_weights(folder)[name])

    def tensor(self, name: str, compute: Callable[[], Tensor]) -> Tensor:
        """Return the tensor of that name from its file; without one compute and keep it."""

        def write(folder: Path) -> None:
            with replacing(folder) as target:
                write_module(target, None, {name: compute()})

        if not self.has_weights(name):
            self._write_weights(name, write)
        return read_weights(self.weights(name))[name]


class StoredRows:
    """A file of rows, and beside it the checksum of every finished chunk; the caller holds the lock of its folder.

    A chunk is written before its checksum: a chunk without one, or with a wrong one, is missing.
    """

    def __init__(
        self, file: Path, made_from: dict[str, Any], *, num_rows: int, row_bytes: int, chunk: int, header: bytes = b""
    ) -> None:
        """Open the file, or begin it.

        Args:
            file: The rows; the checksums go into a file of the same name with the ending .jsonl.
            made_from: Everything that the bytes depend on.
            num_rows: Of the whole file.
            row_bytes: Size of a row.
            chunk: Rows that are written together.
            header: Bytes before the first row.

        Raises:
            UsageError: The rows that are there were made from something else, or the disk is too small.
            FileProblemError: The file cannot be read or written.
        """
        self.file, self._row_bytes, self._header = file, row_bytes, header
        self._rows = {start: min(chunk, num_rows - start) for start in range(0, num_rows, chunk)}  # of each chunk
        self._journal = file.with_suffix(".jsonl")
        known, lost = self._known(made_from)
        try:
            with file.open("a+b") as stream:
                stream.truncate(min(stream.seek(0, os.SEEK_END), len(header) + num_rows * row_bytes))
            self._write_at(0, header)
            wrong = [start for start, checksum in known.items() if zlib.crc32(self._read(start)) != checksum]
        except OSError as error:
            raise cannot_write(file, error) from error
        # First rows of the chunks to write, and the number of rows that were written before and got damaged.
        self.missing = [start for start in self._rows if start not in known or start in wrong]
        self.damaged = min(num_rows, sum(self._rows[start] for start in wrong) + lost * chunk)
        needed = sum(self._rows[start] for start in self.missing) * row_bytes
        if needed > (free := shutil.disk_usage(file.parent).free):
            raise UsageError(
                f"{file} needs {needed / 1e9:,.1f} GB more, and {file.parent} has {free / 1e9:,.1f} GB left.",
                hint="Free some space, name another place as `out`, or store less.",
            )

    def _known(self, made_from: dict[str, Any]) -> tuple[dict[int, int], int]:
        """Return the checksums of chunks by their first rows, and the number of checksums that cannot be read."""
        if not self.file.exists():  # it was moved away when it was whole
            self._journal.unlink(missing_ok=True)
        records, damaged = read_records(self._journal)
        settings = next((record for record in records if "made_from" in record), None)
        chunks = {record["start"]: record["checksum"] for record in records if "start" in record}
        if settings is None:  # a new file, or one of lost origin
            self._journal.unlink(missing_ok=True)
            append_records(self._journal, {"format": FORMAT, "made_from": made_from})
            return {}, len(self._rows) if chunks or damaged else 0
        check_format(settings.get("format"), self._journal)
        if settings["made_from"] != made_from:
            raise UsageError(
                f"{self.file.parent} holds {sum(record.get('rows', 0) for record in records):,} rows of another run: "
                "of another input, model or option.",
                hint="Finish that one with its own call, name another file as `out`, or remove that folder.",
            )
        return chunks, damaged

    def write(self, start: int, rows: bytes) -> None:
        """Write the chunk that begins at row `start`, and then its checksum. Raises `FileProblemError`."""
        try:
            self._write_at(len(self._header) + start * self._row_bytes, rows)
        except OSError as error:
            raise cannot_write(self.file, error) from error
        append_records(self._journal, {"start": start, "rows": self._rows[start], "checksum": zlib.crc32(rows)})

    def _write_at(self, place: int, content: bytes) -> None:
        with self.file.open("r+b") as stream:
            stream.seek(place)
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())

    def _read(self, start: int) -> bytes:
        with self.file.open("rb") as stream:
            stream.seek(len(self._header) + start * self._row_bytes)
            return stream.read(self._rows[start] * self._row_bytes)


@contextmanager
def output_folder(out: Path, encoder: Encoder, *models: str, teachers: Sequence[Encoder] = ()) -> Iterator[None]:
    """Lock `out` for saving model folders into it.

    Args:
        out: The folder.
        encoder: The model to start from.
        *models: Names of the folders to be saved in `out`.
        teachers: Models to learn vectors from.

    Raises:
        UsageError: One of these folders holds data, `encoder` or a teacher.
        FileProblemError: `out` cannot be written, or another process works there.
    """
    for folder in (out / name for name in models):
        for file in sorted(folder.rglob("*")):
            if _DATA_ENDINGS.intersection(file.suffixes) and file.name not in ("vocab.txt", "merges.txt"):
                problem = f"{file} is no part of a model, and would be removed with the folder it is in."
                raise UsageError(problem, hint="Move it out of that folder, or name another folder as `out`.")
        # A continued run would start or learn from the replaced model.
        for model in (encoder, *teachers):
            source = local_path(model.name)
            if source.is_dir() and real_path(source).is_relative_to(real_path(folder)):
                problem = f"{folder} holds {'the model to start from' if model is encoder else 'the teacher'}"
                hint = "Name another folder as `out`, or start from the model that this one was made from."
                raise UsageError(f"{problem}, and would be replaced.", hint=hint)
    with run_lock(out):
        yield
