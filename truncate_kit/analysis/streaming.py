"""Sums over batches: linear CKA and label-free scores, in memory independent of the number of texts.

HSIC is a function of sums over the texts. With z, w the states of two layers, shifted by the first batch's means, and
m, p the means that remain,

    ⟨K, L⟩  = ‖Σ z wᵀ − n m pᵀ‖²     (K, L: centred Gram matrices)
    k · l   = Σ |z − m|² |w − p|²     (k, l: their diagonals)

The unbiased HSIC follows from these, Σ k and Σ l: a centred Gram matrix has zero row sums.
"""

import itertools
import math
from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from truncate_kit.analysis.hsic import (
    ROUNDING,
    check_pair,
    check_states,
    hsic_of_sums,
    meaningful,
    normalised,
    require_finite,
    require_positive,
    unit_scale,
)
from truncate_kit.core.errors import LayerOutOfRangeError, UsageError, known_name, too_few_texts

# Adding to L² d² float64 sums costs as much as a product of some 200 texts.
BUFFERED_TEXTS = 2048
PRODUCT_TEXTS = 512  # texts in one float32 product: fewer are more exact, more are faster


class _Layers:
    """The gathered, shifted states of one model and their sums."""

    def __init__(self, states: Tensor) -> None:
        self.shift, self.scale = states.mean(1, keepdim=True), unit_scale(states)  # unscaled, squares overflow
        self.shape, self.dtype = (states.shape[0], states.shape[2]), states.dtype
        self.total = torch.zeros(self.shape, dtype=torch.float64)  # Σ z
        self.squares = torch.zeros(self.shape[0], dtype=torch.float64)  # Σ |z|²
        self.own = torch.full_like(self.squares, torch.nan)  # HSIC with itself; NaN for layers in no pair
        self.pending: list[Tensor] = []

    def take(self) -> tuple[Tensor, Tensor]:
        """Return the gathered states (L, b, d) and their squared lengths (L, b) in float64."""
        states = torch.cat(self.pending, 1) if len(self.pending) > 1 else self.pending[0]
        self.pending = []
        lengths = torch.linalg.vector_norm(states, dim=-1).double().square()
        self.total += states.sum(1, dtype=torch.float64)
        self.squares += lengths.sum(1)
        return states, lengths

    def meaningful_own(self, count: int) -> Tensor:
        """Return `own` with 0 for constant states."""
        require_finite(self.squares)
        mean = self.total / count
        spread = self.squares / count - mean.square().sum(1)
        constant = spread <= ROUNDING**2 * (mean + (self.shift * self.scale)[:, 0].double()).square().sum(1)
        return torch.where(constant, 0.0, meaningful(self.own, spread, torch.finfo(self.dtype).eps))


class _PairSums:
    """Sums over the texts for layer i of model x and layer j of model y."""

    def __init__(self, x: _Layers, i: int, y: _Layers, j: int) -> None:
        self.x, self.i, self.y, self.j = x, i, y, j
        (_, dx), (_, dy) = x.shape, y.shape
        self.cross = torch.zeros(dx, dy, dtype=torch.float64)  # Σ z wᵀ
        self.lengths = torch.zeros((), dtype=torch.float64)  # Σ |z|² |w|²
        self.right = torch.zeros(dy, dtype=torch.float64)  # Σ |z|² w
        self.left = torch.zeros(dx, dtype=torch.float64)  # Σ |w|² z

    def add(self, taken: dict[_Layers, tuple[Tensor, Tensor]]) -> None:
        x, y = taken[self.x], taken[self.y]
        z, w, a, b = x[0][self.i], y[0][self.j], x[1][self.i], y[1][self.j]
        self.cross += _product(z, w)
        self.lengths += a @ b
        self.right += a.to(w.dtype) @ w
        self.left += b.to(z.dtype) @ z

    def hsic(self, count: int, *, debiased: bool) -> Tensor:
        """Return HSIC of the pair, a float64 scalar."""
        m, p = self.x.total[self.i] / count, self.y.total[self.j] / count
        product = (self.cross - count * torch.outer(m, p)).square().sum()
        zero = product.new_zeros(())
        if not debiased:
            return hsic_of_sums(product, zero, zero, count, debiased=False)
        mm, pp, a, b = m @ m, p @ p, self.x.squares[self.i], self.y.squares[self.j]
        mixed = 2 * (p @ self.right + m @ self.left) - 4 * m @ self.cross @ p
        diagonals = self.lengths - mixed + pp * a + mm * b - 3 * count * mm * pp
        # Row sums of the centred Gram matrix without its diagonal are minus that diagonal.
        traces = (a - count * mm) * (b - count * pp)
        return hsic_of_sums(product - diagonals, diagonals, traces, count, debiased=True)


