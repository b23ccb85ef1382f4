"""Read anchors with positives and hard negatives, from columns or an NLI set."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, combinations

from truncate_kit.core.errors import DataError
from truncate_kit.core.results import digest_of_values, listed_texts
from truncate_kit.data.pairs import PairSource, TextPair, read_tables
from truncate_kit.data.tables import (
    LABEL,
    PAIR,
    SCORE,
    Table,
    check_columns,
    find_columns,
    find_negatives,
    is_label,
)

ENTAILMENT, NEUTRAL, CONTRADICTION = "entailment", "neutral", "contradiction"
_NUMBERS = {"0": ENTAILMENT, "1": NEUTRAL, "2": CONTRADICTION}
"""Labels of SNLI, MultiNLI and GLUE; annotators disagreed on pairs labelled -1 or "-"."""
_HINT = "Call the columns anchor, positive and optionally negative; or set `columns`."


@dataclass(frozen=True, slots=True, kw_only=True)
class TripletSet:
    """Rows of an anchor, a text of the same meaning and any hard negative; and a note on their source."""

    name: str
    rows: tuple[tuple[str, ...], ...]
    note: str

    def __len__(self) -> int:
        return len(self.rows)

    def pairs(self) -> list[TextPair]:
        """Return all pairs of different texts within a row."""
        return [TextPair(*pair, 0.0) for row in self.rows for pair in combinations(dict.fromkeys(row), 2)]

    def fingerprint(self) -> str:
        """Return the SHA-256 of the texts, in order."""
        return digest_of_values({"rows": self.rows})


def raw_texts(name: str, texts: Sequence[str]) -> TripletSet:
    """Pair each distinct text with itself; dropout makes both vectors differ, as in SimCSE. Raises `UsageError`."""
    distinct = dict.fromkeys(listed_texts(texts))
    return TripletSet(
        name=name,
        rows=tuple((text, text) for text in distinct),
        note=f"Training: {name} ({len(distinct):,} distinct texts).",
    )


def load_triplets(source: PairSource, *, columns: Sequence[str] | None = None, negatives: bool = False) -> TripletSet:
    """Read triplets from a file or table, or from the train split of a folder or hub set.

    Text columns are used unchanged. In an NLI set, each premise and entailed hypothesis form a row, with any
    contradicting hypothesis.

    columns: Anchors, positives and any negatives, or two texts and an NLI label; by default common names. A cell may
        hold a list of texts.
    negatives: Require a negative in every row.
    """
    name, tables = read_tables(source)
    table = tables.get("train") or next(iter(tables.values()))
    names = tuple(columns) if columns is not None else _default_columns(table)
    if len(names) < 2:
        raise table.unfit(f"{len(names)} columns are given; two or more are needed.", _HINT)
    check_columns(table, names)
    labels = _nli_labels(table, names[2]) if len(names) == 3 else None
    if labels is not None:
        return _triplets_of_nli(name, table, names, labels, negatives=negatives)
    if len(names) == 3 and is_label(names[2]):
        hint = "Write entailment, neutral and contradiction; or 0, 1 and 2."
        raise table.unfit(f"column {names[2]!r} does not hold the classes of an NLI set.", hint)
    if negatives and len(names) < 3:
        hint = 'Add a column "negative", give an NLI set with labels, or use `objective="in-batch"`.'
        raise table.unfit("no column holds hard negatives.", hint)
    anchors, positives = table.texts(names[0]), table.lists(names[1])
    if [] in positives:
        raise table.problem(positives.index([]), f"column {names[1]!r} holds no positive.")
    others = [table.lists(column, may_be_empty=True) for column in names[2:]]
    found = [(anchor, own, list(chain(*more))) for anchor, own, *more in zip(anchors, positives, *others, strict=True)]
    rows, skipped = _rows(found, needed=negatives, every=negatives)
    note = f"Training: {name} ({len(rows):,} rows of {', '.join(names)}"
    note += f"; {skipped:,} anchors without a negative are skipped" if skipped else ""
    note += ")." if negatives or not others else "; only hard-negatives learns from the negatives)."
    return TripletSet(name=name, rows=rows, note=note)


def _rows(
    texts: Iterable[tuple[str, Sequence[str], Sequence[str]]], *, needed: bool, every: bool = False
) -> tuple[tuple[tuple[str, ...], ...], int]:
    """Pair the k-th positive of an anchor with its k-th negative, cyclically.

    needed: leave out anchors without a negative, and return their number. every: repeat positives to use all negatives.
    """
    rows, skipped = list[tuple[str, ...]](), 0
    for anchor, own, others in texts:
        if needed and not others:
            skipped += 1
            continue
        for place in range(max(len(own), len(others) if every else 0)):
            negative = [others[place % len(others)]] if others else []
            rows.append((anchor, own[place % len(own)], *negative))
    return tuple(rows), skipped


def _default_columns(table: Table) -> tuple[str, ...]:
    label = find_columns(table, LABEL)
    if label and _nli_labels(table, *label) is not None:
        return find_columns(table, PAIR, _HINT) + label
    if others := find_negatives(table):
        return find_columns(table, PAIR, _HINT) + others
    if graded := find_columns(table, SCORE) or label:
        problem = f"column {graded[0]!r} grades or classifies the pairs, so not every row is a positive pair."
        raise table.unfit(problem, f"Give paraphrase pairs, or an NLI set. {_HINT}")
    return find_columns(table, PAIR, _HINT)


def _nli_labels(table: Table, column: str) -> list[str] | None:
    """Return each row's NLI label ("" if annotators disagreed), or None for other labels."""
    names = table.class_names.get(column, {})  # sets number their classes in different orders
    plain = [names.get(label, label).lower() for label in table.labels(column, may_be_empty=True)]
    distinct = {*plain} - {"", "-", "-1", "nan"}
    if distinct == _NUMBERS.keys():
        return [_NUMBERS.get(label, "") for label in plain]
    if distinct and distinct <= {*_NUMBERS.values()}:
        return [label if label in distinct else "" for label in plain]
    return None


