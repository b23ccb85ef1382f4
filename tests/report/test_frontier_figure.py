"""What the figure of a distillation draws at each number of blocks."""

from dataclasses import replace

from matplotlib import rc_context
from matplotlib.figure import Figure

from tests.support.made_results import a_distillation
from truncate_kit.report.frontier_figure import plot_frontier, plot_graphs
from truncate_kit.report.panel import label_points


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


def test_speeds_are_texts_a_second_as_well():
    """Of the full model, which is 1 on the axis; the whole name of the axis is inside the panel of the page."""
    made = a_distillation()
    first, *rest = made.frontier.points
    frontier = replace(made.frontier, points=(replace(first, texts_per_second=12345.2), *rest))
    full = replace(made.candidates[-1], texts_per_second=54321.2)
    made = replace(made, candidates=(*made.candidates[:-1], full))
    for plot, number in (
        (lambda axes: plot_graphs(axes, frontier, "agreement"), "12,345"),
        (
            lambda axes: plot_frontier(axes, made),
            "54,321",
        ),
    ):
        with rc_context({"font.size": 11, "legend.fontsize": 9.5}):
            figure = Figure(figsize=(5.8, 5.2), layout="constrained")
            axes = figure.add_subplot()
            plot(axes)
            figure.draw_without_rendering()
            name = axes.xaxis.label.get_window_extent()
        assert f"= 1 ({number}" in axes.get_xlabel()
        assert 0 <= name.x0 < name.x1 <= figure.bbox.width


def test_numbers_of_near_points_stand_apart_and_inside_the_panel():
    figure = Figure(figsize=(9, 5), layout="constrained")
    axes = figure.add_subplot()
    points = [(1.0, 100.0, "8"), (1.01, 99.5, "8"), (1.02, 100.0, "7"), (2.0, 60.0, "1")]
    for x, y, _ in points:
        axes.plot(x, y, "D", markersize=8)
    label_points(axes, points)
    figure.draw_without_rendering()
    boxes = [text.get_window_extent() for text in axes.texts]
    marks = [axes.transData.transform(point[:2]) for point in points]
    assert [text.get_text() for text in axes.texts] == ["8", "8", "7", "1"]
    for place, box in enumerate(boxes):
        assert not box.count_overlaps(boxes[:place])
        assert not any(box.contains(*mark) for mark in marks)
        assert axes.bbox.x0 <= box.x0 < box.x1 <= axes.bbox.x1
        assert axes.bbox.y0 <= box.y0 < box.y1 <= axes.bbox.y1


def drawn_graphs(points):
    """Each mark that is a point (its tip, shape, size and whether it is hollow), and the words of the legend."""
    axes = Figure().add_subplot()
    plot_graphs(axes, replace(a_distillation().frontier, points=points), "agreement")
    lines = [line for line in axes.get_lines() if len(line.get_xdata())]
    marks = [
        (line.get_gid(), line.get_marker(), line.get_markersize(), line.get_markerfacecolor() == "none")
        for line in lines
    ]
    return marks, axes.get_legend_handles_labels()[1]


def test_beaten_graphs_are_hollow_and_the_legend_says_so():
    first, second, third = a_distillation().frontier.points
    marks, legend = drawn_graphs((first, replace(second, dominated=True), third))
    assert [hollow for *_, hollow in marks] == [False, True, False]
    assert "4.00 × the speed (400 texts a second)" in marks[2][0]
    assert [tip.endswith(", beaten") for tip, *_ in marks] == [False, True, False]
    assert [line for line in legend if line.startswith("hollow")] == ["hollow: another one beats it"]
    _, legend = drawn_graphs((first, second, third))
    assert legend == ["ONNX Runtime fp32", "ONNX Runtime int8"]


def test_graphs_of_fewer_dimensions_and_words_are_drawn():
    first, *rest = a_distillation().frontier.points
    short, few = replace(first, dims=4, score=80.0), replace(first, words=60, megabytes=0.5)
    marks, legend = drawn_graphs((first, short, few, *rest))
    drawn = {tip.split(": ")[1]: (marker, size) for tip, marker, size, _ in marks}
    assert len(drawn) == 5
    whole = drawn["4 blocks in fp32, 16 dimensions, 100 words"]
    assert drawn["4 blocks in fp32, 4 dimensions, 100 words"] == (whole[0], whole[1] / 2)
    words = drawn["4 blocks in fp32, 16 dimensions, 60 words"]
    assert words[0] != whole[0]
    assert words[1] == whole[1]
    assert {"ONNX Runtime fp32, fewer words", "smaller marks: fewer dimensions"} <= set(legend)
