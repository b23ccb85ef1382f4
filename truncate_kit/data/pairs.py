"""Read and split sentence pairs with scores or classes."""

import hashlib
import logging
import math
import re
from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, chain
from pathlib import Path
from typing import Any, Literal

from truncate_kit.core.errors import DataError, UsageError, counted, errors_only, first_line
from truncate_kit.core.files import is_there
from truncate_kit.core.results import Result, digest_of_values
from truncate_kit.data.tables import (
    COMPRESSIONS,
    LABEL,
    PAIR,
    PAIR_FORMATS,
    SCORE,
    TEXT_FORMAT,
    Table,
    check_columns,
    data_files,
    find_columns,
    format_of,
    plain_name,
    read_shards,
    read_table,
    stem_of,
)

BUNDLED = "bundled"
BUNDLED_FOLDER = Path(__file__).parent / "bundled"
BUNDLED_TEXTS = BUNDLED_FOLDER / "train.csv"
FRACTIONS = (0.8, 0.1, 0.1)
"""Default shares of the train, dev and test splits."""
SHARES = (0.70, 0.15, 0.15)
"""Shares for word similarity sets."""
USUAL_SCALES = ((0.0, 1.0), (1.0, 5.0), (0.0, 5.0), (0.0, 10.0))
"""Common score scales, narrowest first."""
MOST_CLASSES = 20  # a column with more distinct values does not hold classes
SPLIT_NAMES = ("train", "dev", "test")
_SPLITS = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("dev", "development", "validation", "valid", "val", "trial"), "dev"),  # SICK has a trial split
    **dict.fromkeys(("test", "testing", "eval", "evaluation"), "test"),  # as in load_dataset
}
"""Splits by the names of files, hub splits and values of a split column."""
_SHARD = re.compile(r"[-_.]?\d+(-of-\d+)?(-[0-9a-f]{16})?(?=\.[a-z.]+$)")
_HUB_NAMES = {
    "stsb": "sentence-transformers/stsb",
    "stsb-de": "PhilipMay/stsb_multi_mt:de",
    "stsb-es": "PhilipMay/stsb_multi_mt:es",
    "korsts": "dkoterwa/kor-sts",
}
_KNOWN_SCALES = {
    **dict.fromkeys((BUNDLED, *_HUB_NAMES.values()), (0.0, 5.0)),
    "sentence-transformers/stsb": (0.0, 1.0),  # already divided by 5
}
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?(:[\w.-]+)?")
_WORD_SCALES = {
    "rg65": (0, 4), "wordsim353_sim": (0, 10), "wordsim353": (0, 10), "simlex999": (0, 10), "simverb3500": (0, 10),
}  # fmt: skip
_NAME_THEM = (
    'Name the columns: `columns=("first", "second", "score")`; or rename them sentence1, sentence2, score (or label).'
)


_logger = logging.getLogger(__name__)

PairSource = Any
"""Path, hub name, or table in memory."""

# Pairs

PairPlaces = tuple[list[int], list[int]]
"""Indices of each pair's first text, and of its second text."""


@dataclass(frozen=True, slots=True)
class TextPair:
    """Two texts with a target: their score, or their class's index."""

    first: str
    second: str
    target: float


def pairs_fingerprint(pairs: Iterable[TextPair]) -> str:
    """Return the SHA-256 of texts and raw scores, independent of row order."""
    return digest_of_values({"rows": sorted((one.first, one.second, float(one.target)) for one in pairs)})


def distinct_texts(pairs: Iterable[TextPair]) -> list[str]:
    """Return the distinct texts by first appearance."""
    return list(dict.fromkeys(text for pair in pairs for text in (pair.first, pair.second)))


