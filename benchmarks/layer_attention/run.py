"""Table 2 of layer-wise attention pooling: nine poolings trained alike with hard negatives (equation 8), several seeds.

    python -m benchmarks.layer_attention.run --data FOLDER_OF_SETS --model mini-bert=mini-bert --precision bf16
    python -m benchmarks.layer_attention.run --data FOLDER_OF_SETS --model all-MiniLM-L6-v2=FOLDER --epochs 3

A run of one pooling and one seed is a line of reports.jsonl beside this script as soon as it is done, and not done
again; first all poolings with one seed, then with the next. It is known by the model's name: other epochs, rates,
batches or precisions want a name of their own, as in `--model "mini-bert, twelve epochs=mini-bert" --epochs 12`, and
are refused under one that is there with others. The table of all runs is printed as Markdown, the published column
beside it. `--check` does one small run of everything, for a look at whether it works. `--objective` trains by another
equation: in-batch on the same rows, dropout and diffcse on captions. `--sets` also scores each trained model on the
similarity sets that the folder holds, and prints Table 1 with them.
"""

import argparse
import dataclasses
import gzip
import platform
import tempfile
from collections.abc import Sequence
from itertools import islice, product
from pathlib import Path
from statistics import fmean, stdev

import numpy as np
import torch
import transformers
from scipy import sparse

from benchmarks.common import named_model, names, new_parser, print_table
from benchmarks.records import Records, published
from truncate_kit.core.results import Result
from truncate_kit.data.pairs import PairSet, PairSplits, load_pairs
from truncate_kit.data.suites import find_sts
from truncate_kit.data.triplets import TripletSet, load_triplets, raw_texts
from truncate_kit.evaluation.graded import evaluate, score_sts
from truncate_kit.methods.contrast.run import finetune_contrastive
from truncate_kit.methods.contrast.settings import ContrastiveResult, ContrastiveSettings
from truncate_kit.models.encoder import Encoder
from truncate_kit.models.loading import load_encoder
from truncate_kit.report.view import points
from truncate_kit.training.settings import OBJECTIVES, TABLE_2, objective_names

REPORTS = Path(__file__).parent / "reports.jsonl"
OBJECTIVE = "hard-negatives"
PARTS = {
    "layer-attention, equations as printed": ("layer-attention", {"literal": True}),
    "layer-attention, removed after training": ("layer-attention", {"keep_pooler": False}),
    "layer-attention, no MLP": ("layer-attention", {"mlp": False}),
    "cls, MLP removed after training": ("cls", {"keep_pooler": False}),
    "cls, no MLP": ("cls", {"mlp": False}),
    "mean, no MLP": ("mean", {"mlp": False}),
}
"""Beyond Table 2: the row of it that is changed, and the settings that change it."""
RESOLVED = ("epochs", "batch_size", "learning_rate")
"""Settings that may be None; the result has what came of it."""
SETS = ("STS12", "STS13", "STS14", "STS15", "STS16", "STS-B", "SICK-R")
"""Those of Table 1, as it calls them."""


class SetScore(Result):
    """Spearman × 100 on one similarity set."""

    name: str
    spearman: float


class Cell(Result):
    """One run of one row, mostly of one seed.

    losses: mean loss of the steps between two looks at dev, nats. sets: scores of the saved model, where asked for.
    """

    row: str
    machine: str
    run: ContrastiveResult
    losses: tuple[float, ...]
    sets: tuple[SetScore, ...] = ()


def settings_of(row: str, base: ContrastiveSettings) -> ContrastiveSettings:
    """Return the settings of a row of Table 2 or of `PARTS`."""
    name, changes = PARTS.get(row, (row, {}))
    return dataclasses.replace(base, **TABLE_2[name] | changes)


