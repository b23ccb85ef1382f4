"""Store finished runs, so that interrupted work resumes and gives the same result."""

import hashlib
import json
import logging
import os
import shutil
import tempfile
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn

from truncate_kit.core.errors import UsageError, cannot_write
from truncate_kit.core.files import (
    digest_of,
    local_path,
    real_path,
    remove_leftovers,
    replacing,
    run_lock,
    unfinished,
    write_text,
)
from truncate_kit.core.results import FORMAT, RECORDS_FILE, Result, append_records, check_format, read_records
from truncate_kit.core.workspace import Method, Origin, settings_of, versions
from truncate_kit.models.encoder import Encoder, TextReader
from truncate_kit.models.loading import load_encoder
from truncate_kit.models.pipeline import read_weights, save_encoder, write_module
from truncate_kit.models.tokenizing import rules_of

_SETTINGS = "settings"  # kind of a store's first line
_logger = logging.getLogger(__name__)
_DATA_ENDINGS = {".csv", ".tsv", ".jsonl", ".parquet", ".txt"}  # suffixes of data files
Record = TypeVar("Record", bound=Result)
Part = str | bytes | memoryview


def origin_of(method: Method, source: Encoder, lean: Encoder, *, data: Any = None, **values: Any) -> Origin:
    """Return how `lean` was made from `source`; data: the unsplit pairs; values: further fields of `Origin`."""
    facts: dict[str, Any] = {
        "method": method,
        "model": source.name,
        "source_digest": encoder_digest(source),
        "layer": lean.depth,
        "depth": source.depth,
        "parameters": lean.num_parameters,
        "trained": source.trained if method in ("cut", "combine", "copy") else True,
        "data": "" if data is None else data.name,
        "fingerprint": "" if data is None else data.fingerprint(),
        "settings": {},
        "versions": versions(),
    }
    return Origin(**facts | values)


# Tokenizer fields that change neither vectors nor training.
_TOKENIZER_BOOKKEEPING = {
    "auto_map", "backend", "chat_template", "clean_up_tokenization_spaces", "is_local", "local_files_only",
    "model_max_length", "name_or_path", "processor_class", "tokenizer_class", "truncation_side",
}  # fmt: skip


def add_parts(sha: "hashlib._Hash", *parts: Part) -> None:
    """Add parts to a hash, each preceded by its size."""
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        sha.update(f"{len(data)} ".encode())
        sha.update(data)


def sha256_of(parts: Iterable[Part]) -> str:
    """Return the SHA-256 of parts and their sizes as 64 hexadecimal digits."""
    sha = hashlib.sha256()
    for part in parts:
        add_parts(sha, part)
    return sha.hexdigest()


def in_order(values: Any) -> str:
    """Return JSON with sorted keys; tuples are written as lists."""
    return json.dumps(values, sort_keys=True, default=repr)


def weight_parts(weights: dict[str, Tensor]) -> Iterator[Part]:
    """Yield name, dtype, shape and bytes of each weight, sorted by name."""
    for name, weight in sorted(weights.items()):
        yield from (name, str(weight.dtype), repr(tuple(weight.shape)))
        yield weight.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data


def reader_parts(reader: TextReader) -> Iterator[Part]:
    """Yield the prompts, and everything that determines token ids."""
    prompts = {name: prompt for name, prompt in (reader.settings.get("prompts") or {}).items() if prompt}
    default, tokenizer = reader.settings.get("default_prompt_name"), cast(Any, reader.tokenizer)
    yield in_order([reader.max_length, reader.lower_case, prompts, default if default in prompts else None])
    yield in_order([tokenizer.special_tokens_map, tokenizer.truncation_side])
    yield in_order(bool(getattr(tokenizer, "split_special_tokens", False)))
    if tokenizer.is_fast:
        yield in_order(rules_of(tokenizer.backend_tokenizer))
        return
    settings = {
        name: value
        for name, value in tokenizer.init_kwargs.items()
        if name not in _TOKENIZER_BOOKKEEPING and not name.endswith(("_file", "_token"))
    }
    yield in_order([type(tokenizer).__name__, settings, tokenizer.added_tokens_decoder])
    with tempfile.TemporaryDirectory() as folder:  # vocabulary files of any format, with merges or scores
        yield from (Path(file).read_bytes() for file in sorted(tokenizer.save_vocabulary(folder)))


def encoder_digest(encoder: Encoder) -> str:
    """Return the SHA-256 of all that affects vectors or training, the same after a reload."""
    return sha256_of(_encoder_parts(encoder))


def _encoder_parts(encoder: Encoder) -> Iterator[Part]:
    yield in_order(settings_of(encoder.backbone.config.to_dict()))
    yield in_order([encoder.pooling, encoder.combination])
    for part in (encoder.tail, encoder.pooler, encoder.heads):
        inside = [] if part is None else part.named_modules()
        yield in_order([(name, type(module).__name__, _public(module)) for name, module in inside])
    yield from weight_parts(encoder.state_dict())
    if encoder.tokenizer is not None:
        yield from reader_parts(encoder.reader)


