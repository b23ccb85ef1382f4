"""Rows of one size in a file that is filled chunk by chunk: what a killed run left is taken up, damage is found."""

import os
import shutil
import zlib
from pathlib import Path
from typing import Any

from truncate_kit.errors import UsageError, cannot_write
from truncate_kit.results import FORMAT, check_format
from truncate_kit.training.journal import Journal


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
        self.file, self.num_rows, self.chunk = file, num_rows, chunk
        self._row_bytes, self._header = row_bytes, header
        self._journal = Journal(file.with_suffix(".jsonl"))
        known, unreadable = self._known(made_from)
        try:
            with file.open("a+b") as stream:
                stream.truncate(min(stream.seek(0, os.SEEK_END), len(header) + num_rows * row_bytes))
            self._write_at(0, header)
            wrong = [start for start, checksum in known.items() if zlib.crc32(self._read(start)) != checksum]
        except OSError as error:
            raise cannot_write(file, error) from error
        # First rows of the chunks to be written, and the number of rows that were written before and are missing again.
        self.missing = [start for start in range(0, num_rows, chunk) if start not in known or start in wrong]
        self.damaged = min(num_rows, sum(self._rows(start) for start in wrong) + unreadable * chunk)
        self._check_space()

    def _known(self, made_from: dict[str, Any]) -> tuple[dict[int, int], int]:
        """The checksums by the first row of their chunks, and the number of those that cannot be read."""
        if not self.file.exists():  # what it tells of was moved away when it was whole
            self._journal.file.unlink(missing_ok=True)
        records, damaged = self._journal.read()
        settings = next((record for record in records if _has_format(record)), None)
        chunks = {record["start"]: record for record in records if self._is_chunk(record)}
        if settings is None:  # a new file, or nobody knows what it was made from
            self._journal.file.unlink(missing_ok=True)
            self._journal.append({"format": FORMAT, "made_from": made_from})
            return {}, len(range(0, self.num_rows, self.chunk)) if chunks or damaged else 0
        check_format(settings["format"], self._journal.file)
        if settings.get("made_from") != made_from:
            rows = sum(record["rows"] for record in records if type(record.get("rows")) is int)
            raise UsageError(
                f"{self.file.parent} holds {rows:,} rows of another run: of another input, model or option.",
                hint="Finish that one with its own call, name another file as `out`, or remove that folder.",
            )
        return {start: record["checksum"] for start, record in chunks.items()}, damaged

    def _is_chunk(self, record: dict[str, Any]) -> bool:
        """Whether a record is that of a chunk of this file."""
        start, checksum = record.get("start"), record.get("checksum")
        return type(start) is int and start in range(0, self.num_rows, self.chunk) and type(checksum) is int

    def write(self, start: int, rows: bytes) -> None:
        """Write the chunk that begins at row `start`, and then its checksum. Raises `FileProblemError`."""
        try:
            self._write_at(len(self._header) + start * self._row_bytes, rows)
        except OSError as error:
            raise cannot_write(self.file, error) from error
        self._journal.append({"start": start, "rows": self._rows(start), "checksum": zlib.crc32(rows)})

    def _write_at(self, place: int, content: bytes) -> None:
        with self.file.open("r+b") as stream:
            stream.seek(place)
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())

    def _read(self, start: int) -> bytes:
        with self.file.open("rb") as stream:
            stream.seek(len(self._header) + start * self._row_bytes)
            return stream.read(self._rows(start) * self._row_bytes)

    def _rows(self, start: int) -> int:
        return min(self.chunk, self.num_rows - start)

    def _check_space(self) -> None:
        needed = sum(map(self._rows, self.missing)) * self._row_bytes
        free = shutil.disk_usage(self.file.parent).free
        if needed > free:
            raise UsageError(
                f"{self.file} needs {needed / 1e9:,.1f} GB more, and {self.file.parent} has {free / 1e9:,.1f} GB left.",
                hint="Free some space, name another place as `out`, or store less.",
            )


def _has_format(record: dict[str, Any]) -> bool:
    """Whether a record is the first one of a file, which says how it was made."""
    version = record.get("format")
    return type(version) is int and version > 0
