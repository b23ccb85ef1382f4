"""Pairs of texts in, what their combinations need out; and the division of the pairs into dev and test."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from truncate_kit.combine.grams import Floats, PairGrams, cosines_of, pair_grams
from truncate_kit.combine.ranking import RankCorrelation
from truncate_kit.combine.statewise import Rule, StatePairs
from truncate_kit.data import PairSet, TextPair, split_pairs
from truncate_kit.encoders import Encoder, pool
from truncate_kit.errors import DataError
from truncate_kit.progress import Progress, silent
from truncate_kit.representations import iter_states

_WINDOW = 2_048  # pairs whose states are held at a time


class Scorer(Protocol):
    """Pairs whose combinations have cosines."""

    def cosines(self, layers: Sequence[int]) -> Floats:
        """Cosine of the combination of these layers for each pair, (n,)."""


@dataclass(frozen=True, slots=True)
class Division:
    """Places of the dev and the test pairs, and the correlation with their targets."""

    seed: int
    dev: list[int]
    test: list[int]
    dev_ranks: RankCorrelation
    test_ranks: RankCorrelation


def divide(pairs: PairSet, seed: int, dev_pairs: int) -> Division:
    """Draw `dev_pairs` pairs for dev, the rest is test; rows with the same two texts stay on one side.

    Raises `DataError` when either side has too few pairs, or one score only.
    """
    share = dev_pairs / len(pairs)
    dev = {frozenset((pair.first, pair.second)) for pair in split_pairs(pairs, seed, (0.0, share, 1 - share)).dev or ()}
    sides: dict[bool, list[int]] = {True: [], False: []}
    for place, pair in enumerate(pairs):
        sides[frozenset((pair.first, pair.second)) in dev].append(place)
    scores = pairs.scores()
    ranks = {side: RankCorrelation([scores[place] for place in places]) for side, places in sides.items()}
    return Division(seed, sides[True], sides[False], ranks[True], ranks[False])


def dev_size(pairs: PairSet, wanted: int) -> int:
    """Pairs to choose on: as many as wanted, at most half of all. Raises `DataError` for fewer than eight pairs."""
    if len(pairs) < 8:
        raise DataError(
            f"{pairs.name} holds {len(pairs)} pairs: too few to choose a combination on some and test it on others.",
            hint="Give at least 8 pairs; some hundred make the choice steady.",
        )
    return min(wanted, len(pairs) // 2)


def read_grams(encoder: Encoder, pairs: PairSet, progress: Progress = silent) -> tuple[PairGrams, Floats]:
    """The Gram matrices of all pairs, and their cosines by the CLS state of the last layer; window by window."""
    forms, cls = [], []
    for start in range(0, len(pairs), _WINDOW):
        window = pairs.pairs[start : start + _WINDOW]
        states, firsts, first, second = _states(encoder, window, progress)
        forms.append(pair_grams(states, first, second, threads=torch.get_num_threads()).forms)
        cls.append(_plain_cosines(firsts, first, second))
    return PairGrams(np.concatenate(forms, axis=3)), np.concatenate(cls)


def read_state_pairs(
    encoder: Encoder, pairs: PairSet, rule: Rule, progress: Progress = silent
) -> tuple[StatePairs, Floats]:
    """The states of all pairs under a rule, in memory, and their cosines by the CLS state of the last layer."""
    states, firsts, first, second = _states(encoder, pairs.pairs, progress)
    return StatePairs.of(states, first, second, rule), _plain_cosines(firsts, first, second)


def _states(
    encoder: Encoder, pairs: Sequence[TextPair], progress: Progress
) -> tuple[Tensor, Tensor, list[int], list[int]]:
    """States (L', texts, d) of the distinct texts, CLS states (texts, d) of the last layer, places of both sides."""
    texts = list(dict.fromkeys(text for pair in pairs for text in (pair.first, pair.second)))
    place = {text: index for index, text in enumerate(texts)}
    states = torch.empty(encoder.depth + 1, len(texts), encoder.width)
    cls = torch.empty(len(texts), encoder.width)
    for batch in iter_states(encoder, texts, progress=progress):
        states[:, batch.places] = batch.states
        cls[batch.places] = pool(batch.hidden_states[-1], batch.attention_mask, "cls").float().cpu()
    return states, cls, [place[pair.first] for pair in pairs], [place[pair.second] for pair in pairs]


def _plain_cosines(vectors: Tensor, first: list[int], second: list[int]) -> Floats:
    a, b = vectors[first].double().numpy(), vectors[second].double().numpy()
    return cosines_of(np.stack([np.einsum("nd,nd->n", x, y) for x, y in ((a, a), (b, b), (a, b))]))
