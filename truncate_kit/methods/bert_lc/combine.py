"""Combine layers as in BERT-LC (Hosseini, Munia and Khan, Findings of EMNLP 2023)."""

import copy
from collections.abc import Callable, Sequence
from functools import cache, partial
from math import comb
from statistics import fmean
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from truncate_kit.core.errors import DataError, ModelError, UsageError, counted
from truncate_kit.core.hardware import check_threads
from truncate_kit.core.progress import Progress, ProgressOption, reporter
from truncate_kit.core.vectors import FEWEST_COMPARED
from truncate_kit.data.pairs import PairSet, TextPair, index_texts, split_pairs
from truncate_kit.methods.bert_lc.search import (
    BestSubsets,
    Floats,
    PairGrams,
    PairStates,
    RankCorrelation,
    Ranked,
    count_subsets,
    largest_size,
    layers_in,
    pair_grams,
    row_cosines,
    search_beam,
    search_exact,
    search_states,
)
from truncate_kit.methods.bert_lc.settings import (
    CLS,
    LAST,
    LAST_FOUR,
    MOST_EXACT,
    MOST_LAYERS,
    POOLER,
    RANDOM,
    Combination,
    CombinationReport,
    CombineSettings,
    SplitReport,
)
from truncate_kit.models.encoder import Encoder
from truncate_kit.models.layer_pooling import LayerPooling, Over, pool
from truncate_kit.models.pipeline import Dense, Normalize
from truncate_kit.models.truncation import iter_states, truncate

RANDOM_DRAWS = 100
_WINDOW = 2_048  # pairs in memory at a time


Side = tuple[list[int], RankCorrelation]
"""Indices of dev or test pairs, and the correlation with their targets."""


def divide(pairs: PairSet, seed: int, dev_pairs: int) -> tuple[Side, Side]:
    """Split pairs at random into `dev_pairs` for dev and the rest for test; pairs of the same texts stay together.

    Raises `DataError` if a correlation is undefined.
    """
    share = dev_pairs / len(pairs)
    drawn = split_pairs(pairs, seed, (0.0, share, 1 - share)).dev or ()
    dev = {frozenset((pair.first, pair.second)) for pair in drawn}
    places: tuple[list[int], list[int]] = ([], [])
    for place, pair in enumerate(pairs):
        places[frozenset((pair.first, pair.second)) not in dev].append(place)
    scores = pairs.scores()
    on_dev, on_test = ((side, RankCorrelation([scores[place] for place in side])) for side in places)
    return on_dev, on_test


