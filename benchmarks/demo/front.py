"""The figure of the README: where scores of a model drop and what cutting it there gives, and speed against quality.

    python -m benchmarks.demo.front

Draws `docs/images/front.png` from what is committed: `benchmarks/miniatures/scores.csv` and `output.txt`, the demo's.
"""

import re
from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.common import new_parser, read_rows, whole_axis
from truncate_kit.report.chart import write_figure
from truncate_kit.report.view import BLUE, GREY, ORANGE, VERMILION

HERE = Path(__file__).parent
SCORES = HERE.parent / "miniatures/scores.csv"
IMAGE = HERE.parents[1] / "docs/images/front.png"
FALLS, STAYS = "mini-electra-discriminator", "mini-bert"
MARKERS = {"torch fp32": "o", "torch bf16": "s", "ONNX Runtime fp32": "D"}

PARSER = new_parser(__doc__)


def timed(text: str) -> list[tuple[str, str, float, float]]:
    """Return model, runtime, Spearman × 100 and sentences a second of each row of `bench`."""
    rows = re.findall(r"(?m)^(lean|full), (.+?)  +([\d.]+) +[\d.]+ +([\d,]+) ", text)
    return [(model, runtime, float(score), float(speed.replace(",", ""))) for model, runtime, score, speed in rows]


def draw_layers(axes: Axes) -> None:
    """Draw the test score of both miniatures, fine-tuned at each layer."""
    rows = [row for row in read_rows(SCORES) if row["task"] == "stsb/en"]
    for model, color, label in ((STAYS, GREY, "BERT"), (FALLS, VERMILION, "ELECTRA")):
        means, spreads = ([float(row[key]) for row in rows if row["model"] == model] for key in ("test", "test_std"))
        axes.errorbar(range(len(means)), means, yerr=spreads, marker="o", capsize=3, color=color, label=label)
    best = max(range(len(means)), key=means.__getitem__)  # of the last model, whose scores drop
    gain = means[best] - means[-1]
    axes.annotate(
        f"cut after block {best}:\n{gain:.1f} points more",
        (best, means[best]),
        (best + 0.5, means[-1] + 2),
        arrowprops={"arrowstyle": "->", "color": BLUE},
        color=BLUE,
    )
    whole_axis(axes, "fine-tuned at layer")
    axes.set_ylabel("Spearman × 100, test")
    axes.set_title("Scores of an ELECTRA drop at its end\n(miniatures, STS Benchmark, 3 seeds)", loc="left")
    axes.legend(loc="lower left")


def draw_speed(axes: Axes) -> None:
    """Draw score against speed of the demo's two models in every runtime."""
    text = (HERE / "output.txt").read_text(encoding="utf-8")
    rows = timed(text)
    for model, runtime, score, speed in rows:
        color = BLUE if model == "lean" else ORANGE
        filled = "none" if "torch" in runtime else color
        axes.plot(speed, score, MARKERS[runtime], color=color, markersize=8, markerfacecolor=filled)
    layers = dict(re.findall(r"(lean|full): layer (\d+)", text))
    for model, below in (("lean", True), ("full", False)):
        count = layers[model]
        said = f"{model}: {count} block{'s' * (count != '1')}"
        slowest = min((row for row in rows if row[0] == model), key=lambda row: row[3])
        axes.annotate(
            said,
            (slowest[3], slowest[2]),
            (0, -18 if below else 10),
            textcoords="offset points",
            color=BLUE if model == "lean" else ORANGE,
        )
    for runtime, marker in MARKERS.items():
        filled = "none" if "torch" in runtime else GREY
        axes.plot([], [], marker, color=GREY, markerfacecolor=filled, label=runtime)
    axes.set_xscale("log")
    axes.set_xticks([2000, 5000, 10000, 20000], ["2,000", "5,000", "10,000", "20,000"])
    axes.set_xticks([], minor=True)
    scores, speeds = [row[2] for row in rows], [row[3] for row in rows]
    axes.set_xlim(0.75 * min(speeds), 1.3 * max(speeds))
    axes.set_ylim(min(scores) - 5, max(scores) + 3)
    axes.set_xlabel("sentences a second, two CPU cores")
    axes.set_ylabel("Spearman × 100, test")
    axes.set_title("Better and faster at once\n(bundled pairs, the demo's run)", loc="left")
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right", fontsize="small")


def main(arguments: Sequence[str] | None = None) -> None:
    """Draw the figure."""
    PARSER.parse_args(arguments)
    figure = Figure(figsize=(8, 3.6), layout="constrained", facecolor="white")
    left, right = figure.subplots(1, 2)
    draw_layers(left)
    draw_speed(right)
    write_figure(figure, IMAGE, dpi=150)


if __name__ == "__main__":
    main()
