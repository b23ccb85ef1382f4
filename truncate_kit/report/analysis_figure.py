"""CKA against layer with its interval, the untrained scores below it, the predicted drop shaded."""

from itertools import count
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.collections import QuadMesh
from matplotlib.figure import Figure

from truncate_kit.analysis.result import LayerProfile, called
from truncate_kit.data.retrieval import SEARCH_METRICS
from truncate_kit.report.panel import BLUE, GREEN, ORANGE, SKY, VERMILION, plot_defined, whole_axis, write_figure

CKA, CLEANED, SPEARMAN, SEARCH, DROP = BLUE, SKY, GREEN, ORANGE, VERMILION


def draw_analysis(profile: LayerProfile, path: Path) -> Path:
    """Write the curves of a profile as PNG and return its path. Raises `FileProblemError`."""
    scored = profile.spearman is not None or bool(profile.searched)
    figure = Figure(figsize=(9, 7 if scored else 5), layout="constrained")
    panels = figure.subplots(2 if scored else 1, 1, sharex=True, squeeze=False)[:, 0]
    other = called(profile.reference) if profile.reference else f"its own middle layer {profile.depth // 2}"
    title = f"{profile.title} compared with {other}, {profile.num_texts:,} texts"
    panels[0].set_title(title, loc="left")
    plot_cka(panels[0], profile)
    if scored:
        plot_untrained(panels[1], profile)
    for axes in panels:
        axes.legend(loc="best", fontsize="small")
    panels[0].set_xlabel("" if scored else panels[0].get_xlabel())
    return write_figure(figure, path)


def plot_untrained(axes: Axes, profile: LayerProfile) -> None:
    """Scores of the untrained states by layer, those that were measured."""
    if profile.spearman is not None:
        label = f"untrained states, {profile.num_pairs:,} pairs"
        plot_defined(axes, count(), profile.spearman, marker="o", color=SPEARMAN, label=label)
        axes.set_ylabel("Spearman × 100")
    for metric, values in [*profile.searched.items()][:1]:
        label = f"untrained states, {profile.num_queries:,} queries"
        plot_defined(axes, count(), values, marker="s", color=SEARCH, label=label)
        measure = SEARCH_METRICS[metric]
        axes.set_ylabel(f"{measure} × 100" if profile.spearman is None else f"Spearman and {measure} × 100")
    _over_layers(axes, profile)


def plot_matrix(axes: Axes, profile: LayerProfile) -> QuadMesh:
    """CKA of every layer with every layer of the reference, or of the model itself, as a heat map."""
    values = [[float("nan") if value is None else value for value in row] for row in profile.cka_matrix]
    mesh = axes.pcolormesh(values, cmap="cividis", vmin=0.0, vmax=1.0, edgecolors="none")
    axes.set_aspect("equal")
    other = "the model" if profile.reference is None else "the reference"
    for axis, size in ((axes.xaxis, len(values[0])), (axes.yaxis, len(values))):
        step = 1 + size // 14
        axis.set_ticks([place + 0.5 for place in range(0, size, step)], [str(place) for place in range(0, size, step)])
    axes.set_xlabel(f"layer of {other}")
    axes.set_ylabel("layer of the model")
    return mesh


def plot_cka(axes: Axes, profile: LayerProfile) -> None:
    """CKA by layer with its interval, and without the dimensions of largest variance where that was measured."""
    curve = profile.cka
    interval = f", {100 * profile.level:g} % interval" if curve.low is not None else ""
    plot_defined(axes, count(), curve.values, marker="o", color=CKA, label=f"CKA{interval}")
    if curve.low is not None and curve.high is not None:
        defined = [
            (layer, low, high)
            for layer, (low, high) in enumerate(zip(curve.low, curve.high, strict=True))
            if low is not None and high is not None
        ]
        axes.fill_between(
            [layer for layer, _, _ in defined],
            [low for _, low, _ in defined],
            [high for _, _, high in defined],
            color=CKA,
            alpha=0.25,
            linewidth=0,
        )
    if profile.cka_without_outliers is not None:
        label = f"without the {profile.outliers} dimensions of largest variance"
        style = {"marker": ".", "linestyle": "--", "color": CLEANED}
        plot_defined(axes, count(), profile.cka_without_outliers.values, label=label, **style)
    axes.set_ylabel(f"CKA, {profile.estimator}, {profile.kernel}")
    shown = [value for row in (curve.values, curve.low or ()) for value in row if value is not None]
    axes.set_ylim(min(0.0, *shown), 1.05)
    _over_layers(axes, profile)


def _over_layers(axes: Axes, profile: LayerProfile) -> None:
    """The axis of the layers, and the predicted drop shaded."""
    drop = profile.drop
    if drop is not None and drop.from_layer is not None:
        label = f"predicted drop, {drop.sureness}"
        span = drop.from_layer - 0.5, profile.depth + 0.5
        axes.axvspan(*span, color=DROP, alpha=0.12, linewidth=0, label=label)
    whole_axis(axes)
    if profile.kept_blocks is not None:
        axes.set_xticks(range(profile.depth + 1), [str(block) for block in profile.last_blocks])
        axes.set_xlabel("last block kept (0 = embeddings)")
    axes.set_xlim(-0.5, profile.depth + 0.5)
