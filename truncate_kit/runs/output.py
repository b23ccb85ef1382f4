"""The folder that a method saves its models into: one process at a time, and never over the model it started from."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from truncate_kit.encoders import Encoder
from truncate_kit.errors import UsageError
from truncate_kit.files import local_path, run_lock


@contextmanager
def output_folder(out: Path, encoder: Encoder, *models: str) -> Iterator[None]:
    """Hold `out`, into which folders of the names `models` are saved. Raises `UsageError`, `FileProblemError`."""
    source = local_path(encoder.name)
    for name in models:
        # It would be replaced, and a run that was killed and continued would start from another model.
        if source.is_dir() and source.resolve().is_relative_to((out / name).resolve()):
            hint = "Name another folder as `out`, or start from the model that this one was made from."
            raise UsageError(f"{out / name} holds the model to start from, and would be replaced.", hint=hint)
    with run_lock(out):
        yield
