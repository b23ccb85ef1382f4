"""What was written reaches the disk, and other users may read it as far as the umask lets them."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

_PRIVATE = 0o600


@contextlib.contextmanager
def opened_folder(folder: Path | str) -> Iterator[int]:
    """The handle of a folder; a link to one is not followed. Raises OSError."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        yield handle
    finally:
        os.close(handle)


def flush_names(folder: Path) -> None:
    """Flush the names in a folder to the disk, where its file system can."""
    with contextlib.suppress(OSError), opened_folder(folder) as handle:
        os.fsync(handle)


def flush(path: Path) -> None:
    """Flush to the disk before the rename, so that a power cut cannot leave an empty file under the final name."""
    files = _files_of(path)
    for file in files:
        with file.open("rb") as handle:
            os.fsync(handle.fileno())
    for folder in {file.parent for file in files if path.is_dir()}:
        flush_names(folder)


def open_up(path: Path, usual: int) -> None:
    """Give files that a library wrote for this user alone, as safetensors does, the usual rights of new files."""
    for file in _files_of(path):
        if not file.is_symlink() and file.stat().st_mode & 0o777 == _PRIVATE != usual:
            file.chmod(usual)


def usual_rights(folder: Path) -> int:
    """The rights of a new file in a folder, as the umask has them; without changing it, as to ask for it would."""
    probe = folder / ".rights"
    probe.touch()
    rights = probe.stat().st_mode & 0o777
    probe.unlink()
    return rights


def _files_of(path: Path) -> list[Path]:
    """The file itself, or the files in a folder and in those inside it."""
    return [path] if path.is_file() else [item for item in path.rglob("*") if item.is_file()]
