"""Pooling × objective, at the last layer and truncated: the shape of Tables 1 to 3 of layer-wise attention pooling.

    python -m benchmarks.layer_attention.run --data FOLDER_OF_SETS --model NAME=FOLDER [--model …] [--layers 3]

Each run goes to reports.jsonl beside this script and is not done again; the table of all runs is printed as Markdown.
`--check` does one small run of everything, for a look at whether it works.
"""

import argparse
import dataclasses
import platform
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import transformers

from benchmarks.common import named_model, names, new_parser, numbers, print_table
from benchmarks.layer_attention.rows import training_rows
from benchmarks.records import Records
from truncate_kit.contrastive.card import pooling_words
from truncate_kit.contrastive.poolings import POOLINGS
from truncate_kit.contrastive.results import ContrastiveResult
from truncate_kit.contrastive.running import finetune_contrastive
from truncate_kit.contrastive.settings import ContrastiveSettings
from truncate_kit.data import PairSplits, TripletSet, find_sts, load_pairs, raw_texts, read_seen, read_texts
from truncate_kit.encoders import Encoder, load_encoder
from truncate_kit.export.exporting import export_onnx
from truncate_kit.export.runtime import OnnxEncoder
from truncate_kit.results import Result
from truncate_kit.suites.reports import StsReport
from truncate_kit.suites.sts import score_sts
from truncate_kit.training.objectives import objective_names

REPORTS = Path(__file__).parent / "reports.jsonl"
RAW_TEXTS = 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell(Result):
    """One run and its scores on the similarity sets, also without the pairs it may have seen."""

    machine: str
    run: ContrastiveResult
    sts: StsReport


def variants(options: argparse.Namespace) -> list[ContrastiveSettings]:
    """Every pooling with every objective; and for layer attention what it is made of, and its removal."""
    base = ContrastiveSettings(
        seeds=tuple(range(options.seeds)),
        epochs=options.epochs,
        batch_size=options.batch_size,
        learning_rate=options.learning_rate,
        evaluate_every=options.evaluate_every,
        chunk=options.chunk_size,
        precision=options.precision,
    )
    made = [
        dataclasses.replace(base, objective=objective, pooling=pooling)  # type: ignore[arg-type]  # checked there
        for objective in options.objectives
        for pooling in options.poolings
    ]
    if "layer-attention" in options.poolings and not options.no_parts:
        parts = ({"over": "cls"}, {"over": "mean"}, {"last_cls": False}, {"literal": True}, {"keep_pooler": False})
        made += [dataclasses.replace(base, objective=options.objectives[0], **part) for part in parts]
        made.append(dataclasses.replace(base, objective=options.objectives[0], pooling="cls", keep_pooler=False))
    return made


def label(settings: ContrastiveSettings) -> str:
    """A name for a variant."""
    parts = [settings.objective, settings.pooling, "all" if settings.layer is None else f"layer{settings.layer}"]
    parts += [f"over-{settings.over}"] if settings.over != "both" else []
    flags = (
        ("no-last-cls", not settings.last_cls),
        ("literal", settings.literal),
        ("removed", not settings.keep_pooler),
    )
    return "_".join([*parts, *(name for name, on in flags if on)])


def measure(encoder: Encoder, settings: ContrastiveSettings, rows: TripletSet, data: PairSplits, folder: Path) -> Cell:
    """Train, then score the saved model's graph on the sets of the data folder."""
    seen = read_seen(folder / "stsb/en") | read_seen(folder / "sick")
    with tempfile.TemporaryDirectory() as out:
        run = finetune_contrastive(encoder, rows, data, out=Path(out), settings=settings)
        lean = Path(out) / "lean"
        export_onnx(load_encoder(lean), lean)
        graph = OnnxEncoder.load(lean, threads=torch.get_num_threads())
        sets = find_sts(folder)
        sts = score_sts(graph, sets, model=encoder.name, seen=seen, seen_name="stsb and sick, train and dev")
    machine = f"{platform.machine()}, {torch.get_num_threads()} threads, torch {torch.__version__}, "
    return Cell(machine=f"{machine}transformers {transformers.__version__}", run=run, sts=sts)


def row(cell: Cell) -> list[str]:
    """One line of the table."""
    run = cell.run
    scores = [*(score.unseen_spearman for score in cell.sts.sets), cell.sts.mean_unseen]
    what = [run.model, f"{run.layer} of {run.depth}", run.settings.objective, pooling_words(run.settings)]
    return [*what, f"{run.dev:.2f}", *("–" if score is None else f"{score:.2f}" for score in scores)]


PARSER = new_parser(__doc__)
PARSER.add_argument("--data", type=Path, required=True)
PARSER.add_argument("--model", action="append", default=[], help="NAME=FOLDER, a bundled miniature, or a hub name")
PARSER.add_argument("--layers", type=numbers, default=(), help="also cut at these layers, such as 3 or 2,4")
PARSER.add_argument("--objectives", type=names, default=list(objective_names("contrast")))
PARSER.add_argument("--poolings", type=names, default=list(POOLINGS))
PARSER.add_argument("--no-parts", action="store_true", help="leave out what layer attention is made of")
PARSER.add_argument("--seeds", type=int, default=1)
PARSER.add_argument("--epochs", type=int)
PARSER.add_argument("--batch-size", type=int, default=64)
PARSER.add_argument("--learning-rate", type=float)
PARSER.add_argument("--evaluate-every", type=int, default=50)
PARSER.add_argument("--chunk-size", type=int)
PARSER.add_argument("--precision", choices=("fp32", "bf16"), default="fp32", help="of training")
PARSER.add_argument("--raw-texts", type=int, default=RAW_TEXTS, help="captions for the objective dropout")
PARSER.add_argument("--check", action="store_true", help="few rows, results in a temporary folder")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run what is missing, then print one row for every report there is."""
    options = PARSER.parse_args(arguments)
    records = Records(Path(tempfile.mkdtemp()) / "reports.jsonl" if options.check else REPORTS)
    data = load_pairs(options.data / "stsb/en")
    rows = training_rows(options.data)
    held_out = {text for _, pairs in data.items() for text in pairs.texts()}
    captions = read_texts(options.data / "captions/sentences.en.txt.gz")
    unseen = [text for text in captions if text not in held_out]
    texts = raw_texts("captions", unseen[:: max(1, len(unseen) // options.raw_texts)][: options.raw_texts])
    if options.check:
        rows, texts = dataclasses.replace(rows, rows=rows.rows[:128]), dataclasses.replace(texts, rows=texts.rows[:128])
    for model in options.model:
        name, folder = named_model(model)
        encoder = load_encoder(folder)
        encoder.name = name
        for layer in (None, *options.layers):
            for settings in variants(options):
                chosen = dataclasses.replace(settings, layer=layer)
                record = f"{name}_{label(chosen)}"
                if record not in records:
                    learned = texts if chosen.objective == "dropout" else rows
                    records.add(record, measure(encoder, chosen, learned, data, options.data).to_dict())
                    print(f"done: {record}", flush=True)
    cells = [Cell.from_dict(cell) for cell in records.values()]
    sets = [f"{row.name} unseen" for row in cells[0].sts.sets] if cells else []
    print_table(["model", "layer", "objective", "pooling", "STSB dev", *sets, "mean"], [row(cell) for cell in cells])


if __name__ == "__main__":
    main()
