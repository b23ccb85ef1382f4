"""How much each layer counts in the vectors of given sentences."""

from pathlib import Path

from matplotlib.figure import Figure

from truncate_kit.methods.contrast.settings import LayerWeights
from truncate_kit.report.panel import LAYERS, write_figure

_WRITTEN = 0.1  # the last digit of a number in a cell
_LONGEST = 48  # characters of a sentence beside its row
_MOST_NUMBERS = 200  # cells whose numbers can still be read


def draw_attention(found: LayerWeights, path: Path) -> Path:
    """Write a row per sentence and a column per layer as PNG and return its path. Raises `FileProblemError`."""
    rows, layers = len(found.texts), len(found.weights[0])
    figure = Figure(figsize=(4.5 + 0.45 * layers, 1.6 + 0.32 * rows), layout="constrained")
    axes = figure.add_subplot()
    shares = [[100 * weight for weight in weights] for weights in found.weights]
    lowest, highest = min(map(min, shares)), max(map(max, shares))
    # From 0, so that colours show shares; but from the lowest where that is negative, as by the literal equation, or
    # where all are so alike that they would have one colour, and still differ in what is written.
    alike = lowest > highest / 2 and highest - lowest >= _WRITTEN
    start = lowest if lowest < 0 or alike else 0.0
    image = axes.imshow(shares, aspect="auto", cmap="viridis", vmin=start, vmax=highest)
    axes.set_xticks(range(layers))
    axes.set_xlabel(LAYERS)
    axes.set_yticks(range(rows), [_shortened(text) for text in found.texts], parse_math=False)
    axes.set_title(f"{Path(found.model).name}: weight of each layer", loc="left")
    if rows * layers <= _MOST_NUMBERS:
        middle = (image.norm.vmin + image.norm.vmax) / 2  # type: ignore[operator]  # both were given
        for row, cells in enumerate(shares):
            for layer, share in enumerate(cells):
                colour = "black" if share > middle else "white"
                axes.text(layer, row, f"{share:.1f}", ha="center", va="center", color=colour, fontsize=7)
    figure.colorbar(image, ax=axes, label="weight in %")  # mean over the queries; a longer label is cut off
    return write_figure(figure, path, dpi=150)


def _shortened(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST - 1]}…"
