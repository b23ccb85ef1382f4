"""Sentence pairs from one file, a folder of splits, the bundled set or the hub: one way in for all of them."""

import hashlib
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

from truncate_kit.core.errors import DataError, UsageError, errors_only, first_line
from truncate_kit.core.files import is_there
from truncate_kit.core.wording import counted
from truncate_kit.data.tables import (
    COMPRESSIONS,
    PAIR_FORMATS,
    TEXT_FORMAT,
    Table,
    data_files,
    find_columns,
    format_of,
    read_table,
    stem_of,
    table_from_arrow,
)
from truncate_kit.data.types import SHARES, SPLIT_NAMES, PairSet, PairSplits, ScaleSource, TextPair

BUNDLED = "bundled"
BUNDLED_FOLDER = Path(__file__).parent / "bundled"
FRACTIONS = (0.8, 0.1, 0.1)
"""Shares of train, dev and test of a set that comes without splits."""
USUAL_SCALES = ((0.0, 1.0), (1.0, 5.0), (0.0, 5.0), (0.0, 10.0))
"""Scales of graded pairs, narrowest first: the first one that holds all values is taken."""
MOST_CLASSES = 20  # more values than this are scores, ids or texts rather than classes
_SPLIT_STEMS = {"train": "train", "dev": "dev", "validation": "dev", "valid": "dev", "val": "dev", "test": "test"}
_HUB_NAMES = {
    "stsb": "sentence-transformers/stsb",
    "stsb-de": "PhilipMay/stsb_multi_mt:de",
    "stsb-es": "PhilipMay/stsb_multi_mt:es",
    "korsts": "dkoterwa/kor-sts",
}
_KNOWN_SCALES = {
    **dict.fromkeys((BUNDLED, *_HUB_NAMES.values()), (0.0, 5.0)),
    "sentence-transformers/stsb": (0.0, 1.0),  # scores there are already divided by 5
}
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?(:[\w.-]+)?")
PART, WHOLE = "wordsim353_sim", "wordsim353"
_WORD_SCALES = {"rg65": (0, 4), PART: (0, 10), WHOLE: (0, 10), "simlex999": (0, 10), "simverb3500": (0, 10)}


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
        classes: The third column is a class, not a score; targets are places in the sorted names that train holds.
        divide: False leaves a single file whole; it is called `train`, or `dev` or `test` after its name.

    Raises:
        DataError: The message names file, row and what is wrong, or there are too few pairs to divide.
        UsageError: The scale is impossible.
    """
    if classes and scale is not None:
        raise UsageError("Classes have no scale.", hint="Leave out `scale`.")
    path = Path(name_or_path)
    if not classes and holds_words(path):
        if columns is not None or scale is not None:
            problem = "Sets of word similarity have columns and scales of their own."
            raise UsageError(problem, hint="Leave out `columns` and `scale`.")
        return load_words(path)
    name, tables = read_tables(name_or_path)
    sets = _class_sets(name, tables, columns) if classes else _graded_sets(name, tables, columns, scale)
    one_file = path.is_file() and str(name_or_path) != BUNDLED
    train, dev, test = map(sets.get, SPLIT_NAMES)
    splits = PairSplits(name=name, train=train, dev=dev, test=test, one_file=one_file)
    return complete_splits(splits) if divide and one_file else splits


def read_pairs(
    path: str | Path, *, columns: Sequence[str] | None = None, scale: Sequence[float] | None = None
) -> PairSet:
    """Read one file of sentence pairs; columns, scale and errors as in `load_pairs`."""
    path = Path(path)
    return _graded_sets(short_name(path), {"train": read_table(path)}, columns, scale)["train"]


def short_name(path: Path) -> str:
    """Return the last two parts, "stsb/en": enough to recognise the set, and no user's home folder in a model card."""
    return "/".join(path.resolve().parts[-2:])


def is_bundled(pairs: PairSet) -> bool:
    """Return whether these are pairs of the set that comes with the package, or a part of them."""
    return Path(pairs.path).parent == BUNDLED_FOLDER


def read_tables(name_or_path: str | Path) -> tuple[str, dict[str, Table]]:
    """Return the set's name, and its tables by split: a file, a folder of splits, the bundled set or a hub name."""
    name, path = str(name_or_path), Path(name_or_path)
    if name == BUNDLED:
        return name, {split: read_table(file) for split, file in find_split_files(BUNDLED_FOLDER).items()}
    if path.is_dir():
        return short_name(path), _folder_tables(path)
    if is_there(path) or not is_hub_name(name):
        return short_name(path), {_SPLIT_STEMS.get(stem_of(path), "train"): read_table(path)}
    return hub_name(name), read_hub(hub_name(name))


