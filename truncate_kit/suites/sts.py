"""Semantic textual similarity as MTEB counts it: one Spearman correlation per set, all its subsets together."""

import time
from collections.abc import Collection, Sequence

from truncate_kit.data import PlacedPairs, StsSet, distinct_texts
from truncate_kit.evaluation import TextEncoder, correlate, pair_similarities, spearman
from truncate_kit.progress import ProgressOption, reporter
from truncate_kit.suites.encoding import encode_distinct
from truncate_kit.suites.reports import StsReport, StsScore


def score_sts(
    encoder: TextEncoder,
    sets: Sequence[StsSet],
    *,
    model: str,
    runtime: str = "torch",
    seen: Collection[frozenset[str]] = frozenset(),
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
        DataError: A correlation is not defined.
    """
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


def _score(one: StsSet, cosines: Sequence[float], seen: Collection[frozenset[str]] | None) -> StsScore:
    found = correlate(cosines, [pair.target for pair in one.pairs])
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
