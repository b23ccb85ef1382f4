"""One table for every way to get a sentence encoder out of the same pretrained model, each scored as its ONNX graph.

    python -m benchmarks.comparison.run --data FOLDER_OF_SETS --base mini-electra-discriminator --base mini-bert

Every row is made with the commands a user would type and scored through ONNX Runtime on the suites for similarity,
transfer and retrieval. Models go to work/, each finished row to reports.jsonl, and is not made again while it is
there. Speeds are measured at the end, all models in turn. `--check` does one small run of everything.
"""

import argparse
import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median

import torch

from benchmarks.common import machine, new_parser, print_table
from benchmarks.comparison.methods import Made, Maker, off_the_shelf, prepare
from benchmarks.records import Records
from truncate_kit.bench.timing import interleaved
from truncate_kit.data import find_sts, find_transfer, load_pairs, read_retrieval
from truncate_kit.evaluation.classifiers import score_transfer
from truncate_kit.evaluation.graded import StsReport, TextEncoder, score_sts
from truncate_kit.evaluation.retrieval import RetrievalReport, score_retrieval
from truncate_kit.evaluation.transfer import TransferReport, TransferSettings
from truncate_kit.export.exporting import export_onnx
from truncate_kit.export.runtime import OnnxEncoder
from truncate_kit.files import write_json
from truncate_kit.hardware import OtherWork
from truncate_kit.models import load_encoder
from truncate_kit.results import Result
from truncate_kit.seen import read_seen

HERE = Path(__file__).parent
ROUNDS = 5
TRANSFER = TransferSettings(splits=3, max_rows=2000)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row(Result):
    """One model. base: empty for one that was taken as it is. layers: which of the base's it reads.

    folder: beside this script. parameters: None for static vectors. size: bytes of the graph or the vectors. seconds:
    training, without any search; None for a model that was not trained here.
    """

    base: str
    method: str
    folder: str
    static: bool
    layers: str
    parameters: int | None
    size: int
    seconds: float | None
    sts: StsReport
    transfer: TransferReport
    retrieval: RetrievalReport

    @property
    def name(self) -> str:
        """Unique among the rows."""
        return f"{self.base} {self.method}".strip()


class Static:
    """A static model of model2vec: the mean of vectors that each token has once and for all."""

    def __init__(self, folder: Path) -> None:
        from model2vec import StaticModel

        self.model = StaticModel.from_pretrained(str(folder))

    def encode(self, texts: Sequence[str]) -> torch.Tensor:
        """Vectors (n, d)."""
        return torch.from_numpy(self.model.encode(list(texts)))


def score(
    encoder: TextEncoder, name: str, data: Path, *, small: bool
) -> tuple[StsReport, TransferReport, RetrievalReport]:
    """The three suites; similarity also without the pairs that any of the methods has trained on."""
    seen = read_seen(data / "stsb/en") | read_seen(data / "sick")
    settings = replace(TRANSFER, max_rows=600) if small else TRANSFER
    return (
        score_sts(encoder, find_sts(data), model=name, runtime="onnx", seen=seen, seen_name="stsb, sick"),
        score_transfer(encoder, find_transfer(data), model=name, runtime="onnx", settings=settings),
        score_retrieval(encoder, read_retrieval(data / "mrpc/test.csv"), model=name, runtime="onnx"),
    )


def measure(base: str, method: str, made: Made, options: argparse.Namespace, home: Path) -> Row:
    """Export a model and score the graph; a static model is scored as it is."""
    if made.static:
        model: TextEncoder = Static(made.folder)
        layers, parameters, size = "–", None, (made.folder / "model.safetensors").stat().st_size
    else:
        encoder = load_encoder(made.folder)
        export_onnx(encoder, made.folder)
        model = graph = OnnxEncoder.load(made.folder)
        chosen = encoder.combination or (encoder.depth,)
        layers, parameters = ", ".join(map(str, chosen)), encoder.num_parameters
        size = graph.file.stat().st_size
    sts, transfer, retrieval = score(model, method, options.data, small=options.check)
    return Row(
        base=base,
        method=method,
        folder=str(made.folder.relative_to(home)),
        static=made.static,
        layers=layers,
        parameters=parameters,
        size=size,
        seconds=made.seconds,
        sts=sts,
        transfer=transfer,
        retrieval=retrieval,
    )