def find_split_files(folder: Path) -> dict[str, Path]:
    """Return the files of a folder that hold its splits, by split name. Raises `DataError` if there are two for one."""
    found: dict[str, Path] = {}
    for path in data_files(folder):
        split = _SPLIT_STEMS.get(stem_of(path))
        if split is not None and (other := found.setdefault(split, path)) != path:
            problem = f"{folder} holds two files for {split}: {other.name} and {path.name}."
            raise DataError(problem, hint="Remove one, or name a single file.")
    return found


def _folder_tables(folder: Path) -> dict[str, Table]:
    found = find_split_files(folder)
    if found:
        return {split: read_table(path) for split, path in found.items()}
    raise DataError(
        f"{folder} holds no splits.",
        hint=f"Call them train, dev (or validation) and test, as {', '.join(PAIR_FORMATS)}; all but Parquet may end in "
        f"{' or '.join(COMPRESSIONS)}.",
    )


def hub_name(name: str) -> str:
    """Return the full name on the hub of the STS Benchmark by language: "stsb", "stsb-de", "stsb-es" and "korsts"."""
    return _HUB_NAMES.get(name, name)


def is_hub_name(name: str) -> bool:
    """Return whether `name` could be a set on the hub rather than a path that does not exist."""
    return _HUB_NAME.fullmatch(name) is not None and format_of(Path(name)) not in (*PAIR_FORMATS, TEXT_FORMAT)


def read_hub(name: str) -> dict[str, Table]:
    """Return the splits of a set of the hub by our split names, through `datasets`: no code from the hub is run.

    Args:
        name: Full, with ":" and a configuration.

    Raises:
        DataError: The hub does not give it, or none of its splits is one of ours.
    """
    import datasets
    from datasets.utils.logging import disable_progress_bar

    try:
        disable_progress_bar()
        with errors_only("huggingface_hub"):  # no line for each time that it is asked again
            loaded = datasets.load_dataset(*name.split(":"))
    except (datasets.exceptions.DatasetNotFoundError, ConnectionError, OSError, ValueError) as error:
        raise DataError(
            f"{name!r} is no path here, and the hub did not give it: {first_line(error)}.",
            hint="Check the spelling and the connection (HF_HUB_OFFLINE must not be set), write OWNER/NAME:CONFIG for "
            "a set that has several, or give a file or folder; 'bundled' always works.",
        ) from error
    tables = {
        _SPLIT_STEMS[theirs]: table_from_arrow(f"{name} ({theirs})", part.data.table)
        for theirs, part in loaded.items()
        if theirs in _SPLIT_STEMS and part.num_rows
    }
    if not tables:
        raise DataError(
            f"{name!r} has the splits {', '.join(loaded)}; none of them is train, validation or test with rows.",
            hint="Save the split you need as a CSV or Parquet file and give that.",
        )
    return tables


def _graded_sets(
    name: str, tables: Mapping[str, Table], columns: Sequence[str] | None, given: Sequence[float] | None
) -> dict[str, PairSet]:
    """Return the pairs of each table, all on one scale: given, known of the set, or inferred from all tables."""
    names = {split: find_columns(table, columns) for split, table in tables.items()}
    scores = {split: table.numbers(names[split][2]) for split, table in tables.items()}
    if given is not None and (len(given) != 2 or not 0 < given[1] - given[0] < math.inf):
        problem = f"{','.join(map(str, given))} is not a scale: give the lowest and then the highest possible score."
        raise UsageError(problem, hint="For example `scale=(0, 5)`.")
    source: ScaleSource = "given" if given else "known" if name in _KNOWN_SCALES else "inferred"
    low, high = given or _KNOWN_SCALES.get(name) or _inferred(list(chain(*scores.values())))
    for split, table in tables.items():
        for row, score in enumerate(scores[split]):
            if not low <= score <= high:
                raise table.problem(
                    row,
                    f"the score {score:g} is outside the scale {low:g} to {high:g} ({source}).",
                    hint="Mend the row, or give the lowest and the highest possible score as `scale`.",
                )
    return _sets_of(
        name,
        tables,
        names,
        scores,
        scale=(float(low), float(high)),
        scale_source=source,
    )


