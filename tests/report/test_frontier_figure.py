"""What the figure of a distillation draws at each number of blocks."""

from dataclasses import replace

from matplotlib import rc_context
from matplotlib.figure import Figure

from tests.support.made_results import a_distillation
from truncate_kit.report.frontier_figure import plot_frontier


def scores(result):
    """The heights of each line, by its words in the legend."""
    axes = Figure().add_subplot()
    plot_frontier(axes, result)
    return {str(line.get_label()): list(map(float, line.get_ydata())) for line in axes.get_lines()}


def test_the_best_choice_without_training_is_the_best_of_its_size():
    """Also where another choice learned better: what that one had before is a mark of its own."""
    made = a_distillation()
    alone = scores(made)
    assert alone["best choice, without training"] == [80.0, 90.0, 100.0, 110.0]
    assert alone["after learning"] == [97.0]
    assert "the blocks that learned best, before it" not in alone
    other = replace(made.candidates[1], blocks=(2, 3), untrained=71.0)
    found = scores(replace(made, candidates=(made.candidates[0], other, *made.candidates[2:]), chosen=(2, 3)))
    assert found["best choice, without training"] == [80.0, 90.0, 100.0, 110.0]
    assert found["the blocks that learned best, before it"] == [71.0]
    assert found["after learning"] == [97.0]


def test_the_whole_name_of_a_score_is_beside_its_axis():
    """In the size and font of the page, with the legend below; vectors of one layer have the longest name."""
    with rc_context({"font.size": 11, "legend.fontsize": 9.5}):
        figure = Figure(figsize=(5.8, 5.2), layout="constrained")
        axes = figure.add_subplot()
        plot_frontier(axes, replace(a_distillation(), metric="agreement with layer 12 of the full model"))
        figure.legend(loc="outside lower left", ncols=1)
        figure.draw_without_rendering()
        name = axes.yaxis.label.get_window_extent()
    assert 0 <= name.y0 < name.y1 <= figure.bbox.height
