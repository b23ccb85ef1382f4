"""Sentence pairs from one file, a folder of splits, the bundled set or the hub: one way in for all of them."""

import math
from collections.abc import Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

from truncate_kit.data.columns import find_columns
from truncate_kit.data.files import COMPRESSIONS, PAIR_FORMATS, format_of
from truncate_kit.data.hub import hub_name, is_hub_name, known_scale, read_hub
from truncate_kit.data.scales import USUAL_SCALES, Scale, infer_scale, told_scale
from truncate_kit.data.tables import MISSING, Table, read_table
from truncate_kit.data.types import PairSet, PairSplits, TextPair
from truncate_kit.errors import ColumnsError, DataFileError, RowError

BUNDLED = "bundled"
BUNDLED_FOLDER = Path(__file__).parent / "bundled"
_BUNDLED_SCALE = Scale(0.0, 5.0, "known")
_SPLIT_STEMS = {"train": "train", "dev": "dev", "validation": "dev", "valid": "dev", "val": "dev", "test": "test"}


def load_pairs(
    name_or_path: str | Path, *, columns: Sequence[str] | None = None, scale: Sequence[float] | None = None
) -> PairSplits:
    """Load a set of sentence pairs: "bundled", a file, a folder of splits, or a hub name ("stsb" among them).

    columns: names of first text, second text and score; None finds them. scale: lowest and highest possible score;
    None takes what is known of the set or infers it from all splits together. A single file comes back as the only
    split, `train`; `complete_splits` divides it. The hub is asked only where no such path exists.
    Raises `DataError` naming file, row and what is wrong; `UsageError` for an impossible scale.
    """
    told = None if scale is None else told_scale(scale)
    if str(name_or_path) == BUNDLED:
        return _splits(BUNDLED, _folder_tables(BUNDLED_FOLDER), columns, told or _BUNDLED_SCALE)
    path = Path(name_or_path)
    if path.is_dir():
        return _splits(_short_name(path), _folder_tables(path), columns, told)
    if path.exists() or not is_hub_name(str(name_or_path)):
        return _splits(_short_name(path), {"train": read_table(path)}, columns, told)
    name = hub_name(str(name_or_path))
    return _splits(name, read_hub(name), columns, told or known_scale(name))


def read_pairs(
    path: str | Path, *, columns: Sequence[str] | None = None, scale: Sequence[float] | None = None
) -> PairSet:
    """Read one file of sentence pairs; columns, scale and errors as in `load_pairs`."""
    path = Path(path)
    told = None if scale is None else told_scale(scale)
    return _sets(_short_name(path), {"train": read_table(path)}, columns, told)["train"]


def find_split_files(folder: Path) -> dict[str, Path]:
    """The files of a folder that hold its splits, by split name. Raises `DataFileError` if there are none or two."""
    found: dict[str, Path] = {}
    for path in sorted(folder.iterdir()):
        split = _SPLIT_STEMS.get(path.name.partition(".")[0].lower())
        if split is None or not path.is_file() or format_of(path) not in PAIR_FORMATS:
            continue
        if split in found:
            raise DataFileError(
                f"{folder} holds two files for {split}: {found[split].name} and {path.name}.",
                hint="Remove one, or name a single file.",
            )
        found[split] = path
    if not found:
        formats = ", ".join(PAIR_FORMATS)
        raise DataFileError(
            f"{folder} holds no splits.",
            hint=f"Call them train, dev (or validation) and test, as {formats}; all but Parquet may end in "
            f"{' or '.join(COMPRESSIONS)}.",
        )
    return found


def _short_name(path: Path) -> str:
    """The last two parts, "stsb/en": enough to recognise the set, and no user's home folder in a model card."""
    return "/".join(path.resolve().parts[-2:])


def _folder_tables(folder: Path) -> dict[str, Table]:
    return {split: read_table(path) for split, path in find_split_files(folder).items()}


def _splits(name: str, tables: Mapping[str, Table], columns: Sequence[str] | None, scale: Scale | None) -> PairSplits:
    sets = _sets(name, tables, columns, scale)
    return PairSplits(name=name, train=sets.get("train"), dev=sets.get("dev"), test=sets.get("test"))


