"""The sets of the evaluation suites, found in a folder by their usual names."""

import re
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, NoReturn

from truncate_kit.data.cells import text_of, texts_of
from truncate_kit.data.columns import (
    find_label_column,
    find_text_column,
    find_text_columns,
    find_triplet_columns,
    misread_header,
)
from truncate_kit.data.files import COMPRESSIONS, data_files, format_of, stem_of
from truncate_kit.data.loading import find_split_files
from truncate_kit.data.pairs import read_pairs
from truncate_kit.data.tables import MISSING, Table, read_table
from truncate_kit.data.types import TextPair, pairs_in_rows
from truncate_kit.errors import ColumnsError, DataError

# Set → pairs of the published test set, all subsets together, and the names its folder or file may have (written
# without hyphens, in lower case).
_STS: dict[str, tuple[int, tuple[str, ...]]] = {
    "STS12": (3108, ("sts12", "sts12sts", "sts2012")),
    "STS13": (1500, ("sts13", "sts13sts", "sts2013")),
    "STS14": (3750, ("sts14", "sts14sts", "sts2014")),
    "STS15": (3000, ("sts15", "sts15sts", "sts2015")),
    "STS16": (1186, ("sts16", "sts16sts", "sts2016")),
    "STSB": (1379, ("stsb", "stsbenchmark", "stsbenchmarksts")),
    "SICK-R": (9927, ("sick", "sickr", "sickrsts")),
}
_TRANSFER: dict[str, tuple[str, ...]] = {
    name: (name.lower(),) for name in ("MR", "CR", "SUBJ", "MPQA", "SST2", "SST5", "TREC", "MRPC")
}
_WHOLE = re.compile(r"^(-?\d+)\.0+$")  # class 1 in a column that was read as numbers
_PAIR_HINT = "Call the columns of its texts sentence1 and sentence2."
_TEXT_HINT = "Call the column of texts text, or those of pairs sentence1 and sentence2."
_LANGUAGE = "en"  # the published figures are for English; taken where a set comes in several languages


@dataclass(frozen=True, slots=True, kw_only=True)
class StsSet:
    """All pairs of one set, its subsets concatenated. published_pairs: number of pairs of the published test set."""

    name: str
    pairs: tuple[TextPair, ...]
    published_pairs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelledSet:
    """Texts, or pairs of texts, with a class; rows of all files together, in the order train, dev, test."""

    name: str
    first: tuple[str, ...]
    second: tuple[str, ...] | None  # None for a set of single texts
    labels: tuple[int, ...]  # places in `classes`, one per row
    classes: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.labels)


class SeenPairs(NamedTuple):
    """What models were trained on. name: in words; pairs: each as the set of its texts."""

    name: str
    pairs: Container[frozenset[str]]


def find_sts(folder: str | Path, *, joined: bool = False) -> tuple[StsSet, ...]:
    """The semantic similarity sets that a folder holds, in the order STS12 … 16, STSB, SICK-R, as MTEB counts them.

    A set is a file or a folder of that name. STSB is its test split; SICK-R all its splits together; of STS12 … 16 all
    files but `train` are taken as one set.

    Args:
        folder: Holds the sets.
        joined: All files of every set, as BERT-LC has it.

    Raises:
        DataError: A set cannot be read, or none is there.
    """
    found = {name: _files(Path(folder), names) for name, (_, names) in _STS.items()}
    sets = tuple(
        StsSet(
            name=name,
            pairs=tuple(pair for file in (files if joined else _sts_files(name, files)) for pair in _graded(file)),
            published_pairs=_STS[name][0],
        )
        for name, files in found.items()
        if files
    )
    return sets or _nothing(Path(folder), _STS)


def find_transfer(folder: str | Path) -> tuple[LabelledSet, ...]:
    """The classification sets that a folder, or the folder `transfer` in it, holds, in the order of BERT-LC's table.

    Files have a text column, or the two of a pair, and a column `label`. An empty text is kept: MPQA has three.
    Raises `DataError`, also where no set is there.
    """
    home = Path(folder)
    places = [place for place in (home, home / "transfer") if place.is_dir()] or [home]
    found = {
        name: next(filter(None, (_files(place, names) for place in places)), []) for name, names in _TRANSFER.items()
    }
    return tuple(_labelled(name, files) for name, files in found.items() if files) or _nothing(home, _TRANSFER)


def read_seen(path: str | Path) -> frozenset[frozenset[str]]:
    """The pairs that a model was trained on, each as the set of its two texts, so that their order does not matter.

    Args:
        path: A file, all of whose pairs or triplets count, or a folder of splits, whose train and dev count: dev chose
            the weights. Files need no scores.

    Raises:
        DataError: It cannot be read, or holds no train or dev split.
    """
    path = Path(path)
    files = [path]
    if path.is_dir():
        splits = find_split_files(path)
        files = [file for split, file in splits.items() if split != "test"]
        if not files:
            raise DataError(f"{path} holds no train or dev split.", hint="Name the file that was trained on.")
    return pairs_in_rows(row for file in files for row in _text_rows(file))


