"""The Gram matrices of pairs of texts over layers: all that the cosine of two layer means depends on."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from truncate_kit.errors import ModelError, not_finite

Floats = NDArray[np.float64]
_CHUNK = 32  # pairs at a time: their states in float64 stay in the cache


@dataclass(frozen=True, slots=True)
class PairGrams:
    """Quadratic forms of n pairs (a, b) over L' layers, float64, (3, L', L', n).

    Form 0 is a·a, form 1 b·b, form 2 a·b. Entry [f, l, m] holds what the layers l and m add to the form together:
    for l = m their own product, otherwise the sum of both orders. So the form of a set of layers is the sum of its
    entries with l ≤ m, and

        cos(mean of a over D, mean of b over D) = Σ a_l·b_m / √(Σ a_l·a_m · Σ b_l·b_m), sums over l, m ∈ D.
    """

    forms: Floats

    @property
    def num_layers(self) -> int:
        """L'."""
        return int(self.forms.shape[1])

    @property
    def num_pairs(self) -> int:
        """n."""
        return int(self.forms.shape[3])

    def select(self, pairs: Sequence[int]) -> "PairGrams":
        """The forms of some of the pairs, in the order given."""
        return PairGrams(np.ascontiguousarray(self.forms[..., list(pairs)]))

    def cosines(self, layers: Sequence[int]) -> Floats:
        """Cosine of the two layer means for each pair, (n,)."""
        chosen = sorted(layers)
        sums = sum(self.forms[:, low, high] for place, low in enumerate(chosen) for high in chosen[place:])
        return cosines_of(np.array(sums))


def cosines_of(sums: Floats) -> Floats:
    """Cosines from the three sums of the forms, (3, …) to (…)."""
    cosines: Floats = np.multiply(sums[0], sums[1])
    np.sqrt(cosines, out=cosines)
    np.divide(sums[2], cosines, out=cosines)
    return cosines


def row_cosines(a: Floats, b: Floats) -> Floats:
    """Cosine of each row of `a` with that of `b`, (n, d) each."""
    return cosines_of(np.stack([np.einsum("nd,nd->n", x, y) for x, y in ((a, a), (b, b), (a, b))]))


def pair_grams(states: Tensor, first: Sequence[int], second: Sequence[int], *, threads: int = 1) -> PairGrams:
    """The forms (float64) of the pairs at `first` and `second` in CPU `states` (L', texts, d). Raises `ModelError`."""
    layers, width, values = states.shape[0], states.shape[2], states.numpy()
    forms = np.empty((3, layers, layers, len(first)))

    def take(start: int) -> None:
        a, b = (list(side[start : start + _CHUNK]) for side in (first, second))
        part = np.empty((len(a), 2 * layers, width))
        part[:, :layers] = values[:, a].transpose(1, 0, 2)
        part[:, layers:] = values[:, b].transpose(1, 0, 2)
        with np.errstate(invalid="ignore"):  # states that are not numbers are named at the end
            products = np.matmul(part, part.transpose(0, 2, 1)).transpose(1, 2, 0)
        place = slice(start, start + len(a))
        forms[0, :, :, place] = products[:layers, :layers]
        forms[1, :, :, place] = products[layers:, layers:]
        forms[2, :, :, place] = products[:layers, layers:]

    with ThreadPoolExecutor(threads) as pool:
        for _ in pool.map(take, range(0, len(first), _CHUNK)):
            pass
    return PairGrams(_both_orders(forms))


def _both_orders(forms: Floats) -> Floats:
    """Add [m, l] to [l, m] off the diagonal; refuse states that are not numbers, and those without a direction."""
    diagonal = np.arange(forms.shape[1])
    own = forms[:, diagonal, diagonal].copy()
    broken = [int(layer) for layer in diagonal if not np.isfinite(own[:2, layer]).all()]
    if broken:
        raise not_finite(broken)
    empty = [int(layer) for layer in diagonal if not (own[:2, layer] > 0).all()]
    if empty:
        raise ModelError(
            f"The states of layer {', '.join(map(str, empty))} have length zero for some texts.",
            hint="Check the model: a state of zeros has no cosine.",
        )
    doubled: Floats = forms + forms.transpose(0, 2, 1, 3)
    doubled[:, diagonal, diagonal] = own
    return doubled
