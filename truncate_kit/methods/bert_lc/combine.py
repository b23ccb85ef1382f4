"""BERT-LC (Hosseini, Munia and Khan, Findings of EMNLP 2023): which layers to combine, and what that gains."""

import copy
from collections.abc import Sequence
from functools import cache
from math import comb
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from truncate_kit.core.errors import DataError, LayerOutOfRangeError, ModelError, UsageError
from truncate_kit.core.hardware import check_threads
from truncate_kit.core.progress import Progress, ProgressOption, reporter, silent
from truncate_kit.core.wording import FEWEST_COMPARED, counted
from truncate_kit.data.pairs import PairSet, PlacedPairs, TextPair, split_pairs
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
    BestSubsets,
    Floats,
    PairGrams,
    RankCorrelation,
    ScoredSubset,
    StatePairs,
    count_subsets,
    largest_size,
    pair_grams,
    row_cosines,
    search_beam,
    search_exact,
    search_states,
)
from truncate_kit.methods.bert_lc.settings import MOST_EXACT, MOST_LAYERS, CombineSettings
from truncate_kit.models.encoder import Encoder
from truncate_kit.models.layer_pooling import LayerPooling, Over, pool
from truncate_kit.models.pipeline import Dense, Normalize
from truncate_kit.models.truncation import iter_states, truncate

RANDOM_DRAWS = 100
_QUICK = 2**16 - 1  # subsets that are tried exactly to say what a beam search loses
_WINDOW = 2_048  # pairs whose states are held at a time


