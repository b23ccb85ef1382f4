"""The folder that a method saves its models into: one process at a time, and never over the model it started from."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from truncate_kit.data.files import PAIR_FORMATS, TEXT_FORMAT, format_of
from truncate_kit.encoders import Encoder
from truncate_kit.errors import UsageError
from truncate_kit.files import all_below, local_path, run_lock


@contextmanager
def output_folder(out: Path, encoder: Encoder, *models: str) -> Iterator[None]:
    """Hold `out`, into which folders of the names `models` are saved. Raises `UsageError`, `FileProblemError`."""
    source = local_path(encoder.name)
    for name in models:
        own = next(filter(_is_data, sorted(all_below(out / name))), None)
        if own is not None:
            hint = "Move it out of that folder, or name another folder as `out`."
            raise UsageError(f"{own} is no part of a model, and would be removed with the folder it is in.", hint=hint)
        # It would be replaced, and a run that was killed and continued would start from another model.
        if source.is_dir() and _real(source).is_relative_to(_real(out / name)):
            hint = "Name another folder as `out`, or start from the model that this one was made from."
            raise UsageError(f"{out / name} holds the model to start from, and would be replaced.", hint=hint)
    with run_lock(out):
        yield


def _is_data(file: Path) -> bool:
    return format_of(file) in (*PAIR_FORMATS, TEXT_FORMAT) and file.name not in ("vocab.txt", "merges.txt")


def _real(path: Path) -> Path:
    return Path(os.path.realpath(path))  # `Path.resolve` raises RuntimeError for links in a circle
