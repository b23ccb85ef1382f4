"""BERT-LC (Hosseini, Munia and Khan, Findings of EMNLP 2023): which layers to combine, and what that gains."""

from collections.abc import Sequence
from math import comb
from pathlib import Path
from time import perf_counter

import numpy as np

from truncate_kit.bounds import given_or
from truncate_kit.data import PairSet
from truncate_kit.data.learned import note_learned
from truncate_kit.errors import UsageError
from truncate_kit.hardware import check_threads
from truncate_kit.methods.bert_lc.best_subsets import BestSubsets, ScoredSubset, mask_of
from truncate_kit.methods.bert_lc.grams import Floats
from truncate_kit.methods.bert_lc.pair_states import Scorer
from truncate_kit.methods.bert_lc.ranking import RankCorrelation
from truncate_kit.methods.bert_lc.report import (
    CLS,
    LAST,
    LAST_FOUR,
    POOLER,
    RANDOM,
    Baseline,
    Combination,
    CombinationReport,
    SplitReport,
)
from truncate_kit.methods.bert_lc.searching import (
    Division,
    Search,
    best_of,
    draw_divisions,
    search_means,
    search_vectors,
)
from truncate_kit.methods.bert_lc.settings import CombineSettings
from truncate_kit.models import Encoder, check_encoder
from truncate_kit.models.tail import Dense
from truncate_kit.progress import ProgressOption, reporter
from truncate_kit.wording import FEWEST_COMPARED

RANDOM_DRAWS = 100


def combine(
    encoder: Encoder,
    pairs: PairSet,
    *,
    settings: CombineSettings | None = None,
    head: Dense | None = None,
    threads: int = 1,
    progress: ProgressOption = False,
) -> CombinationReport:
    """Find the layers whose mean (or maximum) over states gives the cosines that rank graded pairs best.

    On each random split the combination with the highest Spearman correlation on dev is taken and scored on the rest.
    States are those of `layer_states`, pooled as the encoder pools, before anything that follows pooling.

    Args:
        encoder: Not trained.
        pairs: With graded scores.
        settings: None for the defaults.
        head: The model's trained pooler where it has one: the baseline "CLS pooler"; `settings.head` needs it.
        threads: Cores for the exact search over means.
        progress: True draws bars and logs; else what is called while states are read and combinations searched.

    Raises:
        DataError: Too few pairs, or no combination tells them apart.
        ModelError: No head, or states that are not numbers.
        UsageError: More combinations than an exact search can try.
    """
    check_encoder(encoder)
    start, progress = perf_counter(), reporter(progress)
    settings, threads = given_or(CombineSettings, settings), check_threads(threads) or 1
    divisions = draw_divisions(pairs, settings)
    if settings.has_grams:
        search = search_means(encoder, pairs, divisions, settings, head, threads, progress)
    else:
        search = search_vectors(encoder, pairs, divisions, settings, head, progress)
    splits = tuple(
        _split_report(search, division, found) for division, found in zip(divisions, search.found, strict=True)
    )
    chosen, chosen_dev = _choose(search.scorer, divisions, splits)
    unseen, num_unseen = _unseen(search.scorer, pairs, divisions, chosen)
    return CombinationReport(
        model=encoder.name,
        data=pairs.name,
        settings=settings,
        pooling=encoder.pooling,
        depth=encoder.depth,
        method=search.method,
        up_to=search.up_to,
        up_to_reason=search.up_to_reason,
        num_subsets=search.found[0].count,
        num_pairs=len(pairs),
        splits=splits,
        chosen=chosen,
        chosen_dev=chosen_dev,
        unseen=unseen,
        num_unseen=num_unseen,
        beam_loss=search.beam_loss,
        beam_layers=search.beam_layers,
        seconds=perf_counter() - start,
    )


def write_combination(report: CombinationReport, pairs: PairSet, file: Path) -> None:
    """Write a report of these pairs, and beside it which of them chose layers. Raises `FileProblemError`."""
    places = {place for division in draw_divisions(pairs, report.settings) for place in division.dev}
    note_learned(file, report.identity, [pairs.pairs[place] for place in sorted(places)])
    report.write(file)


