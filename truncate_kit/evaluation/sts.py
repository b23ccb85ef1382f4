"""Semantic textual similarity as MTEB counts it: one Spearman correlation per set, all its subsets together."""

import time
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass

from truncate_kit.cells import TableCells, number
from truncate_kit.data import PlacedPairs, SeenPairs, StsSet, distinct_texts, find_sts, read_seen
from truncate_kit.data.types import check_ranks
from truncate_kit.errors import DataError, UsageError
from truncate_kit.evaluation.graded import TextEncoder, correlate, encode_distinct, pair_similarities, spearman
from truncate_kit.evaluation.registry import SuiteReport, SuiteRun
from truncate_kit.measurement import Amounts
from truncate_kit.progress import ProgressOption, reporter
from truncate_kit.results import Result


@dataclass(frozen=True, slots=True, kw_only=True)
class StsScore(Result):
    """Correlation of cosine similarity with the gold scores of one set, all its pairs together, in points."""

    name: str
    num_pairs: int  # number of pairs scored
    published_pairs: int  # number of pairs of the published set; with another number the score is not comparable
    spearman: float
    pearson: float
    unseen_pairs: int | None  # number of pairs that the model was not trained on; None where nothing is known of them
    unseen_spearman: float | None  # rank correlation of these; None also where too few are left


@dataclass(frozen=True, slots=True, kw_only=True)
class StsReport(SuiteReport):
    """The sets that were found, and plain means over them."""

    model: str
    runtime: str  # `torch`, `onnx`, or what else encoded
    sets: tuple[StsScore, ...]  # in the order of the paper
    mean_spearman: float
    seen: str | None  # where the pairs come from that the model was trained on; None where nothing is known
    mean_unseen: float | None  # mean without these pairs; None also where a set has no such score
    seconds: float

    def amounts(self) -> Iterator[Amounts]:
        """Sets by their pairs."""
        for row in self.sets:
            yield (row.name,), (row.num_pairs,)

    def table(self) -> TableCells:
        """One row per set and one for the mean; two more columns where it is known what the model has seen."""
        columns: tuple[str, ...] = ("set", "pairs", "Spearman", "Pearson")
        rows = [(row.name, f"{row.num_pairs:,}", number(row.spearman), number(row.pearson)) for row in self.sets]
        rows.append((f"mean of {len(rows)}", "", number(self.mean_spearman), ""))
        cells: list[tuple[str, ...]] = list(rows)
        if self.seen is not None:
            columns += ("unseen pairs", "Spearman unseen")
            more = [(f"{row.unseen_pairs or 0:,}", number(row.unseen_spearman)) for row in self.sets]
            cells = [(*row, *extra) for row, extra in zip(rows, (*more, ("", number(self.mean_unseen))), strict=True)]
        return TableCells(f"{self.model} in {self.runtime}: semantic similarity × 100", columns, cells)

    def sentences(self) -> list[str]:
        """Sets that are not whole."""
        return [
            f"{row.name} here has {row.num_pairs:,} of the published {row.published_pairs:,} pairs: its score is not "
            "comparable with published ones."
            for row in self.sets
            if row.num_pairs != row.published_pairs
        ]


def run_sts(run: SuiteRun) -> StsReport:
    """The sets of a folder; without the pairs that the option `seen` names, or those that the model was trained on."""
    sets, named = find_sts(run.data), run.options["seen"]
    seen = run.trained_on() if named is None else SeenPairs(named, read_seen(named))
    if seen is not None and named is None:
        how = "scored with and without those pairs (not counting test)"
        run.note(f"{run.model} was trained on or chosen by {seen.name}: {how}.")
    return score_sts(
        run.encoder,
        sets,
        model=run.model,
        runtime=run.runtime,
        seen=seen.pairs if seen else frozenset(),
        seen_name=seen.name if seen else None,
        progress=run.progress,
    )


def score_sts(
    encoder: TextEncoder,
    sets: Sequence[StsSet],
    *,
    model: str,
    runtime: str = "torch",
    seen: Container[frozenset[str]] = frozenset(),
    seen_name: str | None = None,
    progress: ProgressOption = False,
) -> StsReport:
    """Score whatever has `.encode(texts)` on the sets; each distinct text of all sets is encoded once.

    Args:
        encoder: Of which nothing else is used.
        sets: As `find_sts` gives them.
        model: Its name in the report.
        runtime: What encodes, for the report.
        seen: Pairs that the model was trained on, as `read_seen` gives them.
        seen_name: Where these come from; None where nothing is known. With a name, each set is also scored without
            them, in either order of their texts.
        progress: True draws bars and logs; else what is called after each part of the texts.

    Raises:
        UsageError: There are no sets.
        DataError: A correlation is not defined.
        ModelError: The encoder does not give one vector for each text.
    """
    if not sets:
        raise UsageError("There are no sets to score.", hint="find_sts(path) gives those of a folder.")
    for one in sets:
        check_ranks([pair.target for pair in one.pairs], one.name)
    progress = reporter(progress)
    begin = time.perf_counter()
    texts = distinct_texts(pair for one in sets for pair in one.pairs)
    vectors = encode_distinct(encoder, texts, progress)
    known = seen if seen_name else None
    rows = [_score(one, pair_similarities(vectors, PlacedPairs.of(one.pairs, texts), encoder), known) for one in sets]
    unseen = [row.unseen_spearman for row in rows if row.unseen_spearman is not None]
    return StsReport(
        model=model,
        runtime=runtime,
        sets=tuple(rows),
        mean_spearman=sum(row.spearman for row in rows) / len(rows),
        seen=seen_name,
        mean_unseen=sum(unseen) / len(rows) if len(unseen) == len(rows) else None,
        seconds=time.perf_counter() - begin,
    )


def _score(one: StsSet, cosines: Sequence[float], seen: Container[frozenset[str]] | None) -> StsScore:
    try:
        found = correlate(cosines, [pair.target for pair in one.pairs])
    except DataError as error:
        raise DataError(f"{one.name}: {error}", hint=error.hint) from error
    fresh = None
    if seen is not None:
        pairs = zip(cosines, one.pairs, strict=True)
        fresh = [(cosine, pair) for cosine, pair in pairs if frozenset((pair.first, pair.second)) not in seen]
    return StsScore(
        name=one.name,
        num_pairs=len(one.pairs),
        published_pairs=one.published_pairs,
        spearman=found.spearman,
        pearson=found.pearson,
        unseen_pairs=None if fresh is None else len(fresh),
        # None also where what is left is too little for a correlation: the whole set still has its score.
        unseen_spearman=None if fresh is None else spearman([c for c, _ in fresh], [p.target for _, p in fresh]),
    )