def _public(module: nn.Module) -> dict[str, Any]:
    return {key: value for key, value in vars(module).items() if key[0] != "_" and key != "training"}


def folder_digest(folder: Path) -> str:
    """Return the SHA-256 of a folder's file names and contents."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return sha256_of(part for file in files for part in (str(file.relative_to(folder)), digest_of(file)))


def run_key(encoder: Encoder, *parts: str) -> str:
    """Return a run's key, the SHA-256 of the encoder and `parts`."""
    return sha256_of((encoder_digest(encoder), *parts))


def checkpoint_of(folder: Path, name: str, stage: str = "") -> Path | None:
    """Return the checkpoint file of an unfinished run or stage; None without `folder`.

    name: Name of the run, without dots.
    """
    return folder / f"{name}.{stage and stage + '.'}checkpoint" if folder.is_dir() else None


class RunStore:
    """The stored runs of one combination of model, data and settings.

    Records are in a shared file, weights and checkpoints in a folder. A record is written once, after its weights.
    Damaged runs are computed again. Only one process may write, inside `open`.
    """

    def __init__(self, folder: Path, key: str, description: dict[str, Any] | None = None) -> None:
        self.key = key[:16]
        self.folder = local_path(folder).absolute() / self.key  # workers may use another directory
        self._journal = self.folder.parent / RECORDS_FILE
        self._settings = {"store": self.key, "kind": _SETTINGS, "format": FORMAT} | (description or {})
        self._loaded: dict[str, dict[str, Any]] | None = None
        self._whole: set[str] = set()  # names with verified weights

    @contextmanager
    def open(self) -> Iterator[None]:
        """Lock the folder and remove unfinished files. Raises `FileProblemError` if another process holds the lock."""
        with run_lock(self.folder):
            self._loaded = None
            remove_leftovers(self.folder)
            # A recorded run without weights may be repeated.
            self._tidy(lambda name: name in self._records and self.has_weights(name))
            with unfinished(self.folder):
                yield
            self._tidy(self._records.__contains__)

    def _tidy(self, finished: Callable[[str], bool]) -> None:
        for name in {file.name.partition(".")[0] for file in self.folder.glob("*.checkpoint")}:
            if finished(name):
                self.remove_checkpoints(name)

    def checkpoint(self, name: str, stage: str = "") -> Path | None:
        """See `checkpoint_of`."""
        return checkpoint_of(self.folder, name, stage)

    def remove_checkpoints(self, name: str) -> None:
        """Remove all checkpoints of a run."""
        for file in self.folder.glob(f"{name}.*checkpoint"):
            file.unlink(missing_ok=True)
        remove_leftovers(self.folder, name)  # files of a lost worker

    @property
    def _records(self) -> dict[str, dict[str, Any]]:
        if self._loaded is None:
            lines, damaged = read_records(self._journal)
            if damaged:
                _logger.warning(f"{self._journal} has {damaged} damaged lines. The lost results are computed again.")
            own = [record for record in lines if record.get("store") == self.key]
            for record in own:
                check_format(record.get("format", FORMAT), self._journal)
            self._loaded = {record["name"]: record for record in own if "name" in record}
        return self._loaded

    def read(self, name: str, kind: type[Record]) -> Record | None:
        """Return the record of this run and class, if any."""
        values = self._records.get(name, {"kind": ""})
        return kind.from_dict(values) if values["kind"] == kind.__name__ else None

    def all(self, kind: type[Record]) -> dict[str, Record]:
        """Return all records of a class by run name, oldest first."""
        return {name: record for name in self._records if (record := self.read(name, kind)) is not None}

    def write(self, name: str, record: Record, weights: Callable[[Path], object] | None = None) -> Record:
        """Store a finished run; return its record, or the earlier record of a repeated run.

        weights: Writes the weights to a path atomically. Raises `FileProblemError`.
        """
        if weights is not None:
            self._write_weights(name, weights)
        first = self.read(name, type(record))
        if first is None:
            values = {"store": self.key, "name": name, "kind": type(record).__name__} | record.to_dict()
            append_records(self._journal, *([] if self._records else [self._settings]), values)
            self._records[name] = values
        self.remove_checkpoints(name)
        return first or record

    def weights(self, name: str) -> Path:
        """Return the folder for a run's weights."""
        return self.folder / name

    def _write_weights(self, name: str, write: Callable[[Path], object]) -> None:
        write(self.weights(name))
        write_text(self._seal(name), self._digest(name))
        self._whole.add(name)

    def has_weights(self, name: str) -> bool:
        """Return whether a run's weights are stored undamaged."""
        if name not in self._whole and self.weights(name).is_dir():
            seal = self._seal(name)
            if seal.is_file() and seal.read_bytes() == self._digest(name).encode():
                self._whole.add(name)
            else:
                _logger.warning(f"The weights in {self.weights(name)} are damaged. This run is repeated.")
        return name in self._whole

    def _digest(self, name: str) -> str:
        return sha256_of((self.key, name, folder_digest(self.weights(name))))

    def _seal(self, name: str) -> Path:
        return self.folder / f"{name}.sha256"

    def write_encoder(self, name: str, record: Record, encoder: Encoder | None) -> Record:
        """Store a finished run with an encoder as its weights."""
        return self.write(name, record, None if encoder is None else partial(save_encoder, encoder))

    def encoder(self, name: str, device: torch.device) -> Encoder:
        """Load a run's encoder."""
        return load_encoder(self.weights(name), device=str(device))

    def forget_weights(self, keep: Collection[str]) -> None:
        """Remove the weights of all runs except `keep`."""
        for name in self._records.keys() - set(keep):
            shutil.rmtree(self.weights(name), ignore_errors=True)
            self._seal(name).unlink(missing_ok=True)
            self._whole.discard(name)

    def read_tensor(self, name: str) -> Tensor | None:
        """Read a stored tensor; None if it is missing or damaged."""
        return read_weights(self.weights(name))[name] if self.has_weights(name) else None

    def tensor(self, name: str, compute: Callable[[], Tensor]) -> Tensor:
        """Read a stored tensor, or else compute and store it."""

        def write(folder: Path) -> None:
            with replacing(folder) as target:
                write_module(target, None, {name: compute()})

        if not self.has_weights(name):
            self._write_weights(name, write)
        return read_weights(self.weights(name))[name]


