"""Linear CKA over a stream of batches: exact, in memory that does not grow with the number of texts.

In feature space every HSIC term is a function of sums over the texts. With z, w the states of two layers, shifted by
the first batch's means, and m, p the means that remain,

    ⟨K, L⟩  = ‖Σ z wᵀ − n m pᵀ‖²     (K, L: Gram matrices of the centred states)
    k · l   = Σ |z − m|² |w − p|²     (k, l: their diagonals)

and the unbiased HSIC follows from these two and Σ k, Σ l, because a centred Gram matrix has zero row sums.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from truncate_kit.analysis.hsic import (
    ROUNDING,
    biased_from_sums,
    check_pair,
    check_same_model,
    check_states,
    meaningful,
    normalised,
    require_finite,
    require_positive,
    unbiased_from_sums,
    unit_scale,
)
from truncate_kit.core.errors import LayerOutOfRangeError, UsageError, too_few_texts
from truncate_kit.core.results import Result

# Texts gathered before the sums are touched: adding to L² d² float64 sums costs as much as a product of some 200.
BUFFERED_TEXTS = 2048
PRODUCT_TEXTS = 512  # texts in one float32 product: fewer are more exact, more are faster


class _Layers:
    """The states of one model: gathered, shifted, and their own sums."""

    def __init__(self, states: Tensor) -> None:
        self.scale = unit_scale(states)
        self.shift = states.mean(1, keepdim=True)
        self.shape, self.dtype = (states.shape[0], states.shape[2]), states.dtype
        self.total = torch.zeros(self.shape, dtype=torch.float64)  # Σ z
        self.squares = torch.zeros(self.shape[0], dtype=torch.float64)  # Σ |z|²
        self.pending: list[Tensor] = []

    def add(self, states: Tensor) -> None:
        check_same_model(states, self.shape)
        self.pending.append((states.to(self.dtype) - self.shift).mul_(self.scale))

    def take(self) -> tuple[Tensor, Tensor]:
        """The gathered states (L, b, d) and their squared lengths (L, b) in float64."""
        states = torch.cat(self.pending, 1) if len(self.pending) > 1 else self.pending[0]
        self.pending = []
        lengths = torch.linalg.vector_norm(states, dim=-1).double().square()
        self.total += states.sum(1, dtype=torch.float64)
        self.squares += lengths.sum(1)
        return states, lengths

    def own_hsic(self, sums: "_PairSums", count: int, *, debiased: bool) -> Tensor:
        """HSIC of each layer with itself, (L,): 0 where states are constant, NaN for layers not in `sums`."""
        require_finite(self.squares)
        values = torch.full_like(self.squares, torch.nan)
        values[[i for i, _ in sums.pairs]] = sums.hsic(count, debiased=debiased)
        mean = self.total / count
        spread = self.squares / count - mean.square().sum(1)
        whole = mean + (self.shift * self.scale)[:, 0].double()
        constant = spread <= ROUNDING**2 * whole.square().sum(1)
        return torch.where(constant, 0.0, meaningful(values, spread, torch.finfo(self.dtype).eps))


class _PairSums:
    """Sums over the texts for given pairs of layers of two models."""

    def __init__(self, x: _Layers, y: _Layers, pairs: Sequence[tuple[int, int]]) -> None:
        self.x, self.y, self.pairs = x, y, pairs
        (_, dx), (_, dy) = x.shape, y.shape
        self.cross = torch.zeros(len(pairs), dx, dy, dtype=torch.float64)  # Σ z wᵀ
        self.lengths = torch.zeros(len(pairs), dtype=torch.float64)  # Σ |z|² |w|²
        self.right = torch.zeros(len(pairs), dy, dtype=torch.float64)  # Σ |z|² w
        self.left = torch.zeros(len(pairs), dx, dtype=torch.float64)  # Σ |w|² z

    def add(self, x: tuple[Tensor, Tensor], y: tuple[Tensor, Tensor]) -> None:
        for index, (i, j) in enumerate(self.pairs):
            z, w, a, b = x[0][i], y[0][j], x[1][i], y[1][j]
            self.cross[index] += _product(z, w)
            self.lengths[index] += a @ b
            self.right[index] += a.to(w.dtype) @ w
            self.left[index] += b.to(z.dtype) @ z

    def hsic(self, count: int, *, debiased: bool) -> Tensor:
        """HSIC of each pair, (P,) float64."""
        return torch.stack([self._hsic(index, count, debiased=debiased) for index in range(len(self.pairs))])

    def _hsic(self, index: int, count: int, *, debiased: bool) -> Tensor:
        i, j = self.pairs[index]
        m, p = self.x.total[i] / count, self.y.total[j] / count
        product = (self.cross[index] - count * torch.outer(m, p)).square().sum()
        zero = product.new_zeros(())
        if not debiased:
            return biased_from_sums(product, zero, zero, count)
        mm, pp, a, b = m @ m, p @ p, self.x.squares[i], self.y.squares[j]
        diagonals = (
            self.lengths[index]
            - 2 * (p @ self.right[index] + m @ self.left[index])
            + 4 * m @ self.cross[index] @ p
            + pp * a
            + mm * b
            - 3 * count * mm * pp
        )
        # Row sums of the centred Gram matrix without its diagonal are minus that diagonal.
        traces = (a - count * mm) * (b - count * pp)
        return unbiased_from_sums(product - diagonals, diagonals, traces, count)


def _product(z: Tensor, w: Tensor) -> Tensor:
    """Σ z wᵀ in float64 from float32 products of a few hundred texts each, which keeps it exact to about 1e-8."""
    whole = len(z) // PRODUCT_TEXTS * PRODUCT_TEXTS
    result = (z[whole:].mT @ w[whole:]).double()
    if whole:
        z, w = (part[:whole].view(-1, PRODUCT_TEXTS, part.shape[1]) for part in (z, w))
        result += torch.bmm(z.mT, w).sum(0, dtype=torch.float64)
    return result


class StreamedCKA:
    """Accumulates linear CKA between the layers of two models, or of one with itself, batch by batch.

    The result is that of `cka_matrix` over all texts at once, not an average over batches. Memory is
    8 Σ dx dy bytes over the pairs of layers plus a buffer of `BUFFERED_TEXTS` texts, whatever n is.

    Args:
        estimator: "debiased" or "biased".
        kernel: "linear"; bandwidth and values of "rbf" are not sums over texts.
        pairs: The layer pairs wanted, None for all. For wide models, name the pairs of the curve, or several blocks in
            several passes.

    Raises:
        UsageError: The kernel or the estimator is another.
    """

    def __init__(
        self,
        *,
        estimator: Literal["debiased", "biased"] = "debiased",
        kernel: Literal["linear", "rbf"] = "linear",
        pairs: Sequence[tuple[int, int]] | None = None,
    ) -> None:
        if kernel != "linear":
            raise UsageError(
                f"The {kernel} kernel cannot be streamed.", hint="Use the linear kernel, or fewer texts held in memory."
            )
        if estimator not in ("debiased", "biased"):
            raise UsageError(f"Unknown estimator {estimator!r}.", hint="Use debiased or biased.")
        self.count = 0
        self._debiased = estimator == "debiased"
        self._pairs = None if pairs is None else list(pairs)
        self._waiting = 0
        self._x: _Layers | None = None
        self._y: _Layers | None = None
        self._cross: _PairSums | None = None
        self._own: list[_PairSums] = []

    def update(self, batch_x: Tensor, batch_y: Tensor | None = None) -> None:
        """Add a batch of texts: (Lx, b, dx) and (Ly, b, dy), or one model's states alone to compare it with itself."""
        batch_x = check_states(batch_x, "batch_x")
        if batch_y is not None:
            batch_y = check_states(batch_y, "batch_y")
            check_pair(batch_x, batch_y)
        if self._x is None:
            self._start(batch_x, batch_y)
        assert self._x is not None
        if (batch_y is None) != (self._y is None):
            raise UsageError("Some batches have a second model and some have none.", hint="Feed both or one always.")
        for start in range(0, batch_x.shape[1], BUFFERED_TEXTS):
            self._x.add(batch_x[:, start : start + BUFFERED_TEXTS])
            if self._y is not None and batch_y is not None:
                self._y.add(batch_y[:, start : start + BUFFERED_TEXTS])
            added = min(BUFFERED_TEXTS, batch_x.shape[1] - start)
            self.count += added
            self._waiting += added
            if self._waiting >= BUFFERED_TEXTS:
                self._flush()

    def result(self, *, undefined: Literal["raise", "nan"] = "raise") -> Tensor:
        """CKA of all pairs (Lx, Ly), or of the named ones (P,), in float64; more batches may follow.

        Raises `ModelError`, and `DataError` for too few texts and, unless undefined="nan", where CKA is not defined.
        """
        if self.count < 4 or self._x is None or self._cross is None:
            raise too_few_texts(self.count)
        if self._waiting:
            self._flush()
        own = []
        models = [(self._x, "the model")] + ([] if self._y is None else [(self._y, "the reference")])
        for (layers, side), sums in zip(models, self._own, strict=True):
            values = layers.own_hsic(sums, self.count, debiased=self._debiased)
            if undefined == "raise":
                require_positive(values.nan_to_num(1.0), side)  # layers that are in no pair have none
            own.append(values)
        pairs = torch.tensor(self._cross.pairs)
        hsic = self._cross.hsic(self.count, debiased=self._debiased)
        values = normalised(hsic, own[0][pairs[:, 0]], own[-1][pairs[:, 1]])
        return values if self._pairs is not None else self._matrix(pairs, values)

    def _start(self, batch_x: Tensor, batch_y: Tensor | None) -> None:
        x = self._x = _Layers(batch_x)
        y = self._y = _Layers(batch_y) if batch_y is not None else None
        other = y or x
        pairs = self._pairs
        if pairs is None:  # with itself, one half is the whole
            pairs = [(i, j) for i in range(x.shape[0]) for j in range(0 if y else i, other.shape[0])]
        for side, layers in enumerate((x, other)):
            for layer in sorted({pair[side] for pair in pairs}):
                if not 0 <= layer < layers.shape[0]:
                    raise LayerOutOfRangeError(layer, layers.shape[0] - 1)
        self._cross = _PairSums(x, other, pairs)
        used = [{i for i, _ in pairs}, {j for _, j in pairs}]
        owners = [(x, used[0] | used[1])] if y is None else [(x, used[0]), (y, used[1])]
        self._own = [_PairSums(layers, layers, [(i, i) for i in sorted(which)]) for layers, which in owners]

    def _flush(self) -> None:
        assert self._x is not None
        assert self._cross is not None
        x = self._x.take()
        y = self._y.take() if self._y is not None else x
        self._cross.add(x, y)
        for sums, states in zip(self._own, (x, y), strict=False):
            sums.add(states, states)
        self._waiting = 0

    def _matrix(self, pairs: Tensor, values: Tensor) -> Tensor:
        assert self._x is not None
        matrix = values.new_empty(self._x.shape[0], (self._y or self._x).shape[0])
        matrix[pairs[:, 0], pairs[:, 1]] = values
        if self._y is None:
            matrix[pairs[:, 1], pairs[:, 0]] = values
        return matrix


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
