"""Writing so that nothing is lost: a temporary name first, then a rename; one process per run folder."""

import contextlib
import errno
import fcntl
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from truncate_kit.errors import FileProblemError, TruncateKitError, cannot_write

_REFUSED = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO}
_TEMPORARY = ".tmp"


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`; on success it becomes `path`, on any failure it is removed.

    Write a file or a folder to it. An existing file is replaced atomically, an existing folder is moved aside first
    and removed once the new one stands. Raises `FileProblemError` on a full disk or a read-only place.
    """
    path = Path(path)
    temporary: Path | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{path.name}.", suffix=_TEMPORARY, dir=path.parent))
        target = temporary / path.name
        yield target
        _sync(target)
        if target.is_dir() and path.is_dir():
            path.rename(temporary / "replaced")
        target.replace(path)
    except TruncateKitError:
        raise
    except Exception as error:
        refused = error if isinstance(error, OSError) else _refusal(error)
        if refused is None:
            raise
        raise cannot_write(path, refused) from error
    finally:
        if temporary is not None:
            replaced = temporary / "replaced"
            if replaced.exists() and not path.exists():  # the second rename failed: bring the old folder back
                replaced.rename(path)
            shutil.rmtree(temporary, ignore_errors=True)


def _refusal(error: BaseException | None) -> OSError | None:
    """What the system said where a write failed: torch and safetensors then raise errors of their own kinds."""
    while error is not None:
        found = re.search(r"\(os error (\d+)\)", str(error))  # safetensors has it in its text only
        number = error.errno if isinstance(error, OSError) else int(found[1]) if found else None
        if number in _REFUSED:
            return OSError(number, os.strerror(number))
        error = error.__cause__ or error.__context__
    return None


def remove_leftovers(folder: Path, name: str = "") -> None:
    """Remove what a killed process had begun to write in `folder`, of one file if it is named; only under its lock."""
    for left in folder.glob(f".{name}.*{_TEMPORARY}" if name else f".*{_TEMPORARY}"):
        shutil.rmtree(left, ignore_errors=True)


def _sync(path: Path) -> None:
    """Flush to the disk before the rename, so that a power cut cannot leave an empty file under the final name."""
    files = [path] if path.is_file() else [item for item in path.rglob("*") if item.is_file()]
    for file in files:
        with file.open("rb") as handle:
            os.fsync(handle.fileno())


def write_text(path: Path, text: str) -> None:
    """Write UTF-8 text under a temporary name and rename it to `path`. Raises `FileProblemError`."""
    with replacing(path) as target:
        target.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Any) -> None:
    """Write `value` as indented JSON under a temporary name and rename it to `path`. Raises `FileProblemError`."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


@contextlib.contextmanager
def run_lock(folder: Path) -> Iterator[None]:
    """Hold `folder` for this process; the lock goes with the process, however it ends.

    Raises `FileProblemError` when another process holds it or the folder cannot be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # A link is not followed and nothing is emptied: whoever made the folder may have put something else there.
        handle = os.fdopen(os.open(folder / ".lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666), "r+")
    except OSError as error:
        raise cannot_write(folder, error) from error
    with handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise FileProblemError(
                f"Another process is working in {folder}.",
                hint="Wait until it ends, stop it, or name another folder as `out`.",
            ) from error
        yield
