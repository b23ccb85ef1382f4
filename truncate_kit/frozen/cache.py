"""Pooled states of all blocks, computed once and kept on disk: memory-mapped, interruptible, checked when opened."""

import json
import shutil
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from truncate_kit.encoders import Encoder
from truncate_kit.errors import CannotWriteError, UsageError
from truncate_kit.files import run_lock, write_json
from truncate_kit.progress import Progress, silent
from truncate_kit.representations import layer_states
from truncate_kit.serving.digests import count_texts, encoder_digest

CHUNK = 512
"""Texts between two notes on the disk: enough to sort by length, and seconds of work at most to do again."""

Rows = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class CachedStates:
    """States on disk.

    values: (n, L, d) float32, read-only and memory-mapped, row i for text i. computed: texts that were not there yet.
    damaged: texts whose stored states were damaged and have been computed again.
    """

    values: Rows
    computed: int
    damaged: int

    def statement(self, folder: Path) -> str | None:
        """What the user has to know about the cache; None where nothing was wrong."""
        if not self.damaged:
            return None
        return f"The cache in {folder} was damaged: the states of {self.damaged:,} texts were computed again."


def cached_states(
    encoder: Encoder, texts: Sequence[str], folder: Path, *, chunk: int = CHUNK, progress: Progress = silent
) -> CachedStates:
    """The pooled states of the blocks 1 … L of `texts`, as `layer_states` gives them, from `folder` where they are.

    There is one entry for each model (weights, pooling, tokenizer, length, prompts) and list of texts. What a killed
    run left is taken up and ends with the same bytes. Each chunk has a checksum; a chunk that does not fit it, or a
    note that cannot be read, is computed again. chunk: texts that are computed and noted together.
    Raises `RunInUseError` when another process writes the same entry, `UsageError` when the disk is too small,
    `CannotWriteError`.
    """
    _, digest = count_texts(texts)
    entry = Path(folder) / f"{encoder_digest(encoder)[:16]}-{digest[:16]}"
    shape = (len(texts), encoder.depth, encoder.width)
    with run_lock(entry):
        try:
            return _fill(encoder, texts, entry, shape, chunk, progress)
        except CannotWriteError:
            raise
        except OSError as error:
            raise CannotWriteError(entry, error) from error


def _fill(
    encoder: Encoder, texts: Sequence[str], entry: Path, shape: tuple[int, int, int], size: int, progress: Progress
) -> CachedStates:
    file, note = entry / "states.f32", entry / "states.json"
    row_bytes = 4 * shape[1] * shape[2]
    sums, damaged_note = _noted(note, size)
    starts = range(0, shape[0], size)
    if not file.exists() or file.stat().st_size != shape[0] * row_bytes:
        damaged = min(len(sums) * size, shape[0])
        sums = {}
        _check_space(entry, shape[0] * row_bytes)
        with file.open("wb") as stream:
            stream.truncate(shape[0] * row_bytes)  # of holes: what is written later needs no moving
    else:
        damaged = shape[0] if damaged_note else 0
    values: Any = np.memmap(file, np.float32, mode="r+", shape=shape)
    wrong = [start for start in starts if start in sums and _checksum(values, start, size) != sums[start]]
    damaged += sum(min(size, shape[0] - start) for start in wrong)
    missing = [start for start in starts if start not in sums or start in wrong]
    computed = 0
    for start in missing:
        chunk = texts[start : start + size]
        values[start : start + len(chunk)] = layer_states(encoder, chunk)[1:].transpose(0, 1).numpy()
        values.flush()
        sums[start] = _checksum(values, start, size)
        write_json(note, {"chunk": size, "sums": {str(place): value for place, value in sums.items()}})
        computed += len(chunk)
        progress(f"States of {encoder.name}", min(shape[0], start + size), shape[0])
    if missing:
        del values
    return CachedStates(np.memmap(file, np.float32, mode="r", shape=shape), computed, damaged)


def _noted(note: Path, size: int) -> tuple[dict[int, int], bool]:
    """Checksums of the finished chunks by their first text; and whether there was a note that could not be read."""
    if not note.exists():
        return {}, False
    try:
        values = json.loads(note.read_text(encoding="utf-8"))
        known = {int(place): int(value) for place, value in values["sums"].items()}
        return (known if values["chunk"] == size else {}), False
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}, True


def _checksum(values: Rows, start: int, size: int) -> int:
    return zlib.crc32(np.ascontiguousarray(values[start : start + size]).data)


def _check_space(folder: Path, needed: int) -> None:
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise UsageError(
            f"The states need {needed / 1e9:,.1f} GB, and {folder} has {free / 1e9:,.1f} GB left.",
            hint="Free some space, name another place with --out, or use fewer blocks with --layer.",
        )