def _text_rows(file: Path) -> Iterator[tuple[str, ...]]:
    """The texts of each row: two, or three where the file holds triplets."""
    table = read_table(file)
    columns = tuple(table.columns)
    names = find_triplet_columns(columns) or find_text_columns(table.source, columns, hint=_PAIR_HINT)
    return zip(*(texts_of(table, name) for name in names), strict=True)


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def _files(folder: Path, names: Iterable[str]) -> list[Path]:
    """The files of the set with one of these names: itself a file in `folder`, or all files of a folder there."""
    if not folder.is_dir():
        raise DataError(f"{folder} is not a folder.", hint="Name the folder that holds the sets, one folder each.")
    homes = [item for item in sorted(folder.iterdir()) if item.is_dir() and _plain(item.name) in names]
    files = [file for file in data_files(folder) if _plain(stem_of(file)) in names]
    if len(found := [*homes, *files]) > 1:
        places = " and ".join(str(one) for one in found)
        raise DataError(f"One set is there several times: {places}.", hint="Leave one of them in the folder.")
    if not homes:
        return files
    home = homes[0] / _LANGUAGE if (homes[0] / _LANGUAGE).is_dir() else homes[0]
    if not (files := data_files(home)):
        hint = "Put the files of the set there themselves, such as test.csv; folders in it are not read."
        raise DataError(f"{home} has the name of a set and holds no table.", hint=hint)
    _check_once(files)
    return files


def _check_once(files: list[Path]) -> None:
    """Raise `DataError` where a table lies there in two formats, or packed as well: its rows would count twice."""
    names: dict[str, Path] = {}
    for file in files:
        name = file.name.lower()
        for ending in (*COMPRESSIONS, format_of(file)):
            name = name.removesuffix(ending)
        if (other := names.setdefault(name, file)) != file:
            raise DataError(f"{file.parent} holds {name} twice: {other.name} and {file.name}.", hint="Remove one.")


def _graded(file: Path) -> tuple[TextPair, ...]:
    """The pairs of a file of a suite, which takes neither columns nor a scale."""
    try:
        return tuple(read_pairs(file).pairs)
    except DataError as error:
        if "`columns" in error.hint or "`scale`" in error.hint:
            hint = "Mend the file: columns sentence1, sentence2 and score, and scores on one of the usual scales."
            raise DataError(str(error), hint=hint) from error
        raise


def _sts_files(name: str, files: list[Path]) -> list[Path]:
    alone = len(files) == 1 and stem_of(files[0]) not in ("train", "dev", "validation")
    if alone or name == "SICK-R":
        return files
    if name == "STSB":
        test = [file for file in files if stem_of(file) == "test"]
        if not test:
            raise DataError(f"{files[0].parent} holds no test split.", hint="Call it test.csv, .tsv or .jsonl.")
        return test
    others = [file for file in files if stem_of(file) != "train"]
    if not others:
        raise DataError(f"{files[0].parent} holds a train split only.", hint="Call what is scored test.csv.")
    return others


def _class_of(table: Table, row: int, value: object) -> str:
    """The label of a row as text. Raises `RowError` where there is none."""
    label = str(value).lower() if isinstance(value, bool) else str(value).strip()
    if value is None or value is MISSING or label in ("", "nan"):
        raise table.problem(row, "there is no label.", hint="Name the class, or leave the row out.")
    return _WHOLE.sub(r"\1", label)


def _labelled(name: str, files: list[Path]) -> LabelledSet:
    order = ("train", "dev", "validation", "test")
    files = sorted(files, key=lambda file: order.index(stem_of(file)) if stem_of(file) in order else len(order))
    first: list[str] = []
    second: list[str] = []
    labels: list[str] = []
    for table in map(read_table, files):
        names = tuple(table.columns)
        label = find_label_column(table.source, names)
        if label is None:
            hint = misread_header(table.source, names) or "Call it label."
            raise ColumnsError(table.source, "there is no column of labels.", names, hint=hint)
        single = find_text_column(table.source, names)
        left, right = (single, None) if single is not None else find_text_columns(table.source, names, hint=_TEXT_HINT)
        first += _texts_or_empty(table, left)
        second += [] if right is None else _texts_or_empty(table, right)
        labels += [_class_of(table, row, value) for row, value in enumerate(table.columns[label])]
    if second and len(second) != len(first):
        raise DataError(f"{files[0].parent} mixes files of texts and of pairs.", hint="Give all the same columns.")
    classes = tuple(sorted(set(labels)))
    place = {label: index for index, label in enumerate(classes)}
    return LabelledSet(
        name=name,
        first=tuple(first),
        second=tuple(second) or None,
        labels=tuple(place[label] for label in labels),
        classes=classes,
    )


def _texts_or_empty(table: Table, column: str) -> list[str]:
    return [
        "" if isinstance(value, str) and not value.strip() else text_of(table, row, column, value)
        for row, value in enumerate(table.columns[column])
    ]


def _nothing(folder: Path, sets: Iterable[str]) -> NoReturn:
    names = list(sets)
    raise DataError(
        f"{folder} holds none of the sets {', '.join(names)}.",
        hint=f"Give each set a folder or a file of its name, such as {names[0].lower()}/test.csv or "
        f"{names[0].lower()}.csv.",
    )
