"""CKA against layer with its interval, the untrained scores below it, the predicted drop shaded."""

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from truncate_kit.analysis.results import LayerProfile, called
from truncate_kit.files import replacing

# Okabe and Ito's palette: told apart by colour-blind readers and in grey.
CKA, CLEANED, SPEARMAN, DROP = "#0072B2", "#56B4E9", "#009E73", "#D55E00"


def draw_analysis(profile: LayerProfile, path: Path) -> Path:
    """Write the curves of a profile as PNG and return its path. Raises `CannotWriteError`."""
    scored = profile.spearman is not None
    figure = Figure(figsize=(9, 7 if scored else 5), layout="constrained")
    panels = figure.subplots(2 if scored else 1, 1, sharex=True, squeeze=False)[:, 0]
    _cka(panels[0], profile)
    if profile.spearman is not None:
        _line(panels[1], profile.spearman, color=SPEARMAN, label=f"untrained states, {profile.num_pairs:,} pairs")
        panels[1].set_ylabel("Spearman × 100")
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
    panels[-1].set_xlabel("layer (0 = embeddings)")
    panels[-1].set_xlim(-0.5, profile.depth + 0.5)
    panels[-1].xaxis.set_major_locator(MaxNLocator(integer=True))
    with replacing(path) as target:
        figure.savefig(target, dpi=120, format="png")
    return path


def _cka(axes: Axes, profile: LayerProfile) -> None:
    curve = profile.cka
    interval = f", {100 * profile.level:g} % interval" if curve.low is not None else ""
    _line(axes, curve.values, color=CKA, label=f"CKA{interval}")
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
        _line(axes, profile.cka_without_outliers.values, color=CLEANED, label=label, dashed=True)
    other = called(profile.reference) if profile.reference else f"its own middle layer {profile.depth // 2}"
    axes.set_title(f"{called(profile.model)} compared with {other}, {profile.num_texts:,} texts", loc="left")
    axes.set_ylabel(f"CKA, {profile.estimator}, {profile.kernel}")
    shown = [value for row in (curve.values, curve.low or ()) for value in row if value is not None]
    axes.set_ylim(min(0.0, *shown), 1.05)


def _line(axes: Axes, values: Sequence[float | None], *, color: str, label: str, dashed: bool = False) -> None:
    points = [(layer, value) for layer, value in enumerate(values) if value is not None]
    axes.plot(
        [layer for layer, _ in points],
        [value for _, value in points],
        marker="." if dashed else "o",
        linestyle="--" if dashed else "-",
        color=color,
        label=label,
    )
