"""Table 3 of layer-wise attention pooling: search by the top CLS state, trained with and without attention over layers.

    python -m benchmarks.layer_attention.retrieval --data FOLDER_OF_SETS --retrieval FOLDER --model mini-bert=mini-bert

Both models are trained with hard negatives as those of `run.py`, and lose pooler and MLP afterwards: they are the same
ordinary CLS models but for their weights. FAISS searches on the CPU, at most 1,024 lists. --retrieval is a folder in
BEIR's layout or a file of duplicates such as Quora's, and may be given several times. A model and seed is a line of
retrieval.jsonl beside this script; trained models go to work/.
"""

import dataclasses
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from benchmarks.common import named_model, new_parser, print_table
from benchmarks.layer_attention.run import OBJECTIVE, settings_of, span, training_rows
from benchmarks.records import Records, published
from truncate_kit.core.results import Result
from truncate_kit.data.pairs import load_pairs
from truncate_kit.data.retrieval import RetrievalSet, read_retrieval
from truncate_kit.evaluation.retrieval import score_retrieval
from truncate_kit.methods.contrast.run import finetune_contrastive
from truncate_kit.methods.contrast.settings import ContrastiveSettings
from truncate_kit.models.encoder import Encoder
from truncate_kit.models.loading import load_encoder

HERE = Path(__file__).parent
REPORTS = HERE / "retrieval.jsonl"
REMOVED = {"cls": "cls, MLP removed after training", "layer-attention": "layer-attention, removed after training"}
"""The rows of Table 3 by the published names, and as `run.py` calls them."""


class Searched(Result):
    """One collection, searched with the index."""

    data: str
    mrr: float  # × 100, of ten texts
    search_seconds: float  # of a query
    index_bytes: int


class Found(Result):
    """What one trained model finds in each collection."""

    model: str
    row: str
    seed: int
    reports: tuple[Searched, ...]


def search(lean: Encoder, collection: RetrievalSet) -> Searched:
    """Search a collection through the index."""
    row = score_retrieval(lean, collection, model="lean").rows[0]
    mrr, milliseconds, megabytes = (value or 0.0 for value in row.values.values())
    return Searched(data=row.task, mrr=mrr, search_seconds=milliseconds / 1e3, index_bytes=round(megabytes * 1e6))


def print_found(found: Sequence[Found]) -> None:
    """List the published rows, then ours by model, collection and way of training."""
    lines = []
    for model in dict.fromkeys(row["model"] for row in published("layer_attention") if row["table"] == "3"):
        for name in REMOVED:
            rows = [row for row in published("layer_attention") if (row["table"], row["model"]) == ("3", model)]
            lines.append([f"{model}, published", "Quora", name, *(row["value"] for row in rows if row["name"] == name)])
    for model, data in dict.fromkeys((one.model, report.data) for one in found for report in one.reports):
        for name in REMOVED:
            reports = [
                report for one in found if (one.model, one.row) == (model, name) for report in one.reports
                if report.data == data
            ]  # fmt: skip
            if reports:
                milliseconds = 1e3 * fmean(report.search_seconds for report in reports)
                gigabytes = fmean(report.index_bytes for report in reports) / 1e9
                lines.append(
                    [
                        model,
                        data,
                        name,
                        span([report.mrr for report in reports]),
                        f"{milliseconds:.2f}",
                        f"{gigabytes:.4f}",
                    ]
                )
    print_table(["model", "collection", "trained with", "MRR@10 × 100", "ms a search", "GB of the index"], lines)


PARSER = new_parser(__doc__)
PARSER.add_argument("--data", type=Path, required=True)
PARSER.add_argument("--retrieval", type=Path, action="append", required=True)
PARSER.add_argument("--model", action="append", default=[], help="NAME=FOLDER, a bundled miniature, or a hub name")
PARSER.add_argument("--seeds", type=int, default=3)
PARSER.add_argument("--epochs", type=int, default=6)
PARSER.add_argument("--batch-size", type=int, default=64)
PARSER.add_argument("--learning-rate", type=float)
PARSER.add_argument("--check", action="store_true", help="few rows, results in a temporary folder")


def main(arguments: Sequence[str] | None = None) -> None:
    """Train and search what is missing, then print the table of all there is."""
    options = PARSER.parse_args(arguments)
    home = Path(tempfile.mkdtemp()) if options.check else HERE
    records = Records(home / REPORTS.name)
    data, rows = load_pairs(options.data / "stsb/en"), training_rows(options.data)
    if options.check:
        rows = dataclasses.replace(rows, rows=rows.rows[:128])
    collections = [read_retrieval(folder) for folder in options.retrieval]
    for seed in range(options.seeds):
        for name, folder in map(named_model, options.model):
            for row, part in REMOVED.items():
                record = f"{name}_{row}_seed{seed}"
                if record in records:
                    continue
                encoder = load_encoder(folder)
                encoder.name = name
                settings = ContrastiveSettings(
                    objective=OBJECTIVE,
                    seeds=(seed,),
                    epochs=options.epochs,
                    batch_size=options.batch_size,
                    learning_rate=options.learning_rate,
                    evaluate_every=None,
                )
                out = home / "work" / record
                finetune_contrastive(encoder, rows, data, out=out, settings=settings_of(part, settings))
                lean = load_encoder(out / "lean")
                reports = tuple(search(lean, collection) for collection in collections)
                records.add(record, Found(model=name, row=row, seed=seed, reports=reports).to_dict())
                print(f"done: {record}", flush=True)
    print_found([Found.from_dict(content) for content in records.values()])


if __name__ == "__main__":
    main()
