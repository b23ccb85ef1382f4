"""Where runs are kept, so that work that is killed continues and ends with the same result."""

import logging
import shutil
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from truncate_kit.files import local_path, remove_leftovers, replacing, run_lock, unfinished, write_text
from truncate_kit.models import Encoder, encoder_digest, load_encoder, save_encoder
from truncate_kit.models.digest import Digest, folder_digest
from truncate_kit.results import FORMAT, Result, check_format
from truncate_kit.training.journal import RECORDS_FILE, Journal
from truncate_kit.training.trial import BaseTrial

_SETTINGS = "settings"  # kind of the first line of a store
_CHECKSUM, _STORE = "sha256", "store"  # in the header of a tensor's file

_logger = logging.getLogger(__name__)
Record = TypeVar("Record", bound=Result)
Weights = TypeVar("Weights")


def run_key(encoder: Encoder, *parts: str) -> str:
    """SHA-256 of an encoder and of all else that the outcome of runs depends on, such as data and settings."""
    digest = Digest()
    digest.add(encoder_digest(encoder), *parts)
    return digest.hexdigest()


@dataclass(frozen=True, slots=True)
class Checkpoints:
    """Where the states of running runs wait between their epochs, by the names of the runs; a name has no dot."""

    folder: Path

    def of(self, name: str, stage: str = "") -> Path | None:
        """File for the state of a run, or of a stage before it such as "prior"; None where the folder is not seen."""
        parts = (name, stage, "checkpoint") if stage else (name, "checkpoint")
        return self.folder / ".".join(parts) if self.folder.is_dir() else None

    def remove(self, name: str) -> None:
        """Of a run that is finished or given up, at all its stages."""
        for file in self.folder.glob(f"{name}.*checkpoint"):
            file.unlink(missing_ok=True)
        remove_leftovers(self.folder, name)  # of a worker that was lost while it wrote

    def names(self) -> set[str]:
        """The runs of which there are some."""
        return {file.name.partition(".")[0] for file in self.folder.glob("*.checkpoint")}

    def tidy(self, finished: Collection[str]) -> None:
        """Remove those of finished runs: a process was killed between the end of a run and their removal."""
        for name in self.names().intersection(finished):
            self.remove(name)


