"""Digests of files, by which it is known whether they are still what they were."""

import functools
import hashlib
from pathlib import Path


def digest_of(file: Path) -> str:
    """SHA-256 of a file's bytes, in hexadecimal; read once per process as long as the file stays the same.

    Who sets the time of writing back, or the clock, cannot set back the inode's own time of change as well.
    """
    found = file.stat()
    return _digest_as_of(file.resolve(), found.st_ino, found.st_size, (found.st_mtime_ns, found.st_ctime_ns))


@functools.lru_cache(maxsize=64)
def _digest_as_of(file: Path, inode: int, size: int, changed: tuple[int, int]) -> str:
    with file.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()