def _points(ranks: RankCorrelation, cosines: Floats) -> float | None:
    """Spearman × 100; None where it is not defined."""
    if not np.isfinite(cosines).all():
        return None
    score = float(ranks.of(cosines[None].copy())[0])
    return None if np.isnan(score) else 100 * score


def _split_report(search: Search, division: Division, best_subsets: BestSubsets) -> SplitReport:
    tested: dict[int, float | None] = {}

    def report(subset: ScoredSubset) -> Combination:
        if subset.mask not in tested:
            tested[subset.mask] = _points(division.test_ranks, search.scorer.cosines(subset.layers)[division.test])
        return Combination(layers=subset.layers, dev=100 * subset.score, test=tested[subset.mask])

    best = report(best_of(best_subsets))
    return SplitReport(
        seed=division.seed,
        num_dev=len(division.dev),
        num_test=len(division.test),
        best=best,
        by_size=tuple(None if row is None else report(row) for row in best_subsets.by_size[: search.up_to]),
        without=tuple(None if row is None else report(row) for row in best_subsets.without),
        baselines=_baselines(search, division, len(best_subsets.without)),
    )


def _baselines(search: Search, division: Division, num_layers: int) -> tuple[Baseline, ...]:
    """`BASELINES`, the pooler where there is one; random: the mean score of combinations drawn from those searched."""

    def both(cosines: Floats) -> tuple[float | None, float | None]:
        return _points(division.dev_ranks, cosines[division.dev]), _points(division.test_ranks, cosines[division.test])

    last = range(num_layers - 1, num_layers)
    last_four = range(max(0, num_layers - 4), num_layers)
    scorer, drawn = search.scorer, random_combinations(num_layers, search.up_to, division.seed)
    draws = [both(scorer.cosines(layers)) for layers in drawn]
    known = [(dev, test) for dev, test in draws if dev is not None and test is not None]
    rows = {LAST: both(scorer.cosines(last)), **dict(zip((CLS, POOLER), map(both, search.cls), strict=False))}
    rows[LAST_FOUR] = both(scorer.cosines(last_four))
    rows[RANDOM] = (
        (sum(dev for dev, _ in known) / len(known), sum(test for _, test in known) / len(known))
        if known
        else (None, None)
    )
    return tuple(Baseline(name=name, dev=dev, test=test) for name, (dev, test) in rows.items())


def random_combinations(num_layers: int, up_to: int, seed: int) -> list[tuple[int, ...]]:
    """Combinations drawn evenly from all non-empty subsets of at most `up_to` layers."""
    generator = np.random.default_rng(seed)
    sizes = np.arange(1, up_to + 1)
    shares = np.array([comb(num_layers, int(size)) for size in sizes], dtype=np.float64)
    drawn = generator.choice(sizes, size=RANDOM_DRAWS, p=shares / shares.sum())
    return [tuple(sorted(generator.choice(num_layers, size=size, replace=False).tolist())) for size in drawn]


def _choose(
    scorer: Scorer, divisions: Sequence[Division], splits: Sequence[SplitReport]
) -> tuple[tuple[int, ...], float]:
    """Of the splits' best combinations the one with the best mean dev score over all splits."""
    winner: ScoredSubset | None = None
    for layers in {split.best.layers for split in splits}:
        cosines = scorer.cosines(layers)
        scores = [_points(division.dev_ranks, cosines[division.dev]) for division in divisions]
        known = [score for score in scores if score is not None]
        subset = ScoredSubset(mask_of(layers), sum(known) / len(known))
        winner = subset if subset.beats(winner) else winner
    if winner is None:
        raise UsageError("There is no split to choose on.", hint="Use 1 or more `splits`.")
    return winner.layers, winner.score


def _unseen(
    scorer: Scorer, pairs: PairSet, divisions: Sequence[Division], layers: tuple[int, ...]
) -> tuple[float | None, int]:
    """Score on the pairs that no split chose on, and the number of them."""
    rest = sorted(set(range(len(pairs))).difference(*(division.dev for division in divisions)))
    every = pairs.scores()
    scores = [every[place] for place in rest]
    if len(set(scores)) < 2 or len(rest) < FEWEST_COMPARED:
        return None, len(rest)
    return _points(RankCorrelation(scores), scorer.cosines(layers)[rest]), len(rest)