class RunStore:
    """The runs of one model, data and settings: records, and in a folder of their own weights and checkpoints.

    The records of all stores in a folder are lines of one file. A record is written once, when its weights are there,
    and stays as it is. What cannot be read is as if it had never been there, so that it is computed again; `notes` and
    the log say so. One process writes a store, between `open` and its end; others may read it.

    Args:
        description: What the first record says of all others.
    """

    def __init__(self, folder: Path, key: str, description: dict[str, Any] | None = None) -> None:
        self.key = key[:16]
        self.folder = local_path(folder).absolute() / self.key  # workers may stand elsewhere
        self.checkpoints = Checkpoints(self.folder)
        self.notes: list[str] = []
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
            self.checkpoints.tidy({name for name in self.checkpoints.names() if self._is_whole(name)})
            with unfinished(self.folder):
                yield
            self.checkpoints.tidy(self._records)

    def _is_whole(self, name: str) -> bool:
        return name in self._records and self.has_weights(name)

    @property
    def _records(self) -> dict[str, dict[str, Any]]:
        if self._loaded is None:
            found, damaged = self._journal.read()
            if damaged:
                self._note(f"{self._journal.file}: {damaged} damaged lines. What they held is computed again.")
            own = [record for record in found if record.get("store") == self.key]
            for version in (record["format"] for record in own if type(record.get("format")) is int):
                check_format(version, self._journal.file)
            self._loaded = {record["name"]: record for record in own if isinstance(record.get("name"), str)}
        return self._loaded

    def _note(self, text: str) -> None:
        self.notes.append(text)
        _logger.warning(text)

    def read(self, name: str, kind: type[Record]) -> Record | None:
        """The record of that name, None where there is none."""
        values = self._records.get(name)
        if values is None:
            return None
        try:
            if values.get("kind") != kind.__name__:
                raise ValueError(f"a record of the kind {values.get('kind')!r}")
            record = kind.from_dict(values)
            if isinstance(record, BaseTrial) and not record.belongs_to(name):
                raise ValueError(f"the record of layer {record.layer}, seed {record.seed}")
            return record
        except (KeyError, ValueError):
            del self._records[name]
            self._note(f"{self._journal.file}: {name} was damaged and is computed again.")
            return None

    def all(self, kind: type[Record]) -> dict[str, Record]:
        """All records of a kind by their names, in the order in which they were written."""
        names = [name for name, values in self._records.items() if values.get("kind") == kind.__name__]
        return {name: record for name in names if (record := self.read(name, kind)) is not None}

    def write(self, name: str, record: Record, weights: Callable[[Path], object] | None = None) -> Record:
        """Keep what a finished run gave, its weights first, and remove its checkpoints; returns the record that stays.

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
        """Folder of the weights of a run, which is there where they are kept."""
        return self.folder / name

    def has_weights(self, name: str) -> bool:
        """Whether the weights of a run are kept, and are as they were written; damaged ones are as good as gone."""
        if not self.weights(name).is_dir():
            return False
        if name not in self._whole:
            try:
                whole = self._seal(name).read_text(encoding="utf-8") == self._digest(name)
            except (OSError, ValueError):  # gone, or no text
                whole = False
            if not whole:
                self._note(f"{self.weights(name)} was damaged: that run is done again.")
                return False
            self._whole.add(name)
        return True

    def _digest(self, name: str) -> str:
        """What the seal of a run's weights says, which is of no other run's."""
        digest = Digest()
        digest.add(self.key, name, folder_digest(self.weights(name)))
        return digest.hexdigest()

    def _seal(self, name: str) -> Path:
        """Digest of the weights of a run."""
        return self.folder / f"{name}.sha256"

    def load(self, name: str, read: Callable[[Path], Weights]) -> Weights | None:
        """The kept weights of a run as `read` reads them from their folder; None where they are gone or damaged."""
        if not self.has_weights(name):
            return None
        try:
            return read(self.weights(name))
        except (OSError, ValueError, KeyError, TypeError, RuntimeError, SafetensorError):
            self._note(f"{self.weights(name)} was damaged: that run is done again.")
            return None

    def write_encoder(self, name: str, record: Record, encoder: Encoder | None) -> Record:
        """As `write`, with the trained encoder as weights."""
        return self.write(name, record, None if encoder is None else partial(save_encoder, encoder))

    def encoder(self, name: str, device: torch.device) -> Encoder:
        """The trained encoder of a run whose weights are kept."""
        return load_encoder(self.weights(name), device=str(device))

    def forget_weights(self, keep: Collection[str]) -> None:
        """Remove the weights of all runs but those named; their records stay."""
        for folder in self.folder.iterdir():
            ours = folder.is_dir() and not folder.is_symlink() and not folder.name.startswith(".")
            if ours and folder.name not in keep:
                shutil.rmtree(folder)
                self._seal(folder.name).unlink(missing_ok=True)

    def read_tensor(self, name: str) -> Tensor | None:
        """The tensor of that name, None where there is none."""
        path = self._tensor_path(name)
        if not path.exists():
            return None
        try:
            with safe_open(path, "pt") as file:
                found: Tensor = file.get_tensor(name)
                notes = file.metadata() or {}
            if notes.get(_CHECKSUM) == _checksum(found) and notes.get(_STORE) == self.key:
                return found
            raise ValueError("another tensor")
        except (OSError, ValueError, SafetensorError):
            self._note(f"{path} was damaged.")
            return None

    def tensor(self, name: str, compute: Callable[[], Tensor]) -> Tensor:
        """The tensor of that name, from its file where it is there, else computed and kept."""
        found = self.read_tensor(name)
        if found is None:
            found = compute()
            with replacing(self._tensor_path(name)) as target:
                notes = {_CHECKSUM: _checksum(found), _STORE: self.key}
                save_file({name: found.contiguous()}, target, metadata=notes)
        return found

    def _tensor_path(self, name: str) -> Path:
        return self.folder / f"{name}.safetensors"


def _checksum(tensor: Tensor) -> str:
    digest = Digest()
    digest.add_weights({"": tensor})
    return digest.hexdigest()
