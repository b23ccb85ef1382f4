"""Draw plots with matplotlib, as PNG files or as SVG for pages."""

import io
import math
import re
import warnings
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup, escape
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.ticker import MaxNLocator

from truncate_kit.core.errors import UsageError, harmless
from truncate_kit.core.files import replacing
from truncate_kit.core.results import Result
from truncate_kit.report.view import BLUE, GREEN, GREY, INK, ORANGE, PURPLE, SKY, VERMILION, Plot, Series, View, view_of

ABREAST = 3  # panels in a row
TIP = "tip: "  # prefix of ids that contain a tooltip
_MOST_NUMBERS = 200  # more are unreadable in a heat map
_MOST_BELOW = 12  # legend entries; longer legends are drawn at the side
_PAGE: dict[Any, Any] = {
    "font.size": 11,
    "legend.fontsize": 9.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "text.parse_math": False,  # names are not formulas
    "svg.fonttype": "none",
}
_FIXED = "#010101"  # stays black on dark pages
_NAMES = ("blue", "sky", "green", "vermilion", "orange", "purple", "grey")
_THEMED = dict(zip((BLUE, SKY, GREEN, VERMILION, ORANGE, PURPLE, GREY), map("var(--{})".format, _NAMES), strict=True))
_THEMED[INK] = "currentColor"
_FAMILY = re.compile(r"""(?<=font-family: )[^;"]+|(?<=px) '[^;"]+""")  # differs between versions of matplotlib
_LEFT_OUT = re.compile(r"<metadata>.*?</metadata>|<style.*?</style>", re.DOTALL)  # styles would apply to the whole page
_NAMED = re.compile(rf' id="{TIP}([^"]*)">')
_PATH = re.compile(r'(?<= )d="[^"]*"')
_REFERENCE = re.compile(r'( id="|url\(#|href="#)')
_ROUNDED = re.compile(r"(\d+\.\d\d)\d+")


def write_figures(view: View, folder: Path, ending: str = "") -> list[Path]:
    """Write a view's plots as PNG files; plots with the same `file` share one.

    Raises `FileProblemError`.
    """
    names = dict.fromkeys(plot.file for plot in view.plots if plot.file)
    return [
        write_plots([plot for plot in view.plots if plot.file == name], folder / f"{name}{ending}.png")
        for name in names
    ]


def figure_of(result: Result) -> Figure:
    """Draw a result's first figure, for pyplot or notebooks. Raises `UsageError`."""
    from matplotlib import get_backend, pyplot

    if not (plots := view_of(result).plots):
        kind = type(result).__name__
        raise UsageError(f"A result of class {kind} has no figure.", hint="`to_frame` returns its table.")
    figure = _figure([plot for plot in plots if plot.file == plots[0].file], pyplot.figure)
    _escape(figure)
    if "inline" in get_backend():  # not shown twice
        pyplot.close(figure)
    return figure


def write_plots(plots: Sequence[Plot], path: Path) -> Path:
    """Write plots as panels of one PNG: up to two stacked, more in rows of three. Raises `FileProblemError`."""
    return write_figure(_figure(plots, Figure), path)


