"""How far apart texts lie, by a loop over their pairs."""

import math

import pytest
import torch

from benchmarks.layer_attention.figures import spread


def test_spread_is_that_of_a_loop_over_pairs():
    vectors = torch.randn(7, 5, generator=torch.Generator().manual_seed(0)) + 0.5
    rows = [[value / math.hypot(*row) for value in row] for row in vectors.tolist()]
    pairs = [(first, second) for place, first in enumerate(rows) for second in rows[:place]]
    cosines = [math.fsum(x * y for x, y in zip(*pair, strict=True)) for pair in pairs]
    kernel = [math.exp(-2 * math.dist(*pair) ** 2) for pair in pairs]
    expected = {"mean cosine": sum(cosines) / len(pairs), "uniformity": math.log(sum(kernel) / len(pairs))}
    assert spread(vectors) == pytest.approx(expected, abs=1e-6)
    assert spread(3 * vectors) == pytest.approx(expected, abs=1e-6)
