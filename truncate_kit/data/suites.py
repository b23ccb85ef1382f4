"""Find the data sets of the evaluation suites by their usual names."""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import chain, combinations
from pathlib import Path

from truncate_kit.core.errors import DataError
from truncate_kit.data.pairs import (
    PairSet,
    TextPair,
    find_split_files,
    pairs_of,
    read_tables,
    short_name,
    split_named,
    split_tables,
)
from truncate_kit.data.seen import Keys, merged, text_keys
from truncate_kit.data.tables import (
    LABEL,
    PAIR,
    TEXT,
    data_files,
    find_columns,
    find_negatives,
    format_of,
    is_table,
    read_table,
    stem_of,
)

# Names of folders or files, in lower case without hyphens.
_STS = {
    **{f"STS{year}": (f"sts{year}", f"sts{year}sts", f"sts20{year}") for year in range(12, 17)},
    "STSB": ("stsb", "stsbenchmark", "stsbenchmarksts"),
    "SICK-R": ("sick", "sickr", "sickrsts"),
}
_TRANSFER: dict[str, tuple[str, ...]] = {
    name: (name.lower(),) for name in ("MR", "CR", "SUBJ", "MPQA", "SST2", "SST5", "TREC", "MRPC")
}
_LANGUAGE = "en"  # language of the published scores


def find_sts(folder: str | Path, *, joined: bool = False) -> tuple[PairSet, ...]:
    """Find STS12 … 16, STSB and SICK-R in a folder, with MTEB's splits.

    STSB uses its test split, SICK-R all its splits, STS12 … 16 all files but `train`; the scale is the range of scores.

    joined: Use all files of every set, as in BERT-LC.

    Raises `DataError` if no set is found.
    """
    sets = []
    for name, files in _find_sets([Path(folder)], _STS).items():
        pairs = tuple(chain.from_iterable(_scored(name, files, joined=joined)))
        scores = [pair.target for pair in pairs]
        sets.append(PairSet(name=name, pairs=pairs, scale=(min(scores), max(scores)), scale_source="inferred"))
    return tuple(sets)


def find_transfer(folder: str | Path) -> tuple[PairSet, ...]:
    """Find the classification sets in a folder and its subfolder `transfer`, in BERT-LC's order.

    Files have one or two text columns and `label`; single texts have empty second texts. Targets are indices into the
    classes. Empty texts are kept: MPQA has three.
    """
    folders = [Path(folder), Path(folder) / "transfer"]
    return tuple(_labelled(name, files) for name, files in _find_sets(folders, _TRANSFER).items())


def read_trained_pairs(path: str | Path) -> Keys:
    """Return the keys of a file's pairs, of train and dev if it has splits; scores are optional."""
    _, tables = read_tables(path)
    if not Path(path).is_file() or len(tables) > 1:
        tables.pop("test", None)
    if not tables:
        raise DataError(f"{path} holds no train or dev split.", hint="Give the training file itself.")
    pairs = list[tuple[str, str]]()
    for table in tables.values():
        hint = "Name the text columns sentence1 and sentence2."
        names, others = find_columns(table, PAIR, hint), find_negatives(table)
        cells = (table.lists(column, may_be_empty=column in others) for column in names + others)
        pairs += [pair for row in zip(*cells, strict=True) for pair in combinations(chain(*row), 2)]
    return merged(text_keys(pairs))


def _find_sets(folders: Sequence[Path], sets: Mapping[str, Collection[str]]) -> dict[str, list[Path]]:
    if not folders[0].is_dir():
        raise DataError(f"{folders[0]} is not a folder.", hint="Give a folder that holds one folder or file per set.")
    items = [item for folder in folders if folder.is_dir() for item in sorted(folder.iterdir())]
    plain = {item: re.sub(r"[^a-z0-9]", "", stem_of(item)) for item in items}
    found: dict[str, list[Path]] = {}
    for name, names in sets.items():
        homes = [item for item in items if plain[item] in names and (item.is_dir() or is_table(item))]
        if len(homes) > 1:
            places = " and ".join(map(str, homes))
            raise DataError(f"{name} was found several times: {places}.", hint="Keep one of them.")
        for home in homes:
            inner = home / _LANGUAGE if (home / _LANGUAGE).is_dir() else home
            files = data_files(inner) if inner.is_dir() else [home]
            files = [file for file in files if file == home or format_of(file) != ".json" or split_named(file.name)]
            found[name] = files or list(chain.from_iterable(find_split_files(inner).values()))
            if not found[name]:
                raise DataError(f"{inner} holds no tables of {name}.", hint="Add tables, or remove the folder.")
            tables = [str(file).lower().rpartition(format_of(file))[0] for file in found[name]]
            if len({*tables}) < len(tables):  # the rows would count twice
                raise DataError(f"{inner} holds the same table in two formats.", hint="Remove one of them.")
    if not found:
        one = next(iter(sets)).lower()
        hint = f"Give each set a folder or a file of its name, such as {one}/test.csv or {one}.csv."
        raise DataError(f"{folders[0]} holds none of the sets {', '.join(sets)}.", hint=hint)
    return found


def _scored(name: str, files: list[Path], *, joined: bool) -> Iterator[PairSet]:
    whole = joined or name == "SICK-R"
    alone = len(files) == 1 and split_named(files[0].name) in (None, "test")
    found = False
    for file in files:
        tables = split_tables(file)
        for split, table in tables.items():
            part = split if len(tables) > 1 else split_named(file.name) or split_named(file.parent.name)
            is_scored = part == "test" if name == "STSB" else part != "train"
            if whole or is_scored or (alone and len(tables) == 1):
                found = True
                yield pairs_of(table, short_name(file))
    if not found:
        raise DataError(
            f"{files[0].parent} holds no test split.", hint="Name the test file test.csv, test.tsv or test.jsonl."
        )


def _labelled(name: str, files: list[Path]) -> PairSet:
    order = ("train", "dev", "validation", "test")
    files = sorted(files, key=lambda file: order.index(stem_of(file)) if stem_of(file) in order else len(order))
    rows, kinds = list[tuple[str, str, str]](), set[int]()
    for table in map(read_table, files):
        (label,) = find_columns(table, LABEL, "Rename the column of classes to label.")
        hint = "Rename the column of texts to text, or the columns of pairs to sentence1 and sentence2."
        names = find_columns(table, TEXT) or find_columns(table, PAIR, hint)
        sides = [table.texts(side, may_be_empty=True) for side in names]
        second = sides[1] if len(sides) == 2 else [""] * len(table)
        rows += zip(sides[0], second, table.labels(label), strict=True)
        kinds.add(len(sides))
    if len(kinds) > 1:
        hint = "Give all files the same columns."
        raise DataError(f"{files[0].parent} mixes files of single texts and files of pairs.", hint=hint)
    classes = sorted({label for _, _, label in rows})
    pairs = tuple(TextPair(first, second, float(classes.index(label))) for first, second, label in rows)
    return PairSet(name=name, pairs=pairs, scale=(0.0, len(classes) - 1.0), classes=tuple(classes))
