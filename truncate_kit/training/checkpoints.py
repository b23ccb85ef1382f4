"""The file that holds a run between two evaluations: a resumed run trusts every byte of it, so all have a checksum."""

import hashlib
import pickle
from pathlib import Path
from typing import Any

import torch

from truncate_kit.errors import FileProblemError
from truncate_kit.files import replacing
from truncate_kit.results import FORMAT

_SIZE = hashlib.sha256().digest_size
_CHUNK = 1 << 20
_RUN = "run"


def write_checkpoint(path: Path, values: dict[str, Any]) -> None:
    """Write values that `torch.save` takes, and behind them SHA-256 of that. Raises `FileProblemError`."""
    with replacing(path) as target:
        with target.open("wb") as handle:
            torch.save(values | {"format": FORMAT, _RUN: _run(path)}, handle)
        digest = _digest(target, target.stat().st_size)
        with target.open("ab") as handle:
            handle.write(digest)


def read_checkpoint(path: Path, device: torch.device) -> dict[str, Any]:
    """What `write_checkpoint` wrote, nothing unpickled. Raises `FileProblemError` for any other file."""
    try:
        size = path.stat().st_size - _SIZE
        with path.open("rb") as handle:
            handle.seek(max(0, size))
            whole = size > 0 and handle.read() == _digest(path, size)
        values: dict[str, Any] = torch.load(path, map_location=device, weights_only=True) if whole else {}
    except (OSError, RuntimeError, pickle.UnpicklingError) as error:
        raise unusable(path) from error
    if values.get("format") != FORMAT or values.get(_RUN) != _run(path):
        raise unusable(path)
    return values


def unusable(path: Path) -> FileProblemError:
    """The error for a checkpoint that no run can go on from."""
    return FileProblemError(
        f"{path} is damaged, or comes from another run or another version.", hint="Delete it to start this trial again."
    )


def _run(path: Path) -> str:
    """Whose checkpoint a file is, by its store and its name: that of another seed has the same shapes."""
    return f"{path.absolute().parent.name}/{path.name}"


def _digest(path: Path, size: int) -> bytes:
    """SHA-256 of the first `size` bytes."""
    digest = hashlib.sha256()
    with path.open("rb") as handle:
        while size > 0 and (part := handle.read(min(size, _CHUNK))):
            digest.update(part)
            size -= len(part)
    return digest.digest()
