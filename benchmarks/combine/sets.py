"""BERT-LC's Tables 2 and 3: every STS set of a folder, chosen on 350 of its pairs and tested on the rest, five times.

    python -m benchmarks.combine.sets --data FOLDER_OF_SETS --model MODEL [--published BERT-B-uncased]
        [--joined] [--over max] [--pooling max] [--head] [--up-to 8]

A set is a file or a folder of its name; its subsets are joined, those that MTEB counts, with `--joined` all of them.
Each report goes to sets.jsonl beside this script and is not made again; for each model a Markdown table is printed: a
row for every set, and their mean. With `--published` the paper's rows for that model stand beside.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, stdev

from benchmarks.combine.run import add_options, asked_model, asked_settings, cell
from benchmarks.common import new_parser, print_table
from benchmarks.records import Records, published
from truncate_kit.core.hardware import usable_cores
from truncate_kit.data.pairs import PairSet
from truncate_kit.data.suites import find_sts
from truncate_kit.methods.bert_lc.combine import combine
from truncate_kit.methods.bert_lc.settings import BASELINES, CombinationReport
from truncate_kit.report.view import points

HERE = Path(__file__).parent
SETS = 7  # in the paper
FEW = 3  # with fewer sets than that a mean over sets says little
PAPER = published("bert_lc")


def mean_cell(reports: Sequence[CombinationReport], name: str | None) -> str:
    """Format the mean over sets of a baseline, or of the best combination, on test."""
    by_set = [
        [split.best[2] for split in report.splits]
        if name is None
        else [split.baselines[name][1] for split in report.splits if name in split.baselines]
        for report in reports
    ]
    found = [[score for score in scores if score is not None] for scores in by_set]
    if any(len(scores) < len(report.splits) for scores, report in zip(found, reports, strict=True)):
        return "–"
    means = [fmean(split) for split in zip(*found, strict=True)]
    return points(fmean(means), stdev(means) if len(means) > 1 else None)


def table(reports: Sequence[CombinationReport], model: str | None) -> tuple[list[str], list[list[str]]]:
    """Return columns and rows: ours by set and in the mean, then the paper's for `model`."""
    beside = [row for row in PAPER if row["model"] == model]
    columns = ["set", "pairs", "best combination", *BASELINES, "layers"]
    columns += [f"the paper, {row['model']}: {row['vectors']}" for row in beside]
    rows = []
    for report in reports:
        ours = [cell(report, name) for name in (None, *BASELINES)]
        printed = [row[report.data.lower().replace("-", "_")] or "–" for row in beside]
        rows.append([report.data, f"{report.num_pairs:,}", *ours, ", ".join(map(str, report.chosen)), *printed])
    ours = [mean_cell(reports, name) for name in (None, *BASELINES)]
    printed = [row["avg"] or "–" if len(reports) == SETS else "–" for row in beside]  # theirs is over all seven
    rows.append([f"mean of {len(reports)}", "", *ours, "", *printed])
    return columns, rows


def search_sets(model: str, sets: Sequence[PairSet], options: argparse.Namespace) -> list[CombinationReport]:
    """Return the report of each set, searching the missing ones."""
    encoder, head, name = asked_model(model, options)
    records, found = Records(HERE / "sets.jsonl"), []
    for one in sets:
        record = f"{name}{'_joined' if options.joined else ''}_{one.name}"
        if record not in records:
            report = combine(encoder, one, settings=asked_settings(options), head=head, threads=usable_cores())
            records.add(record, report.to_dict())
            print(f"done: {record}", flush=True)
        found.append(CombinationReport.from_dict(records[record]))
    return found


PARSER = new_parser(__doc__)
PARSER.add_argument("--data", type=Path, required=True)
PARSER.add_argument("--published", choices=sorted({row["model"] for row in PAPER}), help="the paper's rows beside")
PARSER.add_argument(
    "--joined", action="store_true", help="all subsets of a set, train and dev too, as the paper has it"
)
add_options(PARSER)


def main(arguments: Sequence[str] | None = None) -> None:
    """Search each set with each model, and print a table for each model."""
    options = PARSER.parse_args(arguments)
    sets = find_sts(options.data, joined=options.joined)
    if len(sets) < FEW:
        names = ", ".join(one.name for one in sets)
        print(f"{options.data} holds {len(sets)} of the paper's {SETS} sets ({names}): their mean is no table of it.")
    for model in options.model:
        reports = search_sets(model, sets, options)
        first = reports[0]
        searched = f"{first.num_subsets:,} combinations of up to {first.up_to} layers"
        print(f"\n{first.model}, {first.pooling} over tokens: {searched}.\n")
        print_table(*table(reports, options.published))


if __name__ == "__main__":
    main()
