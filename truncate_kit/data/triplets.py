"""Anchors with positives and, where there are some, hard negatives: from columns of texts, or built from an NLI set."""

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from truncate_kit.data.cells import text_of, texts_of
from truncate_kit.data.columns import (
    check_columns,
    find_label_column,
    find_score_column,
    find_text_columns,
    find_triplet_columns,
)
from truncate_kit.data.loading import read_tables
from truncate_kit.data.tables import MISSING, Table
from truncate_kit.data.types import pairs_in_rows
from truncate_kit.errors import ColumnsError, DataError
from truncate_kit.text_lists import listed_texts
from truncate_kit.wording import counted

ENTAILMENT, NEUTRAL, CONTRADICTION = "entailment", "neutral", "contradiction"
# As numbers they have this order in SNLI, MultiNLI and GLUE; -1 and "-" mark pairs without agreement.
_NUMBERS = {"0": ENTAILMENT, "1": NEUTRAL, "2": CONTRADICTION}
_HINT = "Call the columns anchor, positive and, where there are any, negative; or say which they are."
_LABELS = {ENTAILMENT: ENTAILMENT, NEUTRAL: NEUTRAL, CONTRADICTION: CONTRADICTION, "-": "", "-1": "", "": ""}


@dataclass(frozen=True, slots=True)
class Triplet:
    """A text, one that means the same, and one that does not though it looks alike; None where there is none."""

    anchor: str
    positive: str
    negative: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TripletSet:
    """Rows to learn from by contrast. note: what the user has to know about where they come from."""

    name: str
    rows: tuple[Triplet, ...]
    note: str

    def __len__(self) -> int:
        return len(self.rows)

    def pairs(self) -> frozenset[frozenset[str]]:
        """Any two texts of one row, see `pairs_in_rows`."""
        rows = ((row.anchor, row.positive, row.negative) for row in self.rows)
        return pairs_in_rows([text for text in row if text is not None] for row in rows)

    def fingerprint(self) -> str:
        """SHA-256 of the texts, in order."""
        digest = hashlib.sha256()
        for row in self.rows:  # lengths first, so that no two sets run together to the same bytes
            for text in (row.anchor, row.positive, row.negative):
                data = b"" if text is None else text.encode()
                digest.update(f"{'-' if text is None else len(data)} ".encode() + data)
        return digest.hexdigest()


def raw_texts(name: str, texts: Sequence[str]) -> TripletSet:
    """Distinct texts as their own positives, for the objective whose only variation is dropout.

    Raises `UsageError` for what is no text.
    """
    distinct = dict.fromkeys(listed_texts(texts))
    return TripletSet(
        name=name,
        rows=tuple(Triplet(text, text) for text in distinct),
        note=f"Training: {name} ({len(distinct):,} distinct texts).",
    )


def load_triplets(
    name_or_path: str | Path, *, columns: Sequence[str] | None = None, negatives: bool = False
) -> TripletSet:
    """Read triplets from a file, the train split of a folder, or a hub set.

    Columns of texts (anchor, positive and, optionally, negative) are taken as they are; a column of entailment,
    neutral and contradiction makes the set an NLI set, built into triplets by `triplets_of_nli`.

    Args:
        name_or_path: As in `load_pairs`.
        columns: Two texts, three texts, or two texts and the NLI label; None finds them by name.
        negatives: Every row needs a negative.

    Raises:
        DataError: The message names file, row and what is wrong.
    """
    name, tables = read_tables(name_or_path)
    table = tables.get("train") or next(iter(tables.values()))
    names = tuple(columns) if columns is not None else _find(table)
    if len(names) not in (2, 3):
        found = f"{counted(len(names), 'column')} named where two or three are needed."
        raise ColumnsError(table.source, found, table.columns, hint=_HINT)
    check_columns(table.source, table.columns, names)
    if len(names) == 3 and (labels := _nli_labels(table.columns[names[2]])) is not None:
        return triplets_of_nli(name, table, (names[0], names[1]), labels, negatives=negatives)
    labelled = find_label_column(table.source, names[-1:])
    if labelled is not None and 2 * len(set(map(str, table.columns[labelled]))) <= len(
        table
    ):  # texts repeat less often
        raise ColumnsError(
            table.source,
            f"column {names[-1]!r} holds neither texts nor the classes of an NLI set.",
            table.columns,
            hint="Write entailment, neutral and contradiction, also where one of them is not there; or 0, 1 and 2.",
        )
    if negatives and len(names) < 3:
        hint = 'Add a column "negative", give an NLI set with labels, or use `objective="in-batch"`.'
        raise ColumnsError(table.source, "no column holds hard negatives.", table.columns, hint=hint)
    texts = zip(*(texts_of(table, column) for column in names), strict=True)
    rows = tuple(Triplet(*row) for row in texts)
    return TripletSet(name=name, rows=rows, note=f"Training: {name} ({len(rows):,} rows of {', '.join(names)}).")


