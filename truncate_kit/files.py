"""Writing so that nothing is lost: a temporary name first, then a rename."""

import contextlib
import ctypes
import errno
import fcntl
import json
import os
import re
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from truncate_kit.errors import FileProblemError, TruncateKitError, cannot_write
from truncate_kit.on_disk import flush, flush_names, open_up, opened_folder, usual_rights

_REFUSED = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO}
_TEMPORARY = ".tmp"
_MOST_TEXT = 1_000_000_000  # bytes: records of a million trials have fewer; a file of holes may claim any number
_HERE, _EXCHANGE = -100, 2  # AT_FDCWD and RENAME_EXCHANGE of Linux


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`; on success it becomes `path`, on any failure it is removed.

    Write a file or a folder to it. What is there already is replaced atomically; where a file system cannot exchange
    two folders, the old one is moved aside first and removed once the new one stands. Folders above it are made, and
    on failure those are removed again. What a killed process left of such a write is removed. Raises
    `FileProblemError` on a full disk or a read-only place.
    """
    path = Path(path)
    temporary, lock, made = None, -1, list[Path]()
    try:
        if not path.is_symlink():
            _check_regular(path)  # a rename as the superuser would put a file in the place of a device
        made = [folder for folder in path.parents if not folder.exists()]
        path.parent.mkdir(parents=True, exist_ok=True)
        remove_leftovers(path.parent, path.name)
        temporary, lock = _temporary(path)
        target = temporary / path.name
        yield target
        open_up(target, usual_rights(temporary))
        flush(target)
        if target.is_dir() and path.is_dir() and not _exchanged(target, path):
            path.rename(temporary / "replaced")
        if not (target.is_dir() and path.is_dir()):
            target.replace(path)
        flush_names(path.parent)  # else a power cut could take the name back
    except FileProblemError as error:  # of a file inside, which is named by where it was to stand
        said = str(error) if temporary is None else str(error).replace(str(temporary / path.name), str(path))
        raise FileProblemError(said, hint=error.hint) from error
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
        if lock >= 0:
            os.close(lock)
        with contextlib.suppress(OSError):  # the first that holds something, as all do after a success
            for folder in made:
                folder.rmdir()


def _temporary(path: Path) -> tuple[Path, int]:
    """A new folder for what is to become `path`, and the lock that says that its writer lives."""
    while True:
        folder = Path(tempfile.mkdtemp(prefix=f".{path.name}.", suffix=_TEMPORARY, dir=path.parent))
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        fcntl.flock(lock, fcntl.LOCK_EX)
        if folder.is_dir():
            return folder, lock
        os.close(lock)  # another process took it for a dead one's before it was locked


def _exchanged(one: Path, other: Path) -> bool:
    """Exchange two folders in one step; False where the system or the file system cannot."""
    try:
        exchange = ctypes.CDLL(None, use_errno=True).renameat2
    except AttributeError:  # an older C library, or another system
        return False
    return int(exchange(_HERE, os.fsencode(one), _HERE, os.fsencode(other), _EXCHANGE)) == 0


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
    """Remove what killed processes had begun to write in `folder`, of one file if it is named; what lives stays."""
    # As mkdtemp names them; others have folders that begin with a point and end so.
    ours = re.compile(rf"\.{re.escape(name)}.*\.[a-z0-9_]{{8}}{re.escape(_TEMPORARY)}")
    with contextlib.suppress(OSError):  # no folder, or one that cannot be read: then nothing is left of ours
        lefts = [item for item in os.scandir(folder) if ours.fullmatch(item.name)]
        for left in lefts:
            with contextlib.suppress(OSError), opened_folder(left.path) as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(left.path, ignore_errors=True)


def all_below(folder: Path) -> Iterator[Path]:
    """Everything in a folder and in those inside it, links not entered; what cannot be read is left out.

    Unlike `Path.rglob` it does not call itself, which Python ends where somebody made folders a thousand deep.
    """
    waiting = [str(folder)]
    while waiting:
        with contextlib.suppress(OSError), os.scandir(waiting.pop()) as entries:
            for entry in entries:
                yield Path(entry.path)
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(entry.path)


def local_path(name: str | Path) -> Path:
    """A name as a path, "~" and "~user" replaced by the home folder where there is such a user."""
    try:
        return Path(name).expanduser()
    except RuntimeError:
        return Path(name)


def name_without_folders(name: str) -> str:
    """The last part of a path, and any other name as it is: what goes to others does not say where something lay."""
    path = local_path(name)
    return real_path(path).name if path.is_absolute() or is_there(path) else name


def real_path(path: str | Path) -> Path:
    """Absolute and without links. Raises ValueError for what is no path, unlike `Path.resolve` not for circles."""
    return Path(os.path.realpath(path))


def model_folder_above(name: str, folder: Path) -> Path | None:
    """The folder of a model that was named from one of those above `folder`, the nearest first; None without one."""
    above = (place / name for place in folder.absolute().parents)
    return next((one for one in above if is_there(one / "config.json") or is_there(one / "modules.json")), None)


def is_there(path: Path) -> bool:
    """Whether a path exists; False also for a name that no file could have."""
    try:
        return path.exists()
    except (OSError, ValueError):
        return False


def is_folder(path: Path) -> bool:
    """Whether a path is a folder; False also for a name that no file could have."""
    return is_there(path) and path.is_dir()


def read_text(path: Path) -> str:
    """The UTF-8 text of a regular file.

    Raises OSError, also for a pipe, which would wait, and for a file too large to be one of settings or results;
    UnicodeDecodeError.
    """
    _check_regular(path)
    if path.is_file() and path.stat().st_size > _MOST_TEXT:
        raise OSError(errno.EFBIG, f"It has more than {_MOST_TEXT:,} bytes", str(path))
    return path.read_text(encoding="utf-8")


def read_bytes(path: Path) -> bytes:
    """The bytes of a regular file. Raises OSError, also for a pipe, which would wait."""
    _check_regular(path)
    return path.read_bytes()


class RepeatedKeyError(ValueError):
    """An object in JSON has a key twice; readers differ in which of the two values they take."""

    def __init__(self, key: str) -> None:
        super().__init__(f"the key {key!r} is there twice")


def without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """For `json.loads`: the object of these keys and values. Raises `RepeatedKeyError`."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise RepeatedKeyError(next(key for key, number in Counter(key for key, _ in pairs).items() if number > 1))
    return found


def _check_regular(path: Path) -> None:
    if path.exists() and not path.is_file() and not path.is_dir():
        raise OSError(errno.EINVAL, "It is a pipe or a device, not a file", str(path))


def open_to_extend(path: Path) -> BinaryIO:
    """Open a file of ours for reading and appending; it is made where there is none. Raises OSError, also for a link.

    Whoever made the folder may have put a link there to a file that is not ours.
    """
    return open(path, "a+b", opener=_open_no_link)  # pathlib takes no opener


def _open_no_link(path: str, flags: int) -> int:
    try:
        return os.open(path, flags | os.O_NOFOLLOW, 0o666)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise OSError(errno.ELOOP, "It is a link, which is not followed", path) from error
        raise


def write_text(path: Path, text: str) -> None:
    """Write UTF-8 text under a temporary name and rename it to `path`. Raises `FileProblemError`."""
    with replacing(path) as target:
        target.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Any) -> None:
    """Write `value` as indented JSON under a temporary name and rename it to `path`. Raises `FileProblemError`."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")
