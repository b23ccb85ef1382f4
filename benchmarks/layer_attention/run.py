"""Pooling × objective, at the last layer and truncated: the shape of Tables 1 to 3 of layer-wise attention pooling.

    python benchmarks/layer_attention/run.py --data shared/data --model NAME=FOLDER [--model …] [--layers 3]

Each run goes to reports/ beside this script and is not done again; the table of all runs is printed as Markdown.
`--check` does one small run of everything, for a look at whether it works.
"""

import argparse
import dataclasses
import platform
import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch
import transformers
from rows import training_rows

from truncate_kit.contrastive import OBJECTIVES, POOLINGS, ContrastiveResult, ContrastiveSettings, finetune_contrastive
from truncate_kit.contrastive.card import pooling_words
from truncate_kit.data import PairSplits, TripletSet, find_sts, load_pairs, raw_texts, read_seen, read_texts
from truncate_kit.encoders import Encoder, load_encoder
from truncate_kit.export import OnnxEncoder, export_onnx
from truncate_kit.results import Result
from truncate_kit.suites import StsReport, score_sts

REPORTS = Path(__file__).parent / "reports"
RAW_TEXTS = 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell(Result):
    """One run and its scores on the similarity sets, also without the pairs it may have seen."""

    machine: str
    run: ContrastiveResult
    sts: StsReport


def variants(told: argparse.Namespace) -> list[ContrastiveSettings]:
    """Every pooling with every objective; and for layer attention what it is made of, and its removal."""
    base = ContrastiveSettings(
        seeds=tuple(range(told.seeds)),
        epochs=told.epochs,
        batch_size=told.batch_size,
        learning_rate=told.learning_rate,
        judge_every=told.judge_every,
        chunk=told.chunk_size,
        precision=told.precision,
    )
    made = [
        dataclasses.replace(base, objective=objective, pooling=pooling)  # type: ignore[arg-type]  # checked there
        for objective in told.objectives
        for pooling in told.poolings
    ]
    if "layer-attention" in told.poolings and not told.no_parts:
        parts = ({"over": "cls"}, {"over": "mean"}, {"last_cls": False}, {"literal": True}, {"keep_pooler": False})
        made += [dataclasses.replace(base, objective=told.objectives[0], **part) for part in parts]
        made.append(dataclasses.replace(base, objective=told.objectives[0], pooling="cls", keep_pooler=False))
    return made


def label(settings: ContrastiveSettings) -> str:
    """A file name for a variant."""
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


def main() -> None:
    """Run what is missing, then print one row for every report there is."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--model", action="append", default=[], help="NAME=FOLDER, a bundled miniature, or a hub name")
    parser.add_argument("--layers", default="", help="also cut at these layers, such as 3 or 2,4")
    parser.add_argument("--objectives", type=lambda text: text.split(","), default=list(OBJECTIVES))
    parser.add_argument("--poolings", type=lambda text: text.split(","), default=list(POOLINGS))
    parser.add_argument("--no-parts", action="store_true", help="leave out what layer attention is made of")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--learning-rate", type=float)
    parser.add_argument("--judge-every", type=int, default=50)
    parser.add_argument("--chunk-size", type=int)
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32", help="of training")
    parser.add_argument("--raw-texts", type=int, default=RAW_TEXTS, help="captions for the objective dropout")
    parser.add_argument("--check", action="store_true", help="few rows, results in a temporary folder")
    told = parser.parse_args()
    reports = Path(tempfile.mkdtemp()) if told.check else REPORTS
    data = load_pairs(told.data / "stsb/en")
    rows = training_rows(told.data)
    held_out = {text for _, pairs in data.items() for text in pairs.texts()}
    captions = read_texts(told.data / "captions/sentences.en.txt.gz")
    unseen = [text for text in captions if text not in held_out]
    texts = raw_texts("captions", unseen[:: max(1, len(unseen) // told.raw_texts)][: told.raw_texts])
    if told.check:
        rows, texts = dataclasses.replace(rows, rows=rows.rows[:128]), dataclasses.replace(texts, rows=texts.rows[:128])
    for model in told.model:
        name, _, folder = model.rpartition("=")
        encoder = load_encoder(folder)
        encoder.name = name or Path(folder).name
        for layer in (None, *(int(part) for part in told.layers.split(",") if part)):
            for settings in variants(told):
                chosen = dataclasses.replace(settings, layer=layer)
                path = reports / f"{encoder.name}_{label(chosen)}.json"
                if not path.exists():
                    learned = texts if chosen.objective == "dropout" else rows
                    measure(encoder, chosen, learned, data, told.data).write(path)
                    print(f"done: {path.name}", flush=True)
    cells = [Cell.read(path) for path in sorted(reports.glob("*.json"))]
    names = [row.name for row in cells[0].sts.sets] if cells else []
    columns = ["model", "layer", "objective", "pooling", "STSB dev", *(f"{name} unseen" for name in names), "mean"]
    print("| " + " | ".join(columns) + " |")
    print("|" + "---|" * len(columns))
    for cell in cells:
        run = cell.run
        scores = [
            f"{score.unseen_spearman:.2f}" if score.unseen_spearman is not None else "–" for score in cell.sts.sets
        ]
        mean = "–" if cell.sts.mean_unseen is None else f"{cell.sts.mean_unseen:.2f}"
        what = f"{run.settings.objective} | {pooling_words(run.settings)} | {run.dev:.2f}"
        print(f"| {run.model} | {run.layer} of {run.depth} | {what} | " + " | ".join([*scores, mean]) + " |")


if __name__ == "__main__":
    main()