def _find(table: Table) -> tuple[str, ...]:
    """The columns that hold an NLI set, triplets or pairs. Raises `ColumnsError`, also for graded pairs."""
    found = tuple(table.columns)
    label = find_label_column(table.source, found)
    if label is not None and _nli_labels(table.columns[label]) is not None:
        return (*find_text_columns(table.source, found, hint=_HINT), label)
    triplet = find_triplet_columns(found)
    if triplet is not None:
        return triplet
    score = find_score_column(found)
    if score is not None or label is not None:
        raise ColumnsError(
            table.source,
            f"column {score or label!r} grades or classifies the pairs, so not all of them are positives.",
            table.columns,
            hint=f"Give pairs that mean the same, or an NLI set. {_HINT}",
        )
    return find_text_columns(table.source, found, hint=_HINT)


def _nli_labels(values: Sequence[Any]) -> list[str] | None:
    """The relation of each row, empty where annotators did not agree; None where these are no NLI labels."""
    plain = ["" if value is None or value is MISSING else str(value).strip().lower() for value in values]
    # A column of numbers with gaps is read as 0.0, 1.0, nan.
    plain = ["" if value == "nan" else re.sub(r"^(-?\d+)\.0+$", r"\1", value) for value in plain]
    distinct = set(plain)
    if distinct <= _LABELS.keys() and distinct & {ENTAILMENT, NEUTRAL, CONTRADICTION}:
        return [_LABELS[value] for value in plain]
    if distinct <= {*_NUMBERS, "-1", ""} and len(distinct & _NUMBERS.keys()) == 3:
        return [_NUMBERS.get(value, "") for value in plain]
    return None


def triplets_of_nli(
    name: str, table: Table, columns: tuple[str, str], labels: Sequence[str], *, negatives: bool
) -> TripletSet:
    """Make a row of each premise and a hypothesis it entails, with one it contradicts where there is one."""
    there = sorted({label for label in labels if label})
    for wanted in (ENTAILMENT, CONTRADICTION) if negatives else (ENTAILMENT,):
        if wanted not in there:
            raise DataError(
                f"{table.source} holds no pair of the class {wanted}, so there is nothing to learn from.",
                hint=f"Its classes are {', '.join(there)}; give a whole NLI set.",
            )
    premises: dict[str, dict[str, list[str]]] = {}
    for row, label in enumerate(labels):
        if label in (ENTAILMENT, CONTRADICTION):
            premise, hypothesis = (text_of(table, row, column, table.columns[column][row]) for column in columns)
            premises.setdefault(premise, {ENTAILMENT: [], CONTRADICTION: []})[label].append(hypothesis)
    rows = tuple(_rows(premises, negatives))
    if not rows:
        hint = 'Use `objective="in-batch"`, which needs entailments only, or give a larger NLI set.'
        raise DataError(f"{table.source} has no premise with both an entailment and a contradiction.", hint=hint)
    left_out = sum(bool(found[ENTAILMENT]) for found in premises.values()) - len({row.anchor for row in rows})
    note = f"Training: {name} ({len(rows):,} rows built from {len(labels):,} NLI pairs"
    note += f"; {left_out:,} premises without a contradiction are left out)." if left_out else ")."
    return TripletSet(name=name, rows=rows, note=note)


def _rows(premises: Mapping[str, Mapping[str, Sequence[str]]], negatives: bool) -> list[Triplet]:
    rows = []
    for premise, found in premises.items():
        against = found[CONTRADICTION]
        if against or not negatives:
            # The k-th entailed hypothesis gets the k-th contradicted one, and so on from the first again.
            rows += [
                Triplet(premise, positive, against[place % len(against)] if against else None)
                for place, positive in enumerate(found[ENTAILMENT])
            ]
    return rows
