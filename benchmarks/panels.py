"""What figures of benchmarks share: one panel, whole numbers along x, a legend below."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from truncate_kit.report.chart import write_figure
from truncate_kit.report.view import LAYERS


def whole_axis(axes: Axes, along: str = LAYERS) -> None:
    """Put whole numbers along x, and a grid."""
    axes.set_xlabel(along)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(alpha=0.3)


def plot_defined(axes: Axes, places: Iterable[int], values: Iterable[float | None], **style: Any) -> None:
    """Draw a line through the values that are not None."""
    points = [(place, value) for place, value in zip(places, values, strict=False) if value is not None]
    axes.plot([place for place, _ in points], [value for _, value in points], **style)


def open_panel(title: str) -> tuple[Figure, Axes]:
    """Open a figure of one panel."""
    figure = Figure(figsize=(9, 5), layout="constrained")
    axes = figure.add_subplot()
    axes.set_title(title, loc="left")
    return figure, axes


def write_panel(figure: Figure, axes: Axes, path: Path) -> Path:
    """Add a legend below the panel, and write a PNG."""
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, fontsize="small", frameon=False)
    return write_figure(figure, path)