def spread(texts: Iterable[str], number: int) -> list[str]:
    """Return up to `number` distinct texts at equal distances, because files are often sorted."""
    number = min(number, len(distinct := list(dict.fromkeys(texts))))
    return [distinct[place * len(distinct) // number] for place in range(number)]


def num_distinct(pairs: Iterable[TextPair]) -> int:
    """Count the distinct pairs in any order of their texts."""
    return len({frozenset((pair.first, pair.second)) for pair in pairs})


def index_texts(pairs: Sequence[TextPair], texts: Sequence[str] | None = None) -> tuple[list[str], PairPlaces]:
    """Return `texts` (by default the pairs' distinct ones) and each pair's indices in this list."""
    texts = distinct_texts(pairs) if texts is None else list(texts)
    place = {text: index for index, text in enumerate(texts)}
    return texts, ([place[pair.first] for pair in pairs], [place[pair.second] for pair in pairs])


def _check_finite(scores: Sequence[float], source: str) -> None:
    for number, score in enumerate(scores, start=1):
        if not math.isfinite(score):
            hint = "Write a finite number, or remove the pair."
            raise DataError(f"{source}, pair {number:,}: the score {score} is not finite.", hint=hint)


def check_ranks(scores: Sequence[float], source: str = "The set") -> None:
    """Raise `DataError` unless all scores are finite, there are three or more, and two differ."""
    _check_finite(scores, source)
    if len(scores) < 3 or len(set(scores)) < 2:
        raise DataError(
            f"{source} has too few pairs or scores for a correlation: {len(scores):,} pairs, {len(set(scores)):,} "
            "different scores; three pairs and two different scores are needed.",
            hint="Use a larger set, or check that the score column is the right one.",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PairSet:
    """Pairs of one split and the scale of their scores, all finite. Raises `DataError`."""

    name: str
    pairs: tuple[TextPair, ...] = field(repr=False)
    scale: tuple[float, float]  # lowest and highest possible score
    scale_source: Literal["given", "inferred", "known"] = "known"
    classes: tuple[str, ...] = ()  # class names by target; empty for graded pairs

    def __post_init__(self) -> None:
        _check_finite(self.scores(), self.name)

    def __len__(self) -> int:
        return len(self.pairs)

    def __iter__(self) -> Iterator[TextPair]:
        return iter(self.pairs)

    def scores(self) -> list[float]:
        """Return the raw scores."""
        return [pair.target for pair in self.pairs]

    def scores01(self) -> list[float]:
        """Return the scores, converted from `scale` to 0 … 1."""
        low, high = self.scale
        return [(pair.target - low) / (high - low) for pair in self.pairs]

    def texts(self) -> list[str]:
        """Return the distinct texts."""
        return distinct_texts(self.pairs)

    def check_ranked(self) -> None:
        """See `check_ranks`."""
        check_ranks(self.scores(), self.name)

    def check_graded(self) -> None:
        """Raise `DataError` if the targets are classes."""
        if self.classes:
            raise DataError(f"{self.name} holds classes, not scores.", hint="Give pairs with graded scores.")

    def fingerprint(self) -> str:
        """Return the SHA-256 of texts, targets, scale and classes; row order matters."""
        rows = [(pair.first, pair.second, float(pair.target)) for pair in self.pairs]
        return digest_of_values({"scale": list(map(float, self.scale)), "classes": self.classes, "rows": rows})


class Overlap(Result):
    """Numbers of pairs and sentences that train and test share."""

    train_test: tuple[int, int]  # shared pairs: texts in the same order, and in any order
    test_sentences: int  # distinct sentences of test
    test_sentences_in_train: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PairSplits:
    """Splits of one data set, on one scale; at least one is present."""

    name: str
    train: PairSet | None = None
    dev: PairSet | None = None
    test: PairSet | None = None
    notes: tuple[str, ...] = ()  # sentences for the user
    one_file: bool = False  # a single file, not split yet
    # Shares of train, dev and test that every seed draws from `train`; None for fixed splits.
    shares: tuple[float, float, float] | None = None

    def items(self) -> list[tuple[str, PairSet]]:
        """Return the splits by name, in the order train, dev, test."""
        splits = ((name, getattr(self, name)) for name in SPLIT_NAMES)
        return [(name, pairs) for name, pairs in splits if pairs is not None]

    def texts(self) -> list[str]:
        """Return the distinct texts of all splits."""
        return distinct_texts(pair for _, pairs in self.items() for pair in pairs)

    @property
    def evaluation(self) -> PairSet:
        """Return the split to evaluate on: test, else dev, else train."""
        return self.items()[-1][1]

    def split(self, name: str | None) -> PairSet:
        """Return the named split, by default `evaluation`. Raises `UsageError`."""
        splits = dict(self.items())
        if name is None:
            return self.evaluation
        if name not in splits:
            hint = f"Use one of: {', '.join(splits)}. A file without a column `split` has none: leave out `split`."
            raise UsageError(f"{self.name} has no split {name!r}.", hint=hint)
        return splits[name]

    def first(self, count: int) -> "PairSplits":
        """Keep the first `count` pairs of each split."""
        some: dict[str, Any] = {name: replace(pairs, pairs=pairs.pairs[:count]) for name, pairs in self.items()}
        return replace(self, **some)

    def without_texts(self, texts: Collection[str]) -> "PairSplits":
        """Drop training pairs with one of `texts`; `notes` states how many. Raises `DataError` if none is left."""
        if self.train is None:
            return self
        held_out = frozenset(texts)
        kept = tuple(pair for pair in self.train if held_out.isdisjoint((pair.first, pair.second)))
        if not kept:
            hint = "Give selection data that share no text with the training pairs."
            raise DataError(f"All training pairs of {self.name} contain a held-out text.", hint=hint)
        left_out = len(self.train) - len(kept)
        note = f"{left_out:,} training pairs were dropped because they contain a held-out text."
        notes = (*self.notes, note) if left_out else self.notes
        return replace(self, train=replace(self.train, pairs=kept), notes=notes)

    @property
    def overlap(self) -> Overlap:
        """Compare train and test by exact match."""
        train, test = ({(pair.first, pair.second) for pair in pairs or ()} for pairs in (self.train, self.test))
        texts = set(chain.from_iterable(test))
        return Overlap(
            train_test=(len(train & test), len({*map(frozenset, train)} & {*map(frozenset, test)})),
            test_sentences=len(texts),
            test_sentences_in_train=len(texts.intersection(chain.from_iterable(train))),
        )

    def fingerprint(self) -> str:
        """Return the SHA-256 of all splits."""
        return digest_of_values({name: split.fingerprint() for name, split in self.items()})


# Reading


def load_pairs(
    source: PairSource,
    *,
    columns: Sequence[str] | None = None,
    scale: Sequence[float] | None = None,
    classes: bool = False,
    divide: bool = True,
    skip_bad_rows: bool = False,
) -> PairSplits:
    """Load sentence pairs from a file, a folder of splits, the hub ("stsb"), this package ("bundled") or a table.

    A table is a data frame, `datasets.Dataset`, dict of columns, or list of tuples or dicts; or a dict of one per
    split. A single one is divided by its column `split` (`split_tables`), else at random. Word similarity sets of a
    folder are merged (`load_words`). Dev and test splits without labels (no column, or all -1, as in GLUE) are left out
    with a note.

    columns: Names of first text, second text and score; by default common names.
    scale: Lowest and highest possible score; by default known or inferred.
    classes: The third column holds classes; targets are indices into the sorted classes of train.
    divide: False keeps a single file in one split: `dev` or `test` if the file has this name, else `train`.
    skip_bad_rows: Leave out rows with an empty text or class, or without a number as score; `notes` counts them.

    Raises:
        DataError: A row is invalid, or there are too few pairs to split.
        UsageError: The scale is invalid, or given for classes.
    """
    if classes and scale is not None:
        raise UsageError("Classes have no scale.", hint="Leave out `scale`.")
    path = Path(source) if isinstance(source, str | Path) else None
    if path and holds_words(path) and not (classes or columns or scale):
        return load_words(path)
    name, tables = read_tables(source)
    hidden = [split for split, table in tables.items() if split != "train" and _hides(table, columns, classes=classes)]
    shown = {split: table for split, table in tables.items() if split not in hidden}
    sets, skipped = _pair_sets(name, shown or tables, columns, scale, classes=classes, skip=skip_bad_rows)
    one_file = len(tables) == 1 and (path is None or (path.is_file() and str(path) != BUNDLED))
    notes = (*(f"{name}/{split} has no labels and is left out." for split in hidden if shown), *skipped)
    splits = PairSplits(name=name, one_file=one_file, notes=notes, **sets)
    return complete_splits(splits) if divide and one_file else splits


def read_pairs(
    source: PairSource,
    *,
    columns: Sequence[str] | None = None,
    scale: Sequence[float] | None = None,
    skip_bad_rows: bool = False,
) -> PairSet:
    """Read all rows of one file or table of sentence pairs; parameters as in `load_pairs`."""
    from truncate_kit.data.frames import table_from

    in_file = isinstance(source, str | Path)
    name = short_name(Path(source)) if in_file else type(source).__name__
    table = read_table(Path(source)) if in_file else table_from(source, name)
    sets, notes = _pair_sets(name, {"train": table}, columns, scale, skip=skip_bad_rows)
    for note in notes:
        _logger.warning("%s", note)
    pairs: PairSet = sets["train"]
    return pairs


def listed_pairs(source: PairSource) -> Sequence[TextPair]:
    """Return listed pairs unchanged, or read them."""
    listed = isinstance(source, list | tuple) and all(isinstance(pair, TextPair) for pair in source)
    return source if listed else read_pairs(source).pairs


def pairs_of(table: Table, name: str) -> PairSet:
    """Return the scored pairs of a table."""
    pairs: PairSet = _pair_sets(name, {"train": table})[0]["train"]
    return pairs


def short_name(path: Path) -> str:
    """Return a path's last two parts, such as "stsb/en"."""
    return "/".join(path.resolve().parts[-2:])


def read_tables(source: PairSource) -> tuple[str, dict[str, Table]]:
    """Return a data set's short name, and its tables by split."""
    if not isinstance(source, str | Path):
        from truncate_kit.data.frames import table_from

        name = type(source).__name__
        if isinstance(source, Mapping) and not _SPLITS.keys().isdisjoint(source):
            return name, _tables_of(name, source)
        return name, divided({"train": table_from(source, name)})
    name, path = str(source), Path(source)
    if any((path / file).is_file() for file in ("dataset_dict.json", "state.json")):
        return short_name(path), divided(_read_saved(path))
    if name == BUNDLED or path.is_dir():
        folder = BUNDLED_FOLDER if name == BUNDLED else path
        tables = divided({split: read_shards(files) for split, files in find_split_files(folder).items()})
        if not tables and len(files := data_files(folder, 3)) == 1:
            return short_name(path), split_tables(files[0])
        if not tables:
            hint = f"Name the files train, dev (or validation) and test, ending in {', '.join(PAIR_FORMATS)}. "
            hint += f"All but Parquet may be compressed ({' or '.join(COMPRESSIONS)})."
            raise DataError(f"{path} holds no train, dev or test file.", hint=hint)
        return name if name == BUNDLED else short_name(path), tables
    if is_there(path) or not is_hub_name(name):
        return short_name(path), split_tables(path)
    name = _HUB_NAMES.get(name, name)
    return name, divided(read_hub(name))


def split_tables(path: Path) -> dict[str, Table]:
    """Return a file's tables by split (`divided`), or else as the split in its name or train."""
    return divided({split_named(path.name) or "train": read_table(path)})


def divided(tables: dict[str, Table]) -> dict[str, Table]:
    """Divide a single table by its column of splits, if any; return several tables unchanged.

    The column's name holds split, or ends in set, fold, partition, phase, mode or usage; each value names a split, as
    in `stsbenchmark.tsv` and SICK. Raises `DataError` for other values in a column `split`.
    """
    if len(tables) != 1:
        return tables
    (table,) = tables.values()
    for column in sorted(table.columns, key=lambda column: plain_name(column) != "split"):
        if not re.search("split|(set|fold|partition|phase|mode|usage)$", plain_name(column)):
            continue
        values = table.labels(column, may_be_empty=True)
        splits = list(map(split_named, values))
        if None not in splits:
            rows = {split: [row for row, own in enumerate(splits) if own == split] for split in SPLIT_NAMES}
            return {split: table.select(chosen) for split, chosen in rows.items() if chosen}
        if plain_name(column) == "split":
            row = splits.index(None)
            problem = f"{values[row]!r} in column {column!r} does not name a split."
            raise table.problem(row, problem, hint="Write train, dev or test, or rename the column.")
    return tables


def find_split_files(folder: Path) -> dict[str, list[Path]]:
    """Return the files of each split: files named just like the split, else those of a hub clone.

    In a clone, a word in the name of a file or folder is the split; numbered files, such as
    `data/train-00000-of-00002.parquet`, are its shards. Raises `DataError` for other files, or if a shard is missing.
    """
    found: dict[str, list[Path]] = {}
    for path in data_files(folder):
        if stem_of(path) in _SPLITS:
            found.setdefault(_SPLITS[stem_of(path)], []).append(path)
    if clone := not found:
        for path in data_files(folder, 3):
            parts = path.relative_to(folder).parts
            if split := next(filter(None, map(split_named, reversed(parts))), None):
                found.setdefault(split, []).append(path)
    for split, paths in found.items():
        names = {str(path.relative_to(folder)): _SHARD.sub("", str(path.relative_to(folder))) for path in paths}
        if len(paths) > 1 and (not clone or len({*names.values()}) > 1):
            one, *_, other = names
            problem = f"{folder} holds several files for {split}: {one} and {other}."
            raise DataError(problem, hint="Remove all of them but one, or give a single file or folder.")
        wanted = re.search(r"-of-0*(\d+)", paths[0].name)
        if wanted and int(wanted[1]) != len(paths):
            problem = f"{folder} holds {len(paths)} of {wanted[1]} files for {split}."
            raise DataError(problem, hint="Download the missing ones.")
    return found


def split_named(name: str) -> str | None:
    """Return the only split in a file's or folder's name, if any."""
    splits = {_SPLITS[word] for word in re.split(r"[^a-z]+", name.lower()) if word in _SPLITS}
    return splits.pop() if len(splits) == 1 else None


def is_hub_name(name: str) -> bool:
    """Check if `name` looks like a hub data set, not a file."""
    return _HUB_NAME.fullmatch(name) is not None and format_of(Path(name)) not in (*PAIR_FORMATS, TEXT_FORMAT)


def read_hub(name: str) -> dict[str, Table]:
    """Read train, dev and test of the hub set NAME or NAME:CONFIG; its code is not run."""
    import datasets
    from datasets.utils.logging import disable_progress_bar

    try:
        disable_progress_bar()
        with errors_only("huggingface_hub"):  # hide the message of each retry
            loaded = datasets.load_dataset(*name.split(":"))
    except (datasets.exceptions.DatasetNotFoundError, ConnectionError, OSError, ValueError) as error:
        raise DataError(
            f"{name!r} is not a local path, and loading it from the hub failed: {first_line(error)}.",
            hint="Check the spelling and the connection (HF_HUB_OFFLINE must not be set). Write OWNER/NAME:CONFIG for "
            "a data set with several configurations. Or give a file or folder; 'bundled' needs no connection.",
        ) from error
    return _tables_of(name, loaded)


def _read_saved(folder: Path) -> dict[str, Table]:
    import datasets

    try:
        loaded = datasets.load_from_disk(str(folder))
    except (OSError, ValueError, LookupError, TypeError) as error:
        hint = "Save the data set again, or save each split as a Parquet file."
        raise DataError(f"{folder}: the data set cannot be read ({first_line(error)}).", hint=hint) from error
    return _tables_of(str(folder), loaded if isinstance(loaded, dict) else {"train": loaded})


def _tables_of(name: str, loaded: Mapping[str, Any]) -> dict[str, Table]:
    from truncate_kit.data.frames import table_from

    tables = {
        _SPLITS[theirs]: table_from(part, f"{name} ({theirs})")
        for theirs, part in loaded.items()
        if theirs in _SPLITS and len(part)
    }
    if not tables:
        raise DataError(
            f"{name!r} has the splits {', '.join(loaded)}; train, validation and test are missing or empty.",
            hint="Save a split as a CSV or Parquet file, and give this file.",
        )
    return tables


def _pair_sets(
    name: str,
    tables: Mapping[str, Table],
    columns: Sequence[str] | None = None,
    scale: Sequence[float] | None = None,
    *,
    classes: bool = False,
    skip: bool = False,
) -> tuple[dict[str, Any], list[str]]:
    names = {split: _columns(table, columns, LABEL if classes else SCORE) for split, table in tables.items()}
    notes = list[str]()
    tables = {
        split: _without_bad_rows(table, names[split], notes, classes=classes)
        if skip
        else replace(table, take_bad=_refuse_row)
        for split, table in tables.items()
    }
    last = {split: names[split][2] for split in tables}
    targets, fields = _places_of_classes(name, tables, last) if classes else _scores(name, tables, last, scale)
    sets = {
        split: PairSet(
            name=name if len(tables) == 1 else f"{name}/{split}",
            pairs=tuple(map(TextPair, *map(table.texts, names[split][:2]), targets[split])),
            **fields,
        )
        for split, table in tables.items()
    }
    return sets, notes


def _refuse_row(_: int, error: DataError) -> None:
    error.hint += " Or leave out such rows with `skip_bad_rows`."
    raise error


def _without_bad_rows(table: Table, columns: Sequence[str], notes: list[str], *, classes: bool) -> Table:
    bad: dict[int, DataError] = {}
    collecting = replace(table, take_bad=bad.setdefault)
    for column in columns[:2]:
        collecting.texts(column)
    _ = collecting.labels(columns[2]) if classes else collecting.numbers(columns[2])
    if len(bad) == len(table):
        raise bad[0]
    if bad:
        reasons = " ".join(str(bad[row]) for row in sorted(bad)[:3])
        notes.append(f"{len(bad):,} of {counted(len(table), 'row')} are left out, such as: {reasons}")
    return table.select([row for row in range(len(table)) if row not in bad]) if bad else table


def _hides(table: Table, columns: Sequence[str] | None, *, classes: bool) -> bool:
    found = columns or ("", "", *(find_columns(table, LABEL if classes else SCORE) or find_columns(table, LABEL)))
    return len(found) < 3 or {*map(str, table.values(found[2]))} <= {"-1", "-1.0"}


def _columns(table: Table, wanted: Sequence[str] | None, role: str) -> Sequence[str]:
    if wanted is None:
        texts = find_columns(table, PAIR, _NAME_THEM)
        target = find_columns(table, role) or find_columns(table, LABEL) or find_columns(table, role, _NAME_THEM)
        return *texts, *target
    if len(wanted) != 3 or len(set(wanted)) < 3:
        raise table.unfit("three different columns are needed.", _NAME_THEM)
    check_columns(table, wanted)
    return wanted


def _scores(
    name: str, tables: Mapping[str, Table], columns: Mapping[str, str], scale: Sequence[float] | None
) -> tuple[dict[str, list[float]], dict[str, Any]]:
    if scale is not None and (len(scale) != 2 or not 0 < scale[1] - scale[0] < math.inf):
        problem = f"{','.join(map(str, scale))} is not a scale: give the lowest and then the highest possible score."
        raise UsageError(problem, hint="For example `scale=(0, 5)`.")
    scores = {split: table.numbers(columns[split]) for split, table in tables.items()}
    source = "given" if scale else "known" if name in _KNOWN_SCALES else "inferred"
    least, most = min(chain(*scores.values())), max(chain(*scores.values()))
    inferred = next((usual for usual in USUAL_SCALES if usual[0] <= least and most <= usual[1]), USUAL_SCALES[-1])
    low, high = scale or _KNOWN_SCALES.get(name) or inferred
    for split, table in tables.items():
        for row, score in enumerate(scores[split]):
            if not low <= score <= high:
                problem = f"the score {score:g} is outside the scale {low:g} to {high:g} ({source})."
                hint = "Correct the row, or give the lowest and the highest possible score as `scale`."
                raise table.problem(row, problem, hint=hint)
    return scores, {"scale": (float(low), float(high)), "scale_source": source}


def _places_of_classes(
    name: str, tables: Mapping[str, Table], columns: Mapping[str, str]
) -> tuple[dict[str, list[float]], dict[str, Any]]:
    labels = {split: table.labels(columns[split]) for split, table in tables.items()}
    classes = sorted(set(labels["train"] if "train" in labels else chain(*labels.values())))
    if not 2 <= len(classes) <= MOST_CLASSES:
        problem = f"{name} holds {len(classes):,} different classes; 2 to {MOST_CLASSES} are needed."
        raise DataError(problem, hint='Name the column of the classes: `columns=("first", "second", "class")`.')
    places = {one: float(place) for place, one in enumerate(classes)}
    for split, table in tables.items():
        for row, label in enumerate(labels[split]):
            if label not in places:
                raise table.problem(row, f"the class {label!r} does not occur in train ({', '.join(classes)}).")
    targets = {split: [places[label] for label in labels[split]] for split in tables}
    return targets, {"scale": (0.0, len(classes) - 1.0), "classes": tuple(classes)}


def holds_words(folder: Path) -> bool:
    """Check if `load_pairs` would merge a folder's word similarity sets."""
    return folder.is_dir() and bool(_word_files(folder)) and not find_split_files(folder)


def load_words(folder: Path) -> PairSplits:
    """Merge `rg65.csv`, `wordsim353_sim.csv`, `simlex999.csv` and `simverb3500.csv` of a folder.

    If `wordsim353_sim.csv` (as in TMFT's code) is missing, `wordsim353.csv` (as in its paper) is read. Scores are
    divided by the highest possible score, and averaged over repeated pairs. Each seed draws a 70/15/15 % split, as in
    the paper.
    """
    files = _word_files(folder)
    if not files:
        hint = f"Give a folder with at least one of {', '.join(f'{name}.csv' for name in _WORD_SCALES)}."
        raise DataError(f"{folder} holds no word similarity set.", hint=hint)
    sets = {name: read_pairs(file, scale=_WORD_SCALES[name]) for name, file in files.items()}
    scored: dict[frozenset[str], list[TextPair]] = {}
    for one in sets.values():
        for pair, score in zip(one, one.scores01(), strict=True):
            scored.setdefault(frozenset((pair.first, pair.second)), []).append(replace(pair, target=score))
    pairs = tuple(replace(same[0], target=sum(pair.target for pair in same) / len(same)) for same in scored.values())
    merged = PairSet(name=short_name(folder), pairs=pairs, scale=(0.0, 1.0))
    sizes = ", ".join(f"{name} {len(one):,}" for name, one in sets.items())
    note = (
        f"Word similarity: {sizes} merged to {len(pairs):,} distinct pairs with scores of 0 to 1; "
        "every seed draws its own 70/15/15 % split."
    )
    return PairSplits(name=merged.name, train=merged, notes=(note,), shares=SHARES)


def _word_files(folder: Path) -> dict[str, Path]:
    files = {name: folder / f"{name}.csv" for name in _WORD_SCALES if (folder / f"{name}.csv").is_file()}
    if "wordsim353_sim" in files:
        files.pop("wordsim353", None)
    return files


# Splitting


def split_pairs(pairs: PairSet, seed: int = 0, fractions: Sequence[float] = FRACTIONS) -> PairSplits:
    """Split one set into train, dev and test by a hash of seed and texts, independent of row order.

    Repeated pairs, in either order, stay together. `fractions` sum to 1; 0 omits a split. Raises `DataError` for a
    split of fewer than two pairs.
    """
    groups: dict[frozenset[str], list[int]] = {}
    for row, pair in enumerate(pairs):
        groups.setdefault(frozenset((pair.first, pair.second)), []).append(row)

    def draw(texts: frozenset[str]) -> bytes:  # independent of other rows, unlike `random`
        return hashlib.sha256("\n".join([str(seed), *sorted(texts)]).encode()).digest()

    ends = [round(len(pairs) * end) for end in accumulate(fractions)]
    rows: dict[str, list[int]] = {name: [] for name in SPLIT_NAMES}
    placed = 0
    for texts in sorted(groups, key=draw):
        rows[SPLIT_NAMES[bisect_right(ends, placed)]] += groups[texts]
        placed += len(groups[texts])
    sets: dict[str, Any] = {}
    for name, fraction in zip(SPLIT_NAMES, fractions, strict=True):
        if fraction > 0:
            if len(rows[name]) < 2:
                problem = f"{pairs.name} has too few pairs ({len(pairs):,}) for a {name} split."
                hint = "Give at least 20 pairs, or a folder with train, dev and test files."
                raise DataError(problem, hint=hint)
            part = tuple(pairs.pairs[row] for row in sorted(rows[name]))
            sets[name] = replace(pairs, name=f"{pairs.name}/{name}", pairs=part)
    sizes = ", ".join(f"{name} {len(part):,}" for name, part in sets.items())
    shares = "/".join(f"{100 * fraction:g}" for fraction in fractions if fraction > 0)
    note = f"{pairs.name} was split into {sizes} ({shares} %, seed {seed}); repeated pairs stay together."
    return PairSplits(name=pairs.name, notes=(note,), **sets)


def complete_splits(splits: PairSplits, seed: int = 0) -> PairSplits:
    """Draw a missing dev or test split from train, 10 % each; `notes` states the sizes.

    A set with `shares` is returned unchanged. Raises `DataError` if train is missing or too small.
    """
    if splits.shares is not None:
        return splits
    if splits.one_file:
        splits = replace(splits, train=splits.evaluation, dev=None, test=None, one_file=False)
    if splits.train is None:
        raise DataError(
            f"{splits.name} has no train split, only {', '.join(name for name, _ in splits.items())}.",
            hint="Add a train file to the folder, or give a single file, which is split automatically.",
        )
    dev, test = (FRACTIONS[1] * (split is None) for split in (splits.dev, splits.test))
    if not dev and not test:
        return splits
    parts = split_pairs(splits.train, seed, (1 - dev - test, dev, test))
    notes = (*splits.notes, *parts.notes)
    return replace(splits, train=parts.train, dev=splits.dev or parts.dev, test=splits.test or parts.test, notes=notes)


def splits_for(splits: PairSplits, seed: int) -> PairSplits:
    """Return the splits for a training seed, drawn by it if `shares` is set."""
    if splits.shares is None or splits.train is None:
        return splits
    return split_pairs(splits.train, seed, splits.shares)
