"""What figures share: colours, the frame of a panel over layers, blocks or sizes, and writing a file."""

import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.ticker import MaxNLocator
from matplotlib.transforms import Bbox

from truncate_kit.files import replacing
from truncate_kit.statistics import Span
from truncate_kit.wording import harmless

# Okabe and Ito's palette: colour-blind readers distinguish them, and so does grey print.
BLUE, SKY, GREEN, VERMILION, ORANGE, PURPLE = "#0072B2", "#56B4E9", "#009E73", "#D55E00", "#E69F00", "#CC79A7"
GREY = "#777777"
LAYERS = "layer (0 = embeddings)"
_AWAY, _LETTER, _HEIGHT = 7, 7, 11  # points from the middle of a mark to its text, and the size of one
_SIDES = ((1, 1), (-1, -1), (1, -1), (-1, 1))  # right and up
TIP = "tip: "
"""Begins the id of a mark whose rest is what a page says of it under the mouse."""


def whole_axis(axes: Axes, along: str = LAYERS) -> None:
    """Whole numbers along x, and a grid.

    Args:
        axes: Get whole numbers along x, and a grid.
        along: What they are.
    """
    axes.set_xlabel(along)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(alpha=0.3)


def plot_defined(axes: Axes, places: Iterable[int], values: Iterable[float | None], **style: Any) -> None:
    """A line through the values that are defined.

    Args:
        axes: Where it is drawn.
        places: Along x.
        values: Along y; None where there is none.
        **style: As for `Axes.plot`.
    """
    points = [(place, value) for place, value in zip(places, values, strict=False) if value is not None]
    axes.plot([place for place, _ in points], [value for _, value in points], **style)


def plot_means(
    axes: Axes, name: str, places: Sequence[float], spans: Sequence[Span], *, over: str | None, color: str
) -> None:
    """A line through means, with bars of one deviation.

    Args:
        axes: Where it is drawn.
        name: Of what.
        places: Along x.
        spans: Mean and deviation at each place.
        over: Such as "3 seeds"; None has no bars.
        color: Of the line.
    """
    axes.errorbar(
        places,
        [span.mean for span in spans],
        yerr=None if over is None else [span.std or 0.0 for span in spans],
        marker="o",
        capsize=3,
        color=color,
        label=name if over is None else f"{name}, mean ± deviation over {over}",
    )


def label_points(
    axes: Axes, points: Sequence[tuple[float, float, str]], *, beside: Sequence[tuple[float, float]] = ()
) -> None:
    """Write a text at each point (x, y, text), on the first of its sides where no other point or text is.

    Called when all else is drawn: it fixes the limits of the axes, with room for the texts.

    Args:
        axes: Whose limits it fixes.
        points: Each (x, y, text).
        beside: Other marks.
    """
    axes.margins(x=0.06, y=0.1)
    axes.set(xlim=axes.get_xlim(), ylim=axes.get_ylim())
    marks = [_in_points(axes, x, y) for x, y in (*(point[:2] for point in points), *beside)]
    taken = list[Bbox]()
    for (x, y, text), mark in zip(points, marks, strict=False):
        others = [*taken, *(_square(other) for other in marks if max(map(abs, np.subtract(other, mark))) > 1)]
        boxes = {side: _beside(mark, text, *side) for side in _SIDES}
        side = next((side for side, box in boxes.items() if not box.count_overlaps(others)), _SIDES[0])
        taken.append(boxes[side])
        axes.annotate(
            text,
            (x, y),
            xytext=(_AWAY * side[0], _AWAY * side[1]),
            textcoords="offset points",
            ha="left" if side[0] > 0 else "right",
            va="bottom" if side[1] > 0 else "top",
        )


def _in_points(axes: Axes, x: float, y: float) -> tuple[float, float]:
    """Where that is in the figure, in points, before its layout makes the panel a little smaller or larger."""
    across, up = axes.transData.transform((x, y)) * (72 / axes.figure.dpi)
    return float(across), float(up)


def _square(mark: tuple[float, float]) -> Bbox:
    return Bbox.from_bounds(mark[0] - _AWAY, mark[1] - _AWAY, 2 * _AWAY, 2 * _AWAY)


def _beside(mark: tuple[float, float], text: str, right: int, up: int) -> Bbox:
    """The room of a text at a mark; right, up: 1 or -1."""
    width = _LETTER * len(text)
    left, low = mark[0] + right * _AWAY - width * (right < 0), mark[1] + up * _AWAY - _HEIGHT * (up < 0)
    return Bbox.from_bounds(left, low, width, _HEIGHT)


def open_panel(title: str) -> tuple[Figure, Axes]:
    """A figure of one panel."""
    figure = Figure(figsize=(9, 5), layout="constrained")
    axes = figure.add_subplot()
    axes.set_title(title, loc="left")
    return figure, axes


def write_panel(figure: Figure, axes: Axes, path: Path) -> Path:
    """Add the legend below the panel, where it covers nothing, and write a PNG. Raises `FileProblemError`."""
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, fontsize="small", frameon=False)
    return write_figure(figure, path)


def write_figure(figure: Figure, path: Path, *, dpi: int = 120) -> Path:
    """Write a PNG. Raises `FileProblemError`."""
    for text in figure.findobj(Text):  # names from outside are in them: they are no formulas, and steer no terminal
        plain = harmless(text.get_text())
        text.set_text(plain.replace("$", r"\$") if text.get_parse_math() else plain)
    with replacing(path) as target, warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph")  # a name in a script that the font has not
        _settle(figure, dpi)
        figure.savefig(target, dpi=dpi, format="png")
    return path


def _settle(figure: Figure, dpi: int) -> None:
    """Lay it out, and once for all: with a layout to come, `savefig` would draw everything twice."""
    FigureCanvasAgg(figure)  # its renderer measures each text once, for the layout and for drawing
    figure.set_dpi(dpi)
    if (engine := figure.get_layout_engine()) is not None:
        engine.execute(figure)
        figure.set_layout_engine(None)
