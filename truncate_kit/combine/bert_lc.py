"""BERT-LC (Hosseini, Munia and Khan, Findings of EMNLP 2023): which layers to combine, and what that gains."""

from collections.abc import Sequence
from math import comb
from time import perf_counter

import numpy as np

from truncate_kit.combine.beam import search_beam
from truncate_kit.combine.exact import count_subsets, search_exact
from truncate_kit.combine.grams import Floats, PairGrams
from truncate_kit.combine.leaders import Leader, Leaders, mask_of
from truncate_kit.combine.ranking import RankCorrelation
from truncate_kit.combine.reading import Division, Scorer, dev_size, divide, read_grams, read_state_pairs
from truncate_kit.combine.results import Baseline, Combination, CombinationReport, SplitReport
from truncate_kit.combine.settings import MOST_EXACT, MOST_LAYERS, CombineSettings
from truncate_kit.combine.statewise import MOST_SUBSETS, Head, Maximum, StatePairs, largest_size, search_states
from truncate_kit.data import PairSet
from truncate_kit.encoders import Encoder
from truncate_kit.encoders.pipeline import Dense
from truncate_kit.errors import DataError, ModelError, UsageError
from truncate_kit.progress import Progress, silent

LAST, CLS, LAST_FOUR, RANDOM = "last layer", "CLS of the last layer", "last four layers", "random layers"
RANDOM_DRAWS = 100
_QUICK = 2**16 - 1  # subsets that are tried exactly to say what a beam search loses


def combine(
    encoder: Encoder,
    pairs: PairSet,
    *,
    settings: CombineSettings | None = None,
    head: Dense | None = None,
    threads: int = 1,
    progress: Progress = silent,
) -> CombinationReport:
    """Find the layers whose mean (or maximum) over states gives the cosines that rank graded pairs best.

    On each random split the combination with the highest Spearman correlation on dev is taken and scored on the rest.
    States are those of `layer_states`, pooled as the encoder pools, before anything that follows pooling. head: the
    model's trained pooler, needed for `settings.head`. threads: cores for the exact search over means.
    Raises `DataError` for too few pairs, `ModelError` without a head or for states that are not numbers.
    """
    settings = settings or CombineSettings()
    start = perf_counter()
    if settings.head and head is None:
        raise ModelError(f"{encoder.name} comes without a pooler head.", hint="Leave --head out.")
    num_dev = dev_size(pairs, settings.dev_pairs)
    divisions = [divide(pairs, seed, num_dev) for seed in range(settings.splits)]
    scorer: PairGrams | StatePairs
    beam: tuple[float, tuple[int, ...]] | None = None
    if settings.has_grams:
        scorer, cls = read_grams(encoder, pairs, progress)
        method, up_to, reason = _plan(encoder.depth + 1, settings)
        leaders = _search_means(scorer, divisions, settings, method, up_to, threads, progress)
        if method == "beam":
            beam = _beam_loss(scorer, divisions, settings, up_to, threads)
    else:
        scorer, cls = read_state_pairs(encoder, pairs, _rule(head), progress)
        method, (up_to, reason) = "exact", _state_plan(encoder.depth + 1, settings)
        leaders = _search_states(scorer, divisions, up_to, progress)
    splits = tuple(
        _split_report(scorer, division, found, cls, up_to) for division, found in zip(divisions, leaders, strict=True)
    )
    chosen, chosen_dev = _settle(scorer, divisions, splits)
    unseen, num_unseen = _unseen(scorer, pairs, divisions, chosen)
    return CombinationReport(
        model=encoder.name,
        data=pairs.name,
        settings=settings,
        pooling=encoder.pooling,
        depth=encoder.depth,
        method=method,
        up_to=up_to,
        up_to_reason=reason,
        num_subsets=leaders[0].count,
        num_pairs=len(pairs),
        splits=splits,
        chosen=chosen,
        chosen_dev=chosen_dev,
        unseen=unseen,
        num_unseen=num_unseen,
        beam_loss=beam[0] if beam else None,
        beam_layers=beam[1] if beam else None,
        seconds=perf_counter() - start,
    )


# Searching