def combine(
    encoder: Encoder,
    pairs: PairSet,
    *,
    settings: CombineSettings | None = None,
    head: Dense | None = None,
    threads: int = 1,
    progress: ProgressOption = False,
) -> CombinationReport:
    """Find the combination of layers with the best Spearman correlation between cosines and scores of graded pairs.

    On each random split, the best combination on dev is scored on test. Pooled states are combined;
    modules after pooling are not applied.

    Args:
        encoder: Model; stays unchanged.
        pairs: Graded pairs.
        settings: Search settings.
        head: Trained pooler, for the baseline "CLS pooler" and `settings.head`.
        threads: Cores for the exact search.
        progress: A `ProgressOption`.

    Raises:
        DataError: Too few pairs, or no combination has a correlation.
        ModelError: The head is missing, or a state is not finite or all zeros.
        UsageError: Too many combinations.
    """
    start, progress = perf_counter(), reporter(progress)
    settings, threads = settings or CombineSettings(), check_threads(threads) or 1
    if len(pairs) < 8:
        problem = f"{pairs.name} holds {counted(len(pairs), 'pair')}: too few to choose a combination and test it."
        raise DataError(problem, hint="Give at least 8 pairs; a few hundred give a stable choice.")
    num_dev = min(settings.dev_pairs, len(pairs) // 2)
    divisions = [divide(pairs, seed, num_dev) for seed in range(settings.splits)]
    dev_sides = [dev for dev, _ in divisions]
    if settings.head and head is None:
        raise ModelError(f"{encoder.name} has no pooler head.", hint="Leave out `head`.")
    method, up_to = _plan(encoder.depth + 1, settings)
    scorer, first_tokens = _read(encoder, pairs, settings, head, progress)
    every = _search(scorer, dev_sides, settings, method, up_to, threads, progress)
    splits = tuple(
        _split_report(scorer, first_tokens, seed, divisions[seed], best, up_to) for seed, best in enumerate(every)
    )

    def mean_on_dev(layers: tuple[int, ...]) -> float:
        cosines = scorer.cosines(layers)
        return fmean(score for side in dev_sides if (score := _points(side, cosines)) is not None)

    means = {layers: mean_on_dev(layers) for layers in {split.best[0] for split in splits}}
    chosen = max(means, key=lambda layers: (means[layers], -len(layers), -sum(1 << layer for layer in layers)))
    rest = sorted(set(range(len(pairs))).difference(*(places for places, _ in dev_sides)))
    unseen, targets = None, [pairs.pairs[place].target for place in rest]
    if len(rest) >= FEWEST_COMPARED and len(set(targets)) > 1:
        unseen = _points((rest, RankCorrelation(targets)), scorer.cosines(chosen))
    return CombinationReport(
        model=encoder.name,
        data=pairs.name,
        settings=settings,
        pooling=encoder.state_pooling,
        depth=encoder.depth,
        method=method,
        up_to=up_to,
        num_subsets=every[0].count,
        num_pairs=len(pairs),
        splits=splits,
        chosen=chosen,
        chosen_dev=means[chosen],
        unseen=unseen,
        num_unseen=len(rest),
        seconds=perf_counter() - start,
    )


def _plan(layers: int, settings: CombineSettings) -> tuple[str, int]:
    if not settings.has_grams:
        return "exact", min(settings.up_to or layers, largest_size(layers))
    if layers > MOST_LAYERS:
        hint = "Cut the model first, with `truncate()`."
        raise UsageError(f"The model has {layers} layers; the search handles at most {MOST_LAYERS}.", hint=hint)
    up_to = min(settings.up_to or layers, layers)
    subsets = count_subsets(layers, up_to)
    if settings.search == "exact" and subsets > MOST_EXACT:
        hint = 'Use `search="beam"`, or combine fewer layers (`up_to`).'
        raise UsageError(f"{subsets:,} combinations are too many for an exact search.", hint=hint)
    return ("beam" if settings.search == "beam" or subsets > MOST_EXACT else "exact"), up_to


def _read(
    encoder: Encoder, pairs: PairSet, settings: CombineSettings, head: Dense | None, progress: Progress
) -> tuple[PairGrams | PairStates, Floats]:
    """Return the scorer of pairs, and cosines (1 or 2, n) of the last CLS state: plain, and after any pooler."""
    first_tokens: list[Floats] = []

    def read(window: Sequence[TextPair]) -> tuple[Tensor, list[int], list[int]]:
        """Return states (L', texts, d) of distinct texts, and each side's row indices."""
        texts, (first, second) = index_texts(window)
        states = torch.empty(encoder.depth + 1, len(texts), encoder.width, dtype=torch.float32)
        cls = torch.empty(len(texts), encoder.width, dtype=torch.float32)
        for ((places, pooled, hidden, mask),) in iter_states([encoder], texts, progress=progress):
            states[:, places] = pooled
            cls[places] = pool(hidden[-1], mask, "cls").float().cpu()
        with torch.no_grad():
            every = [cls] if head is None else [cls, head.cpu()(cls)]
        cosines = [row_cosines(rows[first].double().numpy(), rows[second].double().numpy()) for rows in every]
        first_tokens.append(np.stack(cosines))
        return states, first, second

    if not settings.has_grams:
        return PairStates(*read(pairs.pairs), head if settings.head else None), first_tokens[0]
    windows = [pairs.pairs[start : start + _WINDOW] for start in range(0, len(pairs), _WINDOW)]
    forms = [pair_grams(*read(window), threads=torch.get_num_threads()).forms for window in windows]
    return PairGrams(np.concatenate(forms, axis=3)), np.concatenate(first_tokens, axis=1)


def _search(
    scorer: PairGrams | PairStates,
    sides: Sequence[Side],
    settings: CombineSettings,
    method: str,
    up_to: int,
    threads: int,
    progress: Progress,
) -> list[BestSubsets]:
    if isinstance(scorer, PairStates):
        union = sorted({place for places, _ in sides for place in places})
        parts = [(np.searchsorted(union, places).tolist(), ranks) for places, ranks in sides]
        return search_states(scorer.select(union), parts, up_to=up_to, progress=progress)
    beam, exact = partial(search_beam, width=settings.width), partial(search_exact, threads=threads)
    search: Callable[..., BestSubsets] = beam if method == "beam" else exact
    return [search(scorer.select(places), ranks, up_to=up_to, progress=progress) for places, ranks in sides]


def _points(side: Side, cosines: Floats) -> float | None:
    places, ranks = side
    if not np.isfinite(cosines[places]).all():
        return None
    score = float(ranks.of(cosines[None, places])[0])
    return None if np.isnan(score) else 100 * score


def _split_report(
    scorer: PairGrams | PairStates,
    first_tokens: Floats,
    seed: int,
    division: tuple[Side, Side],
    best_subsets: BestSubsets,
    up_to: int,
) -> SplitReport:
    @cache
    def scored(subset: Ranked) -> Combination | None:
        if subset[0] == -np.inf:
            return None
        layers = layers_in(-subset[2])
        return layers, 100 * subset[0], _points(division[1], scorer.cosines(layers))

    def both(cosines: Floats) -> tuple[float | None, float | None]:
        dev, test = (_points(side, cosines) for side in division)
        return dev, test

    layers = range(scorer.num_layers)
    drawn = [both(scorer.cosines(some)) for some in random_combinations(len(layers), up_to, seed)]
    known = [(dev, test) for dev, test in drawn if dev is not None and test is not None]
    baselines = {LAST: both(scorer.cosines(layers[-1:]))}
    baselines |= dict(zip((CLS, POOLER), map(both, first_tokens), strict=False))
    baselines[LAST_FOUR] = both(scorer.cosines(layers[-4:]))
    baselines[RANDOM] = (fmean(dev for dev, _ in known), fmean(test for _, test in known)) if known else (None, None)
    best = scored(best_subsets.best)
    assert best is not None
    return SplitReport(
        num_dev=len(division[0][0]),
        best=best,
        by_size=tuple(map(scored, best_subsets.by_size[:up_to])),
        without=tuple(map(scored, best_subsets.without)),
        baselines=baselines,
    )


def random_combinations(num_layers: int, up_to: int, seed: int) -> list[tuple[int, ...]]:
    """Draw `RANDOM_DRAWS` non-empty subsets of at most `up_to` layers, all equally likely."""
    generator = np.random.default_rng(seed)
    sizes = np.arange(1, up_to + 1)
    shares = np.array([comb(num_layers, int(size)) for size in sizes], dtype=np.float64)
    drawn = generator.choice(sizes, size=RANDOM_DRAWS, p=shares / shares.sum())
    return [tuple(sorted(generator.choice(num_layers, size=size, replace=False).tolist())) for size in drawn]


def combined_encoder(
    encoder: Encoder, layers: Sequence[int], *, over: Over = "mean", head: Dense | None = None
) -> Encoder:
    """Return the encoder cut above the highest of `layers`, with their mean or maximum as vectors.

    The mean is saved as standard sentence-transformers modules if the model has no final norm and no max pooling; other
    combinations are saved with a `LayerPooling`. Of the modules after pooling, only a final Normalize is kept.
    `head` is a trained pooler after the mean.

    Raises:
        ModelError: The kind of final norm is not supported.
        LayerNotHeldError: The cut model cannot be saved exactly.
        LayerOutOfRangeError: A layer does not exist.
    """
    chosen = tuple(sorted(set(layers)))
    cut = truncate(encoder, chosen[-1])
    cut.heads = None  # they would replace the combination
    norm = cut.final_norm
    if len(chosen) == 1:
        cut.pool_with(None)
    elif over == "mean" and cut.pooling != "max" and norm is None:
        cut.combine_layers(chosen)
    else:
        pooling = LayerPooling(cut.width, layers=chosen, over=over, tokens=cut.state_pooling, **norm_settings(norm))
        if norm is not None and pooling.norm is not None:
            pooling.norm.load_state_dict(norm.state_dict())
        cut.pool_with(pooling.to(cut.device).train(cut.training))
    tail: list[nn.Module] = [copy.deepcopy(head)] if head is not None else []
    if len(encoder.tail) and isinstance(encoder.tail[-1], Normalize):
        tail.append(Normalize())
    cut.tail = nn.Sequential(*tail).to(cut.device)
    return cut


def norm_settings(norm: nn.Module | None) -> dict[str, Any]:
    """Return the settings of `LayerPooling` for this norm. Raises `ModelError` for unknown norms."""
    if norm is None:
        return {}
    if isinstance(norm, nn.LayerNorm):
        return {"norm": "layer", "eps": norm.eps, "bias": norm.bias is not None}
    if isinstance(eps := getattr(norm, "variance_epsilon", None), float):  # qwen2 and llama
        return {"norm": "rms", "eps": eps}
    raise ModelError(
        f"The model ends in a {type(norm).__name__}, which cannot be saved with a combination of layers.",
        hint="Use `up_to=1` to find the best single layer: that can be saved.",
    )
