"""Write files atomically, digest them, and lock folders."""

import contextlib
import errno
import fcntl
import functools
import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from truncate_kit.core.errors import (
    DataError,
    DivergedError,
    FileProblemError,
    ModelError,
    TruncateKitError,
    UsageError,
    cannot_write,
    first_line,
)

_REFUSED = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO, errno.ENOENT, errno.ENOTDIR, errno.EACCES}
_UNFINISHED, _LOCK, _TEMPORARY, _REPLACED = ".unfinished", ".lock", ".tmp", "replaced"


# Paths


def local_path(name: str | Path) -> Path:
    """Expand "~" and, for existing users, "~user"."""
    return Path(os.path.expanduser(name))  # noqa: PTH111  # Path.expanduser raises for unknown users


def real_path(path: str | Path) -> Path:
    """Resolve links; accept circular links."""
    return Path(os.path.realpath(path))


def is_there(path: str | Path) -> bool:
    """Tell if a path exists; False for overlong names."""
    return os.path.exists(path)  # noqa: PTH110  # Path.exists raises for such names


def check_there(path: str | Path) -> None:
    """Raise `DataError` for a missing path."""
    if not is_there(path):
        raise DataError(f"{path} does not exist.", hint="Check the path; relative paths start in the current folder.")


def name_without_folders(name: str) -> str:
    """Return the last part of a local path, to keep its folders private."""
    path = local_path(name)
    return real_path(path).name if path.is_absolute() or is_there(path) else name


# Atomic writing


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path for a file or folder; rename it to `path` on success, remove it on failure.

    Raises `FileProblemError`.
    """
    path = Path(path)
    try:
        with _made(path.parent), _temporary(path) as folder:
            target, old, own = folder / path.name, folder / _REPLACED, folder.stat()
            yield target
            if not os.path.samestat(own, folder.stat()):  # removed, then recreated by a later write
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
            _finish(target)
            if target.is_dir() and path.is_dir():
                path.rename(old)
            try:
                target.replace(path)
            except OSError:
                if old.exists():
                    old.rename(path)
                raise
    except TruncateKitError:
        raise
    except Exception as error:
        refused = error if isinstance(error, OSError) else _refusal(error)
        if refused is None:
            raise
        raise cannot_write(path, refused) from error


@contextlib.contextmanager
def _made(folder: Path) -> Iterator[None]:
    new = [place for place in (folder, *folder.parents) if not place.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    try:
        yield
    except BaseException:
        with contextlib.suppress(OSError):  # not empty
            for place in new:
                place.rmdir()
        raise


@contextlib.contextmanager
def _temporary(path: Path) -> Iterator[Path]:
    """Yield a new folder next to `path`, locked while its process runs."""
    remove_leftovers(path.parent, path.name)
    with tempfile.TemporaryDirectory(
        prefix=f".{path.name}.", suffix=_TEMPORARY, dir=path.parent, ignore_cleanup_errors=True
    ) as name:
        lock = os.open(name, os.O_RDONLY)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield Path(name)
        finally:
            os.close(lock)


def check_writable(folder: Path) -> None:
    """Raise `FileProblemError` unless a folder, which may not exist yet, can be written."""
    place = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    try:
        tempfile.TemporaryFile(dir=place).close()
    except OSError as error:
        raise cannot_write(folder, error) from error


def remove_leftovers(folder: Path, name: str = "") -> None:
    """Remove temporary folders of killed processes, only for `name` if given; restore replaced folders."""
    wanted = rf"{re.escape(name)}(?:\..*)?" if name else ".*"
    ours = re.compile(rf"\.({wanted})\.[a-z0-9_]{{8}}{re.escape(_TEMPORARY)}")
    with contextlib.suppress(OSError):  # missing folder
        for left in folder.iterdir():
            if match := ours.fullmatch(left.name):
                lock = os.open(left, os.O_RDONLY)
                with contextlib.suppress(OSError):  # its process still runs
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    if (left / _REPLACED).exists() and not (folder / match[1]).exists():
                        (left / _REPLACED).rename(folder / match[1])
                    shutil.rmtree(left, ignore_errors=True)
                os.close(lock)


def _finish(path: Path) -> None:
    """Flush files to disk and apply the umask, which safetensors ignores."""
    umask = os.umask(0)
    os.umask(umask)
    for file in [path] if path.is_file() else filter(Path.is_file, path.rglob("*")):
        with file.open("rb") as handle:
            os.fsync(handle.fileno())
            if os.fstat(handle.fileno()).st_mode & 0o777 == 0o600:
                os.fchmod(handle.fileno(), 0o666 & ~umask)


def _refusal(error: BaseException | None) -> OSError | None:
    while error is not None:
        match = re.search(r"\(os error (\d+)\)", str(error))
        number = error.errno if isinstance(error, OSError) else int(match[1]) if match else None
        if number in _REFUSED:
            return OSError(number, os.strerror(number))
        error = error.__cause__ or error.__context__
    return None


def write_text(path: Path, text: str) -> None:
    """Write UTF-8 text atomically. Raises `FileProblemError`."""
    with replacing(path) as target:
        target.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Any) -> None:
    """Write indented JSON atomically. Raises `FileProblemError`."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


# Digests


def read_json(path: Path) -> Any:
    """Read a JSON file. Raises `ModelError`."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(
            f"Cannot read {path}: {first_line(error)}.", hint="Download or save the model again."
        ) from error


def digest_of(file: Path) -> str:
    """Return the SHA-256 of a file, cached until the file changes."""
    status = file.stat()
    return _digest_as_of(file.resolve(), status.st_ino, status.st_size, (status.st_mtime_ns, status.st_ctime_ns))


@functools.lru_cache(maxsize=64)
def _digest_as_of(file: Path, inode: int, size: int, changed: tuple[int, int]) -> str:
    with file.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


# Folders of running work


@contextlib.contextmanager
def run_lock(folder: Path) -> Iterator[None]:
    """Lock `folder` in the block; if that fails, remove new empty folders. Raises `FileProblemError` if locked."""
    with contextlib.ExitStack() as held:
        try:
            held.enter_context(_made(folder))
            handle = held.enter_context((folder / _LOCK).open("a"))
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise FileProblemError(
                f"Another process is working in {folder}.",
                hint="Wait until it ends, stop it, or name another folder as `out`.",
            ) from error
        except OSError as error:
            raise cannot_write(folder, error) from error
        try:
            yield
        except BaseException:
            if [path.name for path in folder.glob("*")] == [_LOCK]:
                (folder / _LOCK).unlink()
            raise


@contextlib.contextmanager
def unfinished(folder: Path, *, shared: bool = False) -> Iterator[None]:
    """Mark `folder` as unfinished until the block ends or rejects its input.

    shared: Other runs use the folder too, so keep the mark if training diverges.
    """
    refused = (UsageError, DataError, ModelError, *([] if shared else [DivergedError]))
    mark = mark_unfinished(folder)
    try:
        yield
    except refused:
        mark.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # not empty
            folder.rmdir()
        raise
    mark.unlink(missing_ok=True)


def mark_unfinished(folder: Path) -> Path:
    """Mark `folder` as unfinished; return the marker."""
    folder.mkdir(parents=True, exist_ok=True)
    mark = folder / _UNFINISHED
    mark.touch()
    return mark


def is_unfinished(folder: Path) -> bool:
    """Tell if `folder` is unfinished."""
    return (folder / _UNFINISHED).exists()
