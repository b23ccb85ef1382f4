"""Dev and test scores against layer, with the band of seeds, the choice and the full model."""

from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from truncate_kit.files import replacing
from truncate_kit.sweep.results import LayerScores, SweepResult

# Okabe and Ito's palette: told apart by colour-blind readers and in grey.
DEV, TEST, CHOICE, DROP = "#E69F00", "#0072B2", "#009E73", "#D55E00"


def draw_sweep(result: SweepResult, path: Path) -> Path:
    """Write the curve of a sweep as PNG and return its path. Raises `CannotWriteError`."""
    figure = Figure(figsize=(9, 5), layout="constrained")
    axes = figure.add_subplot()
    rows = sorted({row.layer: row for row in (*result.layers, result.full)}.values(), key=lambda row: row.layer)
    _search(axes, result)
    draw_curve(axes, rows, "dev", DEV)
    draw_curve(axes, rows, "test", TEST)
    axes.axhline(result.full.test, color=TEST, linestyle=":", linewidth=1, label="full model, test")
    axes.plot(
        result.chosen,
        result.lean.test,
        "o",
        markersize=14,
        markerfacecolor="none",
        markeredgewidth=2,
        color=CHOICE,
        label=f"chosen: layer {result.chosen}",
    )
    drop = result.prediction.from_layer if result.prediction else None
    if drop is not None:
        axes.axvspan(drop - 0.5, result.full.layer + 0.5, color=DROP, alpha=0.1, label="predicted drop")
    axes.set_title(f"{Path(result.model).name} fine-tuned at each layer ({result.data})", loc="left")
    axes.set_xlabel("layer (0 = embeddings)")
    axes.set_ylabel(f"score in points ({result.metric})")
    axes.set_xlim(-0.5, result.full.layer + 0.5)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(alpha=0.3)
    axes.legend(loc="best", fontsize="small")
    with replacing(path) as target:
        figure.savefig(target, dpi=120, format="png")
    return path


def draw_curve(axes: Axes, rows: list[LayerScores], split: str, color: str) -> None:
    """Means of `dev` or `test` by layer with the band of seeds; one deviation on either side."""
    layers = [row.layer for row in rows]
    means = [getattr(row, split) for row in rows]
    spreads = [getattr(row, f"{split}_std") or 0.0 for row in rows]
    seeds = max(len(row.seeds) for row in rows)
    label = f"{split}, mean ± deviation over {seeds} seeds" if seeds > 1 else f"{split}, one seed"
    axes.plot(layers, means, marker="o", color=color, label=label)
    if any(spreads):
        low = [mean - spread for mean, spread in zip(means, spreads, strict=True)]
        high = [mean + spread for mean, spread in zip(means, spreads, strict=True)]
        axes.fill_between(layers, low, high, color=color, alpha=0.2, linewidth=0)


def _search(axes: Axes, result: SweepResult) -> None:
    """The short trials of a guided search, one faint line for each budget."""
    for epochs in sorted({trial.epochs for trial in result.search}):
        trials = sorted((trial for trial in result.search if trial.epochs == epochs), key=lambda trial: trial.layer)
        axes.plot(
            [trial.layer for trial in trials],
            [trial.dev for trial in trials],
            marker=".",
            color="#777777",
            linewidth=1,
            linestyle="--",
            label=f"dev in the search, {epochs} epoch{'s' if epochs > 1 else ''}",
        )