def _plan(layers: int, settings: CombineSettings) -> tuple[str, int, str | None]:
    """Method and largest size for means, and why the size is limited."""
    if layers > MOST_LAYERS:
        raise UsageError(
            f"Combinations of {layers} layers are not searched; {MOST_LAYERS} are the most.",
            hint="Truncate the model first: truncate-kit finetune --layer N.",
        )
    up_to = min(settings.up_to or layers, layers)
    reason = f"Larger combinations than {up_to} layers were left out, as told." if up_to < layers else None
    subsets = count_subsets(layers, up_to)
    if settings.search == "exact" and subsets > MOST_EXACT:
        raise UsageError(
            f"{subsets:,} combinations are too many to try all of them.",
            hint="Use --search beam, or fewer layers with --layers-up-to.",
        )
    exact = settings.search == "exact" or (settings.search == "auto" and subsets <= MOST_EXACT)
    return ("exact" if exact else "beam"), up_to, reason


def _state_plan(layers: int, settings: CombineSettings) -> tuple[int, str | None]:
    """Largest size where each combination has to be computed, and why it is limited."""
    most = largest_size(layers)
    up_to = min(settings.up_to or layers, most)
    if up_to == most < layers:
        return up_to, (
            f"Combinations of more than {most} layers were left out: {layers} layers have too many subsets to compute "
            f"each of them, and this search computes {MOST_SUBSETS:,} at most."
        )
    return up_to, f"Larger combinations than {up_to} layers were left out, as told." if up_to < layers else None


def _search_means(
    grams: PairGrams,
    divisions: Sequence[Division],
    settings: CombineSettings,
    method: str,
    up_to: int,
    threads: int,
    progress: Progress = silent,
) -> list[Leaders]:
    found = []
    for number, division in enumerate(divisions, 1):
        part = grams.select(division.dev)

        def step(task: str, done: int, total: int, number: int = number) -> None:
            progress(f"{task}, split {number}", done, total)

        if method == "exact":
            found.append(search_exact(part, division.dev_ranks, up_to=up_to, threads=threads, progress=step))
        else:
            found.append(search_beam(part, division.dev_ranks, up_to=up_to, width=settings.width, progress=step))
    return found


def _beam_loss(
    grams: PairGrams, divisions: Sequence[Division], settings: CombineSettings, up_to: int, threads: int
) -> tuple[float, tuple[int, ...]]:
    """The most a beam search loses on dev, in points, and the layers on which that was tried.

    All layers where their subsets are few enough, otherwise sixteen of them at even distances.
    """
    layers = list(range(grams.num_layers))
    if count_subsets(len(layers), up_to) > _QUICK:
        layers = sorted({round(place) for place in np.linspace(0, layers[-1], 16)})
        up_to = min(up_to, len(layers))
    part = PairGrams(grams.forms[:, layers][:, :, layers])
    exact, beam = (_search_means(part, divisions, settings, method, up_to, threads) for method in ("exact", "beam"))
    losses = [_best(true).score - _best(found).score for true, found in zip(exact, beam, strict=True)]
    return 100 * max(losses), tuple(layers)


def _rule(head: Dense | None) -> Maximum | Head:
    if head is None:
        return Maximum()
    weight, bias = (value.detach().double().cpu().numpy() for value in (head.linear.weight, head.linear.bias))
    return Head(weight, bias)


def _search_states(pairs: StatePairs, divisions: Sequence[Division], up_to: int, progress: Progress) -> list[Leaders]:
    union = sorted({place for division in divisions for place in division.dev})
    where = {place: index for index, place in enumerate(union)}
    parts = [([where[place] for place in division.dev], division.dev_ranks) for division in divisions]
    return search_states(pairs.select(union), parts, up_to=up_to, progress=progress)


# Scoring


def _points(ranks: RankCorrelation, cosines: Floats) -> float | None:
    """Spearman × 100; None where it is not defined."""
    if not np.isfinite(cosines).all():
        return None
    score = float(ranks.of(cosines[None].copy())[0])
    return None if np.isnan(score) else 100 * score


