"""Figures of frozen heads: correlation by block, reconstruction loss by block, and score against blocks kept."""

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from truncate_kit.frozen.results import FrozenReport, Reconstruction
from truncate_kit.frozen.settings import AUTOENCODER, COSINE, SIAMESE
from truncate_kit.report.panel import open_panel, write_panel

# Okabe and Ito's palette: told apart by colour-blind readers and in grey.
COLORS = {COSINE: "#777777", SIAMESE: "#E69F00", AUTOENCODER: "#0072B2"}
STATES = "#D55E00"
CODE_COLORS = ("#009E73", "#CC79A7")  # narrow, wide


def draw_correlations(report: FrozenReport, path: Path) -> Path:
    """Write Spearman on test of each block alone, before and after training, as PNG. Raises `CannotWriteError`."""
    figure, axes = _panel(report, "what each block alone says of similarity", "block")
    _line(axes, report.states, STATES, "states as they are")
    for step in report.settings.ordered_steps():
        if step != COSINE:  # its codes are the states themselves
            _line(axes, report.codes_by_block(step, report.layers[-1]), COLORS[step], f"codes, {step}")
    score = report.score(report.chosen_step, report.chosen_layer, "test")
    axes.axhline(score.mean, color="black", linestyle=":", linewidth=1, label="all blocks together, chosen heads")
    axes.set_ylabel("Spearman × 100 on test")
    return write_panel(figure, axes, path)


def draw_reconstruction(report: FrozenReport, reconstruction: Reconstruction, path: Path) -> Path:
    """Write the autoencoders' loss on held-out sentences by block as PNG. Raises `CannotWriteError`."""
    figure, axes = _panel(report, "what the codes lose of each block's states", "block")
    for code, color in zip(sorted(set(reconstruction.code_widths)), CODE_COLORS, strict=False):
        blocks = [block for block, width in enumerate(reconstruction.code_widths, 1) if width == code]
        losses = [reconstruction.losses[block - 1] for block in blocks]
        axes.plot(blocks, losses, marker="o", color=color, label=f"codes of {code} of {report.width} numbers")
    axes.set_ylabel("mean squared error (1 = always the mean)")
    axes.set_ylim(bottom=0)
    return write_panel(figure, axes, path)


def draw_depths(report: FrozenReport, path: Path) -> Path:
    """Write the score of each step against the number of blocks kept as PNG. Raises `CannotWriteError`."""
    figure, axes = _panel(report, "heads on the lowest blocks only", "blocks kept")
    seeds = len(report.settings.seeds)
    for step in report.settings.ordered_steps():
        spans = [report.score(step, layer, "test") for layer in report.layers]
        means, spreads = [span.mean for span in spans], [span.std or 0.0 for span in spans]
        label = f"{step}, mean ± deviation over {seeds} seeds" if seeds > 1 else step
        axes.errorbar(
            report.layers,
            means,
            yerr=spreads if seeds > 1 else None,
            marker="o",
            capsize=3,
            color=COLORS[step],
            label=label,
        )
    axes.set_ylabel("Spearman × 100 on test")
    return write_panel(figure, axes, path)


def _line(axes: Axes, scores: Sequence[float | None], color: str, label: str) -> None:
    points = [(block, score) for block, score in enumerate(scores, 1) if score is not None]
    axes.plot(*(zip(*points, strict=True) if points else ((), ())), marker="o", color=color, label=label)


def _panel(report: FrozenReport, what: str, along: str) -> tuple[Figure, Axes]:
    return open_panel(f"{Path(report.model).name}, frozen: {what} ({report.data})", along)
