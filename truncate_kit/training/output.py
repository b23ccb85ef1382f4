"""The folder that a method saves its models into: one process at a time, and never over the model it started from."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from truncate_kit.data.tables import PAIR_FORMATS, TEXT_FORMAT, format_of
from truncate_kit.errors import UsageError
from truncate_kit.files import local_path, real_path, run_lock
from truncate_kit.models import Encoder


@contextmanager
def output_folder(out: Path, encoder: Encoder, *models: str, teachers: Sequence[Encoder] = ()) -> Iterator[None]:
    """Hold `out`, into which folders of the names `models` are saved.

    Args:
        out: Is held.
        encoder: What is started from, which is in none of these folders.
        *models: Names of the folders that are saved into `out`.
        teachers: Whose vectors are learned, likewise.

    Raises:
        UsageError: A folder of these names holds data, or what is started or learned from.
        FileProblemError: `out` cannot be written, or another process works there.
    """
    for name in models:
        own = next(filter(_is_data, sorted((out / name).rglob("*"))), None)
        if own is not None:
            hint = "Move it out of that folder, or name another folder as `out`."
            raise UsageError(f"{own} is no part of a model, and would be removed with the folder it is in.", hint=hint)
        # It would be replaced, and a run that was killed and continued would start from another model.
        if _is_in(out / name, encoder):
            hint = "Name another folder as `out`, or start from the model that this one was made from."
            raise UsageError(f"{out / name} holds the model to start from, and would be replaced.", hint=hint)
        if any(_is_in(out / name, teacher) for teacher in teachers):  # which would learn from itself the next time
            hint = "Name another folder as `out`; the models in this one then stay as they are."
            raise UsageError(f"{out / name} holds the teacher, and would be replaced.", hint=hint)
    with run_lock(out):
        yield


def _is_data(file: Path) -> bool:
    return format_of(file) in (*PAIR_FORMATS, TEXT_FORMAT) and file.name not in ("vocab.txt", "merges.txt")


def _is_in(folder: Path, encoder: Encoder) -> bool:
    """Whether the encoder was read from there."""
    source = local_path(encoder.name)
    return source.is_dir() and real_path(source).is_relative_to(real_path(folder))
