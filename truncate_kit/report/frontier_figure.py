"""Score against speed of the lean models of a distillation, before and after learning."""

from pathlib import Path

from matplotlib.axes import Axes

from truncate_kit.distillation.distill_result import DistillResult
from truncate_kit.distillation.step_results import Frontier, SubsetScore
from truncate_kit.precisions import PRECISIONS, Precision
from truncate_kit.report.panel import BLUE, GREEN, GREY, ORANGE, TIP, label_points, open_panel, write_panel


def draw_frontier(result: DistillResult, path: Path) -> Path:
    """Write the figure as PNG and return its path. Raises `FileProblemError`."""
    figure, axes = open_panel(f"Blocks of {Path(result.model).name}: score against speed")
    plot_frontier(axes, result)
    return write_panel(figure, axes, path)


def plot_frontier(axes: Axes, result: DistillResult) -> None:
    """Each number of blocks by its speed and score, before and after learning, and the choice."""
    rows, full = result.candidates, result.candidates[-1]
    speeds = [row.texts_per_second / full.texts_per_second for row in rows]
    # Where vectors of a layer before the end are learned, the full model is none of the choices.
    best = {len(full.blocks): SubsetScore(blocks=full.blocks, score=full.untrained)}
    best |= {len(row.blocks): row for row in result.search.best}
    axes.plot(
        speeds,
        [best[len(row.blocks)].score for row in rows],
        "o--",
        color=ORANGE,
        label="best choice, without training",
    )
    first = {len(row.blocks): row.score for row in result.search.baselines["first"]}
    axes.plot(
        speeds,
        [first.get(len(row.blocks), float("nan")) for row in rows],
        "s:",
        color=GREY,
        label="first blocks, without training",
    )
    learned = [(speed, row) for speed, row in zip(speeds, rows, strict=True) if row.learned is not None]
    if learned:  # blocks that have the vectors already have nothing to learn
        axes.plot(
            [speed for speed, _ in learned],
            [row.score for _, row in learned],
            "D",
            color=BLUE,
            markersize=8,
            label="after learning",
        )
    others = [(speed, row) for speed, row in learned if row.blocks != best[len(row.blocks)].blocks]
    if others:  # leading choices of one size may change places in learning
        axes.plot(
            [speed for speed, _ in others],
            [row.untrained for _, row in others],
            "D",
            color=BLUE,
            markersize=6,
            markerfacecolor="none",
            label="the blocks that learned best, before it",
        )
    chosen = result.candidate
    axes.plot(
        result.speedup,
        chosen.score,
        "o",
        markersize=16,
        markerfacecolor="none",
        markeredgewidth=2,
        color=GREEN,
        label=f"chosen: {', '.join(map(str, result.chosen))}",
    )
    scored = [(speed, row.score, str(len(row.blocks))) for speed, row in zip(speeds, rows, strict=True)]
    label_points(axes, scored, beside=[(speed, best[len(row.blocks)].score) for speed, row in learned])
    axes.set_xlabel("texts a second, full model = 1 (torch); numbers are blocks")
    axes.set_ylabel(f"score in points\n({result.metric})")  # two lines: names of layers make it longer than the axis
    axes.grid(alpha=0.3)


def plot_graphs(axes: Axes, frontier: Frontier, metric: str) -> None:
    """Every graph with all dimensions and words by speed and score: colour is the precision, a number the blocks."""
    full = frontier.points[0]
    whole = [one for one in frontier.points if (one.dims, one.words) == (full.dims, full.words)]
    marks: dict[Precision, str] = {"fp32": "D", "int8": "s"}
    for precision, marker in marks.items():
        found = [one for one in whole if one.precision == precision]
        color = PRECISIONS[precision].color
        for one in found:
            speed, label = one.texts_per_second / full.texts_per_second, f"{len(one.blocks)} blocks in {precision}"
            tip = f"{TIP}{label}: {speed:.2f} × the speed, score {one.score:.2f}, {one.megabytes:.1f} MB"
            axes.plot(speed, one.score, marker, color=color, markersize=9, gid=tip)
        if found:
            axes.plot([], [], marker, color=color, label=f"ONNX Runtime {precision}")
    placed = [(one.texts_per_second / full.texts_per_second, one.score, str(len(one.blocks))) for one in whole]
    label_points(axes, placed)
    axes.set_xlabel("texts a second, full model's float32 graph = 1; numbers are blocks")
    axes.set_ylabel(f"score in points\n({metric})")
    axes.grid(alpha=0.3)
