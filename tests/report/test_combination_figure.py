"""The figures of a search of combinations are readable PNGs, with gaps and with one split."""

from matplotlib import image

from tests.support.made_results import a_combination
from truncate_kit.report.combination_figure import draw_effects, draw_sizes


def test_figures_have_the_promised_size(tmp_path):
    for number, report in enumerate((a_combination(5), a_combination(1, missing=True))):
        for draw in (draw_sizes, draw_effects):
            height, width, _ = image.imread(draw(report, tmp_path / f"{number}.png")).shape
            assert (width, height) == (1080, 600)


def test_spans_and_effects():
    report = a_combination(2)
    assert report.best("dev").mean == 73.0
    assert report.best("dev").std == 0.0
    assert report.size(2, "test").mean == 67.0
    assert [effect.dev for effect in report.effects()] == [-3.0, -2.0, -1.0, 0.0]
    gaps = a_combination(1, missing=True)
    assert [effect.layer for effect in gaps.effects()] == [1, 2, 3]
    assert gaps.baseline("last layer", "test") is None
    assert gaps.best("dev").std is None
