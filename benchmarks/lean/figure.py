"""Score against speed of graphs of lean models, static vectors and sentence-transformers' recipes.

    python -m benchmarks.lean.figure

Draws `lean.png` from `served.csv` and `recipes.csv` beside it; the recipes have the speed of a graph of their size, and
the published static vectors that of the ones which were timed.
"""

from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure

from benchmarks.common import new_parser, read_rows
from truncate_kit.report.chart import write_figure
from truncate_kit.report.view import BLUE, GREEN, GREY, ORANGE, VERMILION

HERE = Path(__file__).parent
COLORS = {"fp32": ORANGE, "int8": BLUE}
PUBLISHED = {"potion-base-8M": 75.41}
"""Spearman × 100 of static vectors that were trained further, on STS Benchmark test: the results of MTEB's leaderboard
(repository embeddings-benchmark/results)."""

PARSER = new_parser(__doc__)


def main(arguments: Sequence[str] | None = None) -> None:
    """Draw the figure."""
    PARSER.parse_args(arguments)
    served = {row["contestant"]: row for row in read_rows(HERE / "served.csv")}
    figure = Figure(figsize=(8, 5.5), layout="constrained", facecolor="white")
    axes = figure.subplots()
    for precision, color in COLORS.items():
        rows = [row for name, row in served.items() if name.endswith(f", {precision}")]
        speeds, scores = ([float(row[key]) for row in rows] for key in ("against_full_fp32", "stsb"))
        axes.plot(speeds, scores, "o-", color=color, label=f"this package, {precision} graphs")
        for row, speed, score in zip(rows, speeds, scores, strict=True):
            above = 7 if precision == "fp32" else -14
            axes.annotate(
                row["contestant"].split()[0], (speed, score), (-3, above), textcoords="offset points", color=color
            )
    same_size = float(served["3 blocks, fp32"]["against_full_fp32"])
    markers = iter("D^vs")
    for row in read_rows(HERE / "recipes.csv"):
        ours = row["contestant"] == "truncate-kit"
        axes.plot(
            same_size,
            float(row["stsb"]),
            next(markers),
            color=GREEN if ours else VERMILION,
            linestyle="none",
            label=f"3 blocks, {float(row['minutes']):.1f} of 5 minutes: {row['contestant']}",
        )
    if (static := served.get("model2vec")) is not None:
        speed, score = float(static["against_full_fp32"]), float(static["stsb"])
        axes.plot(speed, score, "*", color=GREY, markersize=12, linestyle="none", label="static vectors (model2vec)")
        for name, score in PUBLISHED.items():
            label = f"static vectors: {name}, score as published, not timed"
            axes.plot(
                speed, score, "*", color=GREY, markerfacecolor="none", markersize=12, linestyle="none", label=label
            )
    axes.set_xscale("log")
    axes.set_xticks([1, 2, 5, 10, 20, 40], ["1 ×", "2 ×", "5 ×", "10 ×", "20 ×", "40 ×"])
    axes.set_xticks([], minor=True)
    axes.set_xlabel("texts a second, against the full model in fp32")
    axes.set_ylabel("Spearman × 100, STS Benchmark test")
    axes.set_title("all-MiniLM-L6-v2 with fewer blocks, without labels", loc="left")
    axes.grid(alpha=0.3)
    axes.set_ylim(60, 85)
    axes.legend(loc="lower left", bbox_to_anchor=(0.25, 0.03), fontsize="small")  # between recipes and static vectors
    write_figure(figure, HERE / "lean.png", dpi=130)


if __name__ == "__main__":
    main()
