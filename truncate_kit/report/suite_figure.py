"""Accuracy against the number of training rows, one panel per transfer set."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from truncate_kit.evaluation.registry import SuiteReport
from truncate_kit.evaluation.transfer import TransferReport
from truncate_kit.report.panel import BLUE, VERMILION, write_figure

_LINES = (
    ("mean_as_is", "as it is", "#999999", ":"),
    ("mean_last", "last layer", BLUE, "-"),
    ("mean_combined", "layers combined", VERMILION, "-"),
)


def draw_transfer(report: TransferReport, path: Path) -> Path | None:
    """Write the curves as PNG; None where there is only one share of the training rows. Raises `FileProblemError`."""
    if len(report.settings.fractions) < 2:
        return None
    sets = [score for score in report.sets if score.curve]
    across = min(4, len(sets))
    down = math.ceil(len(sets) / across)
    figure = Figure(figsize=(3.2 * across + 0.4, 2.8 * down + 0.4), layout="constrained")
    for place, score in enumerate(sets):
        axes = figure.add_subplot(down, across, place + 1)
        for field, label, color, style in _LINES:
            values = [getattr(point, field) for point in score.curve]
            if None not in values:
                rows = [point.train_rows for point in score.curve]
                axes.plot(rows, values, marker="o", markersize=4, color=color, linestyle=style, label=label)
        axes.set_title(score.name, loc="left", fontsize="medium")
        axes.set_xlabel("rows to train on")
        axes.set_ylabel("accuracy × 100")
        axes.grid(alpha=0.3)
        if place == 0:
            axes.legend(loc="best", fontsize="small")
    return write_figure(figure, path)


FIGURES: dict[type[SuiteReport], Callable[[Any, Path], Path | None]] = {TransferReport: draw_transfer}
"""What draws the reports that have a figure; it writes a PNG, or nothing where there is nothing to compare."""
