"""A study as figures: scores by layer, and what parameters buy."""

from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from truncate_kit.methods.study.result import StudyResult, StudyRow, pareto_front, summaries
from truncate_kit.report import panel
from truncate_kit.report.sweep_figure import DEV, TEST, draw_curve

COLORS = (panel.BLUE, panel.VERMILION, panel.GREEN, panel.PURPLE, panel.ORANGE, panel.SKY)
LINES = ("-", "--", "-.", ":")
MARKERS = "osD^vPX"
PANELS_ABREAST = 3
MOST_IN_USUAL_SIZE = 6  # curves
LEGEND_LINE = 0.2  # inches
FRONT_OF_ALL: dict[str, Any] = {"color": "#555555", "linewidth": 6, "alpha": 0.25, "label": "Pareto front"}
FRONT_OF_ENDS: dict[str, Any] = {
    "color": "#555555",
    "linewidth": 1.5,
    "linestyle": "--",
    "label": "of best-dev and last layers alone",
}
STAGES = {
    "untrained": "both untrained",
    "own_trained": "both fine-tuned at this layer",
    "last_trained": "both fine-tuned at the last layer",
}


def curve_style(place: int) -> dict[str, Any]:
    """Look of the curve at this place among those of a figure; 168 differ from each other."""
    turn, color = divmod(place, len(COLORS))
    return {"color": COLORS[color], "linestyle": LINES[turn % len(LINES)], "marker": MARKERS[place % len(MARKERS)]}


def draw_curves(result: StudyResult, task: str, path: Path) -> Path:
    """Dev and test by layer, one panel for each model, all with the same scale. Raises `FileProblemError`."""
    models = [model for model in result.models() if result.of(model, task)]
    figure, grid = _panels(len(models))
    for axes, model in zip(grid, models, strict=False):
        _panel(axes, result.of(model, task))
        axes.set_title(model, loc="left", fontsize="medium")
    _legend_below(figure, grid)
    figure.supylabel(f"points ({result.of(models[0], task)[0].metric})", fontsize="medium")
    figure.suptitle(f"Fine-tuned at each layer: {task}", x=0.01, ha="left")
    return panel.write_figure(figure, path)