class Division:
    """Places of the dev and the test pairs, and the correlation with their targets.

    Pairs with the same two texts stay on one side. Raises `DataError`.

    Args:
        pairs: That are divided.
        seed: Draws them.
        dev_pairs: Number of those for dev.
    """

    def __init__(self, pairs: PairSet, seed: int, dev_pairs: int) -> None:
        share = dev_pairs / len(pairs)
        drawn = split_pairs(pairs, seed, (0.0, share, 1 - share)).dev or ()
        dev = {frozenset((pair.first, pair.second)) for pair in drawn}
        self.seed = seed
        self.dev, self.test = list[int](), list[int]()
        for place, pair in enumerate(pairs):
            (self.dev if frozenset((pair.first, pair.second)) in dev else self.test).append(place)
        scores = pairs.scores()
        self.dev_ranks, self.test_ranks = (
            RankCorrelation([scores[place] for place in side]) for side in (self.dev, self.test)
        )


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
    start, progress = perf_counter(), reporter(progress)
    settings, threads = settings or CombineSettings(), check_threads(threads) or 1
    if len(pairs) < 8:
        raise DataError(
            f"{pairs.name} holds {counted(len(pairs), 'pair')}: too few to choose a combination on some and test it on "
            "others.",
            hint="Give at least 8 pairs; some hundred make the choice steady.",
        )
    num_dev = min(settings.dev_pairs, len(pairs) // 2)
    divisions = [Division(pairs, seed, num_dev) for seed in range(settings.splits)]
    if settings.head and head is None:
        raise ModelError(f"{encoder.name} comes without a pooler head.", hint="Leave out `head`.")
    method, up_to = _plan(encoder.depth + 1, settings)
    scorer, first_tokens = _read(encoder, pairs, settings, head, progress)
    beam_loss = beam_layers = None
    if isinstance(scorer, PairGrams):
        found = _search_means(scorer, divisions, settings, method, up_to, threads, progress)
        if method == "beam":
            beam_loss, beam_layers = _beam_loss(scorer, divisions, settings, up_to, threads)
    else:
        union = sorted({place for division in divisions for place in division.dev})
        where = {place: index for index, place in enumerate(union)}
        parts = [([where[place] for place in division.dev], division.dev_ranks) for division in divisions]
        found = search_states(scorer.select(union), parts, up_to=up_to, progress=progress)
    splits = tuple(
        _split_report(scorer, first_tokens, division, best, up_to)
        for division, best in zip(divisions, found, strict=True)
    )
    chosen = _choose(scorer, divisions, splits)
    unseen, num_unseen = _unseen(scorer, pairs, divisions, chosen.layers)
    return CombinationReport(
        model=encoder.name,
        data=pairs.name,
        settings=settings,
        pooling=encoder.pooling,
        depth=encoder.depth,
        method=method,
        up_to=up_to,
        num_subsets=found[0].count,
        num_pairs=len(pairs),
        splits=splits,
        chosen=chosen.layers,
        chosen_dev=chosen.score,
        unseen=unseen,
        num_unseen=num_unseen,
        beam_loss=beam_loss,
        beam_layers=beam_layers,
        seconds=perf_counter() - start,
    )


def _plan(layers: int, settings: CombineSettings) -> tuple[str, int]:
    """Return the method and the largest size, of layers that are searched. Raises `UsageError`."""
    if not settings.has_grams:
        return "exact", min(settings.up_to or layers, largest_size(layers))
    if layers > MOST_LAYERS:
        hint = "Cut the model first, with `truncate()`."
        raise UsageError(f"Combinations of {layers} layers are not searched; {MOST_LAYERS} are the most.", hint=hint)
    up_to = min(settings.up_to or layers, layers)
    subsets = count_subsets(layers, up_to)
    if settings.search == "exact" and subsets > MOST_EXACT:
        hint = 'Use `search="beam"`, or at most fewer layers (`up_to`).'
        raise UsageError(f"{subsets:,} combinations are too many to try all of them.", hint=hint)
    return ("beam" if settings.search == "beam" or subsets > MOST_EXACT else "exact"), up_to


def _read(
    encoder: Encoder, pairs: PairSet, settings: CombineSettings, head: Dense | None, progress: Progress
) -> tuple[PairGrams | StatePairs, Floats]:
    """Return what the pairs' cosines follow from, and their cosines by the first token of the last layer.

    The latter (1 or 2, n) are those of its states, and of these through the pooler where there is one.
    """
    first_tokens: list[Floats] = []

    def read(window: Sequence[TextPair]) -> tuple[Tensor, list[int], list[int]]:
        """Return states (L', texts, d) of the distinct texts, and the places of both sides."""
        texts, first, second = PlacedPairs.of(window)
        states = torch.empty(encoder.depth + 1, len(texts), encoder.width, dtype=torch.float32)
        cls = torch.empty(len(texts), encoder.width, dtype=torch.float32)
        for batch in iter_states(encoder, texts, progress=progress):
            states[:, batch.places] = batch.states
            cls[batch.places] = pool(batch.hidden_states[-1], batch.attention_mask, "cls").float().cpu()
        with torch.no_grad():
            every = [cls] if head is None else [cls, head.cpu()(cls)]
        cosines = [row_cosines(rows[first].double().numpy(), rows[second].double().numpy()) for rows in every]
        first_tokens.append(np.stack(cosines))
        return states, first, second

    if not settings.has_grams:
        scorer = StatePairs(*read(pairs.pairs), head if settings.head else None)
        return scorer, first_tokens[0]
    windows = [pairs.pairs[start : start + _WINDOW] for start in range(0, len(pairs), _WINDOW)]
    forms = [pair_grams(*read(window), threads=torch.get_num_threads()).forms for window in windows]
    return PairGrams(np.concatenate(forms, axis=3)), np.concatenate(first_tokens, axis=1)


def _search_means(
    grams: PairGrams,
    divisions: Sequence[Division],
    settings: CombineSettings,
    method: str,
    up_to: int,
    threads: int,
    progress: Progress = silent,
) -> list[BestSubsets]:
    """Search combinations by their mean on the dev pairs of each division."""
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
    """Return the most points that a beam search loses on dev, and the layers on which that was tried."""
    layers = list(range(grams.num_layers))
    if count_subsets(len(layers), up_to) > _QUICK:  # sixteen of them, at even distances
        layers = sorted({round(place) for place in np.linspace(0, layers[-1], 16)})
        up_to = min(up_to, len(layers))
    part = PairGrams(grams.forms[:, layers][:, :, layers])
    exact, beam = (_search_means(part, divisions, settings, method, up_to, threads) for method in ("exact", "beam"))
    return 100 * max(true.best.score - found.best.score for true, found in zip(exact, beam, strict=True)), tuple(layers)


def _points(ranks: RankCorrelation, cosines: Floats) -> float | None:
    """Return Spearman × 100; None where it is not defined."""
    if not np.isfinite(cosines).all():
        return None
    score = float(ranks.of(cosines[None].copy())[0])
    return None if np.isnan(score) else 100 * score


def _split_report(
    scorer: PairGrams | StatePairs, first_tokens: Floats, division: Division, found: BestSubsets, up_to: int
) -> SplitReport:
    @cache
    def scored(subset: ScoredSubset) -> Combination:
        test = _points(division.test_ranks, scorer.cosines(subset.layers)[division.test])
        return Combination(layers=subset.layers, dev=100 * subset.score, test=test)

    def report(subsets: Sequence[ScoredSubset | None]) -> tuple[Combination | None, ...]:
        return tuple(None if subset is None else scored(subset) for subset in subsets)

    return SplitReport(
        seed=division.seed,
        num_dev=len(division.dev),
        num_test=len(division.test),
        best=scored(found.best),
        by_size=report(found.by_size[:up_to]),
        without=report(found.without),
        baselines=_baselines(scorer, first_tokens, division, up_to),
    )


def _baselines(
    scorer: PairGrams | StatePairs, first_tokens: Floats, division: Division, up_to: int
) -> tuple[Baseline, ...]:
    """Score `BASELINES`, the pooler where there is one; random: the mean score of combinations drawn at random."""

    def both(cosines: Floats) -> tuple[float | None, float | None]:
        return _points(division.dev_ranks, cosines[division.dev]), _points(division.test_ranks, cosines[division.test])

    layers = range(scorer.num_layers)
    drawn = [both(scorer.cosines(some)) for some in random_combinations(len(layers), up_to, division.seed)]
    known = [(dev, test) for dev, test in drawn if dev is not None and test is not None]
    rows = {LAST: both(scorer.cosines(layers[-1:])), **dict(zip((CLS, POOLER), map(both, first_tokens), strict=False))}
    rows[LAST_FOUR] = both(scorer.cosines(layers[-4:]))
    rows[RANDOM] = (None, None)
    if known:
        rows[RANDOM] = sum(dev for dev, _ in known) / len(known), sum(test for _, test in known) / len(known)
    return tuple(Baseline(name=name, dev=dev, test=test) for name, (dev, test) in rows.items())


def random_combinations(num_layers: int, up_to: int, seed: int) -> list[tuple[int, ...]]:
    """Draw combinations evenly from all non-empty subsets of at most `up_to` layers."""
    generator = np.random.default_rng(seed)
    sizes = np.arange(1, up_to + 1)
    shares = np.array([comb(num_layers, int(size)) for size in sizes], dtype=np.float64)
    drawn = generator.choice(sizes, size=RANDOM_DRAWS, p=shares / shares.sum())
    return [tuple(sorted(generator.choice(num_layers, size=size, replace=False).tolist())) for size in drawn]


def _choose(
    scorer: PairGrams | StatePairs, divisions: Sequence[Division], splits: Sequence[SplitReport]
) -> ScoredSubset:
    """Return the splits' best combination with the best mean dev score over all splits."""
    found = []
    for layers in {split.best.layers for split in splits}:
        cosines = scorer.cosines(layers)
        scores = [_points(division.dev_ranks, cosines[division.dev]) for division in divisions]
        known = [score for score in scores if score is not None]
        found.append(ScoredSubset(sum(1 << layer for layer in layers), sum(known) / len(known)))
    return max(found, key=ScoredSubset.rank)


def _unseen(
    scorer: PairGrams | StatePairs, pairs: PairSet, divisions: Sequence[Division], layers: tuple[int, ...]
) -> tuple[float | None, int]:
    """Return the score on the pairs that no split chose on, and the number of them."""
    rest = sorted(set(range(len(pairs))).difference(*(division.dev for division in divisions)))
    every = pairs.scores()
    scores = [every[place] for place in rest]
    if len(set(scores)) < 2 or len(rest) < FEWEST_COMPARED:
        return None, len(rest)
    return _points(RankCorrelation(scores), scorer.cosines(layers)[rest]), len(rest)


def combined_encoder(
    encoder: Encoder, layers: Sequence[int], *, over: Over = "mean", head: Dense | None = None
) -> Encoder:
    """Return the encoder cut above the highest of `layers`, whose vectors are the mean or maximum over these layers.

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
    norm = cut.final_norm
    if len(chosen) == 1:
        cut.pool_with(None)
    elif over == "mean" and cut.pooling != "max" and norm is None:
        cut.combine_layers(chosen)
    else:
        pooling = LayerPooling(cut.width, layers=chosen, over=over, tokens=cut.pooling, **norm_settings(norm))
        if norm is not None and pooling.norm is not None:
            pooling.norm.load_state_dict(norm.state_dict())
        cut.pool_with(pooling.to(cut.device).train(cut.training))
    tail: list[nn.Module] = [copy.deepcopy(head)] if head is not None else []
    if len(encoder.tail) and isinstance(encoder.tail[-1], Normalize):
        tail.append(Normalize())
    cut.tail = nn.ModuleList(tail).to(cut.device)
    return cut


def norm_settings(norm: nn.Module | None) -> dict[str, Any]:
    """Return what `LayerPooling` needs to hold a copy of this norm. Raises `ModelError` for a kind it does not know."""
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
