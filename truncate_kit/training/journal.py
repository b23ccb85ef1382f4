"""An append-only file of JSON lines that a kill at any instant leaves readable."""

import fcntl
import json
import os
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from truncate_kit.errors import FileProblemError, cannot_write

RECORDS_FILE = "trials.jsonl"
"""Where the runs of a workspace are recorded, beside the folders of what they keep."""
_CHECKSUM = "crc32"  # of a line as it is without it


@dataclass(frozen=True, slots=True)
class Journal:
    """JSON objects, one a line, each with its checksum; several processes may append to one file.

    Each line is on the disk when `append` returns. A last line without its end is what a killed process was writing: it
    is ignored, and the next `append` cuts it off. Another line that cannot be read, or does not fit its checksum, is
    left out and counted. The version of the format stands in the first line of each owner.
    """

    file: Path

    def read(self) -> tuple[list[dict[str, Any]], int]:
        """All whole lines, and the number of damaged ones. Raises `FileProblemError` where the file cannot be read."""
        try:
            lines = self.file.read_bytes().split(b"\n")[:-1]
        except FileNotFoundError:
            return [], 0
        except OSError as error:
            raise FileProblemError(f"{self.file} cannot be read: {error.strerror}.", hint="Allow it.") from error
        found = [values for line in lines if (values := _read(line)) is not None]
        return found, len(lines) - len(found)

    def append(self, *records: dict[str, Any]) -> None:
        """Write records, a line each. Raises `FileProblemError`."""
        lines = [_text(values | {_CHECKSUM: zlib.crc32(_text(values))}) + b"\n" for values in records]
        try:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            with self.file.open("a+b") as stream:
                fcntl.flock(stream, fcntl.LOCK_EX)  # else another process would take our half line for a dead one's
                stream.truncate(_end_of_whole_lines(stream))
                stream.writelines(lines)
                stream.flush()
                os.fsync(stream.fileno())
        except OSError as error:
            raise cannot_write(self.file, error) from error


def _end_of_whole_lines(stream: BinaryIO) -> int:
    size = stream.seek(0, os.SEEK_END)
    stream.seek(max(0, size - 1))
    if stream.read(1) in (b"", b"\n"):
        return size
    stream.seek(0)
    return stream.read().rfind(b"\n") + 1


def _text(values: dict[str, Any]) -> bytes:
    return json.dumps(values, ensure_ascii=False, allow_nan=False).encode()


def _read(line: bytes) -> dict[str, Any] | None:
    """The object of a line without its checksum; None where it is damaged."""
    try:
        values = json.loads(line)
        if not isinstance(values, dict):
            return None
        checksum = values.pop(_CHECKSUM, None)
        return values if checksum == zlib.crc32(_text(values)) else None
    except (ValueError, RecursionError):
        return None