def speeds(rows: Sequence[Row], home: Path, texts: list[str]) -> dict[str, float]:
    """Sentences a second of every model, all in turn in each round; medians."""
    models = {
        row.name: Static(home / row.folder) if row.static else OnnxEncoder.load(home / row.folder) for row in rows
    }
    seconds = interleaved({name: partial(model.encode, texts) for name, model in models.items()}, rounds=ROUNDS)
    return {name: len(texts) / median(taken) for name, taken in seconds.items()}


def show(rows: Sequence[Row], speed: dict[str, float]) -> None:
    """The table as Markdown."""
    names = [one.name for one in rows[0].sts.sets]
    heads = ["model", "layers", "parameters", "MB", *names, "STS mean", "unseen", "transfer", "MRR@10", "sentences/s"]
    lines = []
    for row in rows:
        cells = [f"{row.base}: {row.method}" if row.base else row.method, row.layers]
        cells += [f"{row.parameters:,}" if row.parameters else "–", f"{row.size / 1e6:.1f}"]
        cells += [f"{one.spearman:.2f}" for one in row.sts.sets]
        cells += [f"{row.sts.mean_spearman:.2f}", f"{row.sts.mean_unseen:.2f}", f"{row.transfer.mean_as_is:.2f}"]
        cells += [f"{row.retrieval.exact_mrr:.2f}", f"{speed[row.name]:,.0f}" if row.name in speed else "–"]
        cells.append("–" if row.seconds is None else f"{row.seconds:.0f} s")
        lines.append(cells)
    print_table([*heads, "training"], lines)


PARSER = new_parser(__doc__)
PARSER.add_argument("--data", type=Path, required=True, help="folder with stsb, sick, sts12 …, transfer, mrpc")
PARSER.add_argument("--base", action="append", default=[], help="a bundled miniature, folder or hub name")
PARSER.add_argument("--minilm", type=Path, help="folder of all-MiniLM-L6-v2")
PARSER.add_argument("--epochs", type=int, default=5)
PARSER.add_argument("--seeds", type=int, default=1)
PARSER.add_argument("--only-speed", action="store_true", help="measure the speeds of what is there again")
PARSER.add_argument("--check", action="store_true", help="a few rows of everything, into a temporary folder")


def main(arguments: Sequence[str] | None = None) -> None:
    """Make what is missing, measure the speeds, print the table."""
    options = PARSER.parse_args(arguments)
    home = Path(tempfile.mkdtemp()) if options.check else HERE
    inputs, records = home / "work" / "inputs", Records(home / "reports.jsonl")
    if not options.only_speed:
        prepare(options.data, inputs, small=options.check)
        makers = {}
        for base in options.base:
            name = Path(base).name
            makers[name] = Maker(base, home / "work" / name, inputs, options.epochs, options.seeds).methods()
        if options.minilm:
            makers[""] = off_the_shelf(options.minilm, home / "work" / "minilm")
        for base, methods in makers.items():
            for place, (method, make) in enumerate(methods.items()):
                name = f"{base or 'off-the-shelf'}-{place}"
                if name not in records:
                    records.add(name, measure(base, method, make(), options, home).to_dict())
                    print(f"done: {name}, {method}", flush=True)
    rows = [Row.from_dict(row) for row in records.values()]
    file = home / "speed.json"
    speed = json.loads(file.read_text())["speed"] if file.exists() and not options.only_speed else {}
    if speed.keys() != {row.name for row in rows}:
        work = OtherWork()
        speed = speeds(rows, home, load_pairs(options.data / "stsb/en").split("test").texts())
        write_json(file, {"speed": speed, "machine": machine(others_busy=work.share())})
    show(rows, speed)


if __name__ == "__main__":
    main()
