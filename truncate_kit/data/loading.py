"""Sentence pairs from one file, a folder of splits, the bundled set or the hub: one way in for all of them."""

from collections.abc import Sequence
from pathlib import Path

from truncate_kit.data.classes import class_sets
from truncate_kit.data.files import COMPRESSIONS, PAIR_FORMATS, data_files, stem_of
from truncate_kit.data.given import check_place
from truncate_kit.data.hub import hub_name, is_hub_name, known_scale, read_hub
from truncate_kit.data.pairs import pair_sets, short_name
from truncate_kit.data.retrieval import is_retrieval_folder
from truncate_kit.data.scales import Scale, given_scale
from truncate_kit.data.split import complete_splits
from truncate_kit.data.tables import Table, read_table
from truncate_kit.data.types import PairSet, PairSplits
from truncate_kit.data.words import load_words, word_files
from truncate_kit.errors import DataError, UsageError
from truncate_kit.files import is_folder, is_there

BUNDLED = "bundled"
BUNDLED_FOLDER = Path(__file__).parent / "bundled"
_BUNDLED_SCALE = Scale(0.0, 5.0, "known")
_SPLIT_STEMS = {"train": "train", "dev": "dev", "validation": "dev", "valid": "dev", "val": "dev", "test": "test"}
_ON_DISK = ("dataset_dict.json", "state.json")  # what `save_to_disk` of datasets writes beside its tables


def load_pairs(
    name_or_path: str | Path,
    *,
    columns: Sequence[str] | None = None,
    scale: Sequence[float] | None = None,
    classes: bool = False,
    divide: bool = True,
) -> PairSplits:
    """Load a set of sentence pairs: "bundled", a file, a folder of splits, or a hub name ("stsb" among them).

    A single file is divided into train, dev and test as the commands divide it, and `notes` say so; `read_pairs` reads
    it as one set. What a folder or a hub set lacks is missing, and `complete_splits` takes it out of train. A folder of
    word similarity sets is merged (`load_words`).

    Args:
        name_or_path: The hub is used only where no such path exists.
        columns: Names of first text, second text and score; None finds them.
        scale: Lowest and highest possible score; None takes what is known of the set or infers it from all splits.
        classes: The third column is a class, not a score (`class_sets`).
        divide: False leaves a single file whole; it is called `train`, or `dev` or `test` after its name.

    Raises:
        DataError: The message names file, row and what is wrong, or there are too few pairs to divide.
        UsageError: The scale is impossible.
    """
    check_place(name_or_path)
    given = None if scale is None else given_scale(scale)
    if classes and given is not None:
        raise UsageError("Classes have no scale.", hint="Leave out `scale`.")
    path = Path(name_or_path)
    if is_retrieval_folder(path):
        raise DataError(
            f"{path} holds queries and documents, not graded pairs.",
            hint="read_retrieval(path) reads it.",
        )
    if not classes and holds_words(path):
        if columns is not None or given is not None:
            raise UsageError(
                "Sets of word similarity have columns and scales of their own.", hint="Leave out `columns` and `scale`."
            )
        return load_words(path)
    name, tables = read_tables(name_or_path)
    if classes:
        sets = class_sets(name, tables, columns)
    else:
        sets = pair_sets(name, tables, columns, given or (_BUNDLED_SCALE if name == BUNDLED else known_scale(name)))
    one_file = path.is_file() and str(name_or_path) != BUNDLED
    splits = PairSplits(
        name=name, train=sets.get("train"), dev=sets.get("dev"), test=sets.get("test"), one_file=one_file
    )
    return complete_splits(splits) if divide and one_file else splits


def is_bundled(pairs: PairSet) -> bool:
    """Whether these are pairs of the set that comes with the package, or a part of them."""
    return Path(pairs.path).parent == BUNDLED_FOLDER


def holds_words(folder: Path) -> bool:
    """Whether `load_pairs` takes a folder for word similarity sets; False for what is no folder."""
    return is_folder(folder) and not find_split_files(folder) and bool(word_files(folder))


def read_tables(name_or_path: str | Path) -> tuple[str, dict[str, Table]]:
    """The set's name, and its tables by split: a file, a folder of splits, the bundled set or a hub name."""
    check_place(name_or_path)
    path = Path(name_or_path)
    if str(name_or_path) == BUNDLED:
        return BUNDLED, _folder_tables(BUNDLED_FOLDER)
    if is_folder(path):
        return short_name(path), _folder_tables(path)
    if is_there(path) or not is_hub_name(str(name_or_path)):
        return short_name(path), {_SPLIT_STEMS.get(stem_of(path), "train"): read_table(path)}
    name = hub_name(str(name_or_path))
    return name, read_hub(name)


def find_split_files(folder: Path) -> dict[str, Path]:
    """The files of a folder that hold its splits, by split name. Raises `DataError` if there are two for one."""
    found: dict[str, Path] = {}
    for path in data_files(folder):
        split = _SPLIT_STEMS.get(stem_of(path))
        if split is None:
            continue
        if split in found:
            hint = "Remove one, or name a single file."
            raise DataError(f"{folder} holds two files for {split}: {found[split].name} and {path.name}.", hint=hint)
        found[split] = path
    return found


def _folder_tables(folder: Path) -> dict[str, Table]:
    found = find_split_files(folder)
    if not found and any((folder / name).is_file() for name in _ON_DISK):
        raise DataError(
            f"{folder} was written by save_to_disk of datasets, whose files are not read.",
            hint="Write each split to a file of a folder, as by dataset.to_parquet(folder / 'train.parquet').",
        )
    if not found:
        formats = ", ".join(PAIR_FORMATS)
        raise DataError(
            f"{folder} holds no splits.",
            hint=f"Call them train, dev (or validation) and test, as {formats}; all but Parquet may end in "
            f"{' or '.join(COMPRESSIONS)}.",
        )
    return {split: read_table(path) for split, path in found.items()}
