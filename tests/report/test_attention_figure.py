"""The colours of a map of weights by layer."""

import pytest
from matplotlib.axes import Axes

from truncate_kit.methods.contrast.contrastive_result import LayerWeights
from truncate_kit.report.attention_figure import draw_attention


@pytest.mark.parametrize(
    ("weights", "scale"),
    [
        ([(0.5, 0.3, 0.2), (0.1, 0.2, 0.7)], (0, 70)),  # shares
        ([(0.33, 0.33, 0.34), (0.34, 0.32, 0.34)], (32, 34)),  # else of one colour
        ([(-0.2, 0.6, 0.6)], (-20, 60)),  # by the literal equation
        ([(1.0,)], (0, 100)),
        ([(1 / 3, 1 / 3 + 1e-9, 1 / 3 - 1e-9)], (0, 33.3333334)),  # rounding is no difference
    ],
)
def test_colours_tell_weights_apart(tmp_path, monkeypatch, weights, scale):
    drawn, show = [], Axes.imshow
    monkeypatch.setattr(Axes, "imshow", lambda *a, **k: (drawn.append(show(*a, **k)), drawn[-1])[1])
    found = LayerWeights(model="lean", texts=tuple("ab")[: len(weights)], weights=tuple(weights))
    assert draw_attention(found, tmp_path / "map.png").is_file()
    (image,) = drawn
    assert image.norm(scale[0]) == pytest.approx(0)
    assert image.colorbar is not None
    assert image.norm(scale[1]) == pytest.approx(1)
