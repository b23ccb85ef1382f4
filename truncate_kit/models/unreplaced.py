"""A model folder that another process replaces while it is read: its old and its new files are never mixed."""

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from truncate_kit.errors import ModelError, TruncateKitError

# What a model is read from; records that are written beside a model are no part of it.
_READ = ("*.json", "*.safetensors", "*.bin", "*.txt", "*.model", "*/config.json", "*/*.safetensors", "*/*.bin")
_RECORDS = ("export.json",)
State = tuple[tuple[str, int, int, int], ...]


def state_of(folder: Path, more: Sequence[Path] = ()) -> State:
    """Which files a model folder holds, `more` in any case: of each its inode, its size, and when it was written."""
    files = {file for pattern in _READ for file in folder.glob(pattern) if file.name not in _RECORDS} | {*more}
    found = []
    for file in sorted(files):
        with contextlib.suppress(OSError):  # gone since it was listed: its absence shows
            facts = file.stat()
            found.append((str(file), facts.st_ino, facts.st_size, facts.st_mtime_ns))
    return tuple(found)


def check_unreplaced(folder: Path, before: State, more: Sequence[Path] = ()) -> None:
    """Raise `ModelError` where a model folder is no longer as it was in the state `before`."""
    if state_of(folder, more) != before:
        raise ModelError(f"{folder} was changed while it was read.", hint="Wait until nobody writes there; run again.")


@contextlib.contextmanager
def unreplaced(folder: Path, more: Sequence[Path] = ()) -> Iterator[None]:
    """Read a model folder as one: raises `ModelError` where it was replaced meanwhile, whatever else went wrong."""
    before = state_of(folder, more)
    try:
        yield
    except TruncateKitError:
        check_unreplaced(folder, before, more)
        raise
    check_unreplaced(folder, before, more)
