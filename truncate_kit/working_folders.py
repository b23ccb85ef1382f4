"""Folders that are worked in: one process at a time, and a mark on work that was stopped and can go on."""

import contextlib
import fcntl
from collections.abc import Iterator
from pathlib import Path

from truncate_kit.errors import DataError, DivergedError, FileProblemError, ModelError, UsageError, cannot_write
from truncate_kit.files import open_to_extend

_UNFINISHED = ".unfinished"


@contextlib.contextmanager
def unfinished(folder: Path, *, shared: bool = False) -> Iterator[None]:
    """Work in `folder`, which is marked until it ends well or is refused: what was stopped goes on there."""
    # The same call would end so again; after a divergence one with other settings goes on with what they share.
    refused = (UsageError, DataError, ModelError, *([] if shared else [DivergedError]))
    mark = mark_unfinished(folder)
    try:
        yield
    except refused:
        mark.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # it holds something
            folder.rmdir()
        raise
    mark.unlink(missing_ok=True)


def mark_unfinished(folder: Path) -> Path:
    """Say that work in `folder` goes on with another call, which takes the mark away; the file that says so."""
    folder.mkdir(parents=True, exist_ok=True)
    mark = folder / _UNFINISHED
    mark.touch()
    return mark


def is_unfinished(folder: Path) -> bool:
    """Whether work in that folder was stopped and waits for the same call."""
    return (folder / _UNFINISHED).exists()


@contextlib.contextmanager
def run_lock(folder: Path) -> Iterator[None]:
    """Hold `folder` for this process; the lock goes with the process, however it ends.

    Folders that were made for it go again where what was to be done there fails before it has written anything.
    Raises `FileProblemError` when another process holds it or the folder cannot be made.
    """
    made = [place for place in (folder, *folder.parents) if not place.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # A link is not followed and nothing is emptied: whoever made the folder may have put something else there.
        handle = open_to_extend(folder / ".lock")
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
        try:
            yield
        except BaseException:
            if made and folder.is_dir() and [path.name for path in folder.iterdir()] == [".lock"]:
                (folder / ".lock").unlink()
                with contextlib.suppress(OSError):  # others have put something beside it
                    for place in made:
                        place.rmdir()
            raise
