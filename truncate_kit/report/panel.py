"""One panel over layers, blocks or sizes: its frame, and writing it."""

from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from truncate_kit.files import replacing


def open_panel(title: str, along: str) -> tuple[Figure, Axes]:
    """A figure of one panel with whole numbers along x. along: what they are."""
    figure = Figure(figsize=(9, 5), layout="constrained")
    axes = figure.add_subplot()
    axes.set_title(title, loc="left")
    axes.set_xlabel(along)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(alpha=0.3)
    return figure, axes


def write_panel(figure: Figure, axes: Axes, path: Path) -> Path:
    """Add the legend and write a PNG. Raises `CannotWriteError`."""
    axes.legend(loc="best", fontsize="small")
    with replacing(path) as target:
        figure.savefig(target, dpi=120, format="png")
    return path
