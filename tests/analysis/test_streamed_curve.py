import pytest
import torch
from scipy import stats

from tests.support.cka import cka, related_states
from truncate_kit.analysis.cka import StreamedCurve


@pytest.mark.parametrize("estimator", ["debiased", "biased"])
def test_streamed_curve_and_its_interval(estimator):
    x, y = related_states(120, 8, 6)
    partners = (0, 1, 1, 2)
    curve = StreamedCurve(partners, estimator=estimator, level=0.9)
    blocks = torch.arange(120).chunk(5)
    for block in blocks:
        for batch in block.split(7):
            curve.update(x[:, batch], y[:, batch])
        curve.end_block()
    found = curve.result()
    assert found.reference_layers == partners
    for layer, partner in enumerate(partners):
        whole = float(cka(x[layer], y[partner], estimator))
        parts = [float(cka(x[layer, block], y[partner, block], estimator)) for block in blocks]
        reach = stats.t.ppf(0.95, 4) * stats.sem(parts)
        assert found.values[layer] == pytest.approx(whole, abs=1e-5)
        assert found.low[layer] == pytest.approx(whole - reach, abs=1e-4)
        assert found.high[layer] == pytest.approx(whole + reach, abs=1e-4)


def test_one_block_gives_no_interval_and_constant_states_no_value():
    x, y = related_states(40, 8, 6)
    x[1] = 1.0
    curve = StreamedCurve((0, 1, 2, 2))
    curve.update(x, y)
    curve.end_block()
    found = curve.result()
    assert found.low is None
    assert found.values[1] is None
    assert found.values[0] is not None
