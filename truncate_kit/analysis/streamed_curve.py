"""The curve of `compare_layers` with its interval, over a stream of blocks of texts."""

from collections.abc import Sequence

import torch
from scipy.stats import t as student_t
from torch import Tensor

from truncate_kit.analysis.compare import without_nan
from truncate_kit.analysis.curve import Curve
from truncate_kit.analysis.settings import Estimator
from truncate_kit.analysis.streaming import StreamedCKA


class StreamedCurve:
    """Accumulates CKA of each layer with one layer of the reference, over all texts and over each block of them.

    Memory is that of two `StreamedCKA` over the pairs of the curve, whatever the number of texts and blocks.
    reference_layers: of each layer 0 … L. level: of the interval.
    """

    def __init__(
        self, reference_layers: Sequence[int], *, estimator: Estimator = "debiased", level: float = 0.95
    ) -> None:
        self._reference_layers = tuple(reference_layers)
        self._pairs = list(enumerate(self._reference_layers))
        self._estimator = estimator
        self._level = level
        self._whole, self._block = self._accumulator(), self._accumulator()
        self._values: list[Tensor] = []

    def _accumulator(self) -> StreamedCKA:
        return StreamedCKA(estimator=self._estimator, pairs=self._pairs)

    def update(self, states_x: Tensor, states_y: Tensor) -> None:
        """Add a batch of the current block: states (Lx, b, dx) and (Ly, b, dy)."""
        self._whole.update(states_x, states_y)
        self._block.update(states_x, states_y)

    def end_block(self) -> None:
        """Close the current block of texts; blocks should be of one size and drawn at random."""
        self._values.append(self._block.result(undefined="nan"))
        self._block = self._accumulator()

    def result(self) -> Curve:
        """The curve over all texts, None where CKA is not defined; raises as `StreamedCKA.result`.

        With two or more closed blocks the interval is that of batch means, values ± t · deviation of the blocks /
        √blocks: each block is an independent sample of n / blocks texts, drawn without replacement.
        """
        values = self._whole.result(undefined="nan")
        low = high = None
        blocks = len(self._values)
        if blocks > 1:
            deviation = torch.stack(self._values).std(0)
            reach = float(student_t.ppf((1 + self._level) / 2, blocks - 1)) * deviation / blocks**0.5
            low, high = without_nan(values - reach), without_nan(values + reach)
        return Curve(values=without_nan(values), reference_layers=self._reference_layers, low=low, high=high)
