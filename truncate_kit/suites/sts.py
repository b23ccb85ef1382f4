"""Semantic textual similarity as MTEB counts it: one Spearman correlation per set, all its subsets together."""

import time
from collections.abc import Collection, Sequence

from truncate_kit.data import StsSet, TextPair
from truncate_kit.errors import DataError
from truncate_kit.progress import Progress, silent
from truncate_kit.suites.encoding import encode_distinct
from truncate_kit.suites.results import StsReport, StsScore
from truncate_kit.training.evaluation import TextEncoder, correlate, pair_similarities


def score_sts(
    encoder: TextEncoder,
    sets: Sequence[StsSet],
    *,
    model: str,
    runtime: str = "torch",
    seen: Collection[frozenset[str]] = frozenset(),
    seen_name: str | None = None,
    progress: Progress = silent,
) -> StsReport:
    """Score whatever has `.encode(texts)` on the sets; each distinct text of all sets is encoded once.

    seen: pairs the model was trained on, as `read_seen` gives them; seen_name: where they come from, None where
    nothing is known. With a name each set is also scored without them, in either order of their texts.
    Raises `DataError` where a correlation is not defined.
    """
    begin = time.perf_counter()
    texts = list(dict.fromkeys(text for one in sets for pair in one.pairs for text in (pair.first, pair.second)))
    place = {text: index for index, text in enumerate(texts)}
    vectors = encode_distinct(encoder, texts, progress)
    known = seen if seen_name else None
    rows = [_score(one, pair_similarities(encoder, vectors, place, one.pairs), known) for one in sets]
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
    fresh = None if seen is None else [(c, p) for c, p in zip(cosines, one.pairs, strict=True) if not _in(p, seen)]
    return StsScore(
        name=one.name,
        num_pairs=len(one.pairs),
        published_pairs=one.published_pairs,
        spearman=found.spearman,
        pearson=found.pearson,
        unseen_pairs=None if fresh is None else len(fresh),
        unseen_spearman=None if fresh is None else _spearman(fresh),
    )


def _in(pair: TextPair, seen: Collection[frozenset[str]]) -> bool:
    return frozenset((pair.first, pair.second)) in seen


def _spearman(fresh: Sequence[tuple[float, TextPair]]) -> float | None:
    """None where what is left is too little for a correlation: the whole set still has its score."""
    try:
        return correlate([cosine for cosine, _ in fresh], [pair.target for _, pair in fresh]).spearman
    except DataError:
        return None