def _best(leaders: Leaders) -> Leader:
    best = leaders.best
    if best is None:
        raise DataError(
            "No combination of layers tells the pairs apart: each gives all of them one similarity.",
            hint="Check the data and the model: texts or vectors may all be the same.",
        )
    return best


def _split_report(scorer: Scorer, division: Division, leaders: Leaders, cls: Floats, up_to: int) -> SplitReport:
    tested: dict[int, float | None] = {}

    def report(leader: Leader) -> Combination:
        if leader.mask not in tested:
            tested[leader.mask] = _points(division.test_ranks, scorer.cosines(leader.layers)[division.test])
        return Combination(layers=leader.layers, dev=100 * leader.score, test=tested[leader.mask])

    best = report(_best(leaders))
    num_layers = len(leaders.without)
    return SplitReport(
        seed=division.seed,
        num_dev=len(division.dev),
        num_test=len(division.test),
        best=best,
        by_size=tuple(None if row is None else report(row) for row in leaders.by_size[:up_to]),
        without=tuple(None if row is None else report(row) for row in leaders.without),
        baselines=_baselines(scorer, division, cls, num_layers, up_to),
    )


def _baselines(scorer: Scorer, division: Division, cls: Floats, num_layers: int, up_to: int) -> tuple[Baseline, ...]:
    """Last layer, CLS, last four layers, and the mean score of random combinations, drawn from those searched."""

    def both(cosines: Floats) -> tuple[float | None, float | None]:
        return _points(division.dev_ranks, cosines[division.dev]), _points(division.test_ranks, cosines[division.test])

    last = range(num_layers - 1, num_layers)
    last_four = range(max(0, num_layers - 4), num_layers)
    draws = [both(scorer.cosines(layers)) for layers in random_combinations(num_layers, up_to, division.seed)]
    known = [(dev, test) for dev, test in draws if dev is not None and test is not None]
    rows = {LAST: both(scorer.cosines(last)), CLS: both(cls), LAST_FOUR: both(scorer.cosines(last_four))}
    rows[RANDOM] = (
        (sum(dev for dev, _ in known) / len(known), sum(test for _, test in known) / len(known))
        if known
        else (None, None)
    )
    return tuple(Baseline(name=name, dev=dev, test=test) for name, (dev, test) in rows.items())


def random_combinations(num_layers: int, up_to: int, seed: int, draws: int = RANDOM_DRAWS) -> list[tuple[int, ...]]:
    """Combinations drawn evenly from all non-empty subsets of at most `up_to` layers."""
    generator = np.random.default_rng(seed)
    sizes = np.arange(1, up_to + 1)
    shares = np.array([comb(num_layers, int(size)) for size in sizes], dtype=np.float64)
    drawn = generator.choice(sizes, size=draws, p=shares / shares.sum())
    return [tuple(sorted(generator.choice(num_layers, size=size, replace=False).tolist())) for size in drawn]


def _settle(
    scorer: Scorer, divisions: Sequence[Division], splits: Sequence[SplitReport]
) -> tuple[tuple[int, ...], float]:
    """Of the splits' winners the one with the best mean dev score over all splits."""
    winner: Leader | None = None
    for layers in {split.best.layers for split in splits}:
        cosines = scorer.cosines(layers)
        scores = [_points(division.dev_ranks, cosines[division.dev]) for division in divisions]
        known = [score for score in scores if score is not None]
        leader = Leader(mask_of(layers), sum(known) / len(known))
        winner = leader if leader.beats(winner) else winner
    if winner is None:
        raise UsageError("There is no split to choose on.", hint="Use --splits 1 or more.")
    return winner.layers, winner.score


def _unseen(
    scorer: Scorer, pairs: PairSet, divisions: Sequence[Division], layers: tuple[int, ...]
) -> tuple[float | None, int]:
    """Score on the pairs that no split chose on, and how many they are."""
    rest = sorted(set(range(len(pairs))).difference(*(division.dev for division in divisions)))
    scores = [pairs.scores()[place] for place in rest]
    if len(set(scores)) < 2 or len(rest) < 3:
        return None, len(rest)
    return _points(RankCorrelation(scores), scorer.cosines(layers)[rest]), len(rest)
