import pytest
import torch

from tests.support import cka as reference
from truncate_kit.analysis.cka import (
    compare_layers,
    relative_layers,
)
from truncate_kit.analysis.result import AnalysisSettings


@pytest.fixture(scope="module")
def states():
    return reference.related_states(60, 10, 8)


def test_relative_depth_takes_the_nearest_layer_and_the_lower_of_two():
    assert relative_layers(8, 8) == tuple(range(9))
    assert relative_layers(2, 4) == (0, 2, 4)
    assert relative_layers(4, 2) == (0, 0, 1, 1, 2)  # 0.5 goes to 0, 1.5 to 1
    assert relative_layers(6, 8) == (0, 1, 3, 4, 5, 7, 8)


def test_curves_matrix_and_within(states):
    x, y = states
    curve, matrix = compare_layers((x, y), AnalysisSettings(outliers=0, intervals=0))
    assert torch.tensor(matrix).sub(reference.matrix(x, y)).abs().max() < 1e-6
    assert curve.reference_layers == (0, 1, 1, 2)
    assert curve.values == tuple(matrix[i][j] for i, j in enumerate((0, 1, 1, 2)))
    assert curve.low is None
    curve, matrix = compare_layers((x,), AnalysisSettings(outliers=0, intervals=0), (2, 2, 2, 2))
    assert torch.tensor(matrix).sub(reference.matrix(x, x)).abs().max() < 1e-6
    assert (curve.values, curve.reference_layers) == (tuple(row[2] for row in matrix), (2, 2, 2, 2))


@pytest.mark.parametrize("estimator", ["debiased", "biased"])
def test_interval_is_that_of_recomputing_without_each_block(states, estimator):
    x, y = states
    curve, _ = compare_layers((x, y), AnalysisSettings(outliers=0, intervals=5, seed=3, estimator=estimator))
    order = torch.randperm(60, generator=torch.Generator().manual_seed(3))
    kept = [order[[text for text in range(60) if text // 12 != block]] for block in range(5)]
    for i, j in enumerate(curve.reference_layers):
        left_out = torch.stack([reference.cka(x[i, some], y[j, some], estimator) for some in kept])
        reach = 2.7764 * float((4 / 5 * (left_out - left_out.mean()).square().sum()).sqrt())
        ends = curve.values[i] - reach, curve.values[i] + reach
        assert (curve.low[i], curve.high[i]) == pytest.approx(ends, rel=1e-3, abs=1e-6)


def test_intervals_of_pairs_hold_as_often_as_they_say():
    """The deviation over fresh draws is the independent measure: blocks of single texts give half of it."""
    values, reach, narrow = [], [], []
    pairs = torch.arange(100).repeat_interleave(2)
    for seed in range(60):
        draw = torch.Generator().manual_seed(seed)
        x = torch.randn(100, 12, generator=draw).repeat_interleave(2, 0)
        x, noise = x + 0.2 * torch.randn(200, 12, generator=draw), torch.randn(100, 12, generator=draw)
        y = x * torch.linspace(0.2, 2, 12) + noise.repeat_interleave(2, 0)
        curve, _ = compare_layers((x[None], y[None]), AnalysisSettings(outliers=0), groups=pairs)
        single, _ = compare_layers((x[None], y[None]), AnalysisSettings(outliers=0))
        values.append(curve.values[0])
        reach.append((curve.high[0] - curve.low[0]) / 2)
        narrow.append((single.high[0] - single.low[0]) / 2)
    held = float(torch.tensor(values).std()) * 2.2622  # Student's t, 9 degrees of freedom
    assert float(torch.tensor(reach).mean()) == pytest.approx(held, rel=0.15)
    assert float(torch.tensor(narrow).mean()) < 0.85 * held
