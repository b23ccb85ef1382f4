"""From pairs of texts to what the cosines of their combinations follow from: Gram matrices, or states."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from truncate_kit.data import PairSet, PlacedPairs, TextPair
from truncate_kit.methods.bert_lc.grams import Floats, PairGrams, pair_grams, row_cosines
from truncate_kit.methods.bert_lc.statewise import Rule, StatePairs
from truncate_kit.models import Encoder, pool
from truncate_kit.models.tail import Dense
from truncate_kit.progress import Progress, silent
from truncate_kit.representations import iter_states

_WINDOW = 2_048  # pairs whose states are held at a time


class Scorer(Protocol):
    """Pairs whose combinations have cosines."""

    def cosines(self, layers: Sequence[int]) -> Floats:
        """Cosine of the combination of these layers for each pair, (n,)."""


def read_grams(
    encoder: Encoder, pairs: PairSet, pooler: Dense | None = None, progress: Progress = silent
) -> tuple[PairGrams, Floats]:
    """The Gram matrices of all pairs, and `_first_cosines`; window by window."""
    forms, cls = [], []
    for start in range(0, len(pairs), _WINDOW):
        window = pairs.pairs[start : start + _WINDOW]
        states, firsts, first, second = _states(encoder, window, progress)
        forms.append(pair_grams(states, first, second, threads=torch.get_num_threads()).forms)
        cls.append(_first_cosines(firsts, first, second, pooler))
    return PairGrams(np.concatenate(forms, axis=3)), np.concatenate(cls, axis=1)


def read_state_pairs(
    encoder: Encoder, pairs: PairSet, rule: Rule, pooler: Dense | None = None, progress: Progress = silent
) -> tuple[StatePairs, Floats]:
    """The states of all pairs under a rule, in memory, and `_first_cosines`."""
    states, firsts, first, second = _states(encoder, pairs.pairs, progress)
    return StatePairs.of(states, first, second, rule), _first_cosines(firsts, first, second, pooler)


def _states(
    encoder: Encoder, pairs: Sequence[TextPair], progress: Progress
) -> tuple[Tensor, Tensor, list[int], list[int]]:
    """States (L', texts, d) of the distinct texts, CLS states (texts, d) of the last layer, places of both sides."""
    texts, first, second = PlacedPairs.of(pairs)
    states = torch.empty(encoder.depth + 1, len(texts), encoder.width, dtype=torch.float32)
    cls = torch.empty(len(texts), encoder.width, dtype=torch.float32)
    for batch in iter_states(encoder, texts, progress=progress):
        states[:, batch.places] = batch.states
        cls[batch.places] = pool(batch.hidden_states[-1], batch.attention_mask, "cls").float().cpu()
    return states, cls, first, second


def _first_cosines(cls: Tensor, first: list[int], second: list[int], pooler: Dense | None) -> Floats:
    """Cosines of n pairs by the last layer's CLS states (texts, d), and by these through the pooler, (1 or 2, n)."""
    every = [cls]
    if pooler is not None:
        with torch.no_grad():
            every.append(pooler.cpu()(cls))
    return np.stack([row_cosines(rows[first].double().numpy(), rows[second].double().numpy()) for rows in every])
