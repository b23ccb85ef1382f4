"""A study as figures: scores by layer, and what parameters buy."""

from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from truncate_kit.files import replacing
from truncate_kit.report.sweep_figure import DEV, TEST, draw_curve
from truncate_kit.study.results import StudyResult, StudyRow, pareto_front

# Okabe and Ito's palette, without black and yellow.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
MARKERS = "osD^vP"
PANELS_ABREAST = 3


def draw_curves(result: StudyResult, task: str, path: Path) -> Path:
    """Dev and test by layer, one panel for each model, all with the same scale. Raises `CannotWriteError`."""
    models = [model for model in result.models() if result.of(model, task)]
    lines = -(-len(models) // PANELS_ABREAST)
    abreast = min(PANELS_ABREAST, len(models))
    figure = Figure(figsize=(4.2 * abreast + 0.6, 3.4 * lines), layout="constrained")
    grid = figure.subplots(lines, abreast, squeeze=False, sharey=True).flatten()
    for axes, model in zip(grid, models, strict=False):
        _panel(axes, result.of(model, task))
        axes.set_title(model, loc="left", fontsize="medium")
    for axes in grid[len(models) :]:
        axes.set_axis_off()
    grid[0].legend(loc="best", fontsize="small")
    figure.suptitle(f"Fine-tuned at each layer: {task}", x=0.01, ha="left")
    return _write(figure, path)


def _panel(axes: Axes, rows: list[StudyRow]) -> None:
    scores = [row.scores for row in rows]
    draw_curve(axes, scores, "dev", DEV)
    draw_curve(axes, scores, "test", TEST)
    published = [(row.scores.layer, row.published) for row in rows if row.published is not None]
    if published:
        layers, values = zip(*published, strict=True)
        axes.plot(layers, values, linestyle=":", color=TEST, label="published, test")
    axes.set_xlabel("layer (0 = embeddings)")
    axes.set_ylabel(f"points ({rows[0].metric})")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(alpha=0.3)


def draw_pareto(result: StudyResult, task: str, path: Path) -> Path:
    """Test score against parameters kept, with the front that no other point beats. Raises `CannotWriteError`."""
    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.add_subplot()
    everything: list[StudyRow] = []
    for place, model in enumerate(result.models()):
        rows = result.of(model, task)
        everything += rows
        axes.plot(
            [row.scores.parameters / 1e6 for row in rows],
            [row.scores.test for row in rows],
            marker=MARKERS[place % len(MARKERS)],
            color=COLORS[place % len(COLORS)],
            linewidth=1,
            alpha=0.8,
            label=model,
        )
    front = pareto_front(everything)
    axes.step(
        [row.scores.parameters / 1e6 for row in front],
        [row.scores.test for row in front],
        where="post",
        color="#555555",
        linestyle="--",
        label="Pareto front",
    )
    axes.set_title(f"What parameters buy: {task}", loc="left")
    axes.set_xlabel("parameters kept, millions")
    axes.set_ylabel(f"test score in points ({everything[0].metric})")
    axes.grid(alpha=0.3)
    axes.legend(loc="best", fontsize="small")
    return _write(figure, path)


def _write(figure: Figure, path: Path) -> Path:
    with replacing(path) as target:
        figure.savefig(target, dpi=120, format="png")
    return path
