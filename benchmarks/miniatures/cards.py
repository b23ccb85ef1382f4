"""Write the model cards of the bundled miniatures, after `evidence.py` and the studies.

    python -m benchmarks.miniatures.cards

Figures come from the tables beside this file (`random.csv` holds those of the study `random.toml`, whose tasks are
named after their rates; the decoder's are those of `benchmarks.frozen.path`), the sources of the text and their terms
from LICENSE-WEIGHTS.md.
"""

import json
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.common import new_parser, read_rows
from benchmarks.frozen.path import path_table
from benchmarks.miniatures.bundle import BUNDLED, CARD, MINIATURES
from truncate_kit.files import replacing

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
ABOUT = {
    "bert": "A BERT, pretrained to fill in masked words.",
    "electra-generator": "The generator of an ELECTRA pair, pretrained to fill in masked words. It shares its "
    "embeddings with the discriminator.",
    "electra-discriminator": "The discriminator of an ELECTRA pair, pretrained to tell which words its generator has "
    "replaced. As in models of its kind, its last layers make worse sentence embeddings than the ones before.",
    "gpt2": "A decoder of GPT-2's shape, pretrained to continue text. It is there for heads over frozen states "
    "(`truncate-kit freeze`).",
}

REFERENCE = "bert"  # the miniature that CKA compares the others with


def rows_of(path: Path, model: str) -> list[dict[str, str]]:
    """The rows of one model in a table."""
    return [row for row in read_rows(path) if row["model"] == model]


def layer_table(tables: Path, model: str) -> list[str]:
    """What the scores are, the scores and CKA of every layer, and what random weights get, as lines of Markdown."""
    moments = rows_of(tables / "snapshots.csv", model)
    last = max(int(row["step"]) for row in moments)
    finished = [row for row in moments if int(row["step"]) == last]
    scores = rows_of(tables / "scores.csv", f"mini-{model}")
    random = rows_of(tables / "random.csv", f"mini-{model}, random weights")
    columns = {
        "layer": [row["layer"] for row in finished],
        "untrained, test": [row["untrained_test"] for row in finished],
        "one short run, dev": [row["all_layers_dev"] for row in finished],
        "TMFT, dev": [with_deviation(row, "dev") for row in scores],
        "TMFT, test": [with_deviation(row, "test") for row in scores],
    }
    about = (
        "STS Benchmark, English, Spearman × 100. Untrained: the mean of a layer's states as they are. One short run: "
        "one epoch over 1,280 pairs that trains all layers at once. TMFT: fine-tuned at that layer, 10 epochs, peak "
        f"rate {peak_rate():g}, mean ± standard deviation over {scores[0]['seeds']} seeds."
    )
    if model != REFERENCE:
        compared = rows_of(tables / "cka.csv", f"mini-{model}")
        columns["CKA, untrained"] = [row["untrained"] for row in compared]
        columns["CKA after TMFT"] = [row["own_trained"] for row in compared]
        about += f" CKA: debiased, linear, to the same layer of mini-{REFERENCE}."
    rows = [columns, ["---"] * len(columns), *zip(*columns.values(), strict=True)]
    lines = [about, "", *(f"| {' | '.join(row)} |" for row in rows)]
    if random:
        best = max(random, key=lambda row: float(row["dev"]))
        lines += [
            "",
            f"Random weights of this shape get {with_deviation(best, 'test')} on test at layer {best['layer']} with a "
            f"peak rate of {best['task']}, their best on dev.",
        ]
    return lines


def frozen_lines(model: str) -> list[str]:
    """The steps of FREEZE's path on a model, as lines of Markdown."""
    columns, rows = path_table([f"mini-{model}"])
    about = (
        "Heads over the frozen states of its blocks, STS Benchmark, English, test: Pearson / Spearman × 100, mean ± "
        "standard deviation over three seeds, and the number of weights that are trained. Beside it the published "
        "figures of gpt2-medium (FREEZE)."
    )
    return [about, "", *(f"| {' | '.join(cells)} |" for cells in (columns, ["---"] * len(columns), *rows))]


def peak_rate() -> float:
    """At which the study of the pretrained models fine-tunes."""
    with (HERE / "study.toml").open("rb") as file:
        rate: float = tomllib.load(file)["training"]["learning_rate"]
    return rate


