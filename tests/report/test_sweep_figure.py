"""The curve of a sweep is a readable PNG whatever the sweep was."""

from dataclasses import replace

from matplotlib import image
from matplotlib import pyplot as plt

from tests.support.made_results import a_sweep
from truncate_kit.methods.tmft.sweep_result import Ranking, SweepResult
from truncate_kit.report.sweep_figure import draw_sweep, plot_sweep


def test_the_figure_is_a_png_of_the_promised_size(tmp_path):
    path = draw_sweep(a_sweep(), tmp_path / "curve.png")
    height, width, _ = image.imread(path).shape
    assert (width, height) == (1080, 600)


def test_a_sweep_survives_its_json():
    sweep = a_sweep()
    assert SweepResult.from_dict(sweep.to_dict()) == sweep
    earlier = {name: value for name, value in sweep.to_dict().items() if name != "rankings"}  # of an earlier version
    assert SweepResult.from_dict(earlier) == replace(sweep, rankings={})


def test_a_sweep_of_some_blocks_is_drawn_likewise(tmp_path):
    whole = a_sweep()
    some = replace(whole, blocks=(1, 4, 6), layers=whole.layers[:4], chosen=3)
    assert [some.row_name(layer) for layer in (0, 2, 8)] == ["layer 0", "blocks 1, 4", "layer 8"]
    path = draw_sweep(some, tmp_path / "curve.png")
    assert image.imread(path).shape[:2] == (600, 1080)


def test_where_layers_were_ranked_no_line_runs_over_those_that_were_not_trained():
    whole = a_sweep()
    layers, scores = tuple(range(9)), tuple(float(row.dev) - 9 for row in whole.layers)
    few = replace(whole, layers=whole.layers[5:6], search=(), rankings={})
    for result, dotted in ((few, 2), (replace(few, rankings={"probe": Ranking(layers=layers, scores=scores)}), 0)):
        _, axes = plt.subplots()
        plot_sweep(axes, result)
        curves = [line for line in axes.lines if line.get_linestyle() == ":" and len(line.get_xdata()) == 2]
        # From layer 5 to layer 8, dev and test; the line of the full model is as wide as the axes.
        assert sum(list(line.get_xdata()) == [5, 8] for line in curves) == dotted
        ranked = [line for line in axes.lines if list(line.get_xdata()) == list(layers)]
        assert [list(line.get_ydata()) for line in ranked] == ([] if dotted else [list(scores)])
        plt.close()
