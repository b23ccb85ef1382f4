"""Pairs that mean the same, with mined hard negatives, from sets that were made for something else."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from scipy import sparse

from truncate_kit.data import Triplet, TripletSet, load_pairs, load_triplets

ALIKE = 4.0  # STS Benchmark scores from here on mean the same but for unimportant details
_CHUNK = 512


def training_rows(data: Path) -> TripletSet:
    """Entailments of SICK and pairs of STS Benchmark's train split with a score of at least 4, each with a negative.

    A negative is SICK's contradiction where there is one, else the training sentence with the most words in common
    (weighted by rarity) that is not paired with the anchor in either set.
    """
    graded = load_pairs(data / "stsb/en").train
    sick = load_triplets(data / "sick")
    known: dict[str, set[str]] = {}
    for first, second in [*((p.first, p.second) for p in graded), *((r.anchor, r.positive) for r in sick.rows)]:
        known.setdefault(first, set()).add(second)
        known.setdefault(second, set()).add(first)
    rows = [*sick.rows, *(Triplet(pair.first, pair.second) for pair in graded if pair.target >= ALIKE)]
    rows = [row for row in rows if row.anchor != row.positive]
    texts = list(dict.fromkeys([*graded.texts(), *(text for row in sick.rows for text in (row.anchor, row.positive))]))
    mined = _mined([row.anchor for row in rows], texts, known)
    full = tuple(
        row if row.negative else Triplet(row.anchor, row.positive, negative)
        for row, negative in zip(rows, mined, strict=True)
    )
    return TripletSet(name="sick + stsb", rows=full, note=f"Training: SICK and STSB positives ({len(full):,} rows).")


def _mined(anchors: Sequence[str], texts: Sequence[str], known: dict[str, set[str]]) -> list[str]:
    """The most similar text by shared words for each anchor, itself and its partners left out."""
    vocabulary: dict[str, int] = {}
    table = _words(texts, vocabulary)
    rarity = np.log(len(texts) / np.maximum(1, np.asarray((table > 0).sum(axis=0)).ravel()))
    table = sparse.csr_matrix(table.multiply(rarity))
    lengths = np.sqrt(np.asarray(table.multiply(table).sum(axis=1)).ravel()) + 1e-9
    asked = _words(anchors, vocabulary)
    found = []
    for start in range(0, len(anchors), _CHUNK):
        scores = (asked[start : start + _CHUNK] @ table.T).toarray() / lengths
        for place, row in enumerate(scores, start):
            own = {anchors[place], *known.get(anchors[place], ())}
            found.append(next(texts[index] for index in np.argsort(-row) if texts[index] not in own))
    return found


def _words(texts: Sequence[str], vocabulary: dict[str, int]) -> sparse.csr_matrix:
    """Texts × words, 1 where the text holds the word; the first call fills the vocabulary."""
    grow = not vocabulary
    rows, columns = [], []
    for row, text in enumerate(texts):
        for word in set(text.lower().split()):
            place = vocabulary.setdefault(word, len(vocabulary)) if grow else vocabulary.get(word)
            if place is not None:
                rows.append(row)
                columns.append(place)
    return sparse.csr_matrix((np.ones(len(rows)), (rows, columns)), shape=(len(texts), len(vocabulary)))