def _figure(plots: Sequence[Plot], make: Callable[..., Any]) -> Figure:
    across, rows = (1, len(plots)) if len(plots) <= 2 else (ABREAST, math.ceil(len(plots) / ABREAST))
    curves, heat = sum(bool(series.label) for series in plots[0].series), plots[0].heat
    size = (9.0, 4.5 * rows + 0.5) if curves <= _MOST_BELOW else (11.0, max(5.0, 0.2 * curves + 1))
    if across > 1:
        size = 4.2 * across + 0.6, 3.6 * rows
    elif heat:
        size = (7.0 if plots[0].rows else 4.5) + 0.45 * len(heat[0]), 1.6 + 0.32 * len(heat)
    figure: Figure = make(figsize=size, layout="constrained")
    grid = figure.subplots(rows, across, squeeze=False).flatten()
    for axes in grid[len(plots) :]:
        axes.set_axis_off()
    for axes, plot in zip(grid, plots, strict=False):
        draw(axes, plot)
        axes.set_title(plot.title, loc="left", fontsize="medium" if across > 1 else None)
    legend = {label: key for axes in grid for key, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    if legend:
        place: dict[str, Any] = {"loc": "outside lower center", "ncols": 3}
        place = place if len(legend) <= _MOST_BELOW else {"loc": "outside right upper"}
        figure.legend(legend.values(), legend, fontsize="small", frameon=False, handlelength=3, **place)
    return figure


def draw(axes: Axes, plot: Plot) -> None:
    """Draw a plot into a panel, without title and legend."""
    axes.set(xlabel=plot.x, ylabel=plot.y)
    if plot.heat:
        _draw_heat(axes, plot)
        return
    axes.grid(alpha=0.3)
    if plot.logarithmic:
        axes.set_yscale("log")
    for series in plot.series:
        _draw_series(axes, series)
    for height, label, color in plot.levels:
        axes.axhline(height, color=color, linestyle=":", linewidth=1, label=label or None)
    if plot.shade is not None:
        left, right, label = plot.shade
        axes.axvspan(left, right, color=VERMILION, alpha=0.12, linewidth=0, label=label)
    if plot.ticks is not None:
        axes.set_xticks([*plot.ticks], [*plot.ticks.values()])
    elif plot.whole:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if plot.x_range is not None:
        axes.set_xlim(*plot.x_range)
    axes.set_ylim(*plot.y_range)


def _draw_series(axes: Axes, series: Series) -> None:
    x, y = list(series.x), _numbers(series.y)
    if series.bar:
        axes.bar(x, y, width=series.bar, color=series.color, label=series.label or None)
        return
    if series.low:
        low, high = _numbers(series.low), _numbers(series.high)
        axes.fill_between(x, low, high, color=series.color, alpha=0.2, linewidth=0)
    if any(series.spread):
        bars = [spread or 0.0 for spread in series.spread]
        axes.errorbar(x, y, bars, fmt="none", ecolor=series.color, capsize=3)
        low, high = ([mean + sign * bar for mean, bar in zip(y, bars, strict=True)] for sign in (-1, 1))
        axes.fill_between(x, low, high, color=series.color, alpha=0.2, linewidth=0)
    style: dict[str, Any] = {"color": series.color, "linestyle": series.line or "None", "linewidth": series.width}
    style |= {"marker": series.marker or "None", "markersize": series.size, "label": series.label or None}
    style |= {"markerfacecolor": "none", "markeredgewidth": 2 if series.size > 6 else None} if series.hollow else {}
    tip = TIP + series.tip.replace('"', "'") if series.tip else None  # quoted like other ids
    axes.plot(x, y, gid=tip, **style)
    for left, height, text in zip(x, y, series.texts, strict=False):
        above: dict[str, Any] = {"xytext": (0, 9), "textcoords": "offset points", "ha": "center"}
        axes.annotate(text, (left, height), parse_math=False, **above)


def _numbers(values: Sequence[float | None]) -> list[float]:
    return [math.nan if value is None else value for value in values]


def _draw_heat(axes: Axes, plot: Plot) -> None:
    known = [value for row in plot.heat for value in row if value is not None]
    low, high = plot.heat_range or (min(known), max(known))
    rows, columns = len(plot.heat), len(plot.heat[0])
    image = axes.pcolormesh([_numbers(row) for row in plot.heat], cmap="cividis", vmin=low, vmax=high)
    shown = range(0, columns, 1 + columns // 14)
    axes.set_xticks([index + 0.5 for index in shown], [*map(str, shown)])
    step = 1 if plot.rows else 1 + rows // 14
    names = plot.rows or [str(index) for index in range(rows)]
    axes.set_yticks([index + 0.5 for index in range(0, rows, step)], names[::step], parse_math=False)
    if plot.rows:
        axes.invert_yaxis()
    if rows * columns <= _MOST_NUMBERS:
        for row, cells in enumerate(plot.heat):
            for column, value in enumerate(cells):
                if value is not None:
                    ink = _FIXED if value > (low + high) / 2 else "#ffffff"
                    text = f"{value:.2f}" if high <= 1 else f"{value:.1f}"
                    axes.text(column + 0.5, row + 0.5, text, ha="center", va="center", fontsize=7, color=ink)
    axes.figure.colorbar(image, ax=axes, shrink=0.9)


def write_figure(figure: Figure, path: Path, *, dpi: int = 120) -> Path:
    """Write a figure as PNG. Raises `FileProblemError`."""
    _escape(figure)
    with replacing(path) as target, warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph")  # scripts that the font lacks
        figure.set_dpi(dpi)
        figure.draw_without_rendering()  # otherwise savefig draws twice
        figure.set_layout_engine("none")
        figure.savefig(target, dpi=dpi, format="png")
    return path


def _escape(figure: Figure) -> None:
    for text in figure.findobj(Text):  # names are not formulas
        plain = harmless(text.get_text())
        text.set_text(plain.replace("$", r"\$") if text.get_parse_math() else plain)


def inline_svg(plot: Plot) -> Markup:
    """Draw a plot as one `<svg>` element with a legend below; text is not converted to paths."""
    name = f"plot-{zlib.crc32(repr(plot).encode()):x}"  # ids must differ on a page
    with rc_context(_PAGE | {"svg.hashsalt": name}):  # same figure, same bytes
        figure = Figure(figsize=(5.8, 5.2 if len(plot.series) > 3 else 4.4), layout="constrained")
        axes = figure.add_subplot()
        draw(axes, plot)
        if keys := axes.get_legend_handles_labels()[0]:
            figure.legend(handles=keys, loc="outside lower left", ncols=1, frameon=False)
        file = io.StringIO()
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Glyph")
            figure.savefig(file, format="svg", transparent=True, metadata={"Date": None})
    text = _LEFT_OUT.sub("", file.getvalue())
    _, _, content = text.partition("<svg ")[2].partition(">")
    for fixed, themed in _THEMED.items():
        content = re.sub(fixed, themed, content, flags=re.IGNORECASE)
    content = _PATH.sub(lambda path: " ".join(_ROUNDED.sub(r"\1", path[0]).split()), content)
    content = _NAMED.sub(r"><title>\1</title>", _FAMILY.sub(" var(--sans)", content))
    content = _REFERENCE.sub(rf"\g<1>{name}-", content)
    size = re.search(r' viewBox="[^"]*"', text)
    spaces = 'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
    head = f'<svg {spaces}{size[0] if size else ""} role="img" aria-label="{escape(plot.title)}">'
    return Markup(harmless(head + content))  # matplotlib escapes all text