def with_deviation(row: dict[str, str], split: str) -> str:
    """A score with its standard deviation over the seeds."""
    return f"{row[split]} ± {row[f'{split}_std']}"


def losses(tables: Path, run: str) -> str:
    """What pretraining ended with, in words."""
    last = read_rows(tables / f"{run}-losses.csv")[-1]
    found = f"{last['words']} nats for {'the next word piece' if run == 'gpt2' else 'a masked word'}"
    if "replaced" in last:
        found += (
            f"; {last['replaced']} nats a token for replaced words, where naming their share costs "
            f"{last['base_rate']}; {100 * float(last['found']):.0f} % of the replaced words are found"
        )
    return found


def schedules(runs: Sequence[dict[str, Any]]) -> str:
    """The runs one after another, in words: steps, peak rate, and the detection loss's weight where there is one."""
    return ", then ".join(
        f"{run['steps']:,} steps with a peak rate of {run['training']['learning_rate']:g}"
        + (f" and a detection weight of {run['detection_weight']:g}" if run["detection_weight"] is not None else "")
        for run in runs
    )


def sources() -> list[str]:
    """The table of the text's sources and their terms."""
    lines = (ROOT / "LICENSE-WEIGHTS.md").read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line.startswith("|")]


def card(model: str, name: str, tables: Path) -> str:
    """The model card of a miniature. name: of its run."""
    runs: list[dict[str, Any]] = json.loads((tables / f"{name}.json").read_text())["runs"]
    shape, training = runs[0]["shape"], runs[0]["training"]
    width = shape["generator_width"] if model == "electra-generator" else shape["width"]
    heads = shape["generator_heads"] if model == "electra-generator" else shape["heads"]
    start = runs[0]["start"]
    begun = f" The run began with the weights of the snapshot `{start}` (model and steps)." if start else ""
    return "\n".join(
        [
            "---",
            "language: en",
            "library_name: transformers",
            "license: other",
            "license_name: research-evaluation-demonstration",
            "license_link: LICENSE-WEIGHTS.md",
            "---",
            "",
            f"# mini-{model}",
            "",
            f"{ABOUT[model]} {shape['depth']} blocks × {width}, {heads} heads, lower-cased WordPiece vocabulary of "
            "8,192, at most 128 tokens, weights in float16.",
            "",
            "It comes with truncate-kit so that every command works without a download, and shows in small what the "
            "package is about. It is no model to serve: any pretrained encoder of ordinary size is far better.",
            "",
            "## Pretraining",
            "",
            f"`benchmarks/miniatures/pretrain.py` with seed {runs[0]['seed']}: {schedules(runs)}, with "
            f"{training['batch_size']} texts a step; {sum(run['tokens'] for run in runs) / 1e6:.0f} million tokens in "
            f"all, AdamW, {training['precision']}, {sum(run['seconds'] for run in runs) / 3600:.1f} hours.{begun}",
            "",
            f"Held-out text at the end: {losses(tables, name)}.",
            "",
            f"SHA-256 of the text's lines: `{runs[0]['text']}`.",
            "",
            "## Scores of frozen states" if model == "gpt2" else "## Scores by layer",
            "",
            *(frozen_lines(model) if model == "gpt2" else layer_table(tables, model)),
            "",
            "## Licence",
            "",
            "For research, evaluation and demonstration only, not commercially: the terms of the text it was "
            "pretrained on.",
            "",
            *sources(),
            "",
        ]
    )


PARSER = new_parser(__doc__)
PARSER.add_argument("--tables", type=Path, default=HERE, help="the folder that evidence.py and the study wrote to")
PARSER.add_argument("--out", type=Path, default=MINIATURES)


def main(arguments: Sequence[str] | None = None) -> None:
    """Write a card into the folder of each."""
    options = PARSER.parse_args(arguments)
    for name, models in BUNDLED.items():
        for model in models if (options.tables / f"{name}.json").exists() else ():
            with replacing(options.out / f"mini-{model}" / CARD) as target:
                target.write_text(card(model, name, options.tables), encoding="utf-8")


if __name__ == "__main__":
    main()