def _panels(count: int) -> tuple[Figure, list[Axes]]:
    """A figure with room for this number of panels of one scale."""
    lines, abreast = -(-count // PANELS_ABREAST), min(PANELS_ABREAST, count)
    figure = Figure(figsize=(4.2 * abreast + 0.6, 3.4 * lines), layout="constrained")
    grid = list(figure.subplots(lines, abreast, squeeze=False, sharey=True).flatten())
    for axes in grid[count:]:
        axes.set_axis_off()
    return figure, grid[:count]


def _panel(axes: Axes, rows: list[StudyRow]) -> None:
    scores = [row.scores for row in rows]
    draw_curve(axes, scores, "dev", DEV)
    draw_curve(axes, scores, "test", TEST)
    published = [(row.scores.layer, row.published) for row in rows if row.published is not None]
    if published:
        layers, values = zip(*published, strict=True)
        axes.plot(layers, values, linestyle=":", color=TEST, label="published, test")
    panel.whole_axis(axes)


def draw_layers(result: StudyResult, task: str, path: Path) -> Path:
    """Test score by layer, all models in one panel, as the TMFT paper shows them. Raises `FileProblemError`."""
    figure, axes = _panel_of_all(result, task)
    for model, style in _styles(result, task):
        rows = result.of(model, task)
        layers, means = [row.scores.layer for row in rows], [row.scores.test for row in rows]
        spreads = [row.scores.test_std or 0.0 for row in rows]
        axes.plot(layers, means, label=model, **style)
        low, high = zip(
            *((mean - spread, mean + spread) for mean, spread in zip(means, spreads, strict=True)), strict=True
        )
        axes.fill_between(layers, low, high, color=style["color"], alpha=0.2, linewidth=0)
    axes.set_title(f"Test score of each layer: {task}", loc="left")
    axes.set_ylabel(f"points ({next(row.metric for row in result.rows if row.task == task)})")
    panel.whole_axis(axes)
    _legend_beside(figure)
    return panel.write_figure(figure, path)


def _styles(result: StudyResult, task: str) -> list[tuple[str, dict[str, Any]]]:
    """The models trained on the task, each with the look that it has in the figures of this task."""
    trained = [model for model in result.models() if result.of(model, task)]
    return [(model, curve_style(place)) for place, model in enumerate(trained)]


def _panel_of_all(result: StudyResult, task: str) -> tuple[Figure, Axes]:
    """One panel for the curves of all models, with room for a legend beside it."""
    curves = len(_styles(result, task))
    size = (10.0, 5.0) if curves <= MOST_IN_USUAL_SIZE else (11.0, max(5.0, LEGEND_LINE * curves + 1))
    figure = Figure(figsize=size, layout="constrained")
    return figure, figure.add_subplot()


def _legend_beside(figure: Figure) -> None:
    """Beside the curves, where it covers none; with lines long enough to show how they are dashed."""
    figure.legend(loc="outside right upper", fontsize="small", handlelength=3)


def _legend_below(figure: Figure, grid: list[Axes]) -> None:
    """One for all panels, no wider than they are, in room of its own below them."""
    found = {
        label: handle
        for axes in grid
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }  # fmt: skip
    abreast = min(PANELS_ABREAST, len(grid))
    width, height = figure.get_size_inches()
    figure.set_size_inches(width, height + LEGEND_LINE * -(-len(found) // abreast))
    figure.legend(found.values(), found, loc="outside lower center", ncols=abreast, fontsize="small")


def draw_cka(result: StudyResult, task: str, path: Path) -> Path:
    """CKA to the reference by layer, before and after fine-tuning, a panel a model; dotted in its biased form.

    Raises `FileProblemError`.
    """
    rows = [row for row in result.cka if row.task == task]
    models = list(dict.fromkeys(row.model for row in rows))
    figure, grid = _panels(len(models))
    for axes, model in zip(grid, models, strict=False):
        for (stage, label), color, marker in zip(STAGES.items(), COLORS, MARKERS, strict=False):
            found = [row for row in rows if row.model == model]
            values = [getattr(row, stage) for row in found]
            layers, biased = [row.layer for row in found], [getattr(row, f"{stage}_biased") for row in found]
            panel.plot_defined(axes, layers, values, marker=marker, color=color, label=label)
            if any(value is not None for value in biased):  # the first version of the table had none
                panel.plot_defined(axes, layers, biased, color=color, linestyle=":", label=f"{label}, biased")
        axes.set_title(model, loc="left", fontsize="medium")
        panel.whole_axis(axes)
    _legend_below(figure, grid)
    figure.supylabel(f"CKA to {rows[0].reference}", fontsize="medium")
    figure.suptitle(f"Before and after fine-tuning: {task}", x=0.01, ha="left")
    return panel.write_figure(figure, path)


def draw_pareto(result: StudyResult, task: str, path: Path) -> Path:
    """Test score against parameters kept, with the front that no other point beats, of all layers and of two.

    The TMFT paper's figure 4 has two points a model: the layer that is best on dev, and the last one. Raises
    `FileProblemError`.
    """
    figure, axes = _panel_of_all(result, task)
    everything = result.of_task(task)
    for model, style in _styles(result, task):
        rows = result.of(model, task)
        axes.plot(
            [row.scores.parameters / 1e6 for row in rows],
            [row.scores.test for row in rows],
            linewidth=1,
            alpha=0.8,
            label=model,
            **style,
        )
    lines = [line for line in summaries(result) if line.task == task]
    ends = [row for line in lines for row in (line.best_dev, line.last) if row is not None]
    for rows, how in ((everything, FRONT_OF_ALL), (ends, FRONT_OF_ENDS)):
        front = pareto_front(rows)
        sizes, scores = [row.scores.parameters / 1e6 for row in front], [row.scores.test for row in front]
        axes.step(sizes, scores, where="post", zorder=0, **how)
    axes.set_title(f"What parameters buy: {task}", loc="left")
    axes.set_xlabel("parameters kept, millions")
    axes.set_ylabel(f"test score in points ({everything[0].metric})")
    axes.grid(alpha=0.3)
    _legend_beside(figure)
    return panel.write_figure(figure, path)
