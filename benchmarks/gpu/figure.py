"""The lean graph against its best rivals, one panel for each model and cut.

    python -m benchmarks.gpu.figure [--results benchmarks/gpu/results.json]

How many times as fast the lean ONNX graph is, at equal depth, as the best of torch, torch.compile and flash attention
(solid), and as the best of sentence-transformers and TensorRT (dotted); dashed: as the full model in the best runtime
of all. The grey dotted line is nine tenths of the ratio of layers. Over the number of tokens, one colour for each batch
size.
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.ticker import LogLocator

from benchmarks.common import new_parser
from truncate_kit.bench.result import BACKENDS, Backend, BenchReport

HERE = Path(__file__).parent
KINDS = ("ours", "torch", "others")
LINES = {"torch": "-", "others": ":", "full": "--"}
RIVALS = {"torch": "against torch", "others": "against other tools", "full": "against the full model"}
Point = tuple[int, int]  # batch size and length


def kind(backend: Backend) -> str:
    """Classify a row: this package's graphs, torch itself, or other tools."""
    if backend.runtime == "onnx" and not backend.tensorrt:
        return "ours"
    return "torch" if backend.runtime == "torch" else "others"


def fastest(report: BenchReport, role: str, *kinds: str) -> dict[Point, float]:
    """Return the seconds of the fastest row of those kinds at each fixed shape."""
    found: dict[Point, float] = {}
    for row in report.timings:
        if row.role != role or row.batch_size is None or row.length is None or kind(BACKENDS[row.backend]) not in kinds:
            continue
        point = row.batch_size, row.length
        found[point] = min(found.get(point, row.p50_seconds), row.p50_seconds)
    return found


def read_reports(file: Path) -> dict[str, BenchReport]:
    """Read the reports of the part `shapes` that measured the lean graph."""
    if not file.is_file():
        sys.exit(f"There is no {file}: measure first with benchmarks.gpu.run --parts shapes.")
    found = {}
    for name, values in json.loads(file.read_text()).get("shapes", {}).items():
        report = None if "error" in values else BenchReport.from_dict(values)
        if report is None or not fastest(report, "lean", "ours"):
            print(f"{name}: the lean graph was not measured.")
        else:
            found[name] = report
    if not found:
        sys.exit(f"{file} holds nothing to draw: see the reasons in it.")
    return found


def draw(panel: Any, name: str, report: BenchReport) -> None:
    """Draw one panel and print its numbers."""
    ours = fastest(report, "lean", "ours")
    rivals = {
        "torch": fastest(report, "lean", "torch"),
        "others": fastest(report, "lean", "others"),
        "full": fastest(report, "full", *KINDS),
    }
    for place, size in enumerate(sorted({size for size, _ in ours})):
        for what, seconds in rivals.items():
            shared = sorted(length for other, length in ours if other == size and (size, length) in seconds)
            ratios = [seconds[size, length] / ours[size, length] for length in shared]
            label = f"batch {size}" if what == "torch" else None
            panel.plot(shared, ratios, LINES[what], color=f"C{place}", marker="o", markersize=3, label=label)
            shown = ", ".join(f"{ratio:.2f} at {length}" for length, ratio in zip(shared, ratios, strict=True))
            print(f"{name}, batch {size}, against {what}: {shown or 'not measured'}")
    layers = {model.role: model.layer for model in report.models}
    panel.axhline(1, color="grey", linewidth=0.8)
    aim = 0.9 * layers["full"] / layers["lean"]
    panel.axhline(aim, color="grey", linewidth=0.8, linestyle=":", label="0.9 × ratio of layers")
    panel.set(title=f"{name} of {layers['full']} layers", xscale="log", yscale="log", xlabel="tokens")
    lengths = sorted({length for _, length in ours})
    panel.set_xticks(lengths, [str(length) for length in lengths])
    panel.minorticks_off()
    panel.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    panel.yaxis.set_major_formatter("{x:g}×")


PARSER = new_parser(__doc__)
PARSER.add_argument("--results", type=Path, default=HERE / "results.json")


def main(arguments: Sequence[str] | None = None) -> None:
    """Draw what is there."""
    options = PARSER.parse_args(arguments)
    reports = read_reports(options.results)
    columns = min(3, len(reports))
    rows = -(-len(reports) // columns)
    figure, axes = plt.subplots(rows, columns, figsize=(4.2 * columns, 3.2 * rows), squeeze=False, layout="constrained")
    for panel in axes.flat[len(reports) :]:
        panel.set_visible(False)
    for panel, (name, report) in zip(axes.flat, reports.items(), strict=False):
        draw(panel, name, report)
    for what, style in LINES.items():
        axes[0][0].plot([], [], style, color="black", label=RIVALS[what])
    figure.legend(*axes[0][0].get_legend_handles_labels(), loc="outside lower center", ncols=2 * columns, frameon=False)
    axes[0][0].set_ylabel("times as fast")
    figure.savefig(options.results.with_name("ratios.png"), dpi=150)


if __name__ == "__main__":
    main()