def _product(z: Tensor, w: Tensor) -> Tensor:
    """Return Σ z wᵀ in float64 from float32 products, exact to about 1e-8."""
    whole = len(z) // PRODUCT_TEXTS * PRODUCT_TEXTS
    result = (z[whole:].mT @ w[whole:]).double()
    if whole:
        z, w = (part[:whole].view(-1, PRODUCT_TEXTS, part.shape[1]) for part in (z, w))
        result += torch.bmm(z.mT, w).sum(0, dtype=torch.float64)
    return result


class StreamedCKA:
    """Accumulates linear CKA between the layers of two models, or of one with itself, batch by batch.

    Equals `cka_matrix` over all texts; memory is 8 Σ dx dy bytes over the layer pairs and a buffer.

    Args:
        estimator: "debiased" or "biased".
        kernel: "linear"; "rbf" cannot be streamed.
        pairs: Layer pairs, by default all.

    Raises:
        UsageError: Another kernel or estimator.
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
        self._debiased = known_name("estimator", estimator, ("debiased", "biased")) == "debiased"
        self._pairs = None if pairs is None else list(pairs)
        self.count = self._waiting = 0
        self._models: list[_Layers] = []
        self._cross: list[_PairSums] = []
        self._own: list[_PairSums] = []

    def update(self, batch_x: Tensor, batch_y: Tensor | None = None) -> None:
        """Add a batch of texts: (Lx, b, dx) and, of a second model, (Ly, b, dy)."""
        batches = [batch for batch in (batch_x, batch_y) if batch is not None]
        shapes: list[Any] = [model.shape for model in self._models] or [None] * len(batches)
        if len(shapes) != len(batches):
            raise UsageError("Some batches have a second model and some have none.", hint="Feed both or one always.")
        names = ("batch_x", "batch_y")
        batches = [check_states(*batch) for batch in zip(batches, names, shapes, strict=False)]
        check_pair(batches[0], batches[-1])
        if not self._models:
            self._start(batches)
        for parts in zip(*(torch.split(batch, BUFFERED_TEXTS, 1) for batch in batches), strict=True):
            for model, part in zip(self._models, parts, strict=True):
                model.pending.append((part.to(model.dtype) - model.shift).mul_(model.scale))
            self.count += parts[0].shape[1]
            self._waiting += parts[0].shape[1]
            if self._waiting >= BUFFERED_TEXTS:
                self._flush()

    def result(self, *, undefined: Literal["raise", "nan"] = "raise") -> Tensor:
        """Return CKA of all pairs (Lx, Ly), or of the named ones (P,), in float64; batches may follow.

        Raises `ModelError`, and `DataError` for too few texts or undefined CKA unless undefined="nan".
        """
        if self.count < 4:
            raise too_few_texts(self.count)
        self._flush()
        for sums in self._own:
            sums.x.own[sums.i] = sums.hsic(self.count, debiased=self._debiased)
        own = [model.meaningful_own(self.count) for model in self._models]
        if undefined == "raise":
            for values, side in zip(own, ("the model", "the reference"), strict=False):
                require_positive(values.nan_to_num(1.0), side)
        x, y = (torch.tensor([getattr(sums, side) for sums in self._cross]) for side in "ij")
        hsic = torch.stack([sums.hsic(self.count, debiased=self._debiased) for sums in self._cross])
        cka = normalised(hsic, own[0][x], own[-1][y])
        if self._pairs is not None:
            return cka
        matrix = cka.new_empty(len(own[0]), len(own[-1]))
        matrix[x, y] = cka
        if len(own) == 1:
            matrix[y, x] = cka
        return matrix

    def _start(self, batches: Sequence[Tensor]) -> None:
        self._models = [_Layers(batch) for batch in batches]
        x, y = self._models[0], self._models[-1]
        pairs = self._pairs
        if pairs is None:  # symmetric with itself
            pairs = [(i, j) for i in range(x.shape[0]) for j in range(i if x is y else 0, y.shape[0])]
        used = {(side, layer) for pair in pairs for side, layer in zip((x, y), pair, strict=True)}
        for model, layer in used:
            if not 0 <= layer < model.shape[0]:
                raise LayerOutOfRangeError(layer, model.shape[0] - 1)
        self._cross = [_PairSums(x, i, y, j) for i, j in pairs]
        self._own = [_PairSums(model, layer, model, layer) for model, layer in used]

    def _flush(self) -> None:
        if self._waiting:
            taken = {model: model.take() for model in self._models}
            for sums in (*self._cross, *self._own):
                sums.add(taken)
            self._waiting = 0


class StateScores:
    """Accumulates scores over pooled states of distinct texts; memory L d²."""

    def __init__(self) -> None:
        self.count = 0
        self._moment = self._direction = self._squares = torch.empty(0)

    def update(self, states: Tensor) -> None:
        """Add states (L, b, d)."""
        states = states.double()
        if self.count == 0:
            layers, _, width = states.shape
            self._moment = states.new_zeros(layers, width, width)
            self._direction, self._squares = states.new_zeros(layers, width), states.new_zeros(layers)
        self._moment.baddbmm_(states.mT, states)
        unit = torch.nn.functional.normalize(states, dim=-1)
        self._direction += unit.sum(1)
        self._squares += unit.square().sum((1, 2))
        self.count += states.shape[1]

    def result(self) -> dict[str, tuple[float, ...]]:
        """Return both scores of each layer. Raises `ModelError` on NaN.

        Effective rank is RankMe (arXiv:2210.02885), exp of the entropy of the singular values, 1 to the width.
        Anisotropy is the mean cosine of two different texts.
        """
        require_finite(self._moment.sum((1, 2)))
        # From second moments zᵀz (d, d).
        values = torch.stack([torch.linalg.eigvalsh(moment).clamp_min(0).sqrt() for moment in self._moment])
        shares = values / values.sum(1, keepdim=True).clamp_min(torch.finfo(values.dtype).tiny)
        # Σ over pairs i ≠ j of u_i u_j: |Σ u|² − Σ |u|².
        cosine = (self._direction.square().sum(1) - self._squares) / (self.count * (self.count - 1))
        rank = torch.special.entr(shares).sum(1).exp()
        return {"effective_rank": tuple(rank.tolist()), "anisotropy": tuple(cosine.tolist())}


class TokenScores:
    """Accumulates the change of tokens by each block, without padding."""

    def __init__(self) -> None:
        self.count = 0
        self._influence = self._angle = torch.empty(0)

    def update(self, hidden_states: Sequence[Tensor], attention_mask: Tensor) -> None:
        """Add L' tensors (b, t, d), and a mask (b, t), nonzero for real tokens."""
        tokens = [layer[attention_mask.bool()].double() for layer in hidden_states]
        # In float64: near 1, arccos turns float32 rounding into 3e-4.
        pairs = [torch.cosine_similarity(*pair, dim=-1).clamp(-1, 1) for pair in itertools.pairwise(tokens)]
        cosines = torch.stack(pairs)
        if self.count == 0:
            self._influence, self._angle = cosines.new_zeros(2, len(cosines))
        self._influence += (1 - cosines).sum(1)
        self._angle += cosines.arccos().sum(1) / math.pi
        self.count += cosines.shape[1]

    def result(self) -> dict[str, tuple[float, ...]]:
        """Return both measures from layer l to l + 1. Raises `ModelError` on NaN.

        Block Influence is 1 − mean cosine of a token before and after (ShortGPT, arXiv:2403.03853), angular distance
        the mean arccos / π (PruneMe, arXiv:2403.17887; over all tokens, not the last).
        """
        require_finite(self._influence)
        means = (self._influence / self.count, self._angle / self.count)
        return {
            name: tuple(mean.tolist())
            for name, mean in zip(("block_influence", "angular_distance"), means, strict=True)
        }
