"""CKA against layer with its interval, the untrained scores below it, the predicted drop shaded."""

from itertools import count
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from truncate_kit.analysis.results import LayerProfile, called
from truncate_kit.report.panel import BLUE, GREEN, ORANGE, SKY, VERMILION, plot_defined, whole_axis, write_figure

CKA, CLEANED, SPEARMAN, NDCG, DROP = BLUE, SKY, GREEN, ORANGE, VERMILION


def draw_analysis(profile: LayerProfile, path: Path) -> Path:
    """Write the curves of a profile as PNG and return its path. Raises `FileProblemError`."""
    scored = profile.spearman is not None or profile.ndcg is not None
    figure = Figure(figsize=(9, 7 if scored else 5), layout="constrained")
    panels = figure.subplots(2 if scored else 1, 1, sharex=True, squeeze=False)[:, 0]
    _cka(panels[0], profile)
    if profile.spearman is not None:
        label = f"untrained states, {profile.num_pairs:,} pairs"
        plot_defined(panels[1], count(), profile.spearman, marker="o", color=SPEARMAN, label=label)
        panels[1].set_ylabel("Spearman × 100")
    if profile.ndcg is not None:
        label = f"untrained states, {profile.num_queries:,} queries"
        plot_defined(panels[1], count(), profile.ndcg, marker="o", color=NDCG, label=label)
        panels[1].set_ylabel("nDCG@10 × 100" if profile.spearman is None else "Spearman and nDCG@10 × 100")
    for axes in panels:
        if profile.drop is not None and profile.drop.from_layer is not None:
            axes.axvspan(
                profile.drop.from_layer - 0.5,
                profile.depth + 0.5,
                color=DROP,
                alpha=0.12,
                linewidth=0,
                label=f"predicted drop, confidence {profile.drop.confidence:.2f}",
            )
        axes.grid(alpha=0.3)
        axes.legend(loc="best", fontsize="small")
    whole_axis(panels[-1])
    if profile.kept_blocks is not None:
        panels[-1].set_xticks(range(profile.depth + 1), [str(block) for block in profile.last_blocks])
        panels[-1].set_xlabel("last block kept (0 = embeddings)")
    panels[-1].set_xlim(-0.5, profile.depth + 0.5)
    return write_figure(figure, path)


def _cka(axes: Axes, profile: LayerProfile) -> None:
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
    other = called(profile.reference) if profile.reference else f"its own middle layer {profile.depth // 2}"
    axes.set_title(f"{profile.title} compared with {other}, {profile.num_texts:,} texts", loc="left")
    axes.set_ylabel(f"CKA, {profile.estimator}, {profile.kernel}")
    shown = [value for row in (curve.values, curve.low or ()) for value in row if value is not None]
    axes.set_ylim(min(0.0, *shown), 1.05)