def measure(
    encoder: Encoder,
    row: str,
    settings: ContrastiveSettings,
    rows: TripletSet,
    data: PairSplits,
    sets: Sequence[PairSet] = (),
) -> Cell:
    """Train one seed and keep its scores, its losses, and what the model has on these sets."""
    losses: list[float] = []
    with tempfile.TemporaryDirectory() as out:
        run = finetune_contrastive(
            encoder,
            rows,
            data,
            out=Path(out),
            settings=settings,
            stage_done=lambda stage, loss, dev: losses.append(loss),
        )
        rows = score_sts(load_encoder(Path(out) / "lean"), sets, model=encoder.name).rows if sets else ()
        found = tuple(SetScore(name=row.task, spearman=row.values["Spearman"] or 0.0) for row in rows)
    machine = f"{platform.machine()}, {torch.get_num_threads()} threads, torch {torch.__version__}, "
    machine += f"transformers {transformers.__version__}"
    return Cell(row=row, machine=machine, run=run, losses=tuple(losses), sets=found)


def span(values: Sequence[float]) -> str:
    """Mean and deviation over seeds, with their number."""
    return f"{points(fmean(values), stdev(values) if len(values) > 1 else None)} ({len(values)})"


def print_report(cells: Sequence[Cell], objective: str) -> None:
    """Return a row for each pooling, with test, dev and losses of each model."""
    cells = [cell for cell in cells if cell.run.settings.objective == objective]
    models = list(dict.fromkeys(cell.run.model for cell in cells))
    table_2 = objective == OBJECTIVE
    paper = {row["name"]: row["value"] for row in published("layer_attention") if table_2 and row["table"] == "2"}
    head = ["pooling", "the paper, BERT-base"]
    for model in models:
        head += [f"{model}: test", "dev", "loss, first → last but one → last look", "looks kept"]
    lines = []
    for row in [*TABLE_2, *PARTS]:
        line = [row, paper.get(row, "–")]
        for model in models:
            found = [cell for cell in cells if (cell.row, cell.run.model) == (row, model)]
            if not found:
                line += ["–"] * 4
                continue
            trials = [trial for cell in found for trial in cell.run.trials]
            tests = [trial.test for trial in trials if trial.test is not None]
            marks = [fmean(cell.losses[place] for cell in found) for place in (0, -2, -1) if len(found[0].losses) > 1]
            line += [span(tests), span([trial.dev for trial in trials]), " → ".join(f"{mark:.3f}" for mark in marks)]
            line.append(", ".join(str(trial.best_epoch) for trial in trials))
        lines.append(line)
    print_table(head, lines)


def print_sets(cells: Sequence[Cell], objective: str) -> None:
    """Print Table 1: the published rows of the objective, then ours."""
    rows = [row for row in published("layer_attention") if (row["table"], row["objective"]) == ("1", objective)]
    lines = []
    for model, pooling in dict.fromkeys((row["model"], row["pooling"]) for row in rows):
        own = [row for row in rows if (row["model"], row["pooling"]) == (model, pooling)]
        values = {row["metric"].removesuffix(" Spearman × 100"): row["value"] for row in own}
        lines.append([f"{model}, published", pooling, *(values[name] for name in (*SETS, "mean of seven sets"))])
    scored = [cell for cell in cells if cell.sets and cell.run.settings.objective == objective]
    for model, name in dict.fromkeys((cell.run.model, cell.row) for cell in scored):
        seeds = [cell.sets for cell in scored if (cell.run.model, cell.row) == (model, name)]
        line = [model, name]
        for one in SETS:
            found = [score.spearman for sets in seeds for score in sets if score.name == one.replace("STS-B", "STSB")]
            line.append(span(found) if found else "–")
        lines.append([*line, span([fmean(score.spearman for score in sets) for sets in seeds])])
    if scored:
        print_table(["model", "pooling", *SETS, "mean"], lines)


