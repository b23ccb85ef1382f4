"""The figure of the README on miniatures: where scores of a model drop, and what cutting it there gives.

    python -m benchmarks.demo.front

Draws `docs/images/front.png` from `benchmarks/miniatures/scores.csv`.
"""

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.common import new_parser, read_rows, whole_axis
from truncate_kit.report.chart import write_figure
from truncate_kit.report.view import BLUE, GREY, VERMILION

HERE = Path(__file__).parent
SCORES = HERE.parent / "miniatures/scores.csv"
IMAGE = HERE.parents[1] / "docs/images/front.png"
FALLS, STAYS = "mini-electra-discriminator", "mini-bert"

PARSER = new_parser(__doc__)


def draw_layers(axes: Axes) -> None:
    """Draw the test score of both miniatures, fine-tuned at each layer."""
    rows = [row for row in read_rows(SCORES) if row["task"] == "stsb/en"]
    for model, color, label in ((STAYS, GREY, "BERT"), (FALLS, VERMILION, "ELECTRA")):
        means, spreads = ([float(row[key]) for row in rows if row["model"] == model] for key in ("test", "test_std"))
        axes.errorbar(range(len(means)), means, yerr=spreads, marker="o", capsize=3, color=color, label=label)
    best = max(range(len(means)), key=means.__getitem__)  # of the last model, whose scores drop
    axes.annotate(
        f"cut after block {best}:\n{means[best] - means[-1]:.1f} points more",
        (best, means[best]),
        (best + 0.5, means[-1] + 2),
        arrowprops={"arrowstyle": "->", "color": BLUE},
        color=BLUE,
    )
    whole_axis(axes, "fine-tuned at layer")
    axes.set_ylabel("Spearman × 100, test")
    axes.set_title("Scores of an ELECTRA drop at its end\n(miniatures, STS Benchmark, 3 seeds)", loc="left")
    axes.legend(loc="lower left")


def main(arguments: Sequence[str] | None = None) -> None:
    """Draw the figure."""
    PARSER.parse_args(arguments)
    figure = Figure(figsize=(6, 3.4), layout="constrained", facecolor="white")
    draw_layers(figure.subplots())
    write_figure(figure, IMAGE, dpi=150)


if __name__ == "__main__":
    main()