class StoredRows:
    """A file of rows, written in chunks with a checksum each; the caller locks the folder.

    Args:
        file: File of rows; checksums are in a file of the same name with the suffix .jsonl.
        made_from: Everything that determines the rows.
        header: Bytes before the rows.

    Raises:
        UsageError: The rows have another `made_from`, or the disk is too small.
        FileProblemError: The file cannot be read or written.
    """

    def __init__(
        self, file: Path, made_from: dict[str, Any], *, num_rows: int, row_bytes: int, chunk: int, header: bytes = b""
    ) -> None:
        self.file, self._row_bytes, self._header = file, row_bytes, header
        self._rows = {start: min(chunk, num_rows - start) for start in range(0, num_rows, chunk)}  # rows per chunk
        self._journal = file.with_suffix(".jsonl")
        known = self._known(made_from)
        try:
            with file.open("a+b") as stream:
                stream.truncate(min(stream.seek(0, os.SEEK_END), len(header) + num_rows * row_bytes))
            self._write_at(0, header)
            # First row of each missing or damaged chunk.
            self.missing = [
                start for start in self._rows if start not in known or zlib.crc32(self._read(start)) != known[start]
            ]
        except OSError as error:
            raise cannot_write(file, error) from error
        needed = sum(self._rows[start] for start in self.missing) * row_bytes
        if needed > (free := shutil.disk_usage(file.parent).free):
            raise UsageError(
                f"{file} needs {needed / 1e9:,.1f} GB more, but {file.parent} has only {free / 1e9:,.1f} GB free.",
                hint="Free disk space, choose a path on another disk as `out`, or use a smaller vector format.",
            )

    def _known(self, made_from: dict[str, Any]) -> dict[int, int]:
        if not self.file.exists():  # a complete file was moved to its destination
            self._journal.unlink(missing_ok=True)
        records, _ = read_records(self._journal)
        settings = next((record for record in records if "made_from" in record), None)
        chunks = {record["start"]: record["checksum"] for record in records if "start" in record}
        if settings is None:  # new, or settings lost
            self._journal.unlink(missing_ok=True)
            append_records(self._journal, {"format": FORMAT, "made_from": made_from})
            return {}
        check_format(settings.get("format"), self._journal)
        if settings["made_from"] != made_from:
            raise UsageError(
                f"{self.file.parent} holds {sum(record.get('rows', 0) for record in records):,} rows of a run "
                "with other input, model or options.",
                hint="Finish that run with its original options, name another file as `out`, or remove the folder.",
            )
        return chunks

    def write(self, start: int, rows: bytes) -> None:
        """Write a chunk, then its checksum. Raises `FileProblemError`."""
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
    """Lock `out`, in which the folders `models` will be replaced.

    Raises `UsageError` if one of them holds data, `encoder` or a teacher, `FileProblemError` if `out` is locked or
    cannot be written.
    """
    for folder in (out / name for name in models):
        for file in sorted(folder.rglob("*")):
            if _DATA_ENDINGS.intersection(file.suffixes) and file.name not in ("vocab.txt", "merges.txt"):
                problem = f"{file} is not a model file, and would be deleted with its folder."
                raise UsageError(problem, hint="Move the file elsewhere, or name another folder as `out`.")
        # A resumed run would start from the replaced model.
        for model in (encoder, *teachers):
            source = local_path(model.name)
            if source.is_dir() and real_path(source).is_relative_to(real_path(folder)):
                problem = f"{folder} holds {'the model to start from' if model is encoder else 'the teacher'}"
                hint = "Name another folder as `out`, or start from the model that this one was made from."
                raise UsageError(f"{problem}, and would be replaced.", hint=hint)
    with run_lock(out):
        yield
