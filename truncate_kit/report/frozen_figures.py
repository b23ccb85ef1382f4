"""Figures of frozen heads: correlation by block, reconstruction loss by block, and score against blocks kept."""

from itertools import count
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from truncate_kit.methods.frozen.settings import AUTOENCODER, COSINE, SIAMESE, FrozenReport, Reconstruction
from truncate_kit.report import panel

COLORS = {COSINE: panel.GREY, SIAMESE: panel.ORANGE, AUTOENCODER: panel.BLUE}
STATES = panel.VERMILION
CODE_COLORS = (panel.GREEN, panel.PURPLE)  # narrow, wide


def draw_correlations(report: FrozenReport, path: Path) -> Path:
    """Write Spearman of each block alone, before and after training, as PNG. Raises `FileProblemError`.

    On test, and of the states as they are also on the training pairs, as figure 1 of the FREEZE report has it: dashed.
    """
    figure, axes = _panel(report, "similarity by each block alone")
    plot_correlations(axes, report)
    return panel.write_panel(figure, axes, path)


def plot_correlations(axes: Axes, report: FrozenReport) -> None:
    """Spearman of each block alone, before and after training."""
    panel.whole_axis(axes, "block")
    panel.plot_defined(axes, count(1), report.states, marker="o", color=STATES, label="states as they are")
    if report.train_states is not None:
        label = "states as they are, on the training pairs"
        panel.plot_defined(axes, count(1), report.train_states, marker=".", linestyle="--", color=STATES, label=label)
    for step, layers in report.steps.items():
        if step != COSINE:  # its codes are the states themselves
            codes = report.codes_by_block(step, layers[-1])
            panel.plot_defined(axes, count(1), codes, marker="o", color=COLORS[step], label=f"codes, {step}")
    score = report.score(report.chosen_step, report.chosen_layer, "test")
    axes.axhline(score.mean, color="black", linestyle=":", linewidth=1, label="all blocks together, chosen heads")
    axes.set_ylabel("Spearman × 100 on test" + ("; dashed: on train" if report.train_states is not None else ""))


def draw_reconstruction(
    report: FrozenReport, reconstruction: Reconstruction, path: Path, *, own_scale: bool = False
) -> Path:
    """Write the autoencoders' loss on held-out sentences by block as PNG.

    Args:
        report: Whose title and width it has.
        reconstruction: The losses.
        path: The file.
        own_scale: The error in the states' own units, as figure 2 of the FREEZE report has it, on a logarithmic axis.

    Raises:
        FileProblemError: The file cannot be written.
    """
    figure, axes = _panel(report, "what the codes lose of each block's states")
    plot_reconstruction(axes, report, reconstruction, own_scale=own_scale)
    return panel.write_panel(figure, axes, path)


def plot_reconstruction(
    axes: Axes, report: FrozenReport, reconstruction: Reconstruction, *, own_scale: bool = False
) -> None:
    """The autoencoders' loss by block; own_scale as for `draw_reconstruction`."""
    panel.whole_axis(axes, "block")
    measured = (reconstruction.own_losses if own_scale else None) or reconstruction.losses
    for code, color in zip(sorted(set(reconstruction.code_widths)), CODE_COLORS, strict=False):
        blocks = [block for block, width in enumerate(reconstruction.code_widths, 1) if width == code]
        losses = [measured[block - 1] for block in blocks]
        axes.plot(blocks, losses, marker="o", color=color, label=f"codes of {code} of {report.width} numbers")
    if own_scale and reconstruction.own_losses is not None:
        axes.set_ylabel("mean squared error in the states' own units")
        axes.set_yscale("log")
    else:
        axes.set_ylabel("mean squared error (1 = always the mean)")
        axes.set_ylim(bottom=0)


def draw_depths(report: FrozenReport, path: Path) -> Path:
    """Write the score of each step against the number of blocks kept as PNG. Raises `FileProblemError`."""
    figure, axes = _panel(report, "heads on the lowest blocks only")
    plot_depths(axes, report)
    return panel.write_panel(figure, axes, path)


def plot_depths(axes: Axes, report: FrozenReport) -> None:
    """The score of each step against the number of blocks kept."""
    panel.whole_axis(axes, "blocks kept")
    over = f"{report.num_seeds} seeds" if report.num_seeds > 1 else None
    for step, layers in report.steps.items():
        spans = [report.score(step, layer, "test") for layer in layers]
        panel.plot_means(axes, step, layers, spans, over=over, color=COLORS[step])
    axes.set_ylabel("Spearman × 100 on test")


def _panel(report: FrozenReport, what: str) -> tuple[Figure, Axes]:
    return panel.open_panel(f"{Path(report.model).name}, frozen: {what} ({report.data})")
