"""Plots as files and inside a page."""

from dataclasses import replace
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib import image

from tests.support.made_results import a_bench, a_combination, a_contrast, a_distillation, a_sweep, some_heads
from truncate_kit.bench.result import BACKENDS
from truncate_kit.core.hardware import PRECISIONS
from truncate_kit.methods.contrast.settings import LayerWeights
from truncate_kit.report.chart import inline_svg, write_figures, write_plots
from truncate_kit.report.view import Plot, Series, view_of

WEIGHTS = LayerWeights(model="mini", texts=("a $x$ cat", "b" * 90), weights=((0.2, 0.8), (0.4, 0.6)))
HEADS = ["correlation", "reconstruction", "reconstruction-own-units", "blocks"]
FILES = {
    "sweep": (a_sweep(), ["curve"]),
    "distillation": (a_distillation(), ["frontier"]),
    "contrast": (a_contrast(), []),
    "weights": (WEIGHTS, ["attention"]),
    "heads": (some_heads(), HEADS),
    "heads of one seed": (some_heads(seeds=(0,), layers=(2,), gap=True), HEADS[:-1]),
    "combination": (a_combination(2), ["sizes", "without"]),
    "combination with gaps": (a_combination(1, missing=True), ["sizes", "without"]),
    "bench": (a_bench(), ["bench"]),
}
pytestmark = pytest.mark.usefixtures("drawn")


@pytest.mark.parametrize("case", FILES)
def test_every_plot_is_drawn_as_file_and_in_a_page(case, tmp_path):
    result, files = FILES[case]
    view = view_of(result)
    paths = write_figures(view, tmp_path, "-2")
    assert [path.name for path in paths] == [f"{name}-2.png" for name in files]
    assert all(image.imread(path).shape[1] >= 600 for path in paths)
    for plot in view.plots:
        root = ElementTree.fromstring(inline_svg(plot))
        assert root.get("aria-label") == plot.title
        assert "width" not in root.attrib


def test_a_figure_follows_the_numbers(tmp_path):
    report = a_bench()
    worse = replace(report, contestants=(replace(report.contestants[0], score=70.0), *report.contestants[1:]))
    pictures = [image.imread(write_figures(view_of(one), tmp_path)[0]) for one in (report, worse, report)]
    assert not np.array_equal(pictures[0], pictures[1])
    assert np.array_equal(pictures[0], pictures[2])


def test_no_two_runtimes_look_alike():
    looks = {(PRECISIONS[row.precision].color, row.marker) for row in BACKENDS.values()}
    assert len(looks) == len(BACKENDS)


def test_a_band_a_shade_bars_and_panels(tmp_path):
    series = [
        Series(x=(0, 1, 2), y=(1.0, None, 3.0), spread=(0.5, None, 0.1), label="bars", texts=("a", "b", "c")),
        Series(x=(0, 1), y=(1.0, 2.0), low=(0.5, None), high=(1.5, None), label="band", tip="<b>"),
        Series(x=(0, 1), y=(1.0, -2.0), bar=0.4, label="columns"),
    ]
    plot = Plot("<t>", "x", "y", series, levels=((1.0, "", "#000000"),), shade=(0.5, 2.5, "drop"), ticks={0: "zero"})
    svg = str(inline_svg(plot))
    for text in ("drop", "zero", "bars", "<title>&lt;b&gt;</title>", "currentColor", "var(--blue)"):
        assert text in svg
    panels = [replace(plot, title=f"panel {number}") for number in range(4)]
    height, width, _ = image.imread(write_plots(panels, tmp_path / "four.png")).shape
    assert (width, height) == (1584, 864)
    many = replace(plot, logarithmic=True, series=[replace(series[1], label=str(number)) for number in range(20)])
    assert image.imread(write_plots([many], tmp_path / "many.png")).shape[1] == 1320


def test_an_empty_cell_of_a_heat_map_stays_empty():
    svg = str(inline_svg(Plot("h", "x", "y", heat=((0.25, None), (0.5, 1.0)))))
    assert "0.25" in svg
    assert "nan" not in svg


def test_no_drawing_shares_an_id_with_another():
    one, other = (inline_svg(Plot(name, "x", "y", [Series((0, 1), (1, 2))])) for name in "ab")
    ids = [{element.get("id") for element in ElementTree.fromstring(svg).iter()} - {None} for svg in (one, other)]
    assert ids[0]
    assert not ids[0] & ids[1]
