"""BERT-LC (Hosseini, Munia and Khan, Findings of EMNLP 2023): which layers to combine, and what that gains."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import comb
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from torch import nn

from truncate_kit.bounds import given_or
from truncate_kit.data import PairSet, split_pairs
from truncate_kit.data.learned import note_learned
from truncate_kit.errors import DataError, LayerOutOfRangeError, ModelError, UsageError
from truncate_kit.hardware import check_threads
from truncate_kit.methods.bert_lc.result import (
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
from truncate_kit.methods.bert_lc.search import (
    MOST_SUBSETS,
    BestSubsets,
    Floats,
    Head,
    Maximum,
    PairGrams,
    RankCorrelation,
    ScoredSubset,
    Scorer,
    count_subsets,
    largest_size,
    mask_of,
    read_grams,
    read_state_pairs,
    search_beam,
    search_exact,
    search_states,
)
from truncate_kit.methods.bert_lc.settings import MOST_EXACT, MOST_LAYERS, CombineSettings
from truncate_kit.models import Encoder, check_encoder, truncate
from truncate_kit.models.layer_pooling import LayerPooling, Over
from truncate_kit.models.tail import Dense, Normalize
from truncate_kit.progress import Progress, ProgressOption, reporter, silent
from truncate_kit.wording import FEWEST_COMPARED, counted

_QUICK = 2**16 - 1  # subsets that are tried exactly to say what a beam search loses


@dataclass(frozen=True, slots=True)
class Division:
    """Places of the dev and the test pairs, and the correlation with their targets."""

    seed: int
    dev: list[int]
    test: list[int]
    dev_ranks: RankCorrelation
    test_ranks: RankCorrelation


Divisions = Sequence[Division]


def divide(pairs: PairSet, seed: int, dev_pairs: int) -> Division:
    """Draw `dev_pairs` pairs for dev; rows with the same two texts stay on one side. Raises `DataError`."""
    share = dev_pairs / len(pairs)
    dev = {frozenset((pair.first, pair.second)) for pair in split_pairs(pairs, seed, (0.0, share, 1 - share)).dev or ()}
    sides: dict[bool, list[int]] = {True: [], False: []}
    for place, pair in enumerate(pairs):
        sides[frozenset((pair.first, pair.second)) in dev].append(place)
    scores = pairs.scores()
    ranks = {side: RankCorrelation([scores[place] for place in places]) for side, places in sides.items()}
    return Division(seed, sides[True], sides[False], ranks[True], ranks[False])


def draw_divisions(pairs: PairSet, settings: CombineSettings) -> Divisions:
    """One for each split, with as many dev pairs as wanted, at most half of all.

    Raises `UsageError` for what is no set of pairs, `DataError` for too few.
    """
    if len(pairs) < 8:
        raise DataError(
            f"{pairs.name} holds {counted(len(pairs), 'pair')}: too few to choose a combination on some and test it on "
            "others.",
            hint="Give at least 8 pairs; some hundred make the choice steady.",
        )
    num_dev = min(settings.dev_pairs, len(pairs) // 2)
    return [divide(pairs, seed, num_dev) for seed in range(settings.splits)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """What was searched and what was found; the other fields are those of `CombinationReport`."""

    scorer: Scorer  # the pairs
    cls: Floats  # their cosines by the CLS state of the last layer, and by that through the pooler, (1 or 2, n)
    method: str
    up_to: int
    up_to_reason: str | None
    found: list[BestSubsets]  # for each division
    beam_loss: float | None = None
    beam_layers: tuple[int, ...] | None = None


def search_means(
    encoder: Encoder,
    pairs: PairSet,
    divisions: Divisions,
    settings: CombineSettings,
    head: Dense | None,
    threads: int,
    progress: Progress,
) -> Search:
    """Combinations by their mean, from Gram matrices. Raises `UsageError` where there are too many, `ModelError`."""
    grams, cls = read_grams(encoder, pairs, head, progress)
    method, up_to, reason = _plan(encoder.depth + 1, settings)
    found = _on_divisions(grams, divisions, settings, method, up_to, threads, progress)
    search = Search(scorer=grams, cls=cls, method=method, up_to=up_to, up_to_reason=reason, found=found)
    if method == "exact":
        return search
    loss, layers = _beam_loss(grams, divisions, settings, up_to, threads)
    return replace(search, beam_loss=loss, beam_layers=layers)


def search_vectors(
    encoder: Encoder,
    pairs: PairSet,
    divisions: Divisions,
    settings: CombineSettings,
    head: Dense | None,
    progress: Progress,
) -> Search:
    """Combinations by their maximum, or by their mean through the head: each is computed. Raises `ModelError`."""
    if settings.head and head is None:
        raise ModelError(f"{encoder.name} comes without a pooler head.", hint="Leave out `head`.")
    states, cls = read_state_pairs(encoder, pairs, _rule(head if settings.head else None), head, progress)
    up_to, reason = _state_plan(encoder.depth + 1, settings)
    union = sorted({place for division in divisions for place in division.dev})
    where = {place: index for index, place in enumerate(union)}
    parts = [([where[place] for place in division.dev], division.dev_ranks) for division in divisions]
    found = search_states(states.select(union), parts, up_to=up_to, progress=progress)
    return Search(scorer=states, cls=cls, method="exact", up_to=up_to, up_to_reason=reason, found=found)


def best_of(best_subsets: BestSubsets) -> ScoredSubset:
    """The best of all. Raises `DataError` where none has a correlation."""
    best = best_subsets.best
    if best is None:
        raise DataError(
            "No combination of layers tells the pairs apart: each gives all of them one similarity.",
            hint="Check the data and the model: texts or vectors may all be the same.",
        )
    return best


def _plan(layers: int, settings: CombineSettings) -> tuple[str, int, str | None]:
    """Method and largest size for means, and why the size is limited."""
    if layers > MOST_LAYERS:
        hint = "Cut the model first, with `truncate()`."
        raise UsageError(f"Combinations of {layers} layers are not searched; {MOST_LAYERS} are the most.", hint=hint)
    up_to = min(settings.up_to or layers, layers)
    reason = f"Larger combinations than {up_to} layers were left out, as asked." if up_to < layers else None
    subsets = count_subsets(layers, up_to)
    if settings.search == "exact" and subsets > MOST_EXACT:
        hint = 'Use `search="beam"`, or at most fewer layers (`up_to`).'
        raise UsageError(f"{subsets:,} combinations are too many to try all of them.", hint=hint)
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
    return up_to, f"Larger combinations than {up_to} layers were left out, as asked." if up_to < layers else None


def _on_divisions(
    grams: PairGrams,
    divisions: Divisions,
    settings: CombineSettings,
    method: str,
    up_to: int,
    threads: int,
    progress: Progress = silent,
) -> list[BestSubsets]:
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
    grams: PairGrams, divisions: Divisions, settings: CombineSettings, up_to: int, threads: int
) -> tuple[float, tuple[int, ...]]:
    """The most a beam search loses on dev, in points, and the layers on which that was tried."""
    layers = list(range(grams.num_layers))
    if count_subsets(len(layers), up_to) > _QUICK:  # sixteen of them, at even distances
        layers = sorted({round(place) for place in np.linspace(0, layers[-1], 16)})
        up_to = min(up_to, len(layers))
    part = PairGrams(grams.forms[:, layers][:, :, layers])
    exact, beam = (_on_divisions(part, divisions, settings, method, up_to, threads) for method in ("exact", "beam"))
    losses = [best_of(true).score - best_of(found).score for true, found in zip(exact, beam, strict=True)]
    return 100 * max(losses), tuple(layers)


def _rule(head: Dense | None) -> Maximum | Head:
    if head is None:
        return Maximum()
    weight, bias = (value.detach().double().cpu().numpy() for value in (head.linear.weight, head.linear.bias))
    return Head(weight, bias)


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


def combined_encoder(
    encoder: Encoder, layers: Sequence[int], *, over: Over = "mean", head: Dense | None = None
) -> Encoder:
    """The encoder cut above the highest of `layers`, whose vectors are the mean or maximum over just these layers.

    One layer alone is an ordinary truncated model. A mean over layers is one that sentence-transformers has itself, if
    the model does not end in a norm and its tokens are not pooled by their maximum; otherwise, and for a maximum over
    layers, a `LayerPooling` travels with the saved folder. A final Normalize is kept; heads and other modules after
    pooling were trained for other states and are left out. `save_encoder`, `export_onnx` and everything else take it
    like any encoder.

    Args:
        encoder: Is cut above the highest of `layers`.
        layers: Over which vectors are the mean or maximum.
        over: Mean or maximum.
        head: The trained pooler the mean goes through.

    Raises:
        ModelError: No layers, or a norm of an unknown kind.
        LayerNotHeldError: A layer exists, but a model cut there cannot be saved exactly.
        LayerOutOfRangeError: A layer does not exist.
    """
    chosen = tuple(sorted(set(layers)))
    if not chosen:
        raise ModelError("A combination of no layers has no vectors.", hint="Name one layer or more.")
    if chosen[0] < 0:
        raise LayerOutOfRangeError(chosen[0], encoder.depth)
    cut = truncate(encoder, chosen[-1])
    cut.heads = None  # they would take the place of the combination
    if len(chosen) == 1:
        cut.pool_with(None)
    elif over == "mean" and cut.pooling != "max" and cut.final_norm is None:
        cut.combine_layers(chosen)
    else:
        cut.pool_with(_layer_pooling(cut, chosen, over))
    tail: list[nn.Module] = [copy.deepcopy(head)] if head is not None else []
    if len(encoder.tail) and isinstance(encoder.tail[-1], Normalize):
        tail.append(Normalize())
    cut.tail = nn.ModuleList(tail).to(cut.device)
    return cut


def _layer_pooling(encoder: Encoder, layers: Sequence[int], over: Over) -> LayerPooling:
    """The pooling over these layers, with a copy of the norm that the model ends in."""
    norm = encoder.final_norm
    pooling = LayerPooling(encoder.width, layers=layers, over=over, tokens=encoder.pooling, **norm_settings(norm))
    if norm is not None and pooling.norm is not None:
        pooling.norm.load_state_dict(norm.state_dict())
    return pooling.to(encoder.device).train(encoder.training)


def norm_settings(norm: nn.Module | None) -> dict[str, Any]:
    """What `LayerPooling` has to know to hold a copy of this norm. Raises `ModelError` for a kind it does not know."""
    if norm is None:
        return {}
    if isinstance(norm, nn.LayerNorm):
        return {"norm": "layer", "eps": norm.eps, "bias": norm.bias is not None}
    if isinstance(eps := getattr(norm, "variance_epsilon", None), float):  # what qwen2 and llama call it
        return {"norm": "rms", "eps": eps}
    raise ModelError(
        f"The model ends in a {type(norm).__name__}, which a combination of its layers cannot take with it.",
        hint="Use `up_to=1` to find the best single layer: that can be saved.",
    )
