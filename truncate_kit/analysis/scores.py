"""Scores of layers that need no labels, summed over a stream: of pooled states, and of tokens."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from truncate_kit.analysis.preparing import check_same_model, check_states, require_finite
from truncate_kit.errors import UsageError, too_few_texts
from truncate_kit.results import Result


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerStateScores(Result):
    """Scores of the pooled states; index 0 = embeddings."""

    # RankMe (arXiv:2210.02885), exp of the entropy of the singular values: between 1 and the width.
    effective_rank: tuple[float, ...]
    anisotropy: tuple[float, ...]  # mean cosine of two different texts; near 1, all states have the same direction
    # Of that cosine, in its three heaviest dimensions (arXiv:2109.04404); None where it is not above 0.01.
    outlier_share: tuple[float | None, ...]
    num_texts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerTokenScores(Result):
    """The change that each block makes to its tokens; index l = from layer l to layer l + 1, one less than layers."""

    block_influence: tuple[float, ...]  # 1 − mean cosine of a token before and after (ShortGPT, arXiv:2403.03853)
    # Mean arccos of that cosine / π (PruneMe, arXiv:2403.17887; over all tokens, not the last).
    angular_distance: tuple[float, ...]
    num_tokens: int


class StateScores:
    """Accumulates `LayerStateScores` over batches of pooled states of distinct texts; memory L d²."""

    def __init__(self) -> None:
        self.count = 0
        self._moment: Tensor | None = None
        self._direction = self._squares = torch.empty(0)

    def update(self, states: Tensor) -> None:
        """Add states (L, b, d)."""
        states = check_states(states).double()
        if self._moment is None:
            layers, _, width = states.shape
            self._moment = states.new_zeros(layers, width, width)
            self._direction, self._squares = states.new_zeros(layers, width), states.new_zeros(layers, width)
        check_same_model(states, (self._direction.shape[0], self._direction.shape[1]))
        self._moment.baddbmm_(states.mT, states)
        unit = torch.nn.functional.normalize(states, dim=-1)
        self._direction += unit.sum(1)
        self._squares += unit.square().sum(1)
        self.count += states.shape[1]

    def result(self) -> LayerStateScores:
        """The scores so far. Raises `DataError` below 2 texts, `ModelError`."""
        if self._moment is None or self.count < 2:
            raise too_few_texts(self.count, needed=2)
        require_finite(self._moment.sum((1, 2)))
        # Σ over pairs i ≠ j of u_i u_j, per dimension: (Σ u)² − Σ u².
        shares = (self._direction.square() - self._squares) / (self.count * (self.count - 1))
        cosine = shares.sum(1)
        heaviest = shares.topk(min(3, shares.shape[1]), dim=1).values.sum(1)
        return LayerStateScores(
            effective_rank=tuple(_effective_rank(moment) for moment in self._moment),
            anisotropy=tuple(cosine.tolist()),
            outlier_share=tuple(
                float(top / all_) if all_ > 0.01 else None for top, all_ in zip(heaviest, cosine, strict=True)
            ),
            num_texts=self.count,
        )


class TokenScores:
    """Accumulates `LayerTokenScores` over batches of hidden states; padding is left out."""

    def __init__(self) -> None:
        self.count = 0
        self._influence = self._angle = torch.empty(0)

    def update(self, hidden_states: Sequence[Tensor], attention_mask: Tensor) -> None:
        """Add a batch.

        Args:
            hidden_states: L' tensors (b, t, d).
            attention_mask: (b, t), nonzero for real tokens.
        """
        kept = attention_mask.bool()
        if len(hidden_states) < 2 or any(layer.shape[:2] != kept.shape for layer in hidden_states):
            raise UsageError(
                f"{len(hidden_states)} layers of tokens do not fit a mask of shape {tuple(kept.shape)}.",
                hint="Give at least two layers, each of shape (texts, tokens, width), and the mask of the same batch.",
            )
        tokens = [layer[kept].float() for layer in hidden_states]
        cosines = torch.stack([_cosine(*pair) for pair in itertools.pairwise(tokens)])
        if self.count == 0:
            self._influence, self._angle = cosines.new_zeros(2, len(cosines))
        self._influence += (1 - cosines).sum(1)
        self._angle += cosines.arccos().sum(1) / math.pi
        self.count += cosines.shape[1]

    def result(self) -> LayerTokenScores:
        """The scores so far. Raises `DataError` without tokens, `ModelError`."""
        if self.count == 0:
            raise too_few_texts(0, needed=1)
        require_finite(self._influence)
        return LayerTokenScores(
            block_influence=tuple((self._influence / self.count).tolist()),
            angular_distance=tuple((self._angle / self.count).tolist()),
            num_tokens=self.count,
        )


def _cosine(first: Tensor, second: Tensor) -> Tensor:
    """Cosines of the rows of two (m, d), in float64: near 1, arccos turns float32 rounding into 3e-4."""
    first, second = first.double(), second.double()
    return torch.nn.functional.cosine_similarity(first, second, dim=-1).clamp(-1, 1)


def _effective_rank(moment: Tensor) -> float:
    """exp(−Σ p log p), p the singular values over their sum, from the second moments zᵀz (d, d) of the states."""
    values = torch.linalg.eigvalsh(moment).clamp_min(0).sqrt()
    shares = values / values.sum().clamp_min(torch.finfo(values.dtype).tiny)
    return float(torch.special.entr(shares).sum().exp())
