"""The lean graph against its best rivals, one panel for each model and cut.

    python benchmarks/gpu/figure.py [--results benchmarks/gpu/results]

Solid: how many times as fast as the best that torch, torch.compile, sentence-transformers or TensorRT reach at equal
depth. Dashed: against the full model in the best runtime of all; the dotted line is nine tenths of the ratio of
layers. Over the number of tokens, one colour for each batch size.
"""

import argparse
from pathlib import Path

import matplotlib.pyplot as plt

from truncate_kit.bench import BACKENDS, BenchReport

HERE = Path(__file__).parent
Point = tuple[int, int]  # batch size and length


def fastest(report: BenchReport, role: str, *, ours: bool | None) -> dict[Point, float]:
    """Seconds of the fastest row at each fixed shape; ours: this package's graphs, all others, or None for any."""
    found: dict[Point, float] = {}
    for row in report.timings:
        backend = BACKENDS[row.backend]
        mine = backend.runtime == "onnx" and not backend.tensorrt
        if row.role != role or row.batch_size is None or row.length is None or ours not in (None, mine):
            continue
        point = row.batch_size, row.length
        found[point] = min(found.get(point, row.p50_seconds), row.p50_seconds)
    return found


def main() -> None:
    """Draw what is there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=HERE / "results")
    options = parser.parse_args()
    files = sorted(path for path in options.results.glob("*-*.json") if path.stem.rsplit("-", 1)[1].isdigit())
    reports = {path.stem: BenchReport.read(path) for path in files}
    columns = min(3, len(reports))
    rows = -(-len(reports) // columns)
    figure, axes = plt.subplots(rows, columns, figsize=(4.2 * columns, 3.2 * rows), squeeze=False, layout="constrained")
    for panel in axes.flat[len(reports) :]:
        panel.set_visible(False)
    for panel, (name, report) in zip(axes.flat, reports.items(), strict=False):
        ours = fastest(report, "lean", ours=True)
        layers = {model.role: model.layer for model in report.models}
        for place, size in enumerate(sorted({size for size, _ in ours})):
            lengths = sorted(length for other, length in ours if other == size)
            for rivals, style in (
                (fastest(report, "lean", ours=False), "-"),
                (fastest(report, "full", ours=None), "--"),
            ):
                ratios = [rivals[size, length] / ours[size, length] for length in lengths]
                label = f"batch {size}" if style == "-" else None
                panel.plot(lengths, ratios, style, color=f"C{place}", marker="o", markersize=3, label=label)
                print(f"{name}, batch {size}, {style}: " + ", ".join(f"{ratio:.2f}" for ratio in ratios))
        panel.axhline(1, color="grey", linewidth=0.8)
        panel.axhline(0.9 * layers["full"] / layers["lean"], color="grey", linewidth=0.8, linestyle=":")
        panel.set(title=f"{name} of {layers['full']} layers", xscale="log", yscale="log", xlabel="tokens")
        panel.set_xticks(lengths, [str(length) for length in lengths])
        panel.minorticks_off()
        panel.yaxis.set_major_formatter("{x:g}×")
    axes[0][0].legend(frameon=False)
    axes[0][0].set_ylabel("times as fast")
    figure.savefig(options.results / "ratios.png", dpi=150)


if __name__ == "__main__":
    main()