def _inferred(scores: Sequence[float]) -> tuple[float, float]:
    """Return the narrowest usual scale that holds the scores of all splits, else the widest."""
    low, high = min(scores), max(scores)
    fitting = (scale for scale in USUAL_SCALES if scale[0] <= low and high <= scale[1])
    return next(fitting, USUAL_SCALES[-1])


def _sets_of(
    name: str,
    tables: Mapping[str, Table],
    names: Mapping[str, tuple[str, str, str]],
    targets: Mapping[str, Sequence[float]],
    **fields: Any,
) -> dict[str, PairSet]:
    """Return the pairs of each table with these targets. fields: of `PairSet`, the same for all."""
    return {
        split: PairSet(
            name=name if len(tables) == 1 else f"{name}/{split}",
            pairs=tuple(map(TextPair, *map(table.texts, names[split][:2]), targets[split])),
            path=table.source,
            columns=names[split],
            **fields,
        )
        for split, table in tables.items()
    }


def _class_sets(name: str, tables: Mapping[str, Table], columns: Sequence[str] | None) -> dict[str, PairSet]:
    """Return the pairs of each table; targets are places in the sorted names of classes of train, else of all."""
    names = {split: find_columns(table, columns, classes=True) for split, table in tables.items()}
    labels = {split: table.labels(names[split][2]) for split, table in tables.items()}
    classes = sorted(set(labels["train"] if "train" in labels else chain(*labels.values())))
    if not 2 <= len(classes) <= MOST_CLASSES:
        raise DataError(
            f"{name} holds {len(classes):,} different classes where 2 to {MOST_CLASSES} are needed.",
            hint='Name the column of the classes: `columns=("first", "second", "class")`.',
        )
    for split, table in tables.items():
        for row, label in enumerate(labels[split]):
            if label not in classes:
                problem = f"the class {label!r} is not among those of train ({', '.join(classes)})."
                raise table.problem(row, problem, hint="Mend the row or remove it.")
    places = {split: [float(classes.index(label)) for label in labels[split]] for split in tables}
    return _sets_of(name, tables, names, places, scale=(0.0, len(classes) - 1.0), classes=tuple(classes))


def holds_words(folder: Path) -> bool:
    """Return whether `load_pairs` takes a folder for word similarity sets; False for what is no folder."""
    return folder.is_dir() and not find_split_files(folder) and bool(_word_files(folder))


def load_words(folder: Path) -> PairSplits:
    """Merge the word similarity sets of a folder: `rg65.csv`, `wordsim353_sim.csv`, `simlex999.csv`, `simverb3500.csv`.

    The whole of WordSim-353, `wordsim353.csv`, is read where its part about similarity is missing: the TMFT paper
    names the whole, its released code has the part. Each set is divided by its scale; a pair that several sets hold, in
    either order, gets their mean. The result has one split, `train`, of which every seed draws its own 70 : 15 : 15
    (`shares`), as the paper does. Raises `DataError`.
    """
    files = _word_files(folder)
    if not files:
        raise DataError(
            f"{folder} holds no word similarity set." if folder.exists() else f"{folder} does not exist.",
            hint=f"Name a folder with {', '.join(f'{name}.csv' for name in _WORD_SCALES)}, or some of them.",
        )
    found = {name: read_pairs(file, scale=_WORD_SCALES[name]) for name, file in files.items()}
    scores: dict[frozenset[str], list[float]] = {}
    words: dict[frozenset[str], tuple[str, str]] = {}
    for one in found.values():
        for pair, score in zip(one, one.scores01(), strict=True):
            key = frozenset((pair.first, pair.second))
            words.setdefault(key, (pair.first, pair.second))
            scores.setdefault(key, []).append(score)
    pairs = tuple(TextPair(*words[key], sum(values) / len(values)) for key, values in scores.items())
    name, columns = short_name(folder), next(iter(found.values())).columns
    merged = PairSet(name=name, pairs=pairs, scale=(0.0, 1.0), path=str(folder), columns=columns)
    sizes = ", ".join(f"{name} {len(one):,}" for name, one in found.items())
    left = PART in found and (folder / f"{WHOLE}.csv").is_file()
    note = (
        f"Word similarity: {sizes} merged to {len(pairs):,} distinct pairs, each score divided by its scale; "
        "every seed draws its own 70/15/15 % split."
        + (f" {WHOLE}.csv is left out beside its part {PART}.csv." if left else "")
    )
    return PairSplits(name=name, train=merged, notes=(note,), shares=SHARES)