def _triplets_of_nli(
    name: str, table: Table, columns: Sequence[str], labels: Sequence[str], *, negatives: bool
) -> TripletSet:
    for wanted in (ENTAILMENT, CONTRADICTION) if negatives else (ENTAILMENT,):
        if wanted not in labels:
            raise DataError(
                f"{table.source} has no pair of the class {wanted}.",
                hint=f"Its classes are {', '.join(sorted({*labels} - {''}))}; give a complete NLI set.",
            )
    texts: dict[str, dict[str, list[str]]] = {ENTAILMENT: {}, CONTRADICTION: {}, NEUTRAL: {}, "": {}}
    for premise, hypothesis, label in zip(*map(table.texts, columns[:2]), labels, strict=True):
        texts[label].setdefault(premise, []).append(hypothesis)
    found = ((premise, own, texts[CONTRADICTION].get(premise, [])) for premise, own in texts[ENTAILMENT].items())
    rows, skipped = _rows(found, needed=negatives)
    if not rows:
        hint = 'Use `objective="in-batch"`, which needs entailments only, or give a larger NLI set.'
        raise DataError(f"{table.source} has no premise with both an entailment and a contradiction.", hint=hint)
    note = f"Training: {name} ({len(rows):,} rows built from {len(labels):,} NLI pairs"
    note += f"; {skipped:,} premises without a contradiction are skipped" if skipped else ""
    if columns[2] not in table.class_names and {*table.labels(columns[2], may_be_empty=True)} & _NUMBERS.keys():
        note += f"; the labels 0, 1 and 2 are read as {', '.join(_NUMBERS.values())}"
    note += ")."
    return TripletSet(name=name, rows=rows, note=note)
