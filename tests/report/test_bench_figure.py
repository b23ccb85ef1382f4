"""The figure and the tables of a bench: made of what was measured, or not at all."""

from dataclasses import replace

import matplotlib.image
import numpy as np
import pytest
from matplotlib.figure import Figure

from tests.support.made_results import a_bench
from truncate_kit.bench.backends import BACKENDS
from truncate_kit.bench.timing import timing
from truncate_kit.report.bench_figure import _color, _marker, draw_bench, plot_points
from truncate_kit.report.bench_tables import absences, bench_tables


def test_no_two_runtimes_look_alike():
    assert len({(_color(name), _marker(name)) for name in BACKENDS}) == len(BACKENDS)


def test_the_figure_is_drawn_and_follows_the_numbers(tmp_path):
    report = a_bench()
    first = matplotlib.image.imread(draw_bench(report, tmp_path / "a.png"))
    assert first.shape[1] >= 1000
    worse = replace(report, contestants=(replace(report.contestants[0], spearman=70.0), *report.contestants[1:]))
    second = matplotlib.image.imread(draw_bench(worse, tmp_path / "b.png"))
    assert first.shape == second.shape
    assert not np.array_equal(first, second)


def test_the_figure_says_which_pairs_its_scores_are_of(tmp_path):
    report = a_bench()
    first = matplotlib.image.imread(draw_bench(report, tmp_path / "a.png"))
    other = replace(report, scored=replace(report.scored, name="bundled/test", bundled=True))
    second = matplotlib.image.imread(draw_bench(other, tmp_path / "b.png"))
    assert not np.array_equal(first, second)


@pytest.mark.parametrize("lean", [(130.0, 79.0), (130.0, 81.0), (70.0, 79.0)])
@pytest.mark.parametrize("first", [True, False])
def test_a_gain_stands_on_no_arrow(lean, first):
    """However the arrow comes to the point: from above, from below, and from the right where lean is slower."""
    figure = Figure(figsize=(9, 5))
    axes = figure.add_subplot()
    other = [] if first else [("lean", "onnx-fp32", 200.0, 80.0), ("full", "onnx-fp32", 190.0, 80.0)]
    plot_points(axes, [*other, ("lean", "torch-fp32", *lean), ("full", "torch-fp32", 100.0, 80.0)], metric="nDCG@10")
    figure.draw_without_rendering()
    text = next(found for found in axes.texts if found.get_text() == f"×{lean[0] / 100:.1f}").get_window_extent()
    begin, end = axes.transData.transform([(100.0, 80.0), lean])
    assert not any(text.contains(*(begin + share * (end - begin))) for share in np.linspace(0, 1, 101))


def test_without_scores_there_is_no_figure(tmp_path):
    report = a_bench()
    bare = replace(report, contestants=tuple(replace(row, spearman=None) for row in report.contestants))
    assert draw_bench(bare, tmp_path / "none.png") is None
    assert draw_bench(replace(report, timings=()), tmp_path / "none.png") is None
    assert not (tmp_path / "none.png").exists()


def test_what_was_not_measured_says_why():
    assert absences(a_bench()) == ["Not measured: lean, torch bf16: this processor has no bf16 instructions."]


def test_what_only_a_gpu_can_tell_has_its_columns_where_it_was_measured():
    shape = timing(("full", "torch-fp32"), "latency", (0.01, 0.01), sentences=1, tokens=16, shape=(1, 16))
    report = replace(a_bench(), timings=(shape,))
    bare = {cells.title.split()[0]: cells for cells in bench_tables(report)}
    assert "GPU p50 ms" not in bare["Fixed"].columns
    report = replace(report, timings=(replace(shape, device_seconds=(0.002, 0.004, 0.009)),))
    shown = {cells.title.split()[0]: cells for cells in bench_tables(report)}
    assert [dict(zip(shown["Fixed"].columns, row, strict=True))["GPU p50 ms"] for row in shown["Fixed"].rows] == [
        "4.00"
    ]