def _word_files(folder: Path) -> dict[str, Path]:
    """Return the files of word similarity sets by the name of the set; no whole beside its part."""
    found = {name: folder / f"{name}.csv" for name in _WORD_SCALES if (folder / f"{name}.csv").is_file()}
    return {name: file for name, file in found.items() if not (name == WHOLE and PART in found)}


def split_pairs(pairs: PairSet, seed: int = 0, fractions: Sequence[float] = FRACTIONS) -> PairSplits:
    """Divide one set into train, dev and test; a fraction of 0 leaves that split out.

    Rows with the same two texts, in either order, stay together. The split of a pair depends on its texts and the seed
    only, not on the order of the rows; the rows of each split keep their order.

    Args:
        pairs: The set to divide.
        seed: Of the draw.
        fractions: Shares of train, dev and test, which sum to 1.

    Raises:
        DataError: A wanted split would get fewer than two pairs.
    """
    groups: dict[frozenset[str], list[int]] = {}
    for row, pair in enumerate(pairs):
        groups.setdefault(frozenset((pair.first, pair.second)), []).append(row)
    shuffled = sorted(groups.items(), key=lambda group: _draw(seed, group[0]))
    ends = [round(len(pairs) * sum(fractions[: index + 1])) for index in range(3)]
    rows: dict[str, list[int]] = {name: [] for name in SPLIT_NAMES}
    placed = 0
    for _, members in shuffled:
        rows[SPLIT_NAMES[next(index for index in range(3) if placed < ends[index])]] += members
        placed += len(members)
    wanted = (name for name, fraction in zip(SPLIT_NAMES, fractions, strict=True) if fraction > 0)
    sets = {name: _part(pairs, name, sorted(rows[name])) for name in wanted}
    sizes = ", ".join(f"{name} {len(rows[name]):,}" for name in sets)
    shares = "/".join(f"{100 * fraction:g}" for fraction in fractions if fraction > 0)
    return PairSplits(
        name=pairs.name,
        train=sets.get("train"),
        dev=sets.get("dev"),
        test=sets.get("test"),
        notes=(f"{pairs.name} was divided into {sizes} ({shares} %, seed {seed}) by its distinct pairs.",),
    )


def complete_splits(splits: PairSplits, seed: int = 0) -> PairSplits:
    """Take what training needs and `splits` lacks out of train: a tenth for dev, a tenth for test.

    Splits that are there stay as they are, but for train when something is taken from it; a single file is divided,
    whatever it is called. What was done is in `notes`. A set that is divided anew for every seed (`shares`) comes back
    as it is, for `splits_for`. Raises `DataError` when there is no train split or it is too small.
    """
    if splits.shares is not None:
        return splits
    if splits.one_file:
        splits = replace(splits, train=splits.evaluation, dev=None, test=None, one_file=False)
    if splits.train is None:
        raise DataError(
            f"{splits.name} has no train split, only {', '.join(name for name, _ in splits.items())}.",
            hint="Add a train file to the folder, or name a single file: it is divided into train, dev and test.",
        )
    dev, test = (FRACTIONS[1] * (split is None) for split in (splits.dev, splits.test))
    if not dev and not test:
        return splits
    parts = split_pairs(splits.train, seed, (1 - dev - test, dev, test))
    return replace(
        splits,
        train=parts.train,
        dev=splits.dev or parts.dev,
        test=splits.test or parts.test,
        notes=(*splits.notes, *parts.notes),
    )


def splits_for(splits: PairSplits, seed: int) -> PairSplits:
    """Return the splits that a run with this seed uses: the ones there are, or those that `shares` draws from train."""
    if splits.shares is None or splits.train is None:
        return splits
    return split_pairs(splits.train, seed, splits.shares)


def _draw(seed: int, texts: frozenset[str]) -> bytes:
    # Not `random`: the draw of one pair must not move when other rows are added.
    return hashlib.sha256("\n".join([str(seed), *sorted(texts)]).encode()).digest()


def _part(pairs: PairSet, name: str, rows: Sequence[int]) -> PairSet:
    if len(rows) < 2:
        hint = "Give at least 20 pairs, or a folder with train, dev and test files."
        raise DataError(
            f"{pairs.name} holds {counted(len(pairs), 'pair')}: too few to take a {name} split from.", hint=hint
        )
    chosen: tuple[TextPair, ...] = tuple(pairs.pairs[row] for row in rows)
    return replace(pairs, name=f"{pairs.name}/{name}", pairs=chosen)
