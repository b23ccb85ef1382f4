"""The path of FREEZE on one model, each of its steps a row, with the published figures of gpt2-medium beside.

    python -m benchmarks.frozen.path --data FOLDER_OF_STSB_EN --texts SENTENCES --model NAME=FOLDER

Weighted cosines, a siamese network on each block, the same from autoencoders with codes of one width, wider codes in
the upper half, log Var instead of the squared error, deeper autoencoders; then log Var on the first three. All read
the last token's raw block outputs and score by σ(MLP). A step is a line of path.jsonl beside this script when it is
done, states and trials go to work/ (a killed run continues there); the table of all is printed as Markdown.
`--errors` instead trains the fifth step with one seed and prints what it gives the pairs of STS Benchmark's test split
that the report names, and the mean of its residuals. A first
look on a random decoder: `--random-gpt2 --pairs 300 --sentences 300 --seeds 1 --epochs 2 --pretraining-epochs 1
--check`.
"""

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from benchmarks.common import named_model, new_parser, print_table
from benchmarks.frozen.run import first_pairs, random_gpt2
from benchmarks.records import Records, published
from truncate_kit.data.pairs import PairSplits, complete_splits, load_pairs
from truncate_kit.data.tables import read_texts
from truncate_kit.methods.frozen.run import finetune_frozen
from truncate_kit.methods.frozen.settings import (
    AUTOENCODER,
    COSINE,
    LOWER_SHARE,
    SIAMESE,
    UPPER_SHARE,
    FrozenReport,
    FrozenSettings,
)
from truncate_kit.models.encoder import Encoder
from truncate_kit.models.loading import load_encoder
from truncate_kit.report.chart import write_plots
from truncate_kit.report.view import points, view_of

HERE = Path(__file__).parent
REPORTS = HERE / "path.jsonl"
WORDS = {
    "cosine": "cosines of all blocks into a one-layer MLP, sigmoid, MSE",
    "siamese": "a network on each block first, MSE",
    "narrow": "networks from autoencoders, codes of a quarter of the width, MSE",
    "wide": "codes of a half in the upper half of the blocks, MSE",
    "log-variance": "the same with log Var(ŷ − y)",
    "deep": "the same with networks of two layers",
    "cosine-log-variance": "the first step with log Var(ŷ − y)",
    "siamese-log-variance": "the second step with log Var(ŷ − y)",
    "narrow-log-variance": "the third step with log Var(ŷ − y)",
}
"""The steps for a model of any width; the published table has the widths of gpt2-medium."""
NAMED = {1241: 75.98, 751: 56.01, 1155: 20.84, 1274: 89.55, 589: 25.72, 1197: 98.93, 1297: 81.93, 625: 47.35}
"""Sections 7.1 and 10: lines of STS Benchmark's test file, whose first names columns, and the scores of the report."""


