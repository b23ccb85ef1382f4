"""Score against speed of the lean models of a distillation, before and after learning."""

from pathlib import Path

from matplotlib.axes import Axes

from truncate_kit.methods.distill.result import DistillResult, Frontier, FrontierPoint, SubsetScore
from truncate_kit.precisions import PRECISIONS, Precision
from truncate_kit.report.panel import BLUE, GREEN, GREY, ORANGE, TIP, label_points, open_panel, write_panel
from truncate_kit.wording import counted

_LARGEST = 9  # points across a mark of all dimensions
_MARKS: dict[tuple[Precision, bool], str] = {
    ("fp32", False): "D",
    ("fp32", True): "^",
    ("int8", False): "s",
    ("int8", True): "v",
}
"""By precision, and whether words went; the precisions differ in shape as well as in colour."""


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
    axes.set_xlabel(f"texts a second, full model = 1 ({full.texts_per_second:,.0f} in torch)\nnumbers are blocks")
    axes.set_ylabel(f"score in points\n({result.metric})")  # two lines: names of layers make it longer than the axis
    axes.grid(alpha=0.3)


def plot_graphs(axes: Axes, frontier: Frontier, metric: str, taken: FrontierPoint | None = None) -> None:
    """Every point by speed and score; a number counts the blocks of a graph with all dimensions and words.

    Colour is the precision, shape the words too, size the dimensions; what another point beats is hollow.

    Args:
        axes: Where they are drawn.
        frontier: The points.
        metric: What scores are, in words.
        taken: The point that the budget takes.
    """
    full, points = frontier.points[0], frontier.points
    places = [(one.texts_per_second / full.texts_per_second, one.score) for one in points]
    for (precision, fewer), marker in _MARKS.items():
        color, found = PRECISIONS[precision].color, False
        for one, place in zip(points, places, strict=True):
            if (one.precision, one.words < full.words) != (precision, fewer):
                continue
            fill, found = "none" if one.dominated else color, True
            size = _LARGEST * (one.dims / full.dims) ** 0.5  # the area is the share of dimensions
            tip = TIP + _described(one, full)
            axes.plot(*place, marker, color=color, markerfacecolor=fill, markersize=size, gid=tip)
        if found:
            axes.plot([], [], marker, color=color, label=f"ONNX Runtime {precision}" + ", fewer words" * fewer)
    if any(one.dims < full.dims for one in points):
        axes.plot([], [], "o", color=GREY, markersize=_LARGEST / 2, label="smaller marks: fewer dimensions")
    if any(one.dominated for one in points):
        axes.plot([], [], "o", color=GREY, markerfacecolor="none", label="hollow: another one beats it")
    if taken is not None:
        axes.plot(
            taken.texts_per_second / full.texts_per_second,
            taken.score,
            "o",
            markersize=16,
            markerfacecolor="none",
            markeredgewidth=2,
            color=GREEN,
            label=f"chosen: {_named(taken)}",
        )
    whole = {place for place, one in enumerate(points) if (one.dims, one.words) == (full.dims, full.words)}
    label_points(
        axes,
        [(*places[place], str(len(points[place].blocks))) for place in sorted(whole)],
        beside=[other for place, other in enumerate(places) if place not in whole],
    )
    pace = f"{full.texts_per_second:,.0f}"
    axes.set_xlabel(f"texts a second, full model's float32 graph = 1 ({pace})\nnumbers are blocks")
    axes.set_ylabel(f"score in points\n({metric})")
    axes.grid(alpha=0.3)


def _described(one: FrontierPoint, full: FrontierPoint) -> str:
    """What is said of a point under the mouse."""
    pace = one.texts_per_second
    speed = f"{pace / full.texts_per_second:.2f} × the speed ({pace:,.0f} texts a second)"
    return f"{_named(one)}: {speed}, score {one.score:.2f}, {one.megabytes:.1f} MB" + ", beaten" * one.dominated


def _named(one: FrontierPoint) -> str:
    return f"{counted(len(one.blocks), 'block')} in {one.precision}, {one.dims} dimensions, {one.words:,} words"