PARSER = new_parser(__doc__)
PARSER.add_argument("--data", type=Path, required=True)
PARSER.add_argument(
    "--model",
    action="append",
    default=[],
    help="NAME=FOLDER, a bundled miniature, or a hub name; other settings want a name of their own",
)
PARSER.add_argument("--rows", type=names, default=list(TABLE_2), help="some of Table 2, by name")
PARSER.add_argument("--objective", choices=objective_names("contrast"), default=OBJECTIVE)
PARSER.add_argument("--dropout", type=float, help="share of the units that training drops")
PARSER.add_argument("--captions", type=int, default=10_000, help="texts that dropout and diffcse learn from")
PARSER.add_argument("--parts", action="store_true", help="also the rows beyond Table 2, after those")
PARSER.add_argument("--sets", action="store_true", help="also score the similarity sets of --data, for Table 1")
PARSER.add_argument("--seeds", type=int, default=3)
PARSER.add_argument("--epochs", type=int, default=6)
PARSER.add_argument("--batch-size", type=int, default=64)
PARSER.add_argument("--learning-rate", type=float)
PARSER.add_argument("--evaluate-every", type=int, default=43, help="steps; 43 of 64 rows are an epoch")
PARSER.add_argument("--precision", choices=("fp32", "bf16"), default="fp32", help="of training")
PARSER.add_argument("--check", action="store_true", help="few rows, results in a temporary folder")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run what is missing, then print the table of all there is."""
    options = PARSER.parse_args(arguments)
    records = Records(Path(tempfile.mkdtemp()) / "reports.jsonl" if options.check else REPORTS)
    data, rows = load_pairs(options.data / "stsb/en"), learned_from(options)
    if options.check:
        rows = dataclasses.replace(rows, rows=rows.rows[:128])
    check_kept(options, records, rows)
    for seed in range(options.seeds):
        for model in options.model:
            run_model(model, seed, options, records, rows, data)
    cells = [Cell.from_dict(cell) for cell in records.values()]
    print_report(cells, options.objective)
    print_sets(cells, options.objective)


def learned_from(options: argparse.Namespace) -> TripletSet:
    """Return the rows of Table 2, or the first captions, by the objective."""
    if OBJECTIVES[options.objective].data != "texts":
        return training_rows(options.data)
    with gzip.open(options.data / "captions" / "sentences.en.txt.gz", "rt", encoding="utf-8") as file:
        return raw_texts("captions", [line.rstrip("\n") for line in islice(file, options.captions)])


def base_settings(options: argparse.Namespace, seed: int) -> ContrastiveSettings:
    """Return the settings that all rows share."""
    return ContrastiveSettings(
        objective=options.objective,
        dropout=options.dropout,
        seeds=(seed,),
        epochs=options.epochs,
        batch_size=options.batch_size,
        learning_rate=options.learning_rate,
        evaluate_every=options.evaluate_every,
        precision=options.precision,
    )


def asked_rows(options: argparse.Namespace) -> list[str]:
    """Return the requested rows by name."""
    return [*options.rows, *(PARTS if options.parts else ())]


def record_name(model: str, row: str, seed: int, objective: str) -> str:
    """Name the record of a run."""
    return f"{model if objective == OBJECTIVE else f'{model}_{objective}'}_{row}_seed{seed}"


def check_kept(options: argparse.Namespace, records: Records, rows: TripletSet) -> None:
    """Exit where a run that was asked for is kept with other settings, or learned from another number of rows."""
    for name, _ in map(named_model, options.model):
        for row, seed in product(asked_rows(options), range(options.seeds)):
            record = record_name(name, row, seed, options.objective)
            if record not in records:
                continue
            kept, asked = Cell.from_dict(records[record]).run, settings_of(row, base_settings(options, seed))
            found = differences(kept, asked)
            if kept.num_rows != len(rows.rows):
                found.append(f"{kept.num_rows:,} rows, not {len(rows.rows):,}")
            if found:
                raise SystemExit(f"{record} is kept with {', '.join(found)}: give this run a name of its own.")


def differences(kept: ContrastiveResult, asked: ContrastiveSettings) -> list[str]:
    """Describe the settings in which a kept run differs."""
    found = []
    for field in dataclasses.fields(asked):
        wanted, had = getattr(asked, field.name), getattr(kept.settings, field.name)
        if had is None and wanted is not None and field.name in RESOLVED:
            had = getattr(kept, field.name)
        if had != wanted:
            words = ["the default" if value is None else str(value) for value in (had, wanted)]
            found.append(f"{field.name} {words[0]}, not {words[1]}")
    return found


def run_model(
    model: str, seed: int, options: argparse.Namespace, records: Records, rows: TripletSet, data: PairSplits
) -> None:
    """Run the missing rows of one model with one seed."""
    name, folder = named_model(model)
    encoder = load_encoder(folder)
    encoder.name = name
    assert data.test is not None
    if seed == 0:
        plain = load_encoder(folder, pooling="mean")
        print(f"{name} as it came, mean of the last layer: {evaluate(plain, data.test.pairs).spearman:.2f}", flush=True)
    base = base_settings(options, seed)
    sets = find_sts(options.data) if options.sets else ()
    for row in asked_rows(options):
        record = record_name(name, row, seed, options.objective)
        if record not in records or (sets and not records[record].get("sets")):  # kept without its model
            records.add(record, measure(encoder, row, settings_of(row, base), rows, data, sets).to_dict())
            print(f"done: {record}", flush=True)


ALIKE = 4.0  # STS Benchmark scores from here on mean the same but for unimportant details
_CHUNK = 512


def training_rows(data: Path) -> TripletSet:
    """Return entailments of SICK and similar pairs of STS Benchmark, each with a negative.

    A negative is SICK's contradiction where there is one, else the training sentence with the most words in common
    (weighted by rarity) that is not paired with the anchor in either set.
    """
    graded = load_pairs(data / "stsb/en").train
    sick = load_triplets(data / "sick")
    known: dict[str, set[str]] = {}
    for first, second in [*((p.first, p.second) for p in graded), *(row[:2] for row in sick.rows)]:
        known.setdefault(first, set()).add(second)
        known.setdefault(second, set()).add(first)
    rows = [*sick.rows, *((pair.first, pair.second) for pair in graded if pair.target >= ALIKE)]
    rows = [row for row in rows if row[0] != row[1]]
    texts = list(dict.fromkeys([*graded.texts(), *(text for row in sick.rows for text in row[:2])]))
    mined = _mined([row[0] for row in rows], texts, known)
    full = tuple(row if len(row) == 3 else (*row, negative) for row, negative in zip(rows, mined, strict=True))
    return TripletSet(name="sick + stsb", rows=full, note=f"Training: SICK and STSB positives ({len(full):,} rows).")


def _mined(anchors: Sequence[str], texts: Sequence[str], known: dict[str, set[str]]) -> list[str]:
    """Find the most similar text by shared words for each anchor, partners left out."""
    vocabulary: dict[str, int] = {}
    table = _words(texts, vocabulary)
    rarity = np.log(len(texts) / np.maximum(1, np.asarray((table > 0).sum(axis=0)).ravel()))
    table = sparse.csr_matrix(table.multiply(rarity))
    lengths = np.sqrt(np.asarray(table.multiply(table).sum(axis=1)).ravel()) + 1e-9
    asked = _words(anchors, vocabulary)
    found = []
    for start in range(0, len(anchors), _CHUNK):
        scores = (asked[start : start + _CHUNK] @ table.T).toarray() / lengths
        for place, row in enumerate(scores, start):
            own = {anchors[place], *known.get(anchors[place], ())}
            found.append(next(texts[index] for index in np.argsort(-row) if texts[index] not in own))
    return found


def _words(texts: Sequence[str], vocabulary: dict[str, int]) -> sparse.csr_matrix:
    """Mark words of texts, (texts, words); the first call fills the vocabulary."""
    grow = not vocabulary
    rows, columns = [], []
    for row, text in enumerate(texts):
        for word in set(text.lower().split()):
            place = vocabulary.setdefault(word, len(vocabulary)) if grow else vocabulary.get(word)
            if place is not None:
                rows.append(row)
                columns.append(place)
    return sparse.csr_matrix((np.ones(len(rows)), (rows, columns)), shape=(len(texts), len(vocabulary)))


if __name__ == "__main__":
    main()
