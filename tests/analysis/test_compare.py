import pytest
import torch

from tests.support import cka as reference
from truncate_kit.analysis.cka import cka_matrix, compare_layers, jackknife_error, relative_layers
from truncate_kit.analysis.hsic import outlier_mask
from truncate_kit.core.errors import DataError, UsageError


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
    curve, matrix = compare_layers(x, y, blocks=0)
    assert torch.tensor(matrix).sub(reference.matrix(x, y)).abs().max() < 1e-6
    assert curve.reference_layers == (0, 1, 1, 2)
    assert curve.values == tuple(matrix[i][j] for i, j in enumerate((0, 1, 1, 2)))
    assert curve.low is None
    curve, matrix = compare_layers(x, blocks=0, layers=(2, 2, 2, 2))
    assert torch.tensor(matrix).sub(reference.matrix(x, x)).abs().max() < 1e-6
    assert (curve.values, curve.reference_layers) == (tuple(row[2] for row in matrix), (2, 2, 2, 2))


@pytest.mark.parametrize("options", [{}, {"estimator": "biased"}, {"kernel": "rbf"}])
def test_interval_is_that_of_recomputing_without_each_block(states, options):
    x, y = states
    curve, _ = compare_layers(x, y, blocks=5, seed=3, **options)
    order = torch.randperm(60, generator=torch.Generator().manual_seed(3))
    # The bandwidth of the kernel belongs to the whole set; for a linear kernel nothing else is shared.
    if options.get("kernel") == "rbf":
        scale = [
            [torch.pdist(layer.double() - layer.double().mean(0)).quantile(0.5) for layer in model] for model in (x, y)
        ]

        def value(i, j, keep):
            k, m = (
                torch.exp(
                    -(torch.cdist(s.double(), s.double(), compute_mode="donot_use_mm_for_euclid_dist") ** 2)
                    / (2 * w**2)
                )
                for s, w in ((x[i, keep], scale[0][i]), (y[j, keep], scale[1][j]))
            )
            pair = [reference.hsic(*both, "debiased") for both in ((k, m), (k, k), (m, m))]
            return pair[0] / (pair[1] * pair[2]).sqrt()

    else:

        def value(i, j, keep):
            return reference.cka(x[i, keep], y[j, keep], **options)

    for i, j in enumerate(curve.reference_layers):
        left_out = torch.stack([value(i, j, order[[t for t in range(60) if t // 12 != g]]) for g in range(5)])
        error = float((4 / 5 * (left_out - left_out.mean()).square().sum()).sqrt())
        assert curve.high[i] - curve.values[i] == pytest.approx(2.7764 * error, rel=1e-3, abs=1e-6)
        assert curve.values[i] - curve.low[i] == pytest.approx(2.7764 * error, rel=1e-3, abs=1e-6)


def test_jackknife_of_a_mean_is_its_textbook_interval():
    values = torch.arange(10, dtype=torch.float64) ** 2
    left_out = (values.sum() - values) / 9
    assert float(jackknife_error(left_out)) == pytest.approx(float(values.std() / 10**0.5))


def test_undefined_layers_are_none(states):
    x, y = states[0].clone(), states[1]
    x[0] = 1.0
    curve, matrix = compare_layers(x, y)
    assert matrix[0] == (None, None, None)
    assert curve.values[0] is None
    assert curve.low[0] is None
    assert None not in curve.values[1:]


def test_outlier_dimensions_rule_cka_until_left_out(states):
    x, y = states
    kept = [d for d in range(10) if d != 3]
    assert outlier_mask(x, 1)[2, 0].nonzero().flatten().tolist() == kept
    _, matrix = compare_layers(x, y, outliers=1, blocks=0)
    worst = y[1].var(0).argmax()
    without = reference.cka(x[2][:, kept], y[1][:, [d for d in range(8) if d != worst]])
    assert matrix[2][1] == pytest.approx(float(without), abs=1e-6)
    assert matrix[2][1] > 2 * cka_matrix(x, y)[2, 1]


def test_blocks_that_give_no_interval(states):
    x, y = states
    with pytest.raises(UsageError, match="block"):
        compare_layers(x, y, blocks=1)
    with pytest.raises(DataError, match="too few"):
        compare_layers(x[:, :5], y[:, :5], blocks=3)
