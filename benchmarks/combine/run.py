"""BERT-LC on real models: best combination against last layer, CLS, last four and random layers (its Table 2 and 3).

    python benchmarks/combine/run.py --data shared/data/stsb/en --model MODEL [--model MODEL …] [--over max] [--head]

Each model's report goes to reports/ beside this script; the table of all reports is printed as Markdown.
"""

import argparse
from pathlib import Path

from truncate_kit.combine import CombinationReport, CombineSettings, combine
from truncate_kit.data import load_pairs
from truncate_kit.encoders import load_encoder, load_pooler_head
from truncate_kit.hardware import usable_cores
from truncate_kit.sweep.card import points

REPORTS = Path(__file__).parent / "reports"


def cell(report: CombinationReport, name: str | None, side: str = "test") -> str:
    """Mean ± deviation over the splits of a baseline, or of the best combination."""
    span = report.best(side) if name is None else report.baseline(name, side)
    return "–" if span is None else points(span.mean, span.std)


def main() -> None:
    """Search for each model, then print one row for every report there is."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True)
    parser.add_argument("--model", action="append", default=[], help="NAME=FOLDER, a bundled miniature, or a hub name")
    parser.add_argument("--over", default="mean")
    parser.add_argument("--head", action="store_true")
    parser.add_argument("--pooling")
    told = parser.parse_args()
    settings = CombineSettings(over=told.over, head=told.head)
    pairs = load_pairs(told.data).evaluation
    for model in told.model:
        name, _, folder = model.rpartition("=")
        encoder = load_encoder(folder, pooling=told.pooling)
        encoder.name = name or Path(folder).name
        head = load_pooler_head(folder) if told.head else None
        report = combine(encoder, pairs, settings=settings, head=head, threads=usable_cores())
        how = "head" if told.head else told.over
        report.write(REPORTS / f"{encoder.name}_{encoder.pooling}_{how}.json")
    reports = [CombinationReport.read(path) for path in sorted(REPORTS.glob("*.json"))]
    names = [row.name for row in reports[0].splits[0].baselines] if reports else []
    print("| model | vectors | data | best combination | " + " | ".join(names) + " | layers |")
    print("|" + "---|" * (5 + len(names)))
    for report in reports:
        how = f"{report.pooling}, {'head over mean' if report.settings.head else report.settings.over}"
        scores = [cell(report, name) for name in (None, *names)]
        layers = ", ".join(map(str, report.chosen))
        print(f"| {report.model} | {how} | {report.data} | " + " | ".join(scores) + f" | {layers} |")


if __name__ == "__main__":
    main()
