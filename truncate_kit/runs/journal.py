"""An append-only file of JSON lines that a kill at any instant leaves readable."""

import fcntl
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from truncate_kit.errors import FileProblemError, cannot_write

FORMAT = 1  # version of what is written line by line; it stands in the first line of each owner


@dataclass(frozen=True, slots=True)
class Journal:
    """JSON objects, one a line; several processes may append to one file.

    Each line is on the disk when `append` returns. A last line without its end is what a killed process was writing: it
    is ignored, and the next `append` cuts it off. Another line that cannot be read is left out and counted.
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
        found = []
        for line in lines:
            try:
                values = json.loads(line)
            except ValueError:
                continue
            if isinstance(values, dict):
                found.append(values)
        return found, len(lines) - len(found)

    def append(self, *records: dict[str, Any]) -> None:
        """Write records, a line each. Raises `FileProblemError`."""
        lines = [json.dumps(values, ensure_ascii=False, allow_nan=False).encode() + b"\n" for values in records]
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


def check_format(values: dict[str, Any], file: Path) -> None:
    """Raise `FileProblemError` where the first line of an owner is of a later version."""
    if values.get("format", FORMAT) > FORMAT:
        raise FileProblemError(
            f"{file} was written by a later version of truncate-kit.", hint="Update, or use another folder."
        )