def path_of(width: int, base: FrozenSettings) -> dict[str, FrozenSettings]:
    """Return the settings of each step for states of this width."""
    narrow, wide = max(1, width // LOWER_SHARE), max(1, width // UPPER_SHARE)  # 256 and 512 of gpt2-medium's 1,024
    base = replace(base, score="sigmoid", loss="mse", final_norm=False, codes=(narrow, narrow), depth=1)
    widened = replace(base, steps=(AUTOENCODER,), codes=(narrow, wide))
    return {
        "cosine": replace(base, steps=(COSINE,)),
        "siamese": replace(base, steps=(SIAMESE,)),
        "narrow": replace(base, steps=(AUTOENCODER,)),
        "wide": widened,
        "log-variance": replace(widened, loss="log-variance"),
        "deep": replace(widened, loss="log-variance", depth=2),
        "cosine-log-variance": replace(base, steps=(COSINE,), loss="log-variance"),
        "siamese-log-variance": replace(base, steps=(SIAMESE,), loss="log-variance"),
        "narrow-log-variance": replace(base, steps=(AUTOENCODER,), loss="log-variance"),
    }


def follow(
    encoder: Encoder, data: PairSplits, raw: Sequence[str], base: FrozenSettings, records: Records, work: Path
) -> None:
    """Run the missing steps, and draw figures 1 and 2."""
    for step, settings in path_of(encoder.width, base).items():
        record = f"{encoder.name}_{step}"
        if record in records:
            continue
        report = finetune_frozen(encoder, data, out=work / encoder.name, settings=settings, raw=raw)
        # The worst errors name sentences, which stay with their data.
        records.add(record, replace(report, worst=()).to_dict())
        print(f"done: {record}, {report.seconds:.0f} s", flush=True)
        figures = records.path.parent / "figures"
        plots = {plot.file: plot for plot in view_of(report).plots}
        if step == "cosine":
            write_plots([plots["correlation"]], figures / f"{encoder.name}-path-correlation.png")
        if step == "narrow" and "reconstruction-own-units" in plots:
            own = figures / f"{encoder.name}-path-reconstruction.png"
            write_plots([plots["reconstruction-own-units"]], own)


def print_errors(encoder: Encoder, data: PairSplits, raw: Sequence[str], base: FrozenSettings, work: Path) -> None:
    """Print people's, the report's and our score of each pair that the report names."""
    settings = replace(path_of(encoder.width, base)["log-variance"], seeds=base.seeds[:1])
    finetune_frozen(encoder, data, out=work / f"{encoder.name}-errors", settings=settings, raw=raw)
    trained, test = load_encoder(work / f"{encoder.name}-errors" / "frozen"), data.test
    if test is None:
        raise SystemExit("These data have no test pairs.")
    first, second = (trained.vectors([getattr(pair, side) for pair in test]) for side in ("first", "second"))
    ours = (100 * trained.similarities(first, second)).tolist()
    low, high = test.scale
    people = [100 * (pair.target - low) / (high - low) for pair in test]
    places = [(line, line - 2) for line in NAMED if line - 2 < len(test)]
    rows = [[str(line), f"{people[at]:.0f}", f"{NAMED[line]:.2f}", f"{ours[at]:.2f}"] for line, at in places]
    print_table(["line of the test file", "people", "gpt2-medium, published", encoder.name], rows)
    residuals = [own - given for own, given in zip(ours, people, strict=True)]
    print(
        f"{encoder.name}: mean residual {fmean(residuals):+.2f}, deviation {stdev(residuals):.2f}, of 100", flush=True
    )


def row(step: dict[str, str], reports: dict[str, FrozenReport]) -> list[str]:
    """Return a published step, then each model's Pearson / Spearman and trained weights."""
    said = step["what"].partition(": ")[2]  # where the report has words and no figures
    cells = [WORDS[step["step"]], f"{step['pearson']} / {step['spearman']}" if step["pearson"] else said]
    for report in reports.values():
        group, trials = list(report.groups.items())[-1]
        both = [report.score(*group, measure) for measure in ("test_pearson", "test")]
        trained = trials[0].parameters
        cells += [" / ".join(points(*found) for found in both), f"{trained:,}"]
    return cells


def _table(records: Records) -> tuple[list[str], list[list[str]]]:
    steps = published("freeze")
    found: dict[str, dict[str, FrozenReport]] = {step["step"]: {} for step in steps}
    for name, content in records.items():
        model, _, step = name.rpartition("_")
        found[step][model] = FrozenReport.from_dict(content)
    whole = [model for model in found["cosine"] if all(model in reports for reports in found.values())]
    columns = ["step", "gpt2-medium, published"]
    for model in whole:
        columns += [model, "trained"]
    return columns, [row(step, {model: found[step["step"]][model] for model in whole}) for step in steps]


def main(arguments: Sequence[str] | None = None) -> None:
    """Follow the path on each model, then print it."""
    options = PARSER.parse_args(arguments)
    home = Path(tempfile.mkdtemp()) if options.check else HERE
    records = Records(home / REPORTS.name)
    models: list[tuple[str, Any]] = [named_model(model) for model in options.model]
    if options.random_gpt2:
        models.append(("random-gpt2", random_gpt2(home / "work" / "random-gpt2-model")))
    data, raw = first_pairs(complete_splits(load_pairs(options.data)), options.pairs), read_texts(options.texts)
    base = FrozenSettings(
        seeds=tuple(range(options.seeds)),
        epochs=options.epochs,
        raw_sentences=options.sentences,
        pretraining_epochs=options.pretraining_epochs,
    )
    for name, folder in models:
        encoder = load_encoder(folder, pooling="last", max_length=options.max_length)
        encoder.name = name
        if options.errors:
            print_errors(encoder, data, raw, base, home / "work")
        else:
            follow(encoder, data, raw, base, records, home / "work")
    if not options.errors:
        print_table(*_table(records))


PARSER = new_parser(__doc__)
PARSER.add_argument("--data", required=True)
PARSER.add_argument("--texts", required=True, help="raw sentences, a line each; the paper takes 20,000 of GenericsKB")
PARSER.add_argument("--model", action="append", default=[], help="NAME=FOLDER, a bundled miniature, or a hub name")
PARSER.add_argument("--random-gpt2", action="store_true")
PARSER.add_argument("--seeds", type=int, default=3)
PARSER.add_argument("--epochs", type=int, default=20)
PARSER.add_argument("--pretraining-epochs", type=int, default=10)
PARSER.add_argument("--sentences", type=int, default=20_000)
PARSER.add_argument("--max-length", type=int, default=64)
PARSER.add_argument("--pairs", type=int, help="the first pairs of each split only: for a first look")
PARSER.add_argument("--errors", action="store_true", help="the pairs that the report names, instead of the path")
PARSER.add_argument("--check", action="store_true", help="results in a temporary folder")


if __name__ == "__main__":
    main()
