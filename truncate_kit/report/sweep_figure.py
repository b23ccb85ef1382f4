"""Dev and test scores against layer, with their deviation over seeds, the choice and the full model."""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes

from truncate_kit.methods.tmft.result import LayerScores, SweepResult, numbers_of_seeds
from truncate_kit.naming import blocks_in_words
from truncate_kit.report.panel import BLUE, GREEN, GREY, LAYERS, ORANGE, VERMILION, open_panel, whole_axis, write_panel
from truncate_kit.wording import counted

DEV, TEST, CHOICE, DROP, SEARCH = ORANGE, BLUE, GREEN, VERMILION, GREY
RANKING_WORDS = {"probe": "a linear map on frozen states", "multi-exit": "one epoch of all layers at once"}
"""What the cheap rankings of `strategies` are called in figures and tables."""


def draw_sweep(result: SweepResult, path: Path) -> Path:
    """Write the curve of a sweep as PNG and return its path. Raises `FileProblemError`."""
    of = "" if result.blocks is None else f", {blocks_in_words(result.blocks, result.full.layer)},"
    figure, axes = open_panel(f"{Path(result.model).name}{of} by layer: scores on {result.data}")
    plot_sweep(axes, result)
    return write_panel(figure, axes, path)


def plot_sweep(axes: Axes, result: SweepResult) -> None:
    """Scores by layer, what the search saw of the others, the choice, the full model and the predicted drop."""
    depth = result.full.layer
    whole_axis(axes, LAYERS if result.blocks is None else "last block that is kept (0 = embeddings)")
    if result.blocks is not None:
        ticks = dict(enumerate(map(str, (0, *result.blocks)))) | {depth: f"all {depth}"}
        axes.set_xticks([*ticks], [*ticks.values()])
    rows = result.rows
    _search(axes, result)
    gaps = not result.rankings  # where every layer was ranked, their curves run over those that were not trained
    draw_curve(axes, rows, "dev", DEV, gaps=gaps)
    draw_curve(axes, rows, "test", TEST, gaps=gaps)
    axes.axhline(result.full.test, color=TEST, linestyle=":", linewidth=1, label="full model, test")
    axes.plot(
        result.chosen,
        result.lean.test,
        "o",
        markersize=14,
        markerfacecolor="none",
        markeredgewidth=2,
        color=CHOICE,
        label=f"chosen: {result.place(result.chosen)}",
    )
    drop = result.prediction.from_layer if result.prediction else None
    if drop is not None:
        last = depth if result.blocks is None else len(result.blocks)
        axes.axvspan(drop - 0.5, last + 0.5, color=DROP, alpha=0.1, label="predicted drop")
    axes.set_ylabel(f"score in points ({result.metric})")
    axes.set_xlim(-0.5, depth + 0.5)


def draw_curve(axes: Axes, rows: list[LayerScores], split: str, color: str, *, gaps: bool = True) -> None:
    """Means of `dev` or `test` by layer with bars of one deviation over seeds.

    Args:
        axes: Where it is drawn.
        rows: The layers.
        split: `dev` or `test`.
        color: Of the curve.
        gaps: Dotted over missing layers.
    """
    layers = [row.layer for row in rows]
    means = [getattr(row, split) for row in rows]
    spreads = [getattr(row, f"{split}_std") or 0.0 for row in rows]
    several = any(len(row.seeds) > 1 for row in rows)
    label = f"{split}, mean ± deviation over {numbers_of_seeds(rows)}" if several else f"{split}, one seed"
    axes.errorbar(layers, means, spreads if any(spreads) else None, fmt="o", color=color, capsize=3, label=label)
    ends = [(layer, mean - spread, mean + spread) for layer, mean, spread in zip(layers, means, spreads, strict=True)]
    for here, there in pairwise(ends):  # the band over seeds; none over layers that were not trained
        if any(spreads) and there[0] == here[0] + 1:
            along, low, high = zip(here, there, strict=True)
            axes.fill_between(along, low, high, color=color, alpha=0.12, linewidth=0)
    _join(axes, layers, means, gaps=gaps, color=color)


def _join(axes: Axes, layers: Sequence[int], values: Sequence[float], *, gaps: bool = True, **style: Any) -> None:
    """Lines between points; over layers that were not trained dotted, or none, so that nobody reads values there."""
    for (left, here), (right, there) in pairwise(zip(layers, values, strict=True)):
        if gaps or right == left + 1:
            axes.plot([left, right], [here, there], "-" if right == left + 1 else ":", **style)


def _search(axes: Axes, result: SweepResult) -> None:
    """The rankings of a search, and its short and stopped trials, one faint line for each number of epochs."""
    for style, (name, ranking) in zip(("v", "^"), result.rankings.items(), strict=False):
        axes.plot(
            ranking.layers,
            ranking.scores,
            style,
            markersize=4,
            linestyle="--",
            linewidth=0.8,
            color=SEARCH,
            label=f"dev in the search, {RANKING_WORDS.get(name, name)}",
        )
    for epochs in sorted({trial.epochs_run for trial in result.search}):
        trials = sorted((trial for trial in result.search if trial.epochs_run == epochs), key=lambda trial: trial.layer)
        layers, dev = [trial.layer for trial in trials], [trial.dev for trial in trials]
        label = f"dev in the search, {counted(epochs, 'epoch')}"
        axes.plot(layers, dev, ".", color=SEARCH, label=label)
        _join(axes, layers, dev, color=SEARCH, linewidth=0.8)
