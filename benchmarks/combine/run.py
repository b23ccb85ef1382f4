"""BERT-LC on real models: best combination against last layer, CLS, last four and random layers (its Tables 2 and 3).

    python -m benchmarks.combine.run --data FOLDER_OF_STSB_EN --model MODEL [--model MODEL …] [--over max] [--head]

Each model's report goes to reports.jsonl beside this script; the table of all reports is printed as Markdown.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from benchmarks.common import named_model, new_parser, print_table
from benchmarks.records import Records
from truncate_kit.core.hardware import usable_cores
from truncate_kit.data.pairs import load_pairs
from truncate_kit.methods.bert_lc.combine import combine
from truncate_kit.methods.bert_lc.settings import BASELINES, CombinationReport, CombineSettings
from truncate_kit.models.encoder import Encoder
from truncate_kit.models.loading import find_pooler_head, load_encoder
from truncate_kit.models.pipeline import Dense
from truncate_kit.report.view import points

REPORTS = Path(__file__).parent / "reports.jsonl"


def cell(report: CombinationReport, name: str | None, side: str = "test") -> str:
    """Format mean ± deviation over the splits of a baseline, or of the best combination."""
    span = report.best(side) if name is None else report.baseline(name, side)
    return "–" if span is None else points(*span)


def row(report: CombinationReport) -> list[str]:
    """Return one model's line of the table."""
    how = f"{report.pooling}, {'head over mean' if report.settings.head else report.settings.over}"
    scores = [cell(report, name) for name in (None, *BASELINES)]
    return [report.model, how, report.data, *scores, ", ".join(map(str, report.chosen))]


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options for models and their combinations."""
    parser.add_argument("--model", action="append", default=[], help="NAME=FOLDER, a bundled miniature, or a hub name")
    parser.add_argument("--over", default="mean", help="mean or max over the layers")
    parser.add_argument("--head", action="store_true", help="the mean through the trained pooler")
    parser.add_argument("--pooling", help="mean, cls, max or last over the tokens; by default the model's own")
    parser.add_argument("--up-to", type=int, help="most layers in a combination; the paper: 8 of large models")


def asked_settings(options: argparse.Namespace) -> CombineSettings:
    """Return the settings that these options name."""
    return CombineSettings(over=options.over, head=options.head, up_to=options.up_to)


def asked_model(model: str, options: argparse.Namespace) -> tuple[Encoder, Dense | None, str]:
    """Return the encoder, its pooler if it has one, and the name of its records."""
    name, folder = named_model(model)
    encoder = load_encoder(folder, pooling=options.pooling)
    encoder.name = name
    head = find_pooler_head(folder)
    how = ("head" if options.head else options.over) + (f"_{options.up_to}" if options.up_to else "")
    return encoder, head, f"{name}_{encoder.pooling}_{how}"


PARSER = new_parser(__doc__)
PARSER.add_argument("--data", required=True)
add_options(PARSER)


def main(arguments: Sequence[str] | None = None) -> None:
    """Search for each model, then print one row for every report there is."""
    options = PARSER.parse_args(arguments)
    pairs = load_pairs(options.data, divide=False).evaluation
    records = Records(REPORTS)
    for model in options.model:
        encoder, head, record = asked_model(model, options)
        report = combine(encoder, pairs, settings=asked_settings(options), head=head, threads=usable_cores())
        records.add(record, report.to_dict())
    reports = [CombinationReport.from_dict(report) for report in records.values()]
    columns = ["model", "vectors", "data", "best combination", *BASELINES, "layers"]
    print_table(columns, [row(report) for report in reports])


if __name__ == "__main__":
    main()
