"""Pooled states of all blocks, computed once and kept on disk: memory-mapped, interruptible, checked when opened."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from truncate_kit.files import run_lock
from truncate_kit.models import Encoder, encoder_digest
from truncate_kit.models.digest import Digest
from truncate_kit.models.states import layer_states
from truncate_kit.progress import Progress, silent
from truncate_kit.training.store import StoredRows

CHUNK = 512  # texts that are stored together: enough to sort by length, and seconds of work at most to do again

Rows = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class CachedStates:
    """States on disk."""

    values: Rows  # (n, L, d) float32, read-only and memory-mapped, row i for text i
    damaged: int  # texts whose stored states were damaged and have been computed again

    def statement(self, folder: Path) -> str | None:
        """What the user has to know about the cache; None where nothing was wrong."""
        if not self.damaged:
            return None
        return f"The cache in {folder} was damaged: the states of {self.damaged:,} texts were computed again."


def cached_states(
    encoder: Encoder,
    texts: Sequence[str],
    folder: Path,
    *,
    final_norm: bool = True,
    chunk: int = CHUNK,
    progress: Progress = silent,
) -> CachedStates:
    """The pooled states of the blocks 1 … L of `texts`, as `layer_states` gives them, from `folder` where they are.

    What a killed run left is taken up and ends with the same bytes; what does not fit its checksum is computed again.

    Args:
        encoder: Whose states they are.
        texts: The texts.
        folder: The cache, with an entry for each model and list of texts.
        final_norm: Whether a model that ends in a norm has it applied to them; without it they are what the blocks
            give.
        chunk: Texts that are computed together.
        progress: Called after each chunk.

    Raises:
        FileProblemError: The entry cannot be written, or is held.
        UsageError: The rows that are there were made from something else, or the disk is too small.
    """
    digest = Digest()
    raw: Literal[False, "all"] = False if final_norm or encoder.family.final_norm is None else "all"
    digest.add("states", encoder_digest(encoder), str(chunk), *(["raw"] if raw else []), *texts)
    made_from = {"states": digest.hexdigest()}
    entry = Path(folder) / made_from["states"][:16]
    shape = (len(texts), encoder.depth, encoder.width)
    with run_lock(entry):
        row_bytes = 4 * shape[1] * shape[2]
        stored = StoredRows(entry / "states.f32", made_from, num_rows=shape[0], row_bytes=row_bytes, chunk=chunk)
        for start in stored.missing:
            part = texts[start : start + chunk]
            states = layer_states(encoder, part, raw=raw)[1:].transpose(0, 1)
            stored.write(start, states.contiguous().numpy().tobytes())
            progress(f"States of {encoder.name}", start + len(part), shape[0])
        return CachedStates(np.memmap(stored.file, np.float32, mode="r", shape=shape), stored.damaged)
