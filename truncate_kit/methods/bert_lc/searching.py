"""The search for the best combinations: which of the searches is possible, and what it finds on each division."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from truncate_kit.data import PairSet, check_set, split_pairs
from truncate_kit.errors import DataError, ModelError, UsageError
from truncate_kit.methods.bert_lc.beam import search_beam
from truncate_kit.methods.bert_lc.best_subsets import BestSubsets, ScoredSubset
from truncate_kit.methods.bert_lc.exact import count_subsets, search_exact
from truncate_kit.methods.bert_lc.grams import Floats, PairGrams
from truncate_kit.methods.bert_lc.pair_states import Scorer, read_grams, read_state_pairs
from truncate_kit.methods.bert_lc.ranking import RankCorrelation
from truncate_kit.methods.bert_lc.settings import MOST_EXACT, MOST_LAYERS, CombineSettings
from truncate_kit.methods.bert_lc.statewise import MOST_SUBSETS, Head, Maximum, largest_size, search_states
from truncate_kit.models import Encoder
from truncate_kit.models.tail import Dense
from truncate_kit.progress import Progress, silent
from truncate_kit.wording import counted

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
    check_set(pairs)
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
