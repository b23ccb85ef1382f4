"""Two figures of layer combinations: the best for each size, and what leaving each layer out changes."""

from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from truncate_kit.methods.bert_lc.result import LAST, CombinationReport
from truncate_kit.report.panel import BLUE, ORANGE, open_panel, plot_means, whole_axis, write_panel

COLORS = {"dev": ORANGE, "test": BLUE}


def draw_sizes(report: CombinationReport, path: Path) -> Path:
    """Write the score of the best combination of each size as PNG (BERT-LC, Figure 2). Raises `FileProblemError`."""
    figure, axes = _panel(report, "the best combination of each size")
    plot_sizes(axes, report)
    return write_panel(figure, axes, path)


def plot_sizes(axes: Axes, report: CombinationReport) -> None:
    """The score of the best combination of each size."""
    whole_axis(axes, "layers combined")
    for (side, color), shift in zip(COLORS.items(), (-0.06, 0.06), strict=True):  # bars side by side
        sizes = range(1, len(report.splits[0].by_size) + 1)
        spans = {size + shift: span for size in sizes if (span := report.size(size, side)) is not None}
        over = f"{len(report.splits)} splits" if len(report.splits) > 1 else None
        plot_means(axes, side, list(spans), list(spans.values()), over=over, color=color)
    last = report.baseline(LAST, "test")
    if last is not None:
        axes.axhline(last.mean, color=COLORS["test"], linestyle=":", linewidth=1, label=f"{LAST}, test")
    axes.set_ylabel("Spearman × 100")


def draw_effects(report: CombinationReport, path: Path) -> Path:
    """Write what leaving each layer out changes as PNG (BERT-LC, Figure 4). Raises `FileProblemError`."""
    figure, axes = _panel(report, "best combination without a layer, against the best of all")
    plot_effects(axes, report)
    return write_panel(figure, axes, path)


def plot_effects(axes: Axes, report: CombinationReport) -> None:
    """What leaving each layer out changes."""
    whole_axis(axes, "layer left out")
    effects = report.effects()
    for side, color, shift in (("dev", COLORS["dev"], -0.2), ("test", COLORS["test"], 0.2)):
        places = [effect.layer + shift for effect in effects]
        axes.bar(places, [getattr(effect, side) for effect in effects], width=0.4, color=color, label=side)
    axes.axhline(0, color="black", linewidth=0.8)
    axes.set_xlim(-0.6, report.depth + 0.6)
    axes.set_ylabel("change in points (Spearman × 100)")


def _panel(report: CombinationReport, what: str) -> tuple[Figure, Axes]:
    return open_panel(f"{Path(report.model).name}: {what} ({report.data})")
