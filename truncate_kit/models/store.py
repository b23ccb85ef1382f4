"""Where runs are kept, so that work that is killed continues and ends with the same result."""

import contextlib
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
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
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
from truncate_kit.core.results import FORMAT, RECORDS_FILE, Journal, Result, check_format
from truncate_kit.models.encoder import Encoder
from truncate_kit.models.loading import load_encoder
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
    """Where the states of running runs wait between their epochs, by the names of the runs; a name has no dot."""

    folder: Path

    def of(self, name: str, stage: str = "") -> Path | None:
        """Name the file of a run, or of a stage before it such as "prior"; None where the folder is not seen."""
        return self.folder / f"{name}.{stage and stage + '.'}checkpoint" if self.folder.is_dir() else None

    def remove(self, name: str) -> None:
        """Remove those of a run that is finished or given up, at all its stages."""
        for file in self.folder.glob(f"{name}.*checkpoint"):
            file.unlink(missing_ok=True)
        remove_leftovers(self.folder, name)  # of a worker that was lost while it wrote

    def tidy(self, finished: Callable[[str], bool]) -> None:
        """Remove those of finished runs: a process was killed between the end of a run and their removal."""
        for name in {file.name.partition(".")[0] for file in self.folder.glob("*.checkpoint")}:
            if finished(name):
                self.remove(name)


class RunStore:
    """The runs of one model, data and settings: records, and in a folder of their own weights and checkpoints.

    The records of all stores in a folder are lines of one file. A record is written once, when its weights are there,
    and stays as it is. What cannot be read is computed again; the log says so. One process writes a store, between
    `open` and its end; others may read it.

    Args:
        description: What the first record says of all others.
    """

    def __init__(self, folder: Path, key: str, description: dict[str, Any] | None = None) -> None:
        self.key = key[:16]
        self.folder = local_path(folder).absolute() / self.key  # workers may stand elsewhere
        self.checkpoints = Checkpoints(self.folder)
        self._journal = Journal(self.folder.parent / RECORDS_FILE)
        self._settings = {"store": self.key, "kind": _SETTINGS, "format": FORMAT} | (description or {})
        self._loaded: dict[str, dict[str, Any]] | None = None
        self._whole: set[str] = set()  # names of runs whose weights are known to be as they were written

    @contextmanager
    def open(self) -> Iterator[None]:
        """Hold the folder, and tidy up what a killed process left. Raises `FileProblemError`, also when it is held."""
        with run_lock(self.folder):
            self._loaded = None
            remove_leftovers(self.folder)
            # A run that has a record and no weights may be done again for them, and was stopped in between.
            self.checkpoints.tidy(lambda name: name in self._records and self.has_weights(name))
            with unfinished(self.folder):
                yield
            self.checkpoints.tidy(self._records.__contains__)

    @property
    def _records(self) -> dict[str, dict[str, Any]]:
        if self._loaded is None:
            lines, damaged = self._journal.read()
            if damaged:
                _logger.warning(f"{self._journal.file}: {damaged} damaged lines. What they held is computed again.")
            own = [record for record in lines if record.get("store") == self.key]
            for record in own:
                check_format(record.get("format", FORMAT), self._journal.file)
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
        """Keep what a finished run gave, its weights first, and remove its checkpoints; return the record that stays.

        Args:
            name: Of the run.
            record: What it gave.
            weights: Writes them to the path it is given, as a whole or not at all; None where none are kept.

        Raises:
            FileProblemError: The folder cannot be written.
        """
        if weights is not None:
            weights(self.weights(name))
            write_text(self._seal(name), self._digest(name))
            self._whole.add(name)
        # A run that was done again for its weights keeps its first record.
        first = self.read(name, type(record))
        if first is None:
            values = {"store": self.key, "name": name, "kind": type(record).__name__} | record.to_dict()
            self._journal.append(*([] if self._records else [self._settings]), values)
            self._records[name] = values
        self.checkpoints.remove(name)
        return first or record

    def weights(self, name: str) -> Path:
        """Name the folder of the weights of a run, which is there where they are kept."""
        return self.folder / name

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
        """Return the kept weights of a run as `read` reads them from their folder; None where gone or damaged."""
        return read(self.weights(name)) if self.has_weights(name) else None

    def write_encoder(self, name: str, record: Record, encoder: Encoder | None) -> Record:
        """Do as `write`, with the trained encoder as weights."""
        return self.write(name, record, None if encoder is None else partial(save_encoder, encoder))

    def encoder(self, name: str, device: torch.device) -> Encoder:
        """Load the trained encoder of a run whose weights are kept."""
        return load_encoder(self.weights(name), device=str(device))

    def forget_weights(self, keep: Collection[str]) -> None:
        """Remove the weights of all runs but those named; their records stay."""
        for folder in self.folder.iterdir():
            if folder.is_dir() and not folder.name.startswith(".") and folder.name not in keep:
                shutil.rmtree(folder)
                self._seal(folder.name).unlink(missing_ok=True)
                self._whole.discard(folder.name)

    def read_tensor(self, name: str) -> Tensor | None:
        """Read the tensor of that name; None if there is none, or it is damaged."""
        path = self.folder / f"{name}.safetensors"
        if not path.exists():
            return None
        with contextlib.suppress(OSError, SafetensorError), safe_open(path, "pt") as file:
            tensor: Tensor = file.get_tensor(name)
            if file.metadata() == self._marks(tensor):
                return tensor
        _logger.warning(f"{path} was damaged.")
        return None

    def tensor(self, name: str, compute: Callable[[], Tensor]) -> Tensor:
        """Return the tensor of that name from its file; without one compute and keep it."""
        tensor = self.read_tensor(name)
        if tensor is None:
            tensor = compute()
            with replacing(self.folder / f"{name}.safetensors") as target:
                save_file({name: tensor.contiguous()}, target, metadata=self._marks(tensor))
        return tensor

    def _marks(self, tensor: Tensor) -> dict[str, str]:
        """Return the header of a tensor's file: its digest and its store."""
        digest = Digest()
        digest.add_weights({"": tensor})
        return {"sha256": digest.hexdigest(), "store": self.key}