def _sets(
    name: str, tables: Mapping[str, Table], columns: Sequence[str] | None, scale: Scale | None
) -> dict[str, PairSet]:
    """The pairs of each table, all on one scale: the given one, or the one inferred from all of them."""
    names = {split: find_columns(table.source, tuple(table.columns), columns) for split, table in tables.items()}
    pairs = {split: _pairs(table, names[split]) for split, table in tables.items()}
    scale = scale or infer_scale(pair.target for split in pairs.values() for pair in split)
    if scale is None:
        raise _without_scale(tables, pairs)
    for split, table in tables.items():
        _check_scale(table, pairs[split], scale)
    return {
        split: PairSet(
            name=name if len(tables) == 1 else f"{name}/{split}",
            pairs=tuple(pairs[split]),
            scale=(scale.low, scale.high),
            scale_source=scale.source,
            num_scale_values=scale.num_values,
            path=table.source,
            columns=names[split],
        )
        for split, table in tables.items()
    }


def _pairs(table: Table, names: tuple[str, str, str]) -> list[TextPair]:
    first, second, score = names
    rows = zip(table.columns[first], table.columns[second], table.columns[score], strict=True)
    try:
        return [
            TextPair(
                text_of(table, row, first, left), text_of(table, row, second, right), _score(table, row, score, value)
            )
            for row, (left, right, value) in enumerate(rows)
        ]
    except RowError:
        if _holds_words(table.columns[score]):
            raise ColumnsError(
                table.source,
                f"column {score!r} holds words such as {table.columns[score][0]!r}, not scores.",
                table.columns,
                hint="A class label is not a graded score: name a column of numbers with --columns FIRST,SECOND,SCORE",
            ) from None
        raise


def text_of(table: Table, row: int, column: str, value: Any) -> str:
    """The text of one cell without white space around it. Raises `RowError` when there is none."""
    if isinstance(value, str):
        text = value.strip()
        if not text:
            raise table.problem(row, f"the text in column {column!r} is empty.", hint="Fill it in or remove the row.")
        if not text.isascii():
            _check_surrogates(table, row, column, text)
        return text
    raise _wrong_kind(table, row, column, value, "a text")


def _check_surrogates(table: Table, row: int, column: str, text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise table.problem(
            row,
            f"the text in column {column!r} holds half a character (\\u{ord(text[error.start]):x}).",
            hint="Write the character itself, or both halves of its surrogate pair.",
        ) from None


def _score(table: Table, row: int, column: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (str, int, float, Decimal)):
        raise _wrong_kind(table, row, column, value, "a number")
    if isinstance(value, str) and not value.strip():
        raise table.problem(row, f"the score in column {column!r} is missing.", hint="Fill it in or remove the row.")
    try:
        number = float(value)
    except (ValueError, OverflowError):
        raise table.problem(
            row, f"the score {str(value)[:40]!r} is not a number.", hint="Write it like 3.5, with a point."
        ) from None
    if not math.isfinite(number):
        raise table.problem(row, f"the score {value} is not finite.", hint="Give a number or remove the row.")
    return number


def _wrong_kind(table: Table, row: int, column: str, value: Any, wanted: str) -> RowError:
    if value is MISSING:
        return table.problem(row, f"the key {column!r} is missing.", hint="Every row needs the same keys.")
    if value is None:
        return table.problem(row, f"column {column!r} is null.", hint="Fill it in or remove the row.")
    found = f"{type(value).__name__} {str(value)[:40]}"
    return table.problem(row, f"column {column!r} holds {found}, not {wanted}.", hint="Mend or remove the row.")


def _holds_words(values: Sequence[Any]) -> bool:
    """Whether a whole column is made of words such as "entailment": a class, not a score with one slip."""
    return all(isinstance(value, str) and value.strip().replace("_", "").isalpha() for value in values)


def _check_scale(table: Table, pairs: Sequence[TextPair], scale: Scale) -> None:
    for row, pair in enumerate(pairs):
        if not scale.holds(pair.target):
            raise table.problem(
                row,
                f"the score {pair.target:g} is outside the scale {scale.low:g} to {scale.high:g} ({scale.source}).",
                hint="Mend the row, or name the scale with --scale LOW,HIGH",
            )


def _without_scale(tables: Mapping[str, Table], pairs: Mapping[str, Sequence[TextPair]]) -> RowError:
    low, high = USUAL_SCALES[-1]
    _, split, row = max(
        (max(low - pair.target, pair.target - high), split, row)
        for split in tables
        for row, pair in enumerate(pairs[split])
    )
    usual = ", ".join(f"{bottom:g}–{top:g}" for bottom, top in USUAL_SCALES)
    return tables[split].problem(
        row,
        f"the score {pairs[split][row].target:g} fits no usual scale ({usual}).",
        hint="Mend the row, or name the scale with --scale LOW,HIGH",
    )