class StoredRows:
    """A file of rows, and beside it the checksum of every chunk that is finished; whoever opens it holds its folder.

    A chunk is on the disk before its checksum is: what a kill left without one, and what does not fit it, is missing.
    """

    def __init__(
        self, file: Path, made_from: dict[str, Any], *, num_rows: int, row_bytes: int, chunk: int, header: bytes = b""
    ) -> None:
        """Open the file, or begin it.

        Args:
            file: The rows; the checksums go into a file of the same name with the ending .jsonl.
            made_from: All that the bytes depend on.
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
        self._journal = Journal(file.with_suffix(".jsonl"))
        known, lost = self._known(made_from)
        try:
            with file.open("a+b") as stream:
                stream.truncate(min(stream.seek(0, os.SEEK_END), len(header) + num_rows * row_bytes))
            self._write_at(0, header)
            wrong = [start for start, checksum in known.items() if zlib.crc32(self._read(start)) != checksum]
        except OSError as error:
            raise cannot_write(file, error) from error
        # First rows of the chunks to be written, and the number of rows that were written before and are missing again.
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
            self._journal.file.unlink(missing_ok=True)
        records, damaged = self._journal.read()
        settings = next((record for record in records if "made_from" in record), None)
        chunks = {record["start"]: record["checksum"] for record in records if "start" in record}
        if settings is None:  # a new file, or one of lost origin
            self._journal.file.unlink(missing_ok=True)
            self._journal.append({"format": FORMAT, "made_from": made_from})
            return {}, len(self._rows) if chunks or damaged else 0
        check_format(settings.get("format"), self._journal.file)
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
        self._journal.append({"start": start, "rows": self._rows[start], "checksum": zlib.crc32(rows)})

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
    """Hold `out`, into which folders of the names `models` are saved.

    Args:
        out: Is held.
        encoder: What is started from, which is in none of these folders.
        *models: Names of the folders that are saved into `out`.
        teachers: Whose vectors are learned, likewise.

    Raises:
        UsageError: A folder of these names holds data, or what is started or learned from.
        FileProblemError: `out` cannot be written, or another process works there.
    """
    for folder in (out / name for name in models):
        for file in sorted(folder.rglob("*")):
            if _DATA_ENDINGS.intersection(file.suffixes) and file.name not in ("vocab.txt", "merges.txt"):
                problem = f"{file} is no part of a model, and would be removed with the folder it is in."
                raise UsageError(problem, hint="Move it out of that folder, or name another folder as `out`.")
        # A model that is replaced could not be started or learned from again, as a continued run would.
        for model in (encoder, *teachers):
            source = local_path(model.name)
            if source.is_dir() and real_path(source).is_relative_to(real_path(folder)):
                problem = f"{folder} holds {'the model to start from' if model is encoder else 'the teacher'}"
                hint = "Name another folder as `out`, or start from the model that this one was made from."
                raise UsageError(f"{problem}, and would be replaced.", hint=hint)
    with run_lock(out):
        yield
